"""Chapter 06's benchmarks, on the emulator: each calls what it says it times, and counts the bytes that it reads."""

import json

import pytest
from torch.nn.attention import SDPBackend

from course_utils.bench import serving as chapter
from course_utils.operators import paged_attention
from course_utils.serving.trace import counted

CACHES = ((2, 48),)


@pytest.fixture(autouse=True)
def small_on_cpu(one_run_each, monkeypatch):
    """Torch's kernels for GPUs are played by its plain one, and the sum of a large tensor by that of a small one."""
    monkeypatch.setattr(chapter, "BACKENDS", dict.fromkeys(chapter.BACKENDS, SDPBackend.MATH))
    for name, value in {"HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": 64, "CEILING_BYTES": 8_000}.items():
        monkeypatch.setattr(chapter, name, value)
    chapter.read_ceiling.cache_clear()
    yield
    chapter.read_ceiling.cache_clear()


def test_a_contiguous_cache_is_timed_beside_peers(capsys):
    rows = chapter.contiguous(device="cpu", caches=CACHES)
    ours = {chapter.OURS, chapter.OURS_AGAIN}
    assert {row["name"] for row in rows} == ours | {
        name + packed for name in chapter.BACKENDS for packed in ("", chapter.PACKED)
    }
    assert "FlashInfer is left out" in capsys.readouterr().out
    for row in rows:
        assert row["us"] == 2000.0 and row["tb_per_s"] == pytest.approx(2 * 2 * 2 * 48 * 64 * 2 / 2e-3 / 1e12)
        assert row["ceiling_tb_per_s"] == pytest.approx(8_000 / 2e-3 / 1e12)
        assert row["share"] == pytest.approx(2 * 2 * 2 * 48 * 64 * 2 / 8_000)
    json.dumps(rows)


def test_the_chosen_number_of_splits_is_among_those_timed():
    rows = chapter.splits(device="cpu", caches=CACHES, numbers=(3,))
    assert [(row["splits"], row["chosen"]) for row in rows] == [(1, True), (3, False)]


def test_rungs_pages_and_queries_are_timed():
    rows = chapter.ladder(device="cpu", caches=CACHES)
    assert [row["name"] for row in rows] == ["a warp per query head", "packed heads", "keys in pieces"]
    rows = chapter.paged(device="cpu", caches=CACHES, page_sizes=(1, 5))
    assert [(row["page_size"], row["name"]) for row in rows] == [
        (size, name) for size in (1, 5) for name in ("decode_attention", "paged_attention")
    ]
    rows = chapter.several_queries(device="cpu", caches=CACHES, query_lengths=(3,))
    assert [(row["query_length"], row["name"]) for row in rows] == [(3, "chain"), (3, "tree")]


def test_the_bytes_of_a_ragged_batch_are_those_of_its_keys():
    rows = chapter.ragged(device="cpu", long=48, short=16, sequences=3)
    ours, sums = (rows[n::2] for n in range(2))
    for of_one in (ours, sums):
        assert [row["lengths"] for row in of_one] == ["long first", "long last", "equal"]
        assert [row["length"] for row in of_one] == [80, 80, 78]
    assert {row["name"] for row in sums} == {chapter.SAME_BYTES}
    assert ours[0]["tb_per_s"] == sums[0]["tb_per_s"] == pytest.approx(80 * 2 * 2 * 64 * 2 / 2e-3 / 1e12)


def test_eight_bits_are_half_the_bytes_and_their_error_is_told():
    wide, narrow = chapter.eight_bits(device="cpu", caches=CACHES)
    assert narrow["tb_per_s"] == wide["tb_per_s"] / 2 and 0 < narrow["error"] < 0.2 and "error" not in wide


def test_a_shared_prefix_is_counted_once():
    rows = chapter.shared_prefix(device="cpu", prefix=40, own=9, sequences=3, page_size=4)
    assert [row["name"] for row in rows] == ["paged_attention", "cascade_attention"]
    assert rows[0]["tb_per_s"] == pytest.approx((40 + 3 * 9) * 2 * 2 * 64 * 2 / 2e-3 / 1e12)


def test_a_step_is_timed_as_launches_and_as_one(capsys):
    rows = chapter.step(device="cpu", caches=CACHES, layers=2)
    assert [row["name"] for row in rows] == [chapter.LAUNCHES, chapter.ONE_LAUNCH]
    printed = capsys.readouterr().out
    assert (
        f"{chapter.GRAPH} is left out" in printed and f"{chapter.ONE_LAUNCH + chapter.IN_TRITON} is left out" in printed
    )
    assert rows[0]["tb_per_s"] == pytest.approx(2 * 2 * 48 * 2 * 2 * 64 * 2 / 2e-3 / 1e12)


def test_the_loop_serves_a_trace_in_pages_and_with_pages_reserved(monkeypatch):
    """With the books alone: tests/serving has the model in it."""
    modes = set()

    def next_tokens(self, cache, batch):
        modes.add((self.exact_sums, bool(self.options)))
        return counted(cache, batch)

    monkeypatch.setattr(chapter.Model, "next_tokens", next_tokens)
    rows = chapter.loop(device="cpu", requests=30, longest=64, pages=20)
    assert [(row["sums"], row["name"]) for row in rows] == [
        (sums, name) for sums in ("exact", "torch's") for name in ("pages", "reserved")
    ]
    for row in rows:
        assert row["requests"] == 30 and row["tokens_per_s"] == pytest.approx(row["tokens"] / row["seconds"])
    assert modes == {(True, True), (False, False)}
    assert len({row["tokens"] for row in rows}) == 1 and 1.5 * rows[0]["steps"] < rows[1]["steps"]
    json.dumps(rows)


def test_other_tokens_in_pages_are_not_recorded(monkeypatch):
    monkeypatch.setattr(chapter.Model, "next_tokens", lambda self, cache, batch: [cache.free_pages for _ in batch])
    with pytest.raises(RuntimeError, match="other tokens in pages than with pages reserved: not recorded"):
        chapter.loop(device="cpu", requests=30, longest=64, pages=20)


def test_what_is_wrong_is_not_timed(monkeypatch):
    def wrong(*args, **options):
        return paged_attention(*args, **options) + 1

    monkeypatch.setattr(chapter, "paged_attention", wrong)
    with pytest.raises(RuntimeError, match=r"paged_attention, .*: not timed"):
        chapter.paged(device="cpu", caches=CACHES, page_sizes=(5,))
