"""What `bench host` measures: the host's time for a call, until all is queued for the GPU, beside torch's own
attention.

For short sequences only this time counts. The tokens are few, so that the GPU is done before the host has made the next
call, or soon after; see `timing.compare_host`. One row of each group is torch's `scaled_dot_product_attention`, timed
in turns with the others.

A processor that others use, too, can be slower by half for seconds. So all groups are timed several times, and of each
group the run counts in which torch's own call was fastest.
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
from course_utils.bench.serving import STEP_PAGE_SIZE, in_pages
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
    append_paged,
    choose_kernel,
    decode_attention,
    decode_step,
    flash_attention_minimal,
    flash_attention_v2,
    lightning_indexer,
    merge_attention,
    mla_attention,
    naive_attention,
    paged_attention,
    select_topk,
    serving_choice,
    sparse_attention,
    sparse_mla,
)
from course_utils.patterns import Pattern, bigbird, block_diagonal, document, sliding_window

SDPA, LAUNCH = "torch SDPA", "a launch"
FORWARD, RECORDED, BACKWARD = "forward", "forward, gradients to come", "backward"
SHAPE = 1, 8, 1024, 128
TIMES, ROUNDS, CALLS = 5, 21, 20
MLA_DIM, LATENT_DIM = 576, 512  # of DeepSeek-V3.2
LIST = 64  # keys of each query of sparse_mla

Attention = Callable[..., Tensor]
Group = tuple[Row, dict[str, Function]]  # the columns that its rows share, and the functions that are timed in turns


def host_times(
    *,
    device: str = "cuda",
    shape: tuple[int, int, int, int] = SHAPE,
    times: int = TIMES,
    rounds: int = ROUNDS,
    calls: int = CALLS,
    patterns: Sequence[Pattern] | None = None,
) -> list[Row]:
    """Every row. patterns: of the group "sparse", None for `sparse_patterns`.

    `host_us`: microseconds of a call, the median of `rounds` bursts of `calls`, with their interquartile range as
    `spread_us`; `times_sdpa`: how many times as long as SDPA's call of the same group and pass. Of `times` such
    measurements of a group it is the one in which SDPA, or what comes first where that has no part, took least.
    """
    chosen = sparse_patterns(shape[2]) if patterns is None else patterns
    groups = [
        *launches(device),
        *dense(device, shape),
        *sparse(device, shape, chosen),
        *deepseek(device, shape),
        *one_query(device, shape),
    ]
    measured: list[list[dict[str, timing.Timing]]] = [[] for _ in groups]
    for _ in range(times):
        for found, (_, functions) in zip(measured, groups, strict=True):
            found.append(timing.compare_host(functions, rounds=rounds, calls=calls))
    return [row for (columns, _), found in zip(groups, measured, strict=True) for row in _rows(columns, found)]


def _rows(columns: Row, measured: list[dict[str, timing.Timing]]) -> list[Row]:
    beside = SDPA if SDPA in measured[0] else next(iter(measured[0]))
    least = min(measured, key=lambda times: times[beside].median)
    return [
        {**columns, "name": name, "host_us": 1e3 * time.median, "spread_us": 1e3 * time.spread}
        | {"times_sdpa": time.median / least[SDPA].median if beside == SDPA else None}
        for name, time in least.items()
    ]


def _function(
    attention: Attention, query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor, *, pass_name: str
) -> Function:
    if pass_name == BACKWARD:
        return backward_pass(attention, query, key, value, grad_output)
    inputs = [tensor.detach().requires_grad_(pass_name == RECORDED) for tensor in (query, key, value)]
    return lambda: attention(*inputs)


# ---------------------------------------------------------------------------------------------- the groups


def launches(device: str) -> list[Group]:
    """A launch with ten arguments by `course_utils.cuda`; on a GPU also by CuPy alone, which gets addresses and checks
    nothing."""
    arguments = *(torch.ones(8, device=device) for _ in range(5)), *map(np.int32, range(4)), np.float32(1)
    kernel = build_kernel(KERNELS / "ten_arguments.cu", "ten_arguments")
    grid, block = (1, 1, 1), (32, 1, 1)
    functions: dict[str, Function] = {LAUNCH: lambda: kernel(grid, block, arguments)}
    if torch.device(device).type == "cuda":
        import cupy

        alone = cupy.RawModule(code=str(kernel.module.code), options=("--std=c++17",)).get_function(kernel.name)
        addresses = tuple(np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments)
        functions["a launch, CuPy alone"] = lambda: alone(grid, block, addresses)
    return [({"part": "launch", "pass": FORWARD}, functions)]


def dense(device: str, shape: tuple[int, ...]) -> list[Group]:
    """The dense operators; the fp32 ones beside SDPA in fp16, too."""
    half = random_inputs(shape, device, count=4)
    single = tuple(tensor.float() for tensor in half)
    ways: dict[str, tuple[Attention, tuple[Tensor, ...]]] = {
        SDPA: (scaled_dot_product_attention, half),
        "flash_attention_v2": (flash_attention_v2, half),
        "flash_attention_minimal": (flash_attention_minimal, single),
    }
    groups: list[Group] = []
    for pass_name in (FORWARD, RECORDED, BACKWARD):
        functions = {
            name: _function(attention, *inputs, pass_name=pass_name) for name, (attention, inputs) in ways.items()
        }
        if pass_name == FORWARD:
            functions["naive_attention"] = functools.partial(naive_attention, *single[:3])
            right = functions[SDPA]()
            for name, function in functions.items():
                require_close(name, function(), right, at_most=MAX_HALF_ERROR[right.dtype])
        groups.append(({"part": "dense", "pass": pass_name}, functions))
    return groups


def sparse(device: str, shape: tuple[int, ...], patterns: Sequence[Pattern]) -> list[Group]:
    """sparse_attention with a pattern whose lists exist already, once for each kernel, beside compiled
    FlexAttention."""
    *inputs, grad_output = random_inputs(shape, device, count=4)
    length = shape[2]
    groups: list[Group] = []
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
            columns = {"part": "sparse", "pattern": pattern.name, "kernel": kernel, "pass": pass_name}
            groups.append((columns, functions))
    return groups


def sparse_patterns(length: int) -> list[Pattern]:
    """Patterns for the kernels: rows that are ranges by arithmetic and by a table, dense blocks, lists of blocks."""
    documents = document([length // 4, length - length // 4])
    return [sliding_window(length // 4), documents, block_diagonal(length // 4), bigbird()]


def deepseek(device: str, shape: tuple[int, ...]) -> list[Group]:
    """The operators of DeepSeek Sparse Attention in bf16, as many queries as keys; SDPA as in the other groups."""
    _, heads, tokens, _ = shape
    plain = random_inputs(shape, device, count=4)
    bf16 = {"device": device, "dtype": torch.bfloat16}
    query, latent = torch.randn(tokens, heads, MLA_DIM, **bf16), torch.randn(tokens, MLA_DIM, **bf16)
    q_index, k_index = torch.randn(tokens, heads, 128, **bf16), torch.randn(tokens, 128, **bf16)
    weights, logits = torch.rand(tokens, heads, device=device), torch.randn(tokens, tokens, device=device)
    lists = torch.arange(min(LIST, tokens), device=device, dtype=torch.int32).expand(tokens, -1).contiguous()
    of_mla = {"scale": MLA_DIM**-0.5, "value_dim": LATENT_DIM}
    functions: dict[str, Function] = {
        SDPA: _function(scaled_dot_product_attention, *plain, pass_name=FORWARD),
        "lightning_indexer": functools.partial(lightning_indexer, q_index, k_index, weights),
        "select_topk": functools.partial(select_topk, logits, min(LIST, tokens)),
        "mla_attention": functools.partial(mla_attention, query, latent, **of_mla),
        "sparse_mla": functools.partial(sparse_mla, query, latent, lists, **of_mla),
    }
    with_gradients = [tensor.detach().requires_grad_() for tensor in (query, latent)]
    recorded: dict[str, Function] = {
        SDPA: _function(scaled_dot_product_attention, *plain, pass_name=RECORDED),
        "sparse_mla": functools.partial(sparse_mla, *with_gradients, lists, **of_mla),
    }
    out, _ = recorded["sparse_mla"]()
    grad_output = torch.randn_like(out)
    backward: dict[str, Function] = {
        SDPA: _function(scaled_dot_product_attention, *plain, pass_name=BACKWARD),
        "sparse_mla": lambda: torch.autograd.grad(out, with_gradients, grad_output, retain_graph=True),
    }
    passes = (FORWARD, functions), (RECORDED, recorded), (BACKWARD, backward)
    return [({"part": "deepseek", "pass": name}, of_pass) for name, of_pass in passes]


def one_query(device: str, shape: tuple[int, ...]) -> list[Group]:
    """The operators of a serving step, one query of each head; SDPA of the same query, by torch's own choice of kernel.
    The appended token is the last of the cache; decode_step appends and attends, for one layer."""
    batch, heads, length, head_dim = shape
    _, key, value = random_inputs(shape, device)
    query = torch.randn(batch, heads, 1, head_dim, device=device, dtype=key.dtype)
    pages, table = in_pages((key, value), STEP_PAGE_SIZE)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
    last = [tensor[:, :, -1:].transpose(1, 2).contiguous() for tensor in (key, value)]
    layer = [tensor[None] for tensor in (query, *last, *pages)]
    workspace = torch.zeros(serving_choice.step_workspace(batch, heads), dtype=torch.int32, device=device)
    found = decode_attention(query, key, value, return_lse=True)
    outs, lses = (torch.stack((part, part)) for part in found)
    functions: dict[str, Function] = {
        SDPA: functools.partial(scaled_dot_product_attention, query, key, value),
        "decode_attention": functools.partial(decode_attention, query, key, value),
        "paged_attention": functools.partial(paged_attention, query, *pages, table, lengths),
        "decode_step": functools.partial(decode_step, *layer, table, lengths, workspace=workspace),
        "merge_attention": lambda: merge_attention(outs, lses)[0],
        "append_paged": functools.partial(append_paged, *last, *pages, table, lengths),
    }
    right = functions[SDPA]()
    for name, function in functions.items():
        if name != "append_paged":  # which gives nothing; decode_step does the same
            require_close(name, function().view_as(right), right, at_most=MAX_HALF_ERROR[right.dtype])
    return [({"part": "serving", "pass": FORWARD}, functions)]
