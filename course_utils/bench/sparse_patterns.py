"""What `bench 04_sparse_patterns` and `bench PATTERN` measure: every figure of chapter 04, one function for each part.

Each row has its `part`. Times are of the GPU alone (`head_start_us` of `timing.compare`); `call_ms`, where calls are
short, is that of the whole call. FlexAttention is compiled for each shape and size of block, and has the blocks that it
finds itself. A kernel is timed once its output is right: some rows of it by fp32 torch, and all of it beside
FlexAttention. What this machine cannot run is printed and left out. Conventions as in `bench_gpu`.

TFLOP/s are useful ones: 4 · d for each pair that a pattern keeps, whatever a kernel computes besides.
"""

from __future__ import annotations

import functools
import itertools
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch._functorch.config
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention
from tqdm import tqdm

from course_utils import costs, patterns, timing
from course_utils.bench.gpu import Function, backward_pass, require_close, sdpa
from course_utils.cuda import RawModule, read_kernel
from course_utils.measured import Row
from course_utils.operators import flash_v2, sparse
from course_utils.operators.prepare import fitting
from course_utils.operators.sparse import sparse_attention
from course_utils.patterns import BlockLists, Pattern, Ranges
from course_utils.patterns.pattern import range_pattern

OURS, FLASH, SDPA_MASK, TORCH_SPARSE = "sparse_attention", "dense FLASH", "SDPA, dense mask", "torch.sparse, fp32"
FLEX_128, FLEX_64, FLEX_TUNED = "FlexAttention 128", "FlexAttention 64", "FlexAttention 64, 4 warps"
_TILE_OF_64 = {"fwd_BLOCK_M": 64, "fwd_BLOCK_N": 64}  # its own tile is larger than such a block, and fails
FLEX: dict[str, tuple[int, dict[str, int] | None]] = {  # size of block, kernel_options
    FLEX_128: (128, None),
    FLEX_64: (64, _TILE_OF_64),
    FLEX_TUNED: (64, {**_TILE_OF_64, "fwd_num_warps": 4}),
}
DENSE = {FLASH: SDPBackend.FLASH_ATTENTION, "dense cuDNN": SDPBackend.CUDNN_ATTENTION}
HEADS, HEAD_DIM = 16, 128
LENGTHS = tuple(2**n for n in range(10, 18))  # 1 K to 128 K
RUNS = 3  # of the comparison with FlexAttention
BUDGET_MS = 25.0  # for each function in each run
HEAD_START_US = 300.0  # longer than the host takes to launch any of these
FEW = {"warmup": 1, "repeats": 5}  # for what takes up to 0.2 s
# Between two right kernels: of outputs, and of gradients beside the largest.
MAX_ERROR = {torch.float16: 2e-2, torch.bfloat16: 8e-2}
MOST_PAIRS = 2**28  # L_q · L_k up to which FlexAttention finds its own blocks: it looks at every pair

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


def sparse_chapter() -> list[Row]:
    """Every figure of chapter 04."""
    compile_all()
    parts = (peers, skip, small, scaling, break_even, tree, lists, backward, csr)
    rows: list[Row] = []
    for part in tqdm(parts, desc="parts"):
        start = time.perf_counter()
        rows += part()
        tqdm.write(f"{part.__name__}: {time.perf_counter() - start:.0f} s")
        torch.cuda.empty_cache()
    return rows


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches, several kernels at a time: one alone takes NVRTC seconds."""
    where = torch.device(device)
    modules = [*sparse.modules(torch.float16, where), *flash_v2.modules(torch.float16, where)]  # for delta and dQ
    modules.append(_every_tile_module(fitting(sparse.RANGE_TILES[HEAD_DIM], where)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda module: module.compile(device), modules))


# ---------------------------------------------------------------------------------------------- beside FlexAttention


def peer_patterns() -> list[Pattern]:
    """The patterns that are timed beside FlexAttention; new ones at each call, since a pattern keeps its lists."""
    return [
        patterns.sliding_window(4096),
        patterns.streaming(4, 1024),
        patterns.block_diagonal(256),
        patterns.dilated(512, 8),
        patterns.bigbird(64),
    ]


def peers(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = (16384, 131072)) -> list[Row]:
    """Forward pass beside FlexAttention and beside dense attention."""
    return [
        {"part": "peers"} | row
        for length in lengths
        for pattern in peer_patterns()
        for row in race(pattern, (1, heads, length, HEAD_DIM), device=device)
    ]


def backward(*, device: str = "cuda", heads: int = HEADS, length: int = 16384) -> list[Row]:
    """Backward pass alone beside FlexAttention's, which has no tile for blocks of 64, and dense attention's."""
    return [
        {"part": "backward"} | row
        for pattern in (patterns.sliding_window(4096), patterns.bigbird(64))
        for row in race(pattern, (1, heads, length, HEAD_DIM), device=device, backward=True, flex=(FLEX_128,))
    ]


def race(
    pattern: Pattern,
    shape: tuple[int, int, int, int],
    *,
    device: str = "cuda",
    dtype: torch.dtype = torch.float16,
    backward: bool = False,
    flex: Sequence[str] = tuple(FLEX),
) -> list[Row]:
    """Rows of one pattern and shape (B, H, L, d): ours, FlexAttention, and causal dense attention, few times.

    `ratio_to_flex`: how many times as fast as FlexAttention with the better size of block, the median of three
    interleaved runs with the extremes beside it; `ratio_to_tuned`: the same with the number of warps that we found
    fastest for it by hand among its options; `ratio_to_dense`: as dense FLASH, which is causal for every pattern.
    """
    *inputs, grad_output = (torch.randn(shape, device=device, dtype=dtype) for _ in range(4))
    batch, heads, length, head_dim = shape

    def function(attention: Attention) -> Function:
        if backward:
            return backward_pass(attention, *inputs, grad_output)
        return lambda: attention(*inputs)

    def dense(backend: SDPBackend) -> Attention:
        return lambda q, k, v: sdpa(backend, q, k, v, is_causal=True)()

    functions = {OURS: function(functools.partial(sparse_attention, pattern=pattern))}
    where = f"{pattern.name}, L = {length}"
    attentions = flex_attentions(pattern, length, length, flex, device)
    with torch._functorch.config.patch(donated_buffer=False):  # else a compiled backward pass can run only once
        functions |= that_run({name: functools.partial(function, attend) for name, attend in attentions.items()}, where)
    dense_functions = that_run(
        {name: functools.partial(function, dense(backend)) for name, backend in DENSE.items()}, where
    )
    _require_alike(functions, pattern, inputs, backward)

    found = [timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US) for _ in range(RUNS)]
    times = {name: _median([run[name] for run in found]) for name in functions}
    if dense_functions:
        times |= timing.compare(dense_functions, head_start_us=HEAD_START_US, **FEW)

    flops = 4 * head_dim * batch * heads * _pairs(pattern, length, device) * (2.5 if backward else 1)
    kernel = sparse.choose_kernel(pattern, length, length, differentiable=backward, device=device).kernel
    rows: list[Row] = []
    for name, taken in times.items():
        row: Row = {"pattern": pattern.name, "pass": "backward" if backward else "forward", "length": length}
        row |= {"name": name, "kernel": kernel if name == OURS else None}
        row |= {"dense_mask": "causal" if name in DENSE else None}
        row |= {"median_ms": taken.median, "spread_ms": taken.spread}
        row["useful_tflop_per_s"] = flops / taken.median / 1e9 if name not in DENSE else None
        ratios = _ratios(found, name, [other for other in flex if other != FLEX_TUNED])
        if ratios:
            row |= {"ratio_to_flex": statistics.median(ratios), "ratio_low": min(ratios), "ratio_high": max(ratios)}
            row |= {"ratio_to_tuned": statistics.median(_ratios(found, name, flex))}
        if FLASH in times:
            row["ratio_to_dense"] = times[FLASH].median / taken.median
        rows.append(row)
    return rows


def _ratios(runs: Sequence[dict[str, timing.Timing]], name: str, others: Sequence[str]) -> list[float]:
    """In each run, how many times as fast `name` is as the fastest of the others; none where it has no such run."""
    return [
        min(run[other].median for other in others if other in run) / run[name].median
        for run in runs
        if name in run and any(other in run for other in others)
    ]


def flex_attentions(
    pattern: Pattern, query_length: int, key_length: int, names: Sequence[str], device: str
) -> dict[str, Attention]:
    """FlexAttention on this mask in each of these ways, to be compiled at the first call."""
    # Beyond 8 versions of one function, torch.compile gives up, and FlexAttention would write down S: start anew.
    torch._dynamo.reset()
    attend = compile_flex()
    blocks = {FLEX[name][0] for name in names}
    masks = {block: flex_block_mask(pattern, query_length, key_length, block, device) for block in blocks}
    return {
        name: functools.partial(attend, block_mask=masks[FLEX[name][0]], kernel_options=FLEX[name][1]) for name in names
    }


def compile_flex() -> Callable[..., Tensor]:
    """FlexAttention, compiled for each shape that it meets."""
    return torch.compile(flex_attention, dynamic=False)


def flex_block_mask(
    pattern: Pattern, query_length: int, key_length: int, block: int, device: str, *, look_up: bool = False
) -> BlockMask:
    """The blocks that FlexAttention finds itself, which must be ours; where L_q · L_k is too large for it, ours.

    look_up: its mask reads the bits of our lists, and is not the pattern's own.
    """
    lists = pattern.block_lists(query_length, key_length, block=block, device=device)
    ours = lists.to_block_mask(None if look_up else pattern.flex_mask_mod(query_length, key_length, device))
    if query_length * key_length > MOST_PAIRS:
        return ours
    theirs = create_block_mask(ours.mask_mod, None, None, query_length, key_length, device=device, BLOCK_SIZE=block)
    same = torch.equal(ours.to_dense(), theirs.to_dense())
    if query_length % block == 0:  # else they differ on the last row of blocks, which can be full only in our sense
        same = same and torch.equal(ours.full_kv_num_blocks, theirs.full_kv_num_blocks)
    if not same:
        raise RuntimeError(f"{pattern.name}: the blocks of {block} at L = {key_length} are not FlexAttention's")
    return theirs


def that_run(made: dict[str, Callable[[], Function]], where: str) -> dict[str, Function]:
    """What can be made and run on this machine; of all else, why not is printed."""
    functions: dict[str, Function] = {}
    for name, make in made.items():
        try:
            function = make()
            function()
        except Exception as error:  # torch.compile lets through those of Triton and of the C compiler
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            print(f"{name} is left out at {where}: {reason}")
        else:
            functions[name] = function
    return functions


def _require_alike(functions: dict[str, Function], pattern: Pattern, inputs: Sequence[Tensor], backward: bool) -> None:
    """Raise RuntimeError unless ours gives what FlexAttention gives and, forward, some rows of fp32 torch."""
    ours = functions[OURS]()
    if not backward:
        require_right(OURS, ours, *inputs, pattern)
    for other in (name for name in functions if name != OURS):
        theirs = functions[other]()
        if not backward:
            require_close(f"{OURS} beside {other}", ours, theirs, at_most=MAX_ERROR[ours.dtype])
            continue
        for gradient, our, their in zip(("dq", "dk", "dv"), ours, theirs, strict=True):
            at_most = MAX_ERROR[our.dtype] * max(1.0, their.abs().max().item())
            require_close(f"{OURS} beside {other}, {gradient}", our, their, at_most=at_most)


def require_right(name: str, out: Tensor, query: Tensor, key: Tensor, value: Tensor, pattern: Pattern) -> None:
    """Raise RuntimeError unless 32 rows of the output, the first and last among them, are those of fp32 torch."""
    query_length, key_length, device = query.shape[2], key.shape[2], query.device
    rows = torch.linspace(0, query_length - 1, min(query_length, 32)).long().to(device)
    head = torch.zeros((), dtype=torch.long, device=device)
    mask_mod = pattern.flex_mask_mod(query_length, key_length, device)
    keep = mask_mod(head, head, rows[:, None], torch.arange(key_length, device=device)[None])
    scores = query[:, :, rows].float() @ key.float().mT * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0)  # a row without a key: 0
    require_close(f"{name}, {pattern.name}", out[:, :, rows], weights @ value.float(), at_most=MAX_ERROR[query.dtype])


# ---------------------------------------------------------------------------------------------- what a mask alone saves


def skip(
    *, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = (4096, 8192, 16384), window: int = 1024
) -> list[Row]:
    """A sliding window by the range kernel, which skips tiles; by the same without skipping; by SDPA with a mask."""
    pattern, rows = patterns.sliding_window(window), []
    for length in lengths:
        inputs = _inputs((1, heads, length, HEAD_DIM), device)
        mask = pattern.mask(length, length, device=device)
        functions: dict[str, Function] = {
            "tiles skipped": functools.partial(sparse.range_attention, *inputs, pattern.ranges),
            "tiles only masked": functools.partial(_every_tile, *inputs, pattern.ranges),
            SDPA_MASK: lambda i=inputs, m=mask: scaled_dot_product_attention(*i, attn_mask=m),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        for name, taken in _compare(functions).items():
            rows.append({"part": "skip", "pattern": pattern.name, "length": length, "name": name} | _columns(taken))
    return rows


def _every_tile(query: Tensor, key: Tensor, value: Tensor, ranges: Ranges) -> Tensor:
    """range.cu with -DSKIP=0 for fp16 and ranges that are not dilated: it visits every tile, and only masks."""
    batch, heads, length, head_dim = query.shape
    tile = fitting(sparse.RANGE_TILES[head_dim], query.device)
    out, lse = torch.empty_like(query), query.new_empty(batch, heads, length, dtype=torch.float32)
    scalars = np.int32(length), np.int32(key.shape[2]), np.int32(1), np.float32(head_dim**-0.5)
    _every_tile_module(tile).get_function("range_forward")(
        (costs.ceil_div(length, tile.block_rows), heads, batch),
        (tile.threads,),
        (query, key, value, out, lse, *scalars, *map(np.int32, ranges)),
        shared_mem=tile.shared_bytes,
    )
    return out


@functools.cache
def _every_tile_module(tile: sparse.RangeTile) -> RawModule:
    options = [option for option in tile.options if "SKIP" not in option]
    options += ["-DSKIP=0", "-DDILATED=0", "-DBF16=0"]
    return RawModule(code=read_kernel(f"{sparse.FOLDER}/range.cu"), options=tuple(options))


# ---------------------------------------------------------------------------------------------- short sequences


def small(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    head_dim: int = 64,
    lengths: Sequence[int] = (128, 256, 512, 1024, 2048, 4096),
    flex_lengths: Sequence[int] = (128, 512, 2048),
) -> list[Row]:
    """Where the time of a call is not that of the GPU: ours, causal dense FLASH, and at some lengths FlexAttention."""
    rows: list[Row] = []
    for pattern, length in itertools.product((patterns.block_diagonal(16), patterns.streaming(16, 64)), lengths):
        inputs = _inputs((1, heads, length, head_dim), device)
        functions = {
            OURS: functools.partial(sparse_attention, *inputs, pattern),
            FLASH: lambda i=inputs: scaled_dot_product_attention(*i, is_causal=True),
        }
        if length in flex_lengths:
            functions |= _flex(pattern, inputs)
        require_right(OURS, functions[OURS](), *inputs, pattern)
        with sdpa_kernel(DENSE[FLASH]):  # around all of it: choosing a kernel takes the host as long as launching it
            for name, taken in _compare(functions).items():
                row: Row = {"part": "small", "pattern": pattern.name, "length": length, "name": name}
                row |= _columns(taken) | {"call_ms": timing.time_calls(functions[name])}
                rows.append(row | {"dense_mask": "causal" if name == FLASH else None})
    return rows


# ---------------------------------------------------------------------------------------------- long sequences


DOCUMENTS = (1024, 3072, 512, 2048, 512, 1024)  # tokens of each, over and over


def documents(length: int) -> list[int]:
    """Lengths of documents that add up to `length`; the last is cut off."""
    ends = itertools.takewhile(lambda end: end < length, itertools.accumulate(itertools.cycle(DOCUMENTS)))
    return [after - before for before, after in itertools.pairwise([0, *ends, length])]


def scaling_patterns(length: int) -> dict[str, Pattern]:
    """The patterns of the scaling study at one length, by a name that is the same at all lengths."""
    width = 2 ** (length.bit_length() // 2)  # about √L
    same = [
        *peer_patterns(),
        patterns.power_of_two(),
        patterns.local(256),
    ]
    return {pattern.name: pattern for pattern in same} | {
        "strided(√L)": patterns.strided(width),
        "fixed(√L, 8)": patterns.fixed(width, 8),
        "document(512 to 3072 each)": patterns.document(documents(length)),
        "global_tokens(16) | local(256)": patterns.global_tokens(range(16)) | patterns.local(256),
        "local_2d(radius=8)": patterns.local_2d(length // width, width, 8),
    }


def scaling(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = LENGTHS) -> list[Row]:
    """Each pattern by the kernel that suits it, and causal dense FLASH, from 1 K to 128 K tokens."""
    rows: list[Row] = []
    for length in lengths:
        inputs = _inputs((1, heads, length, HEAD_DIM), device)
        flash = {FLASH: sdpa(DENSE[FLASH], *inputs, is_causal=True)}
        (taken,) = timing.compare(flash, head_start_us=HEAD_START_US, **FEW).values()
        rows.append({"part": "scaling", "pattern": "causal, dense", "length": length, "name": FLASH} | _columns(taken))
        for label, pattern in scaling_patterns(length).items():
            try:
                require_right(OURS, sparse_attention(*inputs, pattern), *inputs, pattern)
            except torch.OutOfMemoryError:
                print(f"{label} is left out at L = {length}: its lists do not fit into memory")
                continue
            (taken,) = _compare({OURS: functools.partial(sparse_attention, *inputs, pattern)}).values()
            pairs = _pairs(pattern, length, device)
            kernel = sparse.choose_kernel(pattern, length, length, device=device).kernel
            row: Row = {"part": "scaling", "pattern": label, "length": length, "name": OURS}
            row |= {"kernel": kernel, "density": pairs / length**2}
            row |= _columns(taken) | {"useful_tflop_per_s": 4 * HEAD_DIM * heads * pairs / taken.median / 1e9}
            rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------- break-even

DENSITIES = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1.0)


def break_even(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    lengths: Sequence[int] = (1024, 2048, 4096, 8192, 16384),
    densities: Sequence[float] = DENSITIES,
    sparse_lengths: Sequence[int] = (1024, 4096),
) -> list[Row]:
    """Random blocks of 64 by density and length: ours, FlexAttention with blocks of 64, and dense FLASH, not causal.

    torch.sparse takes part at some lengths: CSR matrices in fp32, one head at a time, their indices ready made.
    """
    rows: list[Row] = []
    for length in lengths:
        inputs = _inputs((1, heads, length, HEAD_DIM), device)
        torch._dynamo.reset()
        attend = compile_flex()  # once: the masks differ in what their tables hold only, and every block is full
        for density in densities:
            per_row = round(density * length / 64)
            if per_row < 1:
                continue
            pattern = patterns.random_blocks(64, per_row, seed=0)
            functions = {OURS: functools.partial(sparse_attention, *inputs, pattern)}
            mask = flex_block_mask(pattern, length, length, 64, device, look_up=True)
            flex = functools.partial(attend, *inputs, block_mask=mask, kernel_options=FLEX[FLEX_TUNED][1])
            functions |= that_run({FLEX_TUNED: lambda flex=flex: flex}, f"{pattern.name}, L = {length}")
            _require_alike(functions, pattern, inputs, False)
            times = _compare(functions | {FLASH: sdpa(DENSE[FLASH], *inputs)})
            slow = {TORCH_SPARSE: functools.partial(torch_sparse, pattern, *inputs)} if length in sparse_lengths else {}
            for name, function in that_run(slow, f"{pattern.name}, L = {length}").items():
                require_right(name, function(), *inputs, pattern)
                times |= timing.compare({name: function}, **FEW)
            for name, taken in times.items():
                row: Row = {"part": "break_even", "length": length, "per_row": per_row}
                row |= {"density": _pairs(pattern, length, device) / length**2, "name": name} | _columns(taken)
                rows.append(row | {"ratio_to_dense": times[FLASH].median / taken.median})
    return rows


def torch_sparse(pattern: Pattern, query: Tensor, key: Tensor, value: Tensor) -> Function:
    """The same attention by torch.sparse, which has it for CSR matrices in fp32 and for one head: SDDMM, softmax (for
    COO matrices only), SpMM. The function returns the output, fp32."""
    indptr, indices = pattern.csr(query.shape[2], key.shape[2], device=query.device)
    size, indices = (query.shape[2], key.shape[2]), indices.long()
    zeros = torch.zeros(len(indices), device=query.device)
    kept = torch.sparse_csr_tensor(indptr, indices, zeros, size, check_invariants=False)
    pairs = torch.stack([torch.repeat_interleave(indptr.diff()), indices])
    heads = [tensor.float().flatten(0, 1) for tensor in (query, key, value)]

    def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.sparse.sampled_addmm(kept, q, k.mT, beta=0.0, alpha=q.shape[-1] ** -0.5).values()
        of_rows = torch.sparse_coo_tensor(pairs, scores, size, is_coalesced=True, check_invariants=False)
        weights = torch.sparse.softmax(of_rows, dim=1).values()
        return torch.sparse_csr_tensor(indptr, indices, weights, size, check_invariants=False) @ v

    return lambda: torch.stack([one_head(*of_head) for of_head in zip(*heads, strict=True)]).view(query.shape)


# ---------------------------------------------------------------------------------------------- a tree of tokens


def token_tree(context: int, tokens: int, children: int = 4) -> list[int]:
    """Parents of a chain of `context` tokens and, on its last, a tree in which each token has up to `children`."""
    chain = list(range(-1, context - 1))
    return chain + [context - 1 if n == 0 else context + (n - 1) // children for n in range(tokens)]


def tree(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    contexts: Sequence[int] = (0, 4096),
    tokens: Sequence[int] = (32, 64, 128, 192, 256, 512, 1024),
    flex_tokens: Sequence[int] = (64, 256, 1024),
) -> list[Row]:
    """Tokens that a draft model proposes as a tree, checked in one step: alone, and behind a context that all see."""
    rows: list[Row] = []
    for context, n in itertools.product(contexts, tokens):
        length = context + n
        pattern = patterns.tree(token_tree(context, n))
        query, key, value = _inputs((1, heads, length, HEAD_DIM), device)
        inputs = query[:, :, -n:].contiguous(), key, value
        mask = pattern.mask(n, length, device=device)
        functions: dict[str, Function] = {
            OURS: functools.partial(sparse_attention, *inputs, pattern),
            SDPA_MASK: lambda i=inputs, m=mask: scaled_dot_product_attention(*i, attn_mask=m),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        if n in flex_tokens:
            functions |= _flex(pattern, inputs)
        kernel = sparse.choose_kernel(pattern, n, length, device=device).kernel
        for name, taken in _compare(functions).items():
            row: Row = {"part": "tree", "context": context, "tokens": n, "density": pattern.density(n, length)}
            row |= {"name": name, "kernel": kernel if name == OURS else None} | _columns(taken)
            rows.append(row | {"call_ms": timing.time_calls(functions[name])})
    return rows


# ---------------------------------------------------------------------------------------------- what lists cost


def lists(*, device: str = "cuda", heads: int = HEADS, length: int = 131072, warm_length: int = 4096) -> list[Row]:
    """The lists that a kernel reads: the first call that builds them, on the GPU, what they hold, and beside them one
    call of attention with the memory that it takes beyond its output. A range kernel has none; the row beside it is of
    the same pattern by lists."""
    inputs = _inputs((1, heads, length, HEAD_DIM), device)
    rows: list[Row] = []
    for label, pattern in scaling_patterns(length).items():
        kernel = sparse.choose_kernel(pattern, length, length, device=device).kernel
        for used in (kernel, "block_sparse") if kernel == "range" else (kernel,):
            if used != "range":
                _built(scaling_patterns(warm_length)[label], used, warm_length, device)  # loads torch's kernels
            try:
                arguments, milliseconds = _built(scaling_patterns(length)[label], used, length, device)
                attention = _attention(used, inputs, arguments)
                require_right(used, attention(), *inputs, pattern)
            except torch.OutOfMemoryError:
                print(f"lists of {label} are left out at L = {length}: they do not fit into memory")
                continue
            (taken,) = _compare({used: attention}).values()
            output_bytes = inputs[0].nbytes
            row: Row = {"part": "lists", "pattern": label, "length": length, "kernel": used}
            row |= {"block": arguments[0].block if used == "block_sparse" else None}
            row |= {"build_ms": milliseconds, "list_bytes": _list_bytes(arguments) if used != "range" else 0}
            row |= {"attention_ms": taken.median, "output_bytes": output_bytes}
            rows.append(row | {"peak_extra_bytes": timing.peak_memory(attention) - output_bytes})
    return rows


def _attention(kernel: str, inputs: Sequence[Tensor], arguments: tuple) -> Function:
    """A kernel on its ranges, lists or rows; the rows of csr_gather are not checked again at each call."""
    mask = {"range": sparse.RangeMask, "block_sparse": sparse.ListMask, "csr_gather": sparse.CsrMask}[kernel]
    return functools.partial(sparse.attend, *inputs, mask(*arguments), inputs[0].shape[-1] ** -0.5, False)


def _built(pattern: Pattern, kernel: str, length: int, device: str) -> tuple[tuple, float | None]:
    """What a kernel takes besides query, key and value, and the milliseconds of building it."""
    if kernel == "range":
        return (pattern.ranges,), None
    _synchronize(device)
    start = time.perf_counter()
    if kernel == "csr_gather":
        arguments = pattern.csr(length, length, device=device)
    else:
        arguments = (pattern.block_lists(length, length, device=device),)
    _synchronize(device)
    return arguments, 1e3 * (time.perf_counter() - start)


def _list_bytes(arguments: tuple) -> int:
    """Bytes of the tensors of CSR, or of block lists."""
    if isinstance(arguments[0], BlockLists):
        (of,) = arguments
        arguments = of.indptr, of.indices, of.bits_index, of.bits
    return sum(tensor.nbytes for tensor in arguments)


# ---------------------------------------------------------------------------------------------- key by key


def csr(*, device: str = "cuda", heads: int = HEADS, length: int = 16384, share: float = 0.01) -> list[Row]:
    """Patterns whose keys lie apart: key by key beside block by block, and causal dense FLASH.

    `gbytes_per_s`: of the rows of K and V that csr_gather asks for, one each for a pair; most come from the L2 cache.
    """
    inputs = _inputs((1, heads, length, HEAD_DIM), device)
    kept = torch.rand(length, length, device=device) < share
    chosen = {pattern.name: pattern for pattern in (patterns.power_of_two(), patterns.strided(128))}
    indptr = torch.nn.functional.pad(kept.sum(1).cumsum(0), (1, 0))
    chosen[f"from_csr({share:.0%} at random)"] = patterns.from_csr(indptr, kept.nonzero()[:, 1])
    del kept
    rows: list[Row] = []
    for label, pattern in chosen.items():
        functions = {
            "csr_gather": _attention("csr_gather", inputs, pattern.csr(length, device=device)),
            "block_sparse": _attention("block_sparse", inputs, (pattern.block_lists(length, device=device),)),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        pairs = _pairs(pattern, length, device)
        for name, taken in _compare(functions | {FLASH: sdpa(DENSE[FLASH], *inputs, is_causal=True)}).items():
            row: Row = {"part": "csr", "pattern": label, "length": length, "density": pairs / length**2, "name": name}
            row |= _columns(taken) | {"dense_mask": "causal" if name == FLASH else None}
            row["gbytes_per_s"] = 4 * HEAD_DIM * heads * pairs / taken.median / 1e6 if name == "csr_gather" else None
            rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------- one pattern

# What `bench PATTERN` takes: those whose arguments are whole numbers or lists of them. Each argument is an option.
PATTERNS: dict[str, Callable[..., Pattern]] = {
    function.__name__: function
    for function in (
        patterns.causal,
        patterns.sliding_window,
        patterns.dilated,
        patterns.power_of_two,
        patterns.strided,
        patterns.fixed,
        patterns.streaming,
        patterns.full,
        patterns.local,
        patterns.local_2d,
        patterns.block_diagonal,
        patterns.random_blocks,
        patterns.bigbird,
        patterns.document,
        patterns.global_tokens,
        patterns.tree,
    )
}
LISTS = ("lengths", "positions", "parents")  # arguments that are lists


def counts(pattern: Pattern, lengths: Sequence[int], heads: int, head_dim: int, batch: int = 1) -> list[Row]:
    """What needs no GPU: pairs, density, blocks of 64 × 64 that are visited, and how many of them are partial (of a
    dilated pattern those of its residue classes), and the FLOPs of a forward pass."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    rows: list[Row] = []
    for length in lengths:
        visited, partial = _blocks(pattern, length, device)
        kernel, pairs = sparse.choose_kernel(pattern, length, device=device).kernel, _pairs(pattern, length, device)
        row: Row = {"pattern": pattern.name, "length": length, "kernel": kernel}
        row |= {"pairs": pairs, "density": pairs / length**2, "blocks": costs.ceil_div(length, 64) ** 2}
        row |= {"visited": visited, "partial": partial}
        gflop = 4 * head_dim * heads * batch / 1e9
        rows.append(row | {"useful_gflop": gflop * pairs, "dense_gflop": gflop * length**2})
    return rows


def _blocks(pattern: Pattern, length: int, device: str) -> tuple[int, int]:
    """Visited and partial blocks of 64 × 64."""
    if pattern.ranges and pattern.ranges.dilation > 1:
        dilation = pattern.ranges.dilation
        in_class = range_pattern(pattern.kind, pattern.parameters, pattern.ranges._replace(dilation=1))
        classes = Counter(costs.ceil_div(length - first, dilation) for first in range(min(length, dilation)))
        found = [(n, _blocks(in_class, members, device)) for members, n in classes.items()]
        return tuple(sum(n * blocks[k] for n, blocks in found) for k in range(2))
    lists = pattern.block_lists(length, device=device)
    return len(lists.indices), int((lists.bits_index >= 0).sum())


def of_pattern(rows: Sequence[Row], kind: str) -> list[Row]:
    """The recorded rows of patterns of a kind, such as "sliding_window"."""
    chosen = [row for row in rows if str(row.get("pattern")).startswith(f"{kind}(") or row.get("part") == kind]
    return [row for part in ("peers", "backward", "scaling", kind) for row in chosen if row.get("part") == part]


# ---------------------------------------------------------------------------------------------- shared


def _inputs(shape: tuple[int, int, int, int], device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Random normal query, key and value, fp16."""
    return tuple(torch.randn(shape, device=device, dtype=torch.float16) for _ in range(3))


def _compare(functions: dict[str, Function]) -> dict[str, timing.Timing]:
    return timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)


def _pairs(pattern: Pattern, length: int, device: str) -> int:
    """Pairs that are kept, per head: arithmetic for ranges, else counted in the lists, where the device is quick."""
    return pattern.pairs(length) if pattern.ranges else pattern.block_lists(length, device=device).pairs()


def _median(times: Sequence[timing.Timing]) -> timing.Timing:
    return timing.Timing(*(statistics.median(figures) for figures in zip(*times, strict=True)))


def _columns(taken: timing.Timing) -> Row:
    return {"median_ms": taken.median, "spread_ms": taken.spread}


def _flex(pattern: Pattern, inputs: Sequence[Tensor]) -> dict[str, Function]:
    """FlexAttention with blocks of 128 on these inputs, if it runs here, after a check that it is right."""
    query_length, key_length, device = inputs[0].shape[2], inputs[1].shape[2], str(inputs[0].device)
    (attend,) = flex_attentions(pattern, query_length, key_length, (FLEX_128,), device).values()
    made = {FLEX_128: lambda: functools.partial(attend, *inputs)}
    functions = that_run(made, f"{pattern.name}, L = {key_length}")
    for name, function in functions.items():
        require_right(name, function(), *inputs, pattern)
    return functions


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
