"""What the cells of chapter 02 call: bytes of both loop orders, what shows a mistake, gradients by other ways."""

import functools

import pytest
import torch

from course_utils import costs, measured
from course_utils.chapters import broken_kernels
from course_utils.chapters.flash_attention_minimal import gradients, loop_orders
from course_utils.operators import flash_attention_minimal, flash_fa1_order, flash_plain

CPU = torch.device("cpu")
FLASH = "02_flash_attention_minimal"


def test_requests_of_both_orders_are_those_of_the_formulas():
    rows = loop_orders.requested(tiles=[(64, 64)], lengths=[128, 70])
    assert all(row[way] == row[f"{way}, by formula"] for row in rows for way in ("read", "written"))
    assert [(row["order"], row["read"], row["written"]) for row in rows] == [
        ("FA1", 198_656, 101_376),
        ("FA2", 163_840, 33_280),
        ("FA1", 165_376, 84_480),
        ("FA2", 131_072, 33_280),
        ("FA1", 108_640, 55_440),
        ("FA2", 89_600, 18_200),
        ("FA1", 75_360, 38_544),
        ("FA2", 86_528, 18_200),
    ]


@pytest.mark.exhaustive("four more sizes of tiles: the requests of one are those of the formulas, above")
def test_tile_sizes_change_the_requests_as_the_chapter_says():
    tiles = [(32, 32), (32, 64), (64, 64), costs.fa1_block_sizes(100 * 1024 // 4, 64)]
    rows = loop_orders.requested(tiles, lengths=[256], masks=[False])
    sums: dict[str, list[float]] = {"FA1": [], "FA2": []}
    for row in rows:
        sums[row["order"]].append(round((row["read"] + row["written"]) / 1e6, 2))
    assert sums == {"FA1": [1.8, 1.0, 1.0, 0.8], "FA2": [1.18, 1.18, 0.66, 0.66]}


def test_ncu_counts_the_sectors_of_the_formula():
    for row in loop_orders.reaching_hbm():
        if row["kernel"] != loop_orders.THREE_KERNELS:
            (counted,) = measured.load("counters").select(name=f"{row['kernel']}, L=2048")
            sectors = counted["metrics"]["l1tex__t_sectors_pipe_lsu_mem_global_op_ld"]
            assert 32 * sectors == round(1e6 * row["read: requested"])


def test_how_many_times_fewer_bytes_depends_on_the_count():
    rows = {row["kernel"]: row for row in loop_orders.reaching_hbm()}
    theirs, ours = rows[loop_orders.THREE_KERNELS], rows["forward_plain"]

    def times_fewer(*ways):
        counts = ("requested", "footprint", "HBM")
        moved = {count: [sum(row[f"{way}: {count}"] for way in ways) for row in (theirs, ours)] for count in counts}
        return [round(of_theirs / of_ours) for of_theirs, of_ours in moved.values()]

    assert times_fewer("read") == [66, 22, 22]
    assert times_fewer("read", "written") == [66, 33, 37]


@pytest.mark.parametrize("is_causal", [False, True])
def test_both_orders_give_what_the_fast_kernel_gives(is_causal):
    query, key, value = torch.randn(3, 1, 2, 70, 64, generator=torch.Generator().manual_seed(0))
    out, lse = flash_plain(query, key, value, is_causal=is_causal, return_lse=True)
    expected = flash_attention_minimal(query, key, value, is_causal=is_causal, return_lse=True)
    torch.testing.assert_close((out, lse), expected, rtol=1e-5, atol=1e-5)
    fa1 = flash_fa1_order(query, key, value, is_causal=is_causal, tile=(32, 16))
    torch.testing.assert_close(fa1, out, rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="query"):
        flash_plain(query.half(), key.half(), value.half())


def test_small_inputs_hide_what_the_kinds_of_inputs_show():
    names = "no_rescale", "no_running_max"
    kernels = {name: functools.partial(flash_plain, kernel=f"broken/{name}") for name in names}
    right, rescale, maximum = broken_kernels.wrong_by_kind({"right": flash_plain, **kernels}, CPU)
    assert [list(row.values())[1:] for row in (right, rescale, maximum)] == [[0] * 5, [2] * 5, [0, 0, 0, 2, 0]]


SILENT = {"no_running_max", "no_rescale", "off_by_one_causal", "half_accumulation"}
ALL_BROKEN = pytest.mark.exhaustive("all nine: `make test` has a silent one and a race here, and chapter 02 draws all")


@pytest.mark.parametrize(
    "kernels", [("no_rescale", "missing_sync_after_load"), pytest.param(tuple(broken_kernels.BROKEN), marks=ALL_BROKEN)]
)
def test_which_tool_sees_which_mistake(monkeypatch, kernels):
    monkeypatch.setattr(broken_kernels, "BROKEN", {name: broken_kernels.BROKEN[name] for name in kernels})
    rows = {row["broken kernel"]: row for row in broken_kernels.results(f"{FLASH}/broken")}
    silent = {name for name, row in rows.items() if row["sanitizer"] == "silent"}
    assert silent == SILENT & rows.keys()
    races = {name for name, row in rows.items() if row["sanitizer"] == "racecheck"}
    assert races == {name for name, row in rows.items() if row["compute-sanitizer"] == "racecheck"}
    assert len(races) == (1 if len(rows) == 2 else 3)
    assert all(rows[name]["wrong"] != "-" and rows[name]["wrong when watched"] == "-" for name in races)
    assert broken_kernels.mended_are_right(f"{FLASH}/broken")


def test_slopes_agree_with_the_kernels_gradients_and_not_with_wrong_ones():
    for row in gradients.slopes(flash_attention_minimal, CPU):
        assert row["gradient"] == pytest.approx(row["slope"], rel=1e-4)
    halved = gradients.slopes(lambda *inputs, **options: flash_attention_minimal(*inputs, **options) / 2, CPU)
    assert all(row["gradient"] == pytest.approx(row["slope"] / 2, rel=1e-3) for row in halved)
