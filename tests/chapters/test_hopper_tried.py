"""What chapter 07 shows of what was tried: every variant, with its recorded figures and its reason."""

import pytest

from course_utils.bench.hopper_tried import AGAIN
from course_utils.chapters import hopper_tried as chapter
from course_utils.chapters.timed_ladder import ALL_CASES
from course_utils.launches.hopper_tried import TRIED


def test_each_variant_has_a_reason_and_is_recorded_where_it_can_be():
    names = [variant.name for variant in TRIED]
    assert names == list(chapter.FOUND)
    for variant in TRIED:
        for length in (2048, chapter.LENGTH):
            cases = [case for case in ALL_CASES if chapter.ratio(variant.name, *case, length) is not None]
            can_be = [(d, c) for d, c in ALL_CASES if d in variant.head_dims and c in variant.masks]
            assert cases == can_be, variant.name


def test_the_picture_and_the_table_have_the_recorded_ratios(drawn, capsys):
    chapter.tried()
    full, causal = drawn[0].axes
    titles = [ax.get_title("left") or ax.get_title() for ax in (full, causal)]
    assert [title.split(":")[0] for title in titles] == ["d = 128", "d = 128, causal"]
    name = "tiles of 64 keys, four places"
    more = round(100 / chapter.ratio(name, 128, True) - 100, 1)
    assert [tick.get_text() for tick in full.get_yticklabels()] == [variant.name for variant in TRIED]
    assert float(causal.texts[[*chapter.FOUND].index(name)].get_text()) == more
    assert full.texts[[*chapter.FOUND].index("one head at a time")].get_text().strip() == "–"
    said = capsys.readouterr().out
    assert "times as fast as the last kernel, L = 16384, B · L = 16384, H · d = 2048, fp16, NVIDIA" in said
    assert f"it is up to {chapter.noise():.1%} off" in said


def test_reasons_go_with_the_figures():
    """Of the words that say whether a variant is faster: beyond the noise of the kernel beside itself."""
    rows = [row for row in chapter.record().rows if row["name"] != AGAIN]
    at_best = {name: max(row["ratio"] for row in rows if row["name"] == name) for name in chapter.FOUND}
    wide = {name: chapter.ratio(name, 128) for name in chapter.FOUND}
    faster = [name for name, of in wide.items() if of is not None and of > 1 + chapter.noise()]
    assert faster == [name for name, reason in chapter.FOUND.items() if reason.startswith("The one that is faster.")]
    for name in ("without turns", "a third place for K"):
        assert at_best[name] == pytest.approx(1, abs=0.02)
