"""What `bench 04_sparse_patterns` measures: every figure of chapter 04, one function for each part.

Each row has its `part`. Times are of the GPU alone (`head_start_us` of `timing.compare`); `call_ms`, where calls are
short, is that of the whole call. FlexAttention is compiled for each shape and size of block, and has the blocks that it
finds itself; beside it stands what a user could write by dense kernels (`by_hand`). A kernel is timed once its output
is right: some rows of it by fp32 torch, and all of it beside the others. What this machine cannot run is printed and
left out. Conventions as in `timed`.

TFLOP/s are useful ones: 4 · d for each pair that a pattern keeps, whatever a kernel computes besides.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Sequence

import numpy as np
import torch
import torch._functorch.config
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_utils import costs, patterns, timing
from course_utils.bench import flex
from course_utils.bench.by_hand import by_hand
from course_utils.bench.flex import (
    BUDGET_MS,
    DENSE,
    FEW,
    FLASH,
    FLEX,
    FLEX_128,
    FLEX_TUNED,
    HEAD_START_US,
    OURS,
)
from course_utils.bench.timed import (
    Function,
    all_parts,
    call_ms,
    columns,
    compile_ahead,
    random_inputs,
    require_right,
    sdpa,
    that_run,
)
from course_utils.cuda import RawModule, compiled
from course_utils.measured import Row
from course_utils.measured.sparse_patterns import HEAD_DIM, HEADS, LENGTHS, SDPA_MASK, SDPA_NUMBERS, TORCH_SPARSE
from course_utils.operators import choose_kernel, flash_v2, sparse_launch
from course_utils.operators.prepare import fitting
from course_utils.operators.sparse import attend_masked, sparse_attention
from course_utils.patterns import Pattern, Ranges


def sparse_chapter() -> list[Row]:
    """Every figure of chapter 04."""
    compile_all()
    return all_parts((peers, skip, small, scaling, break_even, tree, lists, backward, dense_way, csr))


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    where = torch.device(device)
    modules = [
        *sparse_launch.modules(torch.float16, where),
        *flash_v2.modules(torch.float16, where),
    ]  # for delta and dQ
    modules.append(_every_tile_module(fitting(sparse_launch.RANGE_TILES[HEAD_DIM], where)))
    compile_ahead(modules, device)


# ---------------------------------------------------------------------------------------------- beside FlexAttention


DOCUMENTS_NAME = "document(512 to 3072 each)"
CAUSAL_DOCUMENTS = f"{DOCUMENTS_NAME} & causal()"


def peer_patterns(length: int) -> dict[str, Pattern]:
    """The patterns that are timed beside their peers, by a name that is the same at all lengths; new ones at each call,
    since a pattern caches its lists."""
    same = [
        patterns.sliding_window(4096),
        patterns.streaming(4, 1024),
        patterns.block_diagonal(256),
        patterns.dilated(512, 8),
        patterns.bigbird(64),
    ]
    of_length = {CAUSAL_DOCUMENTS: patterns.document(documents(length)) & patterns.causal()}
    return {pattern.name: pattern for pattern in same} | of_length


def peers(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = (4096, 16384, 131072)) -> list[Row]:
    """Forward pass beside FlexAttention, beside dense kernels on a view, and beside dense attention."""
    rows: list[Row] = []
    for length in lengths:
        for label, pattern in peer_patterns(length).items():
            others = by_hand(pattern, length, device)
            found = flex.race(pattern, (1, heads, length, HEAD_DIM), device=device, others=others, label=label)
            rows += [{"part": "peers"} | row for row in found]
    return rows


BACKWARD_KINDS = ("sliding_window", "streaming", "bigbird", "block_diagonal", "and")
BACKWARD_LENGTHS = (4096, 16384, 65536)


def backward(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = BACKWARD_LENGTHS) -> list[Row]:
    """Backward pass alone beside FlexAttention's, dense kernels' on a view, and dense attention's.

    FlexAttention has blocks of 128: its default tile for this pass fits no smaller one, and torch 2.11 refuses one that
    `kernel_options` name ("No choices to select").
    """
    rows: list[Row] = []
    for length in lengths:
        for label, pattern in peer_patterns(length).items():
            if pattern.kind not in BACKWARD_KINDS:
                continue
            others, shape = by_hand(pattern, length, device, with_flex=False), (1, heads, length, HEAD_DIM)
            found = flex.race(
                pattern, shape, device=device, backward=True, flex=(FLEX_128,), others=others, label=label
            )
            rows += [{"part": "backward"} | row for row in found]
    return rows


def dense_way(
    *, device: str = "cuda", heads: int = HEADS, length: int = 131072, blocks: Sequence[int] = (128, 256, 1024, 4096)
) -> list[Row]:
    """Equal blocks by the two ways of `sparse_attention`: the kernel of ranges, and a batch of dense attention on a
    view; long enough that preparing a launch, which this does at each call, takes less time than the kernel.

    `speed_over_range`: how many times as fast as by ranges; above 1 the operator should go the dense way.
    """
    rows: list[Row] = []
    for block in blocks:
        pattern = patterns.block_diagonal(block)
        inputs = random_inputs((1, heads, length, HEAD_DIM), device, count=3)
        masks = {"range": sparse_launch.RangeMask(pattern.ranges), "dense": sparse_launch.DenseMask(block)}
        ways = {name: _attention(mask, inputs) for name, mask in masks.items()}
        for name, function in ways.items():
            require_right(name, function(), *inputs, pattern)
        times = _compare(ways)
        for name, taken in times.items():
            row: Row = {"part": "dense_way", "pattern": pattern.name, "length": length, "name": name}
            rows.append(row | columns(taken) | {"speed_over_range": times["range"].median / taken.median})
    return rows


# ---------------------------------------------------------------------------------------------- what a mask alone saves


def skip(
    *, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = (4096, 8192, 16384), window: int = 1024
) -> list[Row]:
    """A sliding window by the range kernel, which skips tiles; by the same without skipping; by SDPA with a mask."""
    pattern, rows = patterns.sliding_window(window), []
    for length in lengths:
        inputs = random_inputs((1, heads, length, HEAD_DIM), device)
        mask = pattern.mask(length, length, device=device)
        functions: dict[str, Function] = {
            "tiles skipped": _attention(sparse_launch.RangeMask(pattern.ranges), inputs),
            "tiles only masked": functools.partial(_every_tile, *inputs, pattern.ranges),
            SDPA_MASK: lambda i=inputs, m=mask: scaled_dot_product_attention(*i, attn_mask=m),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        for name, taken in _compare(functions).items():
            rows.append({"part": "skip", "pattern": pattern.name, "length": length, "name": name} | columns(taken))
    return rows


def _every_tile(query: Tensor, key: Tensor, value: Tensor, ranges: Ranges) -> Tensor:
    """range.cu with -DSKIP=0 for fp16 and ranges that are not dilated: it visits every tile, and only masks."""
    batch, heads, length, head_dim = query.shape
    tile = fitting(sparse_launch.RANGE_TILES[head_dim], query.device)
    out, lse = torch.empty_like(query), query.new_empty(batch, heads, length, dtype=torch.float32)
    scalars = np.int32(length), np.int32(key.shape[2]), np.int32(1), np.float32(head_dim**-0.5)
    _every_tile_module(tile).get_function("range_forward")(
        (costs.ceil_div(length, tile.block_rows), heads, batch),
        (tile.threads,),
        (query, key, value, out, lse, *scalars, *map(np.int32, ranges)),
        shared_mem=tile.shared_bytes,
    )
    return out


def _every_tile_module(tile: sparse_launch.RangeTile) -> RawModule:
    options = [option for option in tile.options if "SKIP" not in option]
    return compiled(f"{sparse_launch.FOLDER}/range.cu", (*options, "-DSKIP=0", "-DDILATED=0", "-DBF16=0"))


# ---------------------------------------------------------------------------------------------- short sequences


def small(
    *,
    device: str = "cuda",
    heads: int = HEADS,
    head_dim: int = 64,
    lengths: Sequence[int] = (128, 256, 512, 1024, 2048, 4096),
    flex_lengths: Sequence[int] = (128, 512, 1024, 2048, 4096),
) -> list[Row]:
    """Short calls, where the host's time counts: ours, causal dense attention, dense kernels on a view, and at some
    lengths FlexAttention."""
    rows: list[Row] = []
    for pattern, length in itertools.product((patterns.block_diagonal(16), patterns.streaming(16, 64)), lengths):
        inputs = random_inputs((1, heads, length, head_dim), device)
        functions: dict[str, Function] = {OURS: functools.partial(sparse_attention, *inputs, pattern)}
        require_right(OURS, functions[OURS](), *inputs, pattern)
        dense = _dense(inputs, is_causal=True)
        functions |= dense | (_flex(pattern, inputs) if length in flex_lengths else {}) | _others(pattern, inputs)
        for name, taken in _compare(functions).items():
            row: Row = {"part": "small", "pattern": pattern.name, "length": length, "name": name}
            row |= columns(taken)
            if name in dense:
                row["call_ms"] = call_ms(DENSE[name], *inputs, is_causal=True)
            else:
                row["call_ms"] = timing.time_calls(functions[name])
            rows.append(row | {"dense_mask": "causal" if name in dense else None})
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
    return peer_patterns(length) | {
        "power_of_two()": patterns.power_of_two(),
        "local(radius=256)": patterns.local(256),
        "strided(√L)": patterns.strided(width),
        "fixed(√L, 8)": patterns.fixed(width, 8),
        DOCUMENTS_NAME: patterns.document(documents(length)),
        "global_tokens(16) | local(256)": patterns.global_tokens(range(16)) | patterns.local(256),
        "local_2d(radius=8)": patterns.local_2d(length // width, width, 8),
    }


def scaling(*, device: str = "cuda", heads: int = HEADS, lengths: Sequence[int] = LENGTHS) -> list[Row]:
    """Each pattern by the kernel that suits it, by dense kernels on a view where there is such a way, and causal dense
    attention, from 1 K to 128 K tokens. Only rows of ours have a kernel."""
    rows: list[Row] = []
    for length in lengths:
        inputs = random_inputs((1, heads, length, HEAD_DIM), device)
        dense = timing.compare(_dense(inputs, is_causal=True), head_start_us=HEAD_START_US, **FEW)
        of_dense: Row = {"part": "scaling", "pattern": "causal, dense", "length": length}
        rows += [of_dense | {"name": name} | columns(taken) for name, taken in dense.items()]
        for label, pattern in scaling_patterns(length).items():
            try:
                require_right(OURS, sparse_attention(*inputs, pattern), *inputs, pattern)
            except torch.OutOfMemoryError:
                print(f"{label} is left out at L = {length}: its lists do not fit into memory")
                continue
            ours: dict[str, Function] = {OURS: functools.partial(sparse_attention, *inputs, pattern)}
            times = _compare(ours | _others(pattern, inputs))
            taken = times.pop(OURS)
            pairs = flex.count_pairs(pattern, length, device)
            kernel = choose_kernel(pattern, length, length, device=device).kernel
            row: Row = {"part": "scaling", "pattern": label, "length": length, "name": OURS}
            row |= {"kernel": kernel, "density": pairs / length**2}
            row |= columns(taken) | {"useful_tflop_per_s": 4 * HEAD_DIM * heads * pairs / taken.median / 1e9}
            rows.append(row)
            other: Row = {"part": "scaling", "pattern": label, "length": length, "density": pairs / length**2}
            rows += [other | {"name": name} | columns(taken) for name, taken in times.items()]
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
    """Random blocks of 64 by density and length: ours, FlexAttention with blocks of 64, and dense, not causal.

    torch.sparse takes part at some lengths: CSR matrices in fp32, one head at a time, with their indices made
    beforehand.
    """
    rows: list[Row] = []
    for length in lengths:
        inputs = random_inputs((1, heads, length, HEAD_DIM), device)
        torch.compiler.reset()
        dense = _dense(inputs)
        attend = flex.compiled()  # once: the masks differ in what their tables hold only, and every block is full
        for density in densities:
            per_row = round(density * length / 64)
            if per_row < 1:
                continue
            pattern = patterns.random_blocks(64, per_row, seed=0)
            functions = {OURS: functools.partial(sparse_attention, *inputs, pattern)}
            mask = flex.block_mask(pattern, length, length, 64, device, look_up=True)
            attention = functools.partial(attend, *inputs, block_mask=mask, kernel_options=FLEX[FLEX_TUNED][1])
            functions |= that_run({FLEX_TUNED: lambda attention=attention: attention}, f"{pattern.name}, L = {length}")
            flex.require_alike(functions, pattern, inputs, False)
            times = _compare(functions | dense)
            slow = {TORCH_SPARSE: functools.partial(torch_sparse, pattern, *inputs)} if length in sparse_lengths else {}
            for name, function in that_run(slow, f"{pattern.name}, L = {length}").items():
                require_right(name, function(), *inputs, pattern)
                times |= timing.compare({name: function}, **FEW)
            for name, taken in times.items():
                row: Row = {"part": "break_even", "length": length, "per_row": per_row}
                row |= {"density": flex.count_pairs(pattern, length, device) / length**2, "name": name} | columns(taken)
                rows.append(row | {"ratio_to_dense": times[FLASH].median / taken.median})
    return rows


def torch_sparse(pattern: Pattern, query: Tensor, key: Tensor, value: Tensor) -> Function:
    """The same attention by torch.sparse, which has it for CSR matrices in fp32 and one head: SDDMM, softmax (for COO
    matrices only), SpMM. The function returns the output, fp32."""
    indptr, indices = pattern.csr(query.shape[2], key.shape[2], device=query.device)
    size, indices = (query.shape[2], key.shape[2]), indices.long()
    zeros = torch.zeros(len(indices), device=query.device)
    mask = torch.sparse_csr_tensor(indptr, indices, zeros, size, check_invariants=False)
    pairs = torch.stack([torch.repeat_interleave(indptr.diff()), indices])
    heads = [tensor.float().flatten(0, 1) for tensor in (query, key, value)]

    def one_head(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = torch.sparse.sampled_addmm(mask, q, k.mT, beta=0.0, alpha=q.shape[-1] ** -0.5).values()
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
    """Tokens that a draft model proposes as a tree, checked in one step: alone, and behind a context that all see.

    SDPA takes the mask twice: as bools, which it turns into numbers at each call, and as numbers.
    """
    rows: list[Row] = []
    for context, n in itertools.product(contexts, tokens):
        length = context + n
        pattern = patterns.tree(token_tree(context, n))
        query, key, value = random_inputs((1, heads, length, HEAD_DIM), device)
        inputs = query[:, :, -n:].contiguous(), key, value
        mask = pattern.mask(n, length, device=device)
        numbers = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
        functions: dict[str, Function] = {
            OURS: functools.partial(sparse_attention, *inputs, pattern),
            SDPA_MASK: lambda i=inputs, m=mask: scaled_dot_product_attention(*i, attn_mask=m),
            SDPA_NUMBERS: lambda i=inputs, m=numbers: scaled_dot_product_attention(*i, attn_mask=m),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        if n in flex_tokens:
            functions |= _flex(pattern, inputs)
        kernel = choose_kernel(pattern, n, length, device=device).kernel
        for name, taken in _compare(functions).items():
            row: Row = {"part": "tree", "context": context, "tokens": n, "density": pattern.density(n, length)}
            row |= {"name": name, "kernel": kernel if name == OURS else None} | columns(taken)
            rows.append(row | {"call_ms": timing.time_calls(functions[name])})
    return rows


# ---------------------------------------------------------------------------------------------- what lists cost


def lists(*, device: str = "cuda", heads: int = HEADS, length: int = 131072, warm_length: int = 4096) -> list[Row]:
    """The lists that a kernel reads: the first call that builds them, on the GPU, what they hold, and beside them one
    call of attention. Ranges have none, or the ends of each row; the row beside theirs is of the same pattern by
    lists."""
    inputs = random_inputs((1, heads, length, HEAD_DIM), device)
    rows: list[Row] = []
    for label, pattern in scaling_patterns(length).items():
        kernel = choose_kernel(pattern, length, length, device=device).kernel
        ways = {"dense": ("dense", "range", "block_sparse"), "range": ("range", "block_sparse")}
        for used in ways.get(kernel, (kernel,)):
            _built(scaling_patterns(warm_length)[label], used, warm_length, device)  # loads torch's kernels
            try:
                mask, milliseconds = _built(scaling_patterns(length)[label], used, length, device)
                attention = _attention(mask, inputs)
                require_right(used, attention(), *inputs, pattern)
            except torch.OutOfMemoryError:
                print(f"lists of {label} are left out at L = {length}: they do not fit into memory")
                continue
            (taken,) = _compare({used: attention}).values()
            row: Row = {"part": "lists", "pattern": label, "length": length, "kernel": used}
            row |= {"build_ms": milliseconds, "list_bytes": _list_bytes(mask, length)}
            rows.append(row | {"attention_ms": taken.median})
    return rows


def _attention(mask: sparse_launch.Mask, inputs: Sequence[Tensor]) -> Function:
    """A kernel on its ranges, lists or rows; the rows of csr_gather are not checked again at each call."""
    return functools.partial(attend_masked, *inputs, mask)


def _built(pattern: Pattern, kernel: str, length: int, device: str) -> tuple[sparse_launch.Mask, float | None]:
    """A kernel's arguments besides query, key and value, and the milliseconds to build them; None if they are mere
    numbers."""
    if kernel == "dense":
        return sparse_launch.DenseMask(pattern.ranges.step), None
    _synchronize(device)
    start = time.perf_counter()
    if kernel == "range":
        mask: sparse_launch.Mask = sparse_launch.mask_of_ranges(pattern, length, length, torch.device(device))
    elif kernel == "csr_gather":
        mask = sparse_launch.CsrMask(*pattern.csr(length, length, device=device))
    else:
        mask = sparse_launch.ListMask(pattern.block_lists(length, length, device=device))
    _synchronize(device)
    return mask, None if isinstance(mask, sparse_launch.RangeMask) else 1e3 * (time.perf_counter() - start)


def _list_bytes(mask: sparse_launch.Mask, length: int) -> int:
    """Bytes of the tensors in a mask; for rows also their transpose by key, for gradients."""
    match mask:
        case sparse_launch.RowMask(rows):
            tensors = *rows, *rows.by_key(length)
        case sparse_launch.ListMask(lists):
            tensors = lists.indptr, lists.indices, lists.bits_index, lists.bits
        case sparse_launch.CsrMask():
            tensors = tuple(mask)
        case _:
            tensors = ()
    return sum(tensor.nbytes for tensor in tensors)


# ---------------------------------------------------------------------------------------------- key by key


def csr(*, device: str = "cuda", heads: int = HEADS, length: int = 16384, share: float = 0.01) -> list[Row]:
    """Patterns whose keys lie apart: key by key beside block by block, and causal dense FLASH.

    `gbytes_per_s`: of the rows of K and V that csr_gather asks for, one each for a pair; most come from the L2 cache.
    """
    inputs = random_inputs((1, heads, length, HEAD_DIM), device)
    mask = torch.rand(length, length, device=device) < share
    chosen = {pattern.name: pattern for pattern in (patterns.power_of_two(), patterns.strided(128))}
    indptr = torch.nn.functional.pad(mask.sum(1).cumsum(0), (1, 0))
    chosen[f"from_csr({share:.0%} at random)"] = patterns.from_csr(indptr, mask.nonzero()[:, 1])
    del mask
    rows: list[Row] = []
    for label, pattern in chosen.items():
        functions = {
            "csr_gather": _attention(sparse_launch.CsrMask(*pattern.csr(length, device=device)), inputs),
            "block_sparse": _attention(sparse_launch.ListMask(pattern.block_lists(length, device=device)), inputs),
        }
        for name, function in functions.items():
            require_right(name, function(), *inputs, pattern)
        pairs = flex.count_pairs(pattern, length, device)
        for name, taken in _compare(functions | _dense(inputs, is_causal=True)).items():
            row: Row = {"part": "csr", "pattern": label, "length": length, "density": pairs / length**2, "name": name}
            row |= columns(taken) | {"dense_mask": "causal" if name in DENSE else None}
            row["gbytes_per_s"] = 4 * HEAD_DIM * heads * pairs / taken.median / 1e6 if name == "csr_gather" else None
            rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------- shared


def _compare(functions: dict[str, Function]) -> dict[str, timing.Timing]:
    return timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)


def _dense(inputs: Sequence[Tensor], *, is_causal: bool = False) -> dict[str, Function]:
    """torch's dense kernels that run here, after a check that they are right."""
    made = {name: sdpa(backend, *inputs, is_causal=is_causal) for name, backend in DENSE.items()}
    return _right(made, inputs, patterns.causal() if is_causal else patterns.full())


def _others(pattern: Pattern, inputs: Sequence[Tensor]) -> dict[str, Function]:
    """Dense kernels on a view with the same output that run here, after a check of each."""
    ways = by_hand(pattern, inputs[0].shape[2], str(inputs[0].device), with_flex=False)
    return _right({name: functools.partial(attention, *inputs) for name, attention in ways.items()}, inputs, pattern)


def _right(made: dict[str, Function], inputs: Sequence[Tensor], pattern: Pattern) -> dict[str, Function]:
    """The functions that run on this machine; raises RuntimeError if one of them is wrong."""
    where = f"{pattern.name}, L = {inputs[0].shape[2]}"
    functions = that_run({name: lambda function=function: function for name, function in made.items()}, where)
    for name, function in functions.items():
        require_right(name, function(), *inputs, pattern)
    return functions


def _flex(pattern: Pattern, inputs: Sequence[Tensor]) -> dict[str, Function]:
    """FlexAttention on these inputs, by default and tuned, as far as it runs here, after a check."""
    query_length, key_length, device = inputs[0].shape[2], inputs[1].shape[2], str(inputs[0].device)
    attentions = flex.attentions(pattern, query_length, key_length, (FLEX_128, FLEX_TUNED), device)
    made = {name: functools.partial(functools.partial, attend, *inputs) for name, attend in attentions.items()}
    functions = that_run(made, f"{pattern.name}, L = {key_length}")
    for name, function in functions.items():
        require_right(name, function(), *inputs, pattern)
    return functions


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()
