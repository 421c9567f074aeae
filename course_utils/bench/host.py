"""What `bench host` measures: how long the host takes for a call, until all is queued for the GPU, beside torch's own
attention.

For short sequences it is all that counts. The tokens are few, so that the GPU is done before the host has made the
next call, or soon after; see `timing.compare_host`. Of each group one row is torch's `scaled_dot_product_attention`,
which takes part in its turns.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_utils import timing
from course_utils.bench import flex
from course_utils.bench.flex import FLEX_128
from course_utils.bench.timed import (
    KERNELS,
    MAX_HALF_ERROR,
    Function,
    backward_pass,
    build_kernel,
    random_inputs,
    require_close,
)
from course_utils.measured import Row
from course_utils.operators import (
    flash_attention_minimal,
    flash_attention_v2,
    lightning_indexer,
    mla_attention,
    naive_attention,
    select_topk,
    sparse_attention,
    sparse_mla,
)
from course_utils.operators.sparse import choose_kernel
from course_utils.patterns import Pattern, bigbird, block_diagonal, document, sliding_window

SDPA, LAUNCH = "torch SDPA", "a launch"
FORWARD, RECORDED, BACKWARD = "forward", "forward, gradients to come", "backward"
SHAPE = 1, 8, 1024, 128
ROUNDS, CALLS = 21, 20
MLA_DIM, LATENT_DIM = 576, 512  # of DeepSeek-V3.2
LIST = 64  # keys of each query of sparse_mla

Attention = Callable[..., Tensor]


def host_times(
    *,
    device: str = "cuda",
    shape: tuple[int, int, int, int] = SHAPE,
    rounds: int = ROUNDS,
    calls: int = CALLS,
    patterns: Sequence[Pattern] | None = None,
) -> list[Row]:
    """Every row. patterns: of the group "sparse", None for `sparse_patterns`.

    `host_us`: microseconds of a call, the median of `rounds` bursts of `calls`, with their interquartile range as
    `spread_us`; `times_sdpa`: how many times as long as SDPA's call of the same group and pass.
    """
    timed = functools.partial(_rows, rounds=rounds, calls=calls)
    chosen = sparse_patterns(shape[2]) if patterns is None else patterns
    groups = launches, dense, functools.partial(sparse, patterns=chosen), deepseek
    return [row for group in groups for row in group(timed, device, shape)]


Timed = Callable[[Row, dict[str, Function]], list[Row]]


def _rows(columns: Row, functions: dict[str, Function], *, rounds: int, calls: int) -> list[Row]:
    times = timing.compare_host(functions, rounds=rounds, calls=calls)
    return [
        {**columns, "name": name, "host_us": 1e3 * time.median, "spread_us": 1e3 * time.spread}
        | {"times_sdpa": time.median / times[SDPA].median if SDPA in times else None}
        for name, time in times.items()
    ]


def _function(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, *, pass_name: str
) -> Function:
    if pass_name == BACKWARD:
        return backward_pass(attention, query, key, value, grad_output)
    inputs = [tensor.detach().requires_grad_(pass_name == RECORDED) for tensor in (query, key, value)]
    return lambda: attention(*inputs)


# ---------------------------------------------------------------------------------------------- the groups


def launches(timed: Timed, device: str, shape: tuple[int, ...]) -> list[Row]:
    """A launch with ten arguments by `course_utils.cuda`; on a GPU also by CuPy alone, which checks nothing and is told
    the addresses."""
    arguments = *(torch.ones(8, device=device) for _ in range(5)), *map(np.int32, range(4)), np.float32(1)
    kernel = build_kernel(KERNELS / "ten_arguments.cu", "ten_arguments")
    grid, block = (1, 1, 1), (32, 1, 1)
    functions: dict[str, Function] = {LAUNCH: lambda: kernel(grid, block, arguments)}
    if torch.device(device).type == "cuda":
        import cupy

        alone = cupy.RawModule(code=str(kernel.module.code), options=("--std=c++17",)).get_function(kernel.name)
        addresses = tuple(np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments)
        functions["a launch, CuPy alone"] = lambda: alone(grid, block, addresses)
    return timed({"part": "launch", "pass": FORWARD}, functions)


def dense(timed: Timed, device: str, shape: tuple[int, ...]) -> list[Row]:
    """The dense operators; those in fp32 beside SDPA in fp16, too."""
    half = random_inputs(shape, device, count=4)
    single = tuple(tensor.float() for tensor in half)
    ways: dict[str, tuple[Attention, tuple[Tensor, ...]]] = {
        SDPA: (scaled_dot_product_attention, half),
        "flash_attention_v2": (flash_attention_v2, half),
        "flash_attention_minimal": (flash_attention_minimal, single),
    }
    rows: list[Row] = []
    for pass_name in (FORWARD, RECORDED, BACKWARD):
        functions = {
            name: _function(attention, *inputs, pass_name=pass_name) for name, (attention, inputs) in ways.items()
        }
        if pass_name == FORWARD:
            functions["naive_attention"] = functools.partial(naive_attention, *single[:3])
            right = functions[SDPA]()
            for name, function in functions.items():
                require_close(name, function(), right, at_most=MAX_HALF_ERROR[right.dtype])
        rows += timed({"part": "dense", "pass": pass_name}, functions)
    return rows


def sparse(timed: Timed, device: str, shape: tuple[int, ...], patterns: Sequence[Pattern]) -> list[Row]:
    """sparse_attention with a pattern whose lists are made, once for each kernel, beside FlexAttention, compiled."""
    *inputs, grad_output = random_inputs(shape, device, count=4)
    length = shape[2]
    rows: list[Row] = []
    for pattern in patterns:
        flexible = flex.attentions(pattern, length, length, [FLEX_128], device)
        ours = functools.partial(sparse_attention, pattern=pattern)
        for pass_name in (FORWARD, RECORDED, BACKWARD):

            def make(attention: Attention, pass_name: str = pass_name) -> Function:
                return _function(attention, *inputs, grad_output, pass_name=pass_name)

            functions = {flex.OURS: make(ours)} | flex.those_that_run(flexible, make, pattern.name)
            if pass_name != RECORDED:
                flex.require_alike(functions, pattern, inputs, backward=pass_name == BACKWARD)
            functions[SDPA] = make(scaled_dot_product_attention)
            kernel = choose_kernel(pattern, length, differentiable=pass_name != FORWARD, device=device).kernel
            rows += timed({"part": "sparse", "pattern": pattern.name, "kernel": kernel, "pass": pass_name}, functions)
    return rows


def sparse_patterns(length: int) -> list[Pattern]:
    """Patterns for the kernels: rows that are ranges by arithmetic and by a table, dense blocks, lists of blocks."""
    documents = document([length // 4, length - length // 4])
    return [sliding_window(length // 4), documents, block_diagonal(length // 4), bigbird()]


def deepseek(timed: Timed, device: str, shape: tuple[int, ...]) -> list[Row]:
    """The operators of DeepSeek Sparse Attention in bf16, as many queries as keys; SDPA as in the other groups."""
    _, heads, tokens, _ = shape
    plain = random_inputs(shape, device, count=4)
    bf16 = {"device": device, "dtype": torch.bfloat16}
    query, latent = torch.randn(tokens, heads, MLA_DIM, **bf16), torch.randn(tokens, MLA_DIM, **bf16)
    q_index, k_index = torch.randn(tokens, heads, 128, **bf16), torch.randn(tokens, 128, **bf16)
    weights, logits = torch.rand(tokens, heads, device=device), torch.randn(tokens, tokens, device=device)
    lists = torch.arange(min(LIST, tokens), device=device, dtype=torch.int32).expand(tokens, -1).contiguous()
    of_mla = {"scale": MLA_DIM**-0.5, "value_dim": LATENT_DIM}
    to_lists = functools.partial(sparse_mla, query, latent, lists, **of_mla)
    functions: dict[str, Function] = {
        SDPA: _function(scaled_dot_product_attention, *plain, pass_name=FORWARD),
        "lightning_indexer": functools.partial(lightning_indexer, q_index, k_index, weights),
        "select_topk": functools.partial(select_topk, logits, min(LIST, tokens)),
        "mla_attention": functools.partial(mla_attention, query, latent, **of_mla),
        "sparse_mla": to_lists,
    }
    rows = timed({"part": "deepseek", "pass": FORWARD}, functions)
    leaves = [tensor.requires_grad_() for tensor in (query, latent)]
    rows += timed(
        {"part": "deepseek", "pass": RECORDED},
        {SDPA: _function(scaled_dot_product_attention, *plain, pass_name=RECORDED), "sparse_mla": to_lists},
    )
    out, _ = to_lists()
    grad_output = torch.randn_like(out)
    functions = {
        SDPA: _function(scaled_dot_product_attention, *plain, pass_name=BACKWARD),
        "sparse_mla": lambda: torch.autograd.grad(out, leaves, grad_output, retain_graph=True),
    }
    return rows + timed({"part": "deepseek", "pass": BACKWARD}, functions)
