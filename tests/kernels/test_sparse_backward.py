"""range_dk_dv and block_sparse_dk_dv alone: gradients right against float64, nothing for the sanitizer to find."""

import functools
import sys

import numpy as np
import pytest
import torch

from course_utils import checks, reference
from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import sanitize
from course_utils.operators import sparse_launch, sparse_work
from course_utils.operators.attention import Call
from course_utils.operators.tensor_core import BackwardTile
from course_utils.patterns import UNBOUNDED, Ranges
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers.one_of_each import every_second

FOLDER = "04_sparse_patterns"
SMALL, WIDE = BackwardTile(64, 4, 16, 64), BackwardTile(64, 4, 32, 64)
LARGE, NARROW = BackwardTile(128, 8, 16, 64), BackwardTile(128, 4, 16, 32)


def mask_of(ranges, L_q, L_k):
    """The dense mask by the definition of Ranges, bool `[L_q, L_k]`."""
    i, j = torch.arange(L_q)[:, None] + L_k - L_q, torch.arange(L_k)
    own_class = (i - j) % ranges.dilation == 0
    i, j = i // ranges.dilation, j // ranges.dilation
    base = i // ranges.step * ranges.step
    return own_class & (j < base + ranges.right) & ((j >= base - ranges.left) | (j < ranges.sinks))


def lists_of(mask, block):
    """BlockLists' by_key() and bits of a dense mask, built block by block."""
    L_q, L_k = mask.shape
    rows, index, bits, indptr = [], [], [], [0]
    for c in range(0, L_k, block):
        for r in range(0, L_q, block):
            part = mask[r : r + block, c : c + block]
            if part.any():
                rows.append(r // block)
                full = part.all() and part.shape[1] == block
                index.append(-1 if full else len(bits))
                if not full:
                    bits.append(torch.zeros(block, block, dtype=torch.int64))
                    bits[-1][: part.shape[0], : part.shape[1]] = part
        indptr.append(len(rows))
    words = (
        torch.stack(bits).view(len(bits), block, -1, 32) << torch.arange(32) if bits else torch.zeros(0, block, 2, 1)
    )
    return *(torch.tensor(numbers, dtype=torch.int32) for numbers in (indptr, rows, index)), words.sum(-1).to(
        torch.int32
    )


def check(launch, mask, tile, *, dtype=torch.float16, kind="normal", group=1, kv_heads=1, seed=0):
    """Runs `launch(tensors, call)` under the sanitizer and compares what it adds to dQ, and dK and dV."""
    L_q, L_k = mask.shape
    case = checks.AttentionCase(1, group * kv_heads, kv_heads, L_q, L_k, tile.head_dim, False, kind)
    query, key, value, grad_out = make = checks.make_inputs(case, dtype=dtype, seed=seed)
    options = {"attn_mask": mask, "enable_gqa": group > 1}
    out, lse = reference.attention(query, key, value, **options, return_lse=True)
    delta = (out.to(dtype).float() * grad_out.float()).sum(-1)
    dq_sum = torch.zeros(query.shape, dtype=torch.float32)
    dk, dv = torch.full_like(key, torch.nan), torch.full_like(value, torch.nan)
    scale = tile.head_dim**-0.5
    call = Call(query.shape, key.shape, dtype, query.device, scale)
    with sanitize() as report:
        launch((*make, lse.float(), delta, dq_sum, dk, dv), call)
    assert not report.findings, str(report)
    wanted = reference.attention_gradients(*make, **options)
    same_dtype = functools.cache(lambda: reference.attention_gradients(*make, **options, dtype=dtype))
    for n, (name, ours, exact) in enumerate(zip("qkv", ((scale * dq_sum).to(dtype), dk, dv), wanted, strict=True)):
        runs = (run()[n] for run in [same_dtype])  # made where it is asked for
        found = checks.error_report(ours, exact, runs, factor=checks.GRADIENT_FACTOR, name=f"d{name}")
        assert found.passed, str(found)
    assert (dk[:, :, ~mask.any(0)] == 0).all() and (dv[:, :, ~mask.any(0)] == 0).all()


def module_of(file, tile, *more, dtype=torch.float16):
    options = (*tile.options, f"-DBF16={int(dtype == torch.bfloat16)}", *more)
    return RawModule(code=read_kernel(f"{FOLDER}/{file}.cu"), options=options)


def check_range(ranges, L_q, L_k, tile, *, parts=False, **options):
    """parts: whether some column is split, as the caller has arranged."""
    dilated = f"-DDILATED={int(ranges.dilation > 1)}"
    kernels = module_of("range_backward", tile, dilated, dtype=options.get("dtype", torch.float16))

    def launch(tensors, call):
        columns = sparse_work.range_columns(ranges, tile, call.query_shape, call.key_shape, call.device)
        assert bool(columns.parts) == parts
        numbers = tuple(map(np.int32, ranges))
        sparse_launch.by_columns(kernels, "range_dk_dv", tile, columns, call, numbers)(*tensors)

    check(launch, mask_of(ranges, L_q, L_k), tile, **options)


def check_lists(mask, block, tile, *, parts=False, **options):
    """parts: as for `check_range`."""
    dtype = options.get("dtype", torch.float16)
    kernels = module_of("block_sparse_backward", tile, f"-DBLOCK={block}", dtype=dtype)
    indptr, *lists = lists_of(mask, block)
    tiles = torch.arange(ceil_div(mask.shape[1], tile.block_cols))
    column = tiles * tile.block_cols // block

    def launch(tensors, call):
        of_column, shapes = (indptr[column], indptr[column + 1]), (call.query_shape, call.key_shape)
        columns = sparse_work.columns_of(tiles, *of_column, tile, *shapes, rows_of_entry=block)
        assert bool(columns.parts) == parts
        sparse_launch.by_columns(kernels, "block_sparse_dk_dv", tile, columns, call, tuple(lists))(*tensors)

    check(launch, mask, tile, **options)


@pytest.fixture
def short_parts(monkeypatch):
    """Columns are split where they are longer than a tile of queries and than four times the others, or some such."""
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 64)


RANGES = {
    "window": (Ranges(0, 69, 1), 200, 200, WIDE),
    "window, queries first": (Ranges(0, 40, 1), 257, 100, LARGE),  # rows before the first key see nothing
    "window, keys left out": (Ranges(0, 20, 1), 10, 300, WIDE),  # two tiles of keys that no row sees
    "window of one": (Ranges(0, 0, 1), 65, 63, NARROW),
    "sinks and a window": (Ranges(5, 30, 1), 130, 300, WIDE),
    "sinks end in the second tile": (Ranges(70, 9, 1), 200, 190, NARROW),
    "causal": (Ranges(0, UNBOUNDED, 1), 65, 130, NARROW),
    "full": (Ranges(), 70, 50, WIDE),
    "to the right": (Ranges(0, 0, UNBOUNDED), 113, 65, WIDE),
    "symmetric": (Ranges(0, 17, 18), 100, 130, LARGE),
    "blocks on the diagonal": (Ranges(0, 0, 48, 48), 300, 200, WIDE),
    "one block": (Ranges(0, 0, 500, 500), 64, 65, NARROW),
    "dilated": (Ranges(0, 6, 1, 1, 3), 257, 200, WIDE),
    "dilated, long classes": (Ranges(0, 40, 1, 1, 2), 170, 300, NARROW),
    "dilated blocks": (Ranges(0, 4, 5, 5, 7), 90, 113, LARGE),
    "more classes than keys": (Ranges(0, 3, 1, 1, 40), 40, 33, WIDE),
    "classes without queries": (Ranges(0, 3, 1, 1, 7), 3, 33, NARROW),
    "one of each": (Ranges(0, 0, 1), 1, 1, WIDE),
}


# In `make test` by another of them, or by tests/operators/test_sparse.py at other lengths.
ALIKE = pytest.mark.exhaustive("`make test` has the same turns of the loops in other ranges")
ONCE = (
    "window",
    "more classes than keys",
    "dilated, long classes",
    "dilated blocks",
    "causal",
    "symmetric",
    "one block",
)


@pytest.mark.parametrize("name", [pytest.param(name, marks=ALIKE if name in ONCE else ()) for name in RANGES])
def test_gradients_of_ranges(name):
    check_range(*RANGES[name])


@pytest.mark.parametrize("tile", [WIDE, LARGE, NARROW], ids=str)
def test_keys_past_the_end_where_a_log_sum_exp_is_far_below_zero(tile):
    check_range(Ranges(0, 0, 1), 70, 65, tile, kind="large logits")


def test_query_heads_that_share_a_key_head_and_bf16():
    check_range(Ranges(3, 50, 1), 90, 140, WIDE, group=3, kv_heads=2, kind="large logits")
    check_range(Ranges(0, 9, 1, 1, 3), 90, 140, LARGE, group=2, dtype=torch.bfloat16)


def random_mask(L_q, L_k, block, seed=0):
    """Blocks of which a third is full, a third empty, and a third random pairs; one column of blocks is empty."""
    generator = torch.Generator().manual_seed(seed)
    blocks = ceil_div(L_q, block), ceil_div(L_k, block)
    kind = torch.randint(3, blocks, generator=generator)
    kind[:, blocks[1] // 2] = 0
    share = (kind.float() / 2).repeat_interleave(block, 0).repeat_interleave(block, 1)[:L_q, :L_k]
    return torch.rand(L_q, L_k, generator=generator) < share


@pytest.mark.parametrize(
    ("L_q", "L_k", "block", "tile"),
    [(200, 140, 64, SMALL), (130, 200, 64, NARROW), (140, 390, 128, WIDE), (260, 130, 128, LARGE), (65, 64, 128, WIDE)],
)
def test_gradients_of_block_lists(L_q, L_k, block, tile):
    check_lists(random_mask(L_q, L_k, block), block, tile)


def test_lists_of_heads_that_share_a_key_head():
    check_lists(random_mask(200, 130, 64), 64, SMALL, group=3, kv_heads=2, kind="large logits")


@pytest.mark.parametrize(
    "tile", [pytest.param(LARGE, marks=pytest.mark.exhaustive("another tile, and another below")), NARROW], ids=str
)
def test_the_column_of_a_sink_is_split(short_parts, tile):
    check_range(Ranges(3, 20, 1), 330, 290, tile, parts=True, kind="large logits")


def test_parts_of_several_heads_and_of_heads_that_share_a_key_head(short_parts):
    check_range(Ranges(70, 20, 1), 200, 200, WIDE, parts=True, group=2, kv_heads=2, dtype=torch.bfloat16)
    mask = (torch.arange(200)[:, None] - torch.arange(130)).abs() < 9
    mask[:, 70] = True
    check_lists(mask, 64, SMALL, parts=True, group=2, kv_heads=2)


def test_dilated_columns_stay_whole(short_parts):
    """However few and long they are: merge_gradients knows no residue classes."""
    check_range(Ranges(0, 160, 1, 1, 2), 340, 340, NARROW)


def test_columns_cover_each_query_once_and_only_the_long_one_is_split(short_parts, monkeypatch):
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 256)
    ranges, shape = Ranges(4, 63, 1), torch.Size((2, 8, 1000, 64))
    columns = sparse_work.range_columns(ranges, SMALL, shape, shape, torch.device("cpu"))
    mask, counted = mask_of(ranges, 1000, 1000), torch.zeros(16, 1000)
    for tile, first, end, _ in columns.items.tolist():
        counted[tile, first:end] += 1
    seen = torch.stack([part.any(1) for part in mask.split(64, dim=1)])
    assert (counted <= 1).all() and (counted[seen] == 1).all()
    parts = columns.items[columns.items[:, 3] >= 0]
    assert sorted(parts[:, 3].tolist()) == list(range(columns.parts)) and columns.parts > 1
    assert columns.split.tolist() == [[0, 0, columns.parts, 0]] and set(parts[:, 0].tolist()) == {0}
    assert 8 % columns.heads == 0


@pytest.mark.parametrize(("heads", "length", "at_once"), [(16, 4096, 8), (12, 4096, 6), (7, 4096, 7), (16, 2**17, 1)])
def test_heads_that_share_the_cache_are_worked_on_side_by_side(heads, length, at_once):
    shape = torch.Size((1, heads, length, 128))
    causal = Ranges(0, UNBOUNDED, 1)
    assert sparse_work.range_columns(causal, LARGE, shape, shape, torch.device("cpu")).heads == at_once


# ---------------------------------------------------------------------------------------------- the kernels themselves


@pytest.mark.parametrize("file", ["range_backward", "block_sparse_backward"])
def test_no_listed_tile_spills(file):
    code = read_kernel(f"{FOLDER}/{file}.cu")
    for options in compile_options(code):
        if "-DD=256" in options:  # a warp's sums take more registers than there are
            continue
        found = max(nvrtc.compile_kernel(code, "sm_90", options).resources.values(), key=lambda of: of.spill_loads)
        some = file == "range_backward" and ("-DD=64" in options or "-DDQ_PASS=1" in options)
        most = 24 if some else 0  # bytes: read once per tile of queries
        assert max(found.spill_stores, found.spill_loads) <= most, options


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    every_second(
        [
            ("range_backward", "j + left, step) + step", "j + left, step)"),  # ends a step too early
            ("range_backward", ": Rows{of.queries, 0}", ": Rows{0, of.queries}"),  # keys past the end count as zeros
            ("range_backward", "min(sinks - j_warp, KEYS - 1)", "min(0, KEYS - 1)"),  # takes a sink's end for all keys'
            ("block_sparse_backward", "now.i0 % BLOCK", "0"),  # the bits of the block's first rows for all of them
            ("block_sparse_backward", "rows[entry] * BLOCK", "rows[first] * BLOCK"),
            ("range_backward", "threadIdx.x % WARPS)[KEYS + 1]", "threadIdx.x % WARPS)[KEYS]"),  # too many are idle
        ]
    ),
)
def test_a_broken_kernel_is_seen(monkeypatch, file, right, wrong):
    code = read_kernel(f"{FOLDER}/{file}.cu")
    assert code.count(right) == 1
    monkeypatch.setattr(sys.modules[__name__], "read_kernel", lambda name: code.replace(right, wrong))
    with pytest.raises(AssertionError, match="d[qkv]: WRONG"):
        if file == "range_backward":
            check_range(Ranges(0, 0, 1), 70, 65, NARROW, kind="large logits")
            check_range(Ranges(0, UNBOUNDED, 1), 75, 75, NARROW)  # a warp with keys that exist and others that do not
            for name in ("sinks end in the second tile", "blocks on the diagonal"):
                check_range(*RANGES[name][:3], NARROW)
        else:
            check_lists(torch.ones(200, 130).tril().bool(), 64, NARROW)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("merge_parts(parts, split, dK, dV, L_k, scale)", "merge_parts(parts, split, dV, dK, L_k, scale)"),
        ("first = column.first, end = column.end;", "first = column.first, end = column.end - 1;"),
    ],
)
def test_broken_parts_are_seen(short_parts, monkeypatch, right, wrong):
    code = read_kernel(f"{FOLDER}/range_backward.cu")
    assert code.count(right) == 1
    monkeypatch.setattr(sys.modules[__name__], "read_kernel", lambda name: code.replace(right, wrong))
    with pytest.raises(AssertionError, match="d[qkv]: WRONG"):
        check_range(Ranges(3, 20, 1), 330, 290, NARROW, parts=True, kind="large logits")
