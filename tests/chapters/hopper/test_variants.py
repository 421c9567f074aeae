"""What chapter 07 shows of what was tried: every variant, with its recorded figures and its reason."""

import pytest

from course_utils.chapters.hopper import variants
from course_utils.chapters.timed_ladder import ALL_CASES, title


def test_each_variant_is_recorded_at_both_lengths_where_it_can_be():
    """Tiles of 160 keys do not fit beside three consumers, and an order of the rows needs a mask."""
    only = {
        "tiles of 160 keys": [(128, False), (128, True)],
        "232 registers for consumers": [(128, False), (128, True)],
        "two consumers": [(64, False), (64, True)],
        **dict.fromkeys(
            ("one head at a time", "all heads at a time", "the shortest rows first"), [(64, True), (128, True)]
        ),
    }
    for name in variants.IDEAS:
        for length in variants.LENGTHS:
            cases = {case for case in ALL_CASES if variants.ratio(name, *case, length) is not None}
            assert cases == set(only.get(name, ALL_CASES)), name


def test_the_picture_and_the_table_have_the_recorded_ratios_of_both_lengths(drawn, monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(variants.show, "table", lambda rows, *_, **__: shown.extend(rows))
    variants.show_variants()
    names = list(variants.IDEAS)
    assert [tick.get_text() for tick in drawn[0].axes[0].get_yticklabels()] == names
    for ax, case in zip(drawn[0].axes, ALL_CASES, strict=True):
        assert ax.get_title("left") == title(*case)
        for line, length in zip(ax.lines[1:], variants.LENGTHS, strict=True):
            marks = {names[row]: x for x, row in zip(*line.get_data(), strict=True)}
            known = {name: variants.ratio(name, *case, length) for name in names}
            assert marks == {name: ratio for name, ratio in known.items() if ratio is not None}
    row = shown[names.index("two consumers")]
    short, long = (variants.ratio("two consumers", 64, True, length) for length in variants.LENGTHS)
    assert row["d = 64, causal"] == f"{short:.2f}, {long:.2f}" and row["d = 128"] == "–"
    said = capsys.readouterr().out
    assert "L = 2048 and L = 16384, B · L = 16384, H · d = 2048, fp16, NVIDIA" in said
    again = variants.record().select(name=variants.AGAIN)
    of_medians, of_runs = (max(abs(row[x] - 1) for row in again for x in xs) for xs in (("ratio",), ("low", "high")))
    assert f"itself it is up to {of_medians:.1%} off in the median of 5 runs, and up to {of_runs:.1%} in one" in said


def test_reasons_go_with_the_figures():
    """Of the words that say whether a variant is faster: beyond the noise of the kernel beside itself."""
    rows = [row for row in variants.record().rows if row["name"] != variants.AGAIN]
    at_best = {name: max(row["ratio"] for row in rows if row["name"] == name) for name in variants.IDEAS}
    wide = {name: variants.ratio(name, 128) for name in variants.IDEAS}
    faster = [name for name, of in wide.items() if of is not None and of > 1 + variants.noise()]
    assert faster == [name for name, idea in variants.IDEAS.items() if idea.found.startswith("The one that is faster.")]
    for name in ("without turns", "a third place for K"):
        assert at_best[name] == pytest.approx(1, abs=0.02)


def test_what_turns_gain_and_cost_is_what_the_reason_says():
    gains = {
        (d, is_causal): [100 - 100 * variants.ratio("without turns", d, is_causal, n) for n in variants.LENGTHS]
        for d, is_causal in ALL_CASES
    }
    cost = sorted(-gain for gain in gains.pop((64, False)))
    short, long = ([of[place] for of in gains.values()] for place in range(2))
    assert {round(gain) for gain in short} == {1, 2} and 0 < min(long) and max(long) < 1
    assert variants.IDEAS["without turns"].found.endswith(f"{cost[0]:.1f} to {cost[1]:.1f} % at d = 64 without a mask.")


def test_the_losses_that_a_reason_names_are_those_of_the_record():
    all_heads = [
        variants.ratio("all heads at a time", d, True, length) for length in variants.LENGTHS for d in (64, 128)
    ]
    assert [round(100 - 100 * ratio) for ratio in all_heads[:2]] == [6, 19]
    assert all_heads[2:] == pytest.approx([1, 1], abs=variants.noise())
    early = {
        length: [variants.ratio("the next item taken early", *case, length) for case in ALL_CASES]
        for length in variants.LENGTHS
    }
    assert early[16384] == pytest.approx([1] * 4, abs=variants.noise()) and round(100 - 100 * min(early[2048])) == 2
