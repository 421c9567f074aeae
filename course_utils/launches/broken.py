"""The classic mistakes of attention kernels, each beside the kernel that does not make it.

Every kernel of `kernels/*/broken` is here, and a few mistakes that need no file of their own: in chapter 00 a mistake
is an option of a small kernel, in the others a diff that breaks a kernel of the chapter (`read_kernel` applies it).
Each comes with a launch at which it shows, and with the tool that names it:

    with sanitize() as report:
        BROKEN["missing_sync_after_load"].launch().run()

To add one: break the kernel in place in as few lines as possible, save the output of `git diff` as
kernels/NN_slug/broken/name.diff with a comment on top (`# name.cu — kernel.cu broken on purpose: ...`), take the change
back with `git checkout`, and add an entry here. If the right kernel changes later, an error names the diffs that no
longer apply: make them anew in the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import patterns, reference
from course_utils.checks import AttentionCase, ErrorReport, error_report, lse_report, make_inputs
from course_utils.costs import ceil_div
from course_utils.launches import Launch
from course_utils.launches.ladder import LADDER, as_launch
from course_utils.operators import indexer, mla, serving_choice, serving_launch, sparse_launch, sparse_work

START, NAIVE, FLASH = "00_start_here", "01_attention_basics", "02_flash_attention_minimal"
FLASH_V2, SPARSE, DEEPSEEK = "03_flash_attention_v2", "04_sparse_patterns", "05_deepseek_sparse"
SERVING = "06_serving"
D, B_R, B_C, TX = 32, 64, 32, 4  # head dimension and tiles of the flash kernels here: small, so that each run is short


@dataclass(frozen=True)
class BrokenKernel:
    """One mistake.

    launch, mended: make the launch at which the mistake shows, and the same launch of the kernel without it.
    tool: what names it. "memcheck", "racecheck", "initcheck", "synccheck": the sanitizer, at `line`. "counters": the
    profiler, at `line`, where a request takes more sectors or wavefronts than it needs. "check": only a comparison
    with the right numbers does (`attention_reports`).
    symptom: what one sees without the tool. lesson: what to remember.
    line: a piece of the source text of that line, of the kernel file or of a header, which stands in no other line;
    None for "check".
    other_line: the same for the other party of a race, or for the place where the other threads wait.
    """

    name: str
    launch: Callable[[], Launch]
    mended: Callable[[], Launch]
    tool: str
    symptom: str
    lesson: str
    line: str | None = None
    other_line: str | None = None


def _flash_v2(file: str, query_length: int, key_length: int) -> Launch:
    """A launch of a step of the ladder ("step4_double_buffer"), or of one that a diff breaks ("broken/..."): one head,
    fp16, D = 64."""
    step = next(step for step in LADDER if step.kernel == _MADE_FROM.get(file, file))
    case = AttentionCase(1, 1, 1, query_length, key_length, 64, False, "normal")
    query, key, value, _ = make_inputs(case, dtype=torch.float16, seed=0)
    right = as_launch(step, query, key, value, torch.full_like(query, torch.nan), _nans(1, 1, query_length))
    return replace(right, source=f"{FLASH_V2}/{file}.cu")


_MADE_FROM = {
    "broken/copy_before_barrier": "step4_double_buffer",
    "broken/wait_for_one_group_less": "step4_double_buffer",
    "broken/v_not_transposed": "step5_registers",
    "broken/p_in_wrong_order": "step5_registers",
}


# ---------------------------------------------------------------------------------------------- launches


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _nans(*shape: int) -> Tensor:
    return torch.full(shape, torch.nan)


def _case(kind: str, query_length: int, key_length: int, is_causal: bool = False) -> list[Tensor]:
    """Query, key and value of one head."""
    case = AttentionCase(1, 1, 1, query_length, key_length, D, is_causal, kind)
    return list(make_inputs(case, seed=0)[:3])


_RAGGED = partial(_case, "normal", 70, 80)  # neither length is a multiple of its tile


def _even_attention() -> list[Tensor]:
    """One query that looks at 4096 keys alike; V is 1 for the first half of them, 0 for the second."""
    return [
        torch.zeros(1, 1, 1, D),
        _normal(1, 1, 4096, D),
        (torch.arange(4096) < 2048).float().repeat(D, 1).T[None, None],
    ]


def _flash(
    file: str, inputs: Callable[[], list[Tensor]], *, kernel: str = "forward_plain", is_causal: bool = False
) -> Launch:
    """A launch of forward_plain.cu or forward.cu, or of one of them that a diff breaks."""
    query, key, value = (tensor.contiguous() for tensor in inputs())
    batch, heads, query_length, d = query.shape
    plain = kernel == "forward_plain"
    shared = 4 * (B_R * (d + 1) + 2 * B_C * d + B_R * (B_C + 1))
    if not plain:
        shared = 4 * (B_R * (d + 4) + B_C * (d + 4) + B_C * d + B_R * (B_C + TX))
    return Launch(
        source=f"{FLASH}/{file}.cu",
        kernel=kernel,
        grid=(ceil_div(query_length, B_R), heads, batch),
        block=(B_R if plain else B_R // 8 * TX,),
        args=(
            *(query, key, value, torch.full_like(query, torch.nan), _nans(batch, heads, query_length)),
            *(np.int32(query_length), np.int32(key.shape[2]), np.float32(d**-0.5), np.int32(is_causal)),
        ),
        options=(f"-DD={D}", f"-DB_R={B_R}", f"-DB_C={B_C}", *(() if plain else (f"-DTX={TX}",))),
        shared_mem=shared,
    )


def _flash_without_padding() -> Launch:
    """Asks for the tiles of forward_plain.cu as if they had no padding."""
    return replace(_flash("forward_plain", _RAGGED), shared_mem=4 * (B_R * D + 2 * B_C * D + B_R * B_C))


def _scores(file: str, kernel: str, L_q: int, L_k: int) -> Launch:
    return Launch(
        source=f"{NAIVE}/{file}.cu",
        kernel=kernel,
        grid=(ceil_div(L_k, 32) * ceil_div(L_q, 32), 1, 1),
        block=(32, 32),
        args=(
            *(_normal(1, 1, L_q, D, seed=1), _normal(1, 1, L_k, D, seed=2), _nans(1, 1, L_q, L_k)),
            *(np.int32(L_q), np.int32(L_k), np.int32(D), np.float32(D**-0.5), np.int32(0)),
        ),
    )


def _softmax(file: str) -> Launch:
    scores = _normal(1, 1, 4, 1000)
    args = scores, torch.full_like(scores, torch.nan), np.int32(1000)
    return Launch(f"{NAIVE}/{file}.cu", "softmax", (4, 1, 1), (256,), args)


def _transpose(kernel: str) -> Launch:
    args = _normal(64, 64), _nans(64, 64), np.int32(64), np.int32(64)
    return Launch(f"{START}/{kernel}.cu", kernel, (2, 2), (32, 32), args)


def _small(
    file: str, kernel: str, block: int, args: tuple[Tensor | np.generic, ...], option: str, grid: int = 1
) -> Launch:
    return Launch(f"{START}/broken/{file}.cu", kernel, (grid,), (block,), args, (option,))


def _row_max(option: str) -> Launch:
    args = _normal(4, 1000), _nans(4), np.int32(1000)
    return _small("too_few_warp_slots", "row_max", 512, args, option, grid=4)


def _top_scores(option: str) -> Launch:
    args = _normal(40, 50), _nans(40, 4), np.int32(40), np.int32(50)
    return _small("top_scores_overrun", "top_scores", 64, args, option)


def _misaligned(option: str) -> Launch:
    args = _normal(32, seed=1), _normal(32, 32, seed=2), _nans(32)
    return _small("misaligned_float4", "scores_of_query", 32, args, option)


def _dq(option: str) -> Launch:
    args = _normal(200, seed=1), _normal(200, 64, seed=2), torch.zeros(64), np.int32(200)
    return _small("dq_without_atomics", "add_dq", 64, args, option, grid=7)


def _barrier(option: str) -> Launch:
    return _small("barrier_in_branch", "softmax_row", 64, (_normal(2, 64), _nans(2, 64)), option, grid=2)


def _shuffle(option: str) -> Launch:
    args = _normal(2, 40), _nans(2), np.int32(40)
    return _small("shuffle_in_branch", "short_row_max", 64, args, option, grid=2)


def _cp_async(option: str) -> Launch:
    args = _normal(16, seed=1), _normal(32, 16, seed=2), _nans(32)
    return _small("cp_async_too_early", "scores_of_query", 128, args, option)


def _buffers(option: str) -> Launch:
    args = _normal(4, 16, seed=1), _normal(5 * 32, 16, seed=2), _nans(4, 5 * 32), np.int32(5)
    return _small("cp_async_two_buffers", "scores_of_tiles", 128, args, option)


# -------- chapter 04: one head, fp16, D = 64; blocks of 64


@dataclass(frozen=True, kw_only=True)
class SparseLaunch(Launch):
    """A launch of attention under a mask. Its fourth and fifth tensor are O and LSE."""

    inputs: tuple[Tensor, Tensor, Tensor]
    attn_mask: Tensor


def _sparse(kind: str, query_length: int, key_length: int) -> tuple[tuple[Tensor, ...], tuple[np.generic, ...]]:
    """Query, key, value, O and LSE, and the scalars that every kernel takes after them."""
    case = AttentionCase(1, 1, 1, query_length, key_length, 64, False, kind)
    query, key, value, _ = make_inputs(case, dtype=torch.float16, seed=0)
    tensors = query, key, value, torch.full_like(query, torch.nan), _nans(1, 1, query_length)
    return tensors, (*map(np.int32, (query_length, key_length, 1)), np.float32(64**-0.5))


def _window(file: str) -> Launch:
    """Row 159 sees keys 1 to 159, and tile 0 begins at key 0."""
    (tensors, scalars), pattern, tile = (
        _sparse("normal", 200, 200),
        patterns.sliding_window(159),
        sparse_launch.RANGE_TILES[64][0],
    )
    return SparseLaunch(
        source=f"{SPARSE}/{file}.cu",
        kernel="range_forward",
        grid=(ceil_div(200, tile.block_rows), 1, 1),
        block=(tile.threads,),
        args=(*tensors, *scalars, *map(np.int32, pattern.ranges)),
        options=(*tile.options, "-DDILATED=0", "-DBF16=0"),
        shared_mem=tile.shared_bytes,
        inputs=tensors[:3],
        attn_mask=pattern.mask(200),
    )


def _documents(file: str) -> Launch:
    (tensors, scalars), pattern, tile = (
        _sparse("normal", 150, 150),
        patterns.document((100, 50)),
        sparse_launch.BLOCK_TILES[64, 64][0],
    )
    lists = pattern.block_lists(150)
    items = sparse_work.work_items(lists, 1).items
    no_parts = torch.zeros(0), torch.zeros(0)
    of_softmax = lists.indptr, np.float32(0), torch.zeros(0)  # neither a softcap nor sinks
    return SparseLaunch(
        source=f"{SPARSE}/{file}.cu",
        kernel="block_sparse_forward",
        grid=(len(items), 1, 1),
        block=(tile.threads,),
        args=(*tensors, items, lists.indices, lists.bits_index, lists.bits, *no_parts, *scalars, *of_softmax),
        options=(*tile.options, "-DBF16=0"),
        shared_mem=tile.shared_bytes,
        inputs=tensors[:3],
        attn_mask=pattern.mask(150),
    )


def _merge(file: str) -> Launch:
    """50 queries and 128 keys, in two parts of 64."""
    (query, key, value, out, lse), scalars = _sparse("planted", 50, 128)
    parts = [
        reference.attention(query, key[:, :, part], value[:, :, part], return_lse=True)
        for part in (slice(0, 64), slice(64, 128))
    ]
    O_parts, LSE_parts = torch.zeros(2, 1, 1, 64, 64), torch.zeros(2, 1, 1, 64)
    for n, (part, part_lse) in enumerate(parts):
        O_parts[n, :, :, :50], LSE_parts[n, :, :, :50] = part, part_lse
    return SparseLaunch(
        source=f"{SPARSE}/{file}.cu",
        kernel="merge_parts",
        grid=(64 // sparse_launch.MERGED_ROWS, 1, 1),
        block=(32 * sparse_launch.MERGED_ROWS,),
        args=(O_parts, LSE_parts, torch.tensor([[0, 0, 2, 0]], dtype=torch.int32), out, lse, scalars[0]),
        options=(*sparse_launch.BLOCK_TILES[64, 64][0].options, "-DBF16=0"),
        inputs=(query, key, value),
        attn_mask=torch.ones(50, 128, dtype=torch.bool),
    )


def _gather(file: str) -> Launch:
    (tensors, scalars), pattern = _sparse("normal", 70, 70), patterns.power_of_two()
    return SparseLaunch(
        source=f"{SPARSE}/{file}.cu",
        kernel="csr_gather",
        grid=(ceil_div(70, sparse_launch.CSR_WARPS), 1, 1),
        block=(32 * sparse_launch.CSR_WARPS,),
        args=(*tensors, *pattern.csr(70), *scalars),
        options=("-DD=64", f"-DWARPS={sparse_launch.CSR_WARPS}", "-DBF16=0"),
        inputs=tensors[:3],
        attn_mask=pattern.mask(70),
    )


# -------- chapter 05


@dataclass(frozen=True, kw_only=True)
class KnownLaunch(Launch):
    """A launch with its right results: `expected` has them in float64, by place among the tensors."""

    expected: dict[int, Tensor]


def _sparse_mla(file: str) -> Launch:
    """Two queries with 4 heads each, 40 latent rows; one index is 40, and both lists are padded with -1."""
    query, latent = _normal(2, 4, 128, seed=1).bfloat16(), _normal(40, 128, seed=2).bfloat16()
    indices = torch.tensor([[3, 17, 39, -1, -1, -1], [5, 40, 2, 8, -1, -1]], dtype=torch.int32)
    out, lse = reference.sparse_mla(query, latent, indices, scale=0.1, value_dim=64)
    tile = mla.FEW_HEADS_TILES[128, 64][0]
    return KnownLaunch(
        source=f"{DEEPSEEK}/{file}.cu",
        kernel="sparse_mla",
        grid=(1, 2),
        block=(tile.threads,),
        args=(
            *(query, latent, indices, _nans(2, 4, 64).bfloat16(), _nans(2, 4)),
            *(*map(np.int32, (40, 4, 6)), np.float32(0.1)),
        ),
        options=(*tile.options, "-DBF16=1"),
        shared_mem=tile.shared_bytes,
        expected={3: out, 4: lse},
    )


def _indexer(file: str) -> Launch:
    """Three queries with 8 index heads, 100 keys, all legal."""
    q, k, weights = _normal(3, 8, 64, seed=1).bfloat16(), _normal(100, 64, seed=2).bfloat16(), _normal(3, 8, seed=3)
    variant = indexer.variant(torch.bfloat16, 64, torch.device("cpu"))
    return KnownLaunch(
        source=f"{DEEPSEEK}/{file}.cu",
        kernel="lightning_indexer",
        grid=(1, 1),
        block=(variant.threads,),
        args=(q, k, weights, _nans(3, 100), *map(np.int32, (3, 100, 8, 100))),
        options=variant.options,
        shared_mem=variant.shared_bytes,
        expected={3: reference.lightning_indexer(q, k, weights, q_start=100)},
    )


def _topk(file: str) -> Launch:
    """The 64 greatest of 3000. The output has room for more, because a kernel that counts wrong may write too many."""
    args = _normal(1, 3000), torch.zeros(1, 3000, dtype=torch.int32), np.int32(3000), np.int32(64)
    return Launch(f"{DEEPSEEK}/{file}.cu", "radix_topk", (1,), (512,), args, ("-DTHREADS=512",))


# -------- chapter 06: two sequences in pages of 5 keys, in a random order


def _in_pages() -> tuple[list[Tensor], list[Tensor]]:
    """Query, key and value of 2 sequences with 100 keys, 2 heads; the same keys and values in pages, the table, and the
    lengths."""
    case = AttentionCase(2, 2, 2, 1, 100, 64, False, "normal")
    query, key, value, _ = make_inputs(case, dtype=torch.float16, seed=0)
    table = torch.randperm(40, generator=torch.Generator().manual_seed(0)).view(2, 20)
    pages = []
    for cache in (key, value):
        rows = cache.transpose(1, 2).unflatten(1, (20, 5))  # [B, 20, page_size, H_kv, d]
        pages.append(torch.empty_like(rows.flatten(0, 1)))
        pages[-1][table] = rows
    return [query, key, value], [*pages, table.int(), torch.full((2,), 100, dtype=torch.int32)]


def _paged(file: str) -> Launch:
    """Each sequence in one piece."""
    (query, key, value), (*pages, table, lengths) = _in_pages()
    tile, out, lse = serving_choice.TILES[64, 16, 2].small, torch.full_like(query, torch.nan), _nans(2, 2, 1)
    numbers = *map(np.int32, (2, 100, 1, 1)), np.float32(64**-0.5), *map(np.int32, (1, 0, 0, 100))
    of_pages = table, *map(np.int32, (20, 5, 0)), np.float32(0), _nans(1)  # no window, softcap or sinks
    return KnownLaunch(
        source=f"{SERVING}/{file}.cu",
        kernel="paged_cache",
        grid=(1, 2, 2),
        block=tile.block,
        args=(query, *pages, out, lse, lse, lse, lengths, lengths, *numbers, *of_pages),
        options=(*tile.options, "-DBF16=0"),
        shared_mem=tile.shared_bytes,
        expected={3: reference.attention(query, key, value)},
    )


def _append(file: str) -> Launch:
    """Three tokens each, the last ones, which are missing in the pages."""
    (_, key, value), (*pages, table, lengths) = _in_pages()
    new = [cache[:, :, -3:].transpose(1, 2).contiguous() for cache in (key, value)]
    before = [cache.clone() for cache in pages]
    for cache in before:
        cache[table[:, -1].long(), -3:] = 0
    nothing = _nans(1)
    return KnownLaunch(
        source=f"{SERVING}/{file}.cu",
        kernel="append_paged",
        grid=(1,),
        block=(serving_launch.APPEND_THREADS,),
        args=(*new, *before, table, lengths, nothing, nothing, *map(np.int32, (2, 3, 2, 64, 20, 5))),
        options=("-DBF16=0", "-DCACHE_BITS=16"),
        expected={2: pages[0].double(), 3: pages[1].double()},
    )


def _step(file: str = "persistent_step", *, pieces: int = 4, taken: int = 0) -> Launch:
    """One layer, each sequence in two pieces, the last token missing in the pages. pieces: the most pieces, as the host
    says it. taken: items that the workspace counts as taken."""
    (query, key, value), (*pages, table, lengths) = _in_pages()
    new = [cache[:, :, -1:].transpose(1, 2).contiguous() for cache in (key, value)]
    for cache in pages:
        cache[table[:, -1].long(), -1] = 0
    counters = torch.zeros(serving_choice.step_workspace(2, 2), dtype=torch.int32)
    counters[0] = taken
    tile, out, lse = serving_choice.TILES[64, 16, 2].small, torch.full_like(query, torch.nan), _nans(2, 2, 1)
    parts = _nans(4, 2, 1, 64), _nans(4, 2, 1)
    numbers = *map(np.int32, (1, 2, 40, 20, 5, 1, 2, 1)), np.float32(64**-0.5), *map(np.int32, (0, 0, 64, pieces))
    return KnownLaunch(
        source=f"{SERVING}/{file}.cu",
        kernel="persistent_step",
        grid=(2,),
        block=tile.block,
        args=(query, *new, *pages, out, lse, *parts, lengths, counters, table, lse, lse, counters, *numbers),
        options=(*tile.options, "-DBF16=0", "-DCACHE_BITS=16"),
        shared_mem=tile.shared_bytes,
        expected={5: reference.attention(query, key, value)},
    )


def attention_reports(launch: Launch, results: list[Tensor]) -> list[ErrorReport]:
    """Compares O and LSE of a launch of a forward kernel, or the logits of an indexer, with float64; `results` is what
    `launch.run()` returned."""
    if isinstance(launch, KnownLaunch):
        return [error_report(results[place].cpu(), right) for place, right in launch.expected.items()]
    query, key, value, out, lse = (tensor.cpu() for tensor in results[:5])
    if isinstance(launch, SparseLaunch):
        query, key, value = launch.inputs
        options = {"attn_mask": launch.attn_mask}
    else:
        options = {"is_causal": bool(launch.args[-1])}
    expected, expected_lse = reference.attention(query, key, value, **options, return_lse=True)
    same_dtype = reference.torch_attention(query, key, value, **options)
    return [error_report(out, expected, same_dtype), lse_report(lse, expected_lse)]


# ---------------------------------------------------------------------------------------------- the mistakes


def _of_file(name: str, mended: str, make: Callable[[str], Launch]) -> dict[str, Callable[[], Launch]]:
    """A mistake that is a diff, and the kernel that it breaks."""
    return {"launch": partial(make, f"broken/{name}"), "mended": partial(make, mended)}


def _of_flash(
    name: str, inputs: Callable[[], list[Tensor]], mended: str = "forward_plain", is_causal: bool = False
) -> dict[str, Callable[[], Launch]]:
    """A mistake in a kernel of chapter 02."""
    return _of_file(name, mended, partial(_flash, inputs=inputs, kernel=mended, is_causal=is_causal))


def _of_step(name: str) -> dict[str, Callable[[], Launch]]:
    """A mistake in a step of the ladder."""
    return _of_file(name, _MADE_FROM[f"broken/{name}"], partial(_flash_v2, query_length=70, key_length=200))


def _of_option(make: Callable[[str], Launch], broken: str, mended: str) -> dict[str, Callable[[], Launch]]:
    """A mistake that an option of the same file mends."""
    return {"launch": partial(make, broken), "mended": partial(make, mended)}


_MENDED = "-DMENDED=0", "-DMENDED=1"
_SCORE, _WEIGH = "s += tile.Q[t][d] * tile.K[c][d];", "O_i[d] += p * tile.V[c][d];"
_COPY = "copy_16_bytes_async(tile + r * D + (place ^ r % 8 * 8)"

_ALL = [
    # -------- chapter 00: small kernels, one for each thing that a tool can see
    BrokenKernel(
        "too_few_warp_slots",
        **_of_option(_row_max, "-DWARPS=8", "-DWARPS=16"),
        tool="memcheck",
        line="if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;",
        symptom="Right numbers, until another shared array lies behind this one: then that one changes.",
        lesson="The size of a shared array is part of the launch: change it together with the block.",
    ),
    BrokenKernel(
        "small_shared",
        _flash_without_padding,
        partial(_flash, "forward_plain", _RAGGED),
        tool="memcheck",
        line="tile.S[t][c] = s;",
        symptom="A GPU stops the kernel with an illegal address, or does not notice: it hands out shared memory in "
        "coarse pieces.",
        lesson="The launch asked for tiles without their padding. Compute shared_mem from the same struct or formula "
        "as the kernel does.",
    ),
    BrokenKernel(
        "top_scores_overrun",
        **_of_option(_top_scores, *_MENDED),
        tool="memcheck",
        line="best[k] = s;",
        symptom="Whatever lies behind the array on the thread's stack changes; the numbers may well be right.",
        lesson="An insertion into a list of fixed length must say what happens to an element that does not belong.",
    ),
    BrokenKernel(
        "misaligned_float4",
        **_of_option(_misaligned, "-DPAD=1", "-DPAD=4"),
        tool="memcheck",
        line="const float4 k = *reinterpret_cast<const float4*>(&tile[t][d]);",
        symptom="A GPU stops the kernel: misaligned address.",
        lesson="Rows that are read by float4 are padded by 4 floats, not by 1.",
    ),
    BrokenKernel(
        "cp_async_too_early",
        **_of_option(_cp_async, "-DIN_FLIGHT=1", "-DIN_FLIGHT=0"),
        tool="racecheck",
        line="s += q[d] * tile[t][d];",
        other_line="cp.async.ca.shared.global",
        symptom="cp.async copies beside the threads (chapter 03): stale numbers or right ones, by how long it takes.",
        lesson="wait_group N lets the N youngest groups go on. Count which of them holds the tile you read next.",
    ),
    BrokenKernel(
        "cp_async_two_buffers",
        **_of_option(_buffers, "-DBUFFERS=2", "-DBUFFERS=3"),
        tool="racecheck",
        line="cp.async.ca.shared.global",
        other_line="s += Q[i * D + d] * tile[n % BUFFERS][j][d];",
        symptom="Often right numbers: on a GPU a warp must be a whole tile behind the others.",
        lesson="Before a buffer is filled again, every reader must be known to be done: one more barrier, or one more "
        "buffer.",
    ),
    BrokenKernel(
        "dq_without_atomics",
        **_of_option(_dq, *_MENDED),
        tool="racecheck",
        line="dQ[c] += sum;",
        other_line="dQ[c] += sum;",
        symptom="Too small a dQ, by another amount in each run. With one block all is well.",
        lesson="Blocks run in any order and at the same time. What several of them add to takes atomics, or a loop "
        "order in which each element has one owner.",
    ),
    BrokenKernel(
        "barrier_in_branch",
        **_of_option(_barrier, *_MENDED),
        tool="synccheck",
        line="if (t < step) { sum[t] += sum[t + step]; __syncthreads(); }",
        other_line="__syncthreads();   // the sum is complete",
        symptom="Undefined: on a GPU the barriers of both places count together, and the sum is read too early, or the "
        "kernel hangs.",
        lesson="All threads of the block or none: a barrier stands in no branch on which threads disagree.",
    ),
    BrokenKernel(
        "shuffle_in_branch",
        **_of_option(_shuffle, *_MENDED),
        tool="synccheck",
        line="x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, step));",
        other_line="__syncthreads();   // both warps have left their maximum",
        symptom="A GPU may hang: lanes 0–7 wait for lanes 8–31, which wait at the barrier. With rows of 32 or 64 keys "
        "all is well.",
        lesson="The mask is a promise that these lanes come. A lane without data comes with −∞ or 0.",
    ),
    BrokenKernel(
        "unpadded_transpose",
        partial(_transpose, "transpose_tiled"),
        partial(_transpose, "transpose_padded"),
        tool="counters",
        line="out[(long long)y * rows + x] = tile[threadIdx.x][threadIdx.y];",
        symptom="Right numbers, slower: the 32 lanes of a warp read 32 words of one bank, one after the other.",
        lesson="A tile that is read by columns gets a row pitch that is odd in words.",
    ),
    # -------- chapter 01
    BrokenKernel(
        "uncoalesced_keys",
        partial(_scores, "scores_uncoalesced", "scores_uncoalesced", 64, 64),
        partial(_scores, "scores", "scores", 64, 64),
        tool="counters",
        line="sum += Q[(long long)i * d + c] * K[(long long)j * d + c];",
        symptom="Right numbers, slower: each load of K by a warp touches 32 sectors and uses 4 bytes of each.",
        lesson="Neighbouring threads read neighbouring addresses; to read another way round, go through shared memory.",
    ),
    BrokenKernel(
        "ragged_tail",
        partial(_scores, "broken/ragged_tail", "scores", 70, 80),
        partial(_scores, "scores", "scores", 70, 80),
        tool="memcheck",
        line="K_tile[ty][tx] = k_inside ? K[(long long)(j0 + ty) * d + column] : 0;",
        symptom="Right numbers: no score is made of that row. On a GPU something else usually lies behind K, until one "
        "day nothing does.",
        lesson="Test with lengths that are no multiple of the tile. The finding names the load; the mistake is in its "
        "condition.",
    ),
    BrokenKernel(
        "missing_sync_in_reduction",
        partial(_softmax, "broken/missing_sync_in_reduction"),
        partial(_softmax, "softmax"),
        tool="racecheck",
        line="if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = x;",
        other_line="for (int w = 1; w < WARPS; w++) x = combine(x, of_warp[w], largest);",
        symptom="Often right numbers: on a GPU a warp must be slow enough to read a sum for a maximum.",
        lesson="A function that uses shared memory is called twice some day: it also waits before it writes.",
    ),
    # -------- chapter 02
    BrokenKernel(
        "no_running_max",
        **_of_flash("no_running_max", partial(_case, "overflowing exp", 64, 80)),
        tool="check",
        symptom="inf and NaN in rows with a logit above 88.7; on small random inputs all is well.",
        lesson="exp overflows. Subtract a maximum, and test with large logits.",
    ),
    BrokenKernel(
        "no_rescale",
        **_of_flash("no_rescale", partial(_case, "planted", 64, 200)),
        tool="check",
        symptom="Wrong O, right LSE. With a single key tile, or the largest score in the first one, all is well.",
        lesson="Whatever was summed relative to the old maximum is rescaled to the new one: l and O alike.",
    ),
    BrokenKernel(
        "missing_sync_after_load",
        **_of_flash("missing_sync_after_load", _RAGGED),
        tool="racecheck",
        line=_SCORE,
        other_line="tile[e / D][e % D] = first",
        symptom="Wrong numbers, on a GPU not in every run: a thread reads rows that others have yet to load.",
        lesson="Between the writes of some threads and the reads of others stands a barrier.",
    ),
    BrokenKernel(
        "missing_sync_before_overwrite",
        **_of_flash("missing_sync_before_overwrite", _RAGGED),
        tool="racecheck",
        line="tile[e / D][e % D] = first",
        other_line=_WEIGH,
        symptom="Right numbers in most runs on a GPU: a warp must be a whole load ahead of another one.",
        lesson="A loop over tiles takes two barriers: after the load, and before the next one.",
    ),
    BrokenKernel(
        "missing_syncwarp",
        **_of_flash("missing_syncwarp", _RAGGED, mended="forward"),
        tool="racecheck",
        line="a[r] = reinterpret_cast<const float4&>(A[row() + r * TY][k]);",
        other_line="tile.P[row() + r * TY][column() + c * TX] = p;",
        symptom="Often right numbers: since Volta the lanes of a warp need not be at the same place.",
        lesson="What lanes of one warp hand to each other through shared memory takes a __syncwarp().",
    ),
    BrokenKernel(
        "off_by_one_causal",
        **_of_flash("off_by_one_causal", partial(_case, "normal", 70, 80, True), is_causal=True),
        tool="check",
        symptom="Plausible numbers; in training, a loss that is too good to be true.",
        lesson="Change the future and see that the past stays. A mask is also tested where L_q ≠ L_k.",
    ),
    BrokenKernel(
        "wrong_stride",
        **_of_flash("wrong_stride", _RAGGED),
        tool="initcheck",
        line=_SCORE,
        symptom="Wrong numbers, other ones in each run: the last rows hold what an earlier kernel left there.",
        lesson="Row pitch and row length are two numbers. Index through the array type, and the compiler multiplies.",
    ),
    BrokenKernel(
        "no_zero_fill",
        **_of_flash("no_zero_fill", partial(_case, "normal", 70, 20)),
        tool="initcheck",
        line=_WEIGH,
        symptom="Right numbers until the unwritten memory holds inf or NaN: 0 · NaN is NaN. With more keys than a tile "
        "the tail holds finite numbers of the tile before, and all is well.",
        lesson="A weight of 0 does not hide garbage in V. Fill the tail of a tile with zeros.",
    ),
    BrokenKernel(
        "half_accumulation",
        **_of_flash("half_accumulation", _even_attention),
        tool="check",
        symptom="A few wrong digits, and twice the right O after 4096 even keys: 2048 + 1 is 2048 in half.",
        lesson="Multiply in half precision, add up in fp32.",
    ),
    # -------- chapter 03
    BrokenKernel(
        "copy_before_barrier",
        **_of_step("copy_before_barrier"),
        tool="racecheck",
        line=_COPY,
        other_line="ldmatrix_x4_trans(v, address(V, 8 * n + lane % 16, c + lane / 16));",
        symptom="Right numbers in most runs on a GPU: a warp must be a product behind the others.",
        lesson="Two buffers and one barrier per tile are enough, if the copies start after the barrier: then it also "
        "says that the buffers they fill are free.",
    ),
    BrokenKernel(
        "wait_for_one_group_less",
        **_of_step("wait_for_one_group_less"),
        tool="racecheck",
        line="ldmatrix_x4(k, address(K, key, 2 * d + lane / 8 % 2));",
        other_line=_COPY,
        symptom="Numbers of an older tile, or right ones, by how long the copies take.",
        lesson="wait_group N lets the N youngest groups go on. The next tile's copies start later here: N is 0.",
    ),
    BrokenKernel(
        "v_not_transposed",
        **_of_step("v_not_transposed"),
        tool="check",
        symptom="Wrong O, right LSE; plausible numbers, weighted means of the wrong values of V.",
        lesson="mma wants B by columns. Rows of K are columns of Kᵀ, so K is loaded as it lies; V is turned by .trans.",
    ),
    BrokenKernel(
        "p_in_wrong_order",
        **_of_step("p_in_wrong_order"),
        tool="check",
        symptom="Wrong O, right LSE; right if all keys weigh the same.",
        lesson="Draw the fragment layouts before you hand registers from one product to the next, and compare with "
        "float64: no sanitizer sees a wrong order.",
    ),
    # -------- chapter 04
    BrokenKernel(
        "window_edge",
        **_of_file("window_edge", "range", _window),
        tool="check",
        symptom="One row sees one key too many, and only where the window of a warp's last row begins one key into a "
        "tile: of 159 keys, say, but not of 128 or 160.",
        lesson="Whether a tile needs a mask is a condition that goes wrong unseen. Test windows of many sizes, not of "
        "powers of two.",
    ),
    BrokenKernel(
        "first_bits_ignored",
        **_of_file("first_bits_ignored", "block_sparse", _documents),
        tool="check",
        symptom="Queries of one block see keys that are not theirs, and wherever else one looks all is well.",
        lesson="0 is a number like any other where −1 means none.",
    ),
    BrokenKernel(
        "merge_without_weights",
        **_of_file("merge_without_weights", "block_sparse", _merge),
        tool="check",
        symptom="Wrong O and LSE in rows that are split; right ones in O where all parts weigh the same, as they "
        "nearly do on small random inputs.",
        lesson="A part of a softmax is worth what its log-sum-exp says: keep it with every O.",
    ),
    BrokenKernel(
        "tail_counts_as_zeros",
        **_of_file("tail_counts_as_zeros", "csr_gather", _gather),
        tool="check",
        symptom="Too small an O and too large an LSE. With rows of 32 or 64 keys all is well.",
        lesson="A lane without data comes with −∞ to a softmax. A score of 0 is a key like any other.",
    ),
    # -------- chapter 05
    BrokenKernel(
        "relu_after_sum",
        **_of_file("relu_after_sum", "lightning_indexer", _indexer),
        tool="check",
        symptom="Plausible scores, none below 0; other keys are selected, and the answers get a little worse.",
        lesson="ReLU(a + b) is not ReLU(a) + ReLU(b). Between the products and the sum over heads stands the ReLU: it "
        "is why the heads cannot be added up first, at the cost of one.",
    ),
    BrokenKernel(
        "histogram_without_barrier",
        **_of_file("histogram_without_barrier", "radix_topk", _topk),
        tool="racecheck",
        line="histogram[d] = 0",
        other_line="atomicAdd(&histogram",
        symptom="Now and then keys that are not among the k greatest.",
        lesson="Between clearing shared memory and filling it stands a barrier, even where the filling is atomic.",
    ),
    BrokenKernel(
        "index_past_the_end",
        **_of_file("index_past_the_end", "sparse_mla", _sparse_mla),
        tool="memcheck",
        line="copy_16_bytes_async(tile[p]",
        symptom="Wrong numbers, or an illegal address, by what lies behind the latent. With lists that hold no such "
        "index all is well.",
        lesson="An index from memory is input like any other: compare it with both ends before it becomes an address.",
    ),
    BrokenKernel(
        "padding_is_token_0",
        **_of_file("padding_is_token_0", "sparse_mla", _sparse_mla),
        tool="check",
        symptom="The first queries, whose lists are not full, look at token 0 many times; no access is out of bounds.",
        lesson="Clamp an index to have a safe address, and still leave the key out: by −∞, or by zeros and a mask.",
    ),
    # -------- chapter 06
    BrokenKernel(
        "table_of_first_sequence",
        **_of_file("table_of_first_sequence", "paged_cache", _paged),
        tool="check",
        symptom="Each sequence alone is right, and so is a batch of equal ones; else all answer the first's prompt.",
        lesson="Test pages with sequences that differ, and a table in random order: with one in which page n is page n "
        "most mistakes of translation cannot be seen.",
    ),
    BrokenKernel(
        "appended_too_early",
        **_of_file("appended_too_early", "append", _append),
        tool="check",
        symptom="The new tokens overwrite those before them, and what stands in their own places is attended.",
        lesson="Say of every length whether it includes the new tokens; the name does not tell. FlashAttention's "
        "cache_seqlens excludes them; FlashInfer's lengths and the lengths of this course include them.",
    ),
    BrokenKernel(
        "new_token_unseen",
        **_of_file("new_token_unseen", "persistent_step", _step),
        tool="check",
        symptom="Plausible numbers: of each sequence the newest token counts as zeros, one key among thousands.",
        lesson="What is read ahead is read before its time. Say what of it may change until then, and read that again.",
    ),
    BrokenKernel(
        "captured_short",
        partial(_step, pieces=2),
        _step,
        tool="check",
        symptom="Right while the sequences are as short as they were at capture. Then nobody attends the last pieces, "
        "and rows hold what was there before; with a second layer, which waits for them, the GPU hangs.",
        lesson="A graph keeps its grid and its numbers: take them from the capacity, and the lengths from the device.",
    ),
    BrokenKernel(
        "workspace_shared",
        partial(_step, taken=1),
        _step,
        tool="check",
        symptom="Rows that nobody has written, in one of two graphs that run at the same time. Alone each is right.",
        lesson="What a kernel counts in, and where it keeps its parts, belongs to one launch at a time: here another "
        "graph has taken an item in the same counters, and so it is missing in this one.",
    ),
]
BROKEN: dict[str, BrokenKernel] = {kernel.name: kernel for kernel in _ALL}
