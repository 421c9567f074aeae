"""What chapter 06's cells call: bytes that are counted, kernels that are right, pictures with the recorded figures."""

import math

import pytest
import torch

from course_utils import costs, measured, show
from course_utils.chapters import broken_kernels
from course_utils.chapters.serving import reads, runs, server, times
from course_utils.measured.serving import CACHES
from course_utils.operators import decode_attention


@pytest.fixture(autouse=True)
def tables(monkeypatch):
    """The plain text of the tables that are shown."""
    found = []
    monkeypatch.setattr(show, "display", lambda data, raw: found.append(data["text/plain"]))
    return found


def widths(ax) -> list[float]:
    return [patch.get_width() for patch in ax.patches]


# ---- bytes


def test_the_model_of_the_chapter_reads_llamas_eight_billion_weights_but_its_embedding_and_its_cache():
    assert reads.LLAMA.weight_bytes / 2 + 128256 * 4096 == pytest.approx(8.03e9, rel=1e-3)
    assert reads.LLAMA.cache_bytes(1) == 2 * 32 * 8 * 128 * 2


def test_what_a_step_reads_is_weights_and_caches(drawn):
    share = reads.show_step()
    assert share == pytest.approx(64 * 8192 * 131072 / reads.LLAMA.weight_bytes)
    assert max(widths(drawn[0].axes[0])) == pytest.approx(64 * 8192 * 131072 / 1e9)


def test_the_least_time_is_bytes_over_bandwidth(capsys):
    assert reads.say_least(2, 1024) == pytest.approx(1e6 * 2 * 1024 * 4096 / reads.DEVICE.bandwidth)
    assert "2 · 2 · 8 · 1,024 · 128 · 2 bytes = 8 MB" in capsys.readouterr().out


def test_a_prefix_is_read_once_or_for_each(drawn):
    each, once = 32 * (8192 + 512), 8192 + 32 * 512
    assert reads.show_prefix() == pytest.approx(each / once)


def test_reserved_rows_and_pages_hold_the_same_tokens(drawn, capsys):
    reads.show_reserved((3, 8), most=8, page_size=4)
    said = capsys.readouterr().out.splitlines()
    assert ["rows: 16, without a token: 5" in said[0], "rows: 12, without a token: 1" in said[1]] == [True, True]


def test_the_roofline_has_a_prompt_on_the_roof_and_one_token_far_below(drawn):
    reads.show_roofline(4096)
    points = {line.get_label(): line.get_xdata() for line in drawn[0].axes[0].lines if line.get_marker() != "None"}
    at = {name: float(x[0]) for name, x in points.items()}
    assert at["one token, every head has its keys"] == pytest.approx(1)
    assert at["one token, 4 heads share keys (GQA)"] == pytest.approx(4)
    assert at["the whole prompt, 4 K tokens"] > 500


# ---- launches


def test_a_warp_per_head_asks_for_each_key_once_for_each_head_of_a_group(drawn):
    assert runs.show_reads(256) == 4
    assert [round(width, 2) for width in widths(drawn[0].axes[0])][:2] == [4, 1]


def test_pieces_are_those_that_the_kernel_cuts():
    lengths, wanted = (300, 0, 7, 128), 5
    pieces = runs.cut(lengths, wanted)
    assert pieces == [(0, 87), (0, 87), (0, 87), (3, 87), (0, 39), (1, 0), (2, 7), (3, 41)]
    tensors = runs.inputs(300, batch=4)
    lens = runs.lengths_of(lengths, tensors[0])
    # the same size as pieces that are given: the same bits
    by_number = decode_attention(*tensors, seq_lens=lens, num_splits=2)
    size = costs.ceil_div(sum(lengths), 4 * 2)
    assert torch.equal(by_number, decode_attention(*tensors, seq_lens=lens, split_size=size))


def test_the_longest_piece_is_many_times_shorter_than_the_longest_sequence(drawn):
    assert runs.show_pieces([4096, 100, 100], 8) == pytest.approx(4096 / 537)
    alone, shared = drawn[0].axes
    assert len(alone.patches) == 3 and sum(widths(shared)) == pytest.approx(4296 / 1024)


def test_the_waves_of_a_gpu_choose_the_first_tooth(drawn):
    assert runs.show_waves() == costs.splits_by_waves(8, 132, 64) == 16


def test_all_that_the_chapter_runs_is_right(capsys):
    for check in (runs.check_rungs, runs.check_pages, runs.check_cascade, runs.check_step):
        check()
    said = capsys.readouterr().out
    assert "False" not in said and said.count("True") >= 11 and "LSE -inf" in said


def test_parts_merge_by_their_sums_and_not_by_a_mean(capsys):
    runs.check_merge()
    assert capsys.readouterr().out.split("\n")[:2] == [
        "two parts merged, right: True",
        "their plain mean, right: False",
    ]


def test_a_tree_differs_from_a_chain_where_somebody_before_is_no_ancestor(capsys):
    runs.check_tree()
    assert capsys.readouterr().out == "as a tree, right: True\nrows that a chain gives, too: [0, 1]\n"


def test_the_tree_that_is_drawn_is_that_of_the_launch(drawn):
    runs.show_tree()
    _, mask = drawn[0].axes
    assert sum(patch.get_facecolor()[3] > 0 for patch in mask.patches) == 1 + 2 + 2 + 3 + 3 + 3 + 4


def test_pages_hold_nan_and_the_table_junk_where_no_token_is():
    _, *cache = runs.inputs(20, batch=2)
    pages, table = runs.pages_of(cache, 8, (20, 3))
    assert table[1, 1:].tolist() == [2**31 - 1] * 2
    assert pages[0].isnan().sum() == pages[0].numel() - 23 * cache[0].shape[1] * cache[0].shape[3]


def test_eight_bits_are_compared_with_sixteen_that_are_rounded_as_well(capsys):
    """Of fp16 originals, which a 16-bit cache holds exactly, the ratio would be 148."""
    assert 60 < runs.error_of_eight_bits() < 120


def test_every_mistake_is_wrong_and_silent_and_mended(drawn, tables, capsys):
    assert runs.of_sequences() == "nothing"
    assert "sequence 0: right: True\nsequence 1: right: False" in capsys.readouterr().out
    runs.mistakes()
    assert len(broken_kernels.of_folder(runs.CHAPTER)) == 5 and capsys.readouterr().out == "mended, all right: True\n"
    assert [line.split()[1:4] for line in tables[0].splitlines()[2:]] == [["wrong", "silent", "silent"]] * 5


def test_a_page_that_is_not_there_is_named(monkeypatch):
    shown = []
    monkeypatch.setattr(show, "display", lambda page: shown.append(page.data))
    runs.page_that_is_not_there()
    assert len(shown) == 1 and "block_table[0, 1] is 7; key_pages has pages 0 to 3" in shown[0]


# ---- pages and the loop


def test_a_prefix_cache_computes_what_is_not_found(drawn, capsys):
    server.show_found_pages()
    assert capsys.readouterr().out == "tokens computed: 43 without, 23 with a prefix cache\n"
    without, with_cache = ([patch.get_hatch() for patch in ax.patches] for ax in drawn[0].axes)
    assert not any(without) and sum(map(bool, with_cache)) == 8 + 12


def test_chunks_of_a_prompt_keep_the_steps_short(drawn):
    server.show_chunks()
    whole, chunked = (
        [sum(n <= patch.get_y() < n + 0.5 and patch.get_width() == 1 for patch in ax.patches) for n in range(5)]
        for ax in drawn[0].axes
    )
    assert whole == [3, 21, 4, 4, 4] and chunked == [3, 9, 9, 9, 4]


def test_the_table_of_the_chapter_shares_two_pages(drawn, capsys):
    cache = server.show_table()
    first, second, third = (cache.pages_of(one) for one in cache.sequences)
    assert third[:2] == first[:2] and not set(second) & {*first, *third} and third[2] not in first
    assert "2 of them shared" in capsys.readouterr().out


def test_a_fork_that_grows_gets_a_page_of_its_own(capsys):
    server.copy_on_write()
    assert capsys.readouterr().out.split("\n")[1].endswith("the first has pages [0, 1], its fork [0, 2]")


def test_a_day_in_pages_serves_several_times_as_many_at_once(drawn, tables):
    gain = server.show_day()
    at_once, filled = drawn[0].axes
    lines = {line.get_label(): line.get_ydata() for line in at_once.lines}
    means = {name: sum(values) / len(values) for name, values in lines.items()}
    assert gain == pytest.approx(means["in pages"] / means["reserved"]) and gain > 2
    assert "200 requests" in tables[0] and max(filled.lines[0].get_ydata()) > 90


def test_the_day_of_the_books_is_the_one_that_was_served_on_a_gpu():
    recorded = measured.load("06_serving").select(part="loop", sums="exact")
    assert [row["steps"] for row in recorded] == [len(loop.history) for loop in server.both().values()]


def test_company_changes_a_token_where_the_batch_decides_the_order(drawn, tables):
    assert server.show_batch_effect() == "','"
    differing = dict(
        zip((line.get_text() for line in drawn[0].axes[0].get_yticklabels()), widths(drawn[0].axes[0]), strict=True)
    )
    assert differing["split_size, sums exact"] == 0 and differing["by the batch, sums exact"] > 100


# ---- recordings


def test_the_pictures_of_the_recordings_have_their_figures(drawn, tables):
    rows = measured.load("06_serving")

    def us(part, **columns):
        (row,) = rows.select(part=part, **columns)
        return row["us"]

    times.show_ladder()
    assert [len(line.get_xdata()) for line in drawn[-1].axes[0].lines[:5]] == [len(CACHES)] * 5
    assert times.show_splits(rows) == 16
    times.show_ragged()
    plain, paged = (
        us("paged", batch=8, length=65536, page_size=16, name=f"{x}_attention") for x in ("decode", "paged")
    )
    assert times.show_pages() == pytest.approx(100 * (paged / plain - 1))
    wide, narrow = (us("eight bits", batch=8, length=65536, name=f"decode_attention{x}") for x in ("", ", E4M3"))
    assert times.show_eight_bits() == wide / narrow
    each, once = (us("shared prefix", name=f"{x}_attention") for x in ("paged", "cascade"))
    assert times.show_prefix() == each / once
    one, many = (us("queries", batch=8, length=65536, query_length=n, name="chain") for n in (1, 16))
    assert times.show_queries() == many / one
    graph, single = (us("step", batch=8, length=1024, name=name) for name in ("CUDA graph", "one launch"))
    assert times.show_steps() == graph / single
    panels = [ax.get_title("left") for ax in drawn[-1].axes]
    assert panels == ["1 sequence", "8 sequences", "64 sequences"]
    fast, slow = (
        rows.select(part="loop", sums="exact", name=name)[0]["tokens_per_s"] for name in ("pages", "reserved")
    )
    assert times.show_served() == fast / slow
    assert all(measured.caption(rows) in table for table in tables) and len(tables) == 8


def test_the_floor_of_a_step_is_its_bytes_at_the_datasheets_speed_and_no_record_is_below_one():
    for (batch, length), found in times.steps().items():
        for row in found.values():
            read = costs.kv_cache_bytes(length, 8, 128, layers=32, batch=batch)
            assert times.floor_us(row) == pytest.approx(1e-6 * read / 4.8)
    for row in measured.load("06_serving").rows:
        if "us" in row:
            assert row["us"] > times.floor_us(row), row


def test_a_time_that_varied_much_is_drawn_as_a_gap(drawn, tables):
    times.show_steps()
    varied = [
        (key, name) for key, found in times.steps().items() for name, row in found.items() if not times.is_steady(row)
    ]
    gaps = [y for ax in drawn[0].axes for line in ax.lines for y in line.get_ydata() if math.isnan(y)]
    assert len(gaps) == len(varied) and {name for _, name in varied} <= {"launches"}
    assert "spread of the launches" in tables[0]


def test_without_a_gpu_the_sweep_is_the_recorded_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert times.measure_splits().rows == times.record().rows
