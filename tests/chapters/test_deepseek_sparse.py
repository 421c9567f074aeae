"""What chapter 05's cells call: the figures that stand in pictures now, and what a guess is compared with."""

import pytest
import torch

from course_utils import plots
from course_utils.chapters.deepseek_sparse import core, counted, eight_bits, indexer, recorded


def test_the_last_token_is_drawn_and_said_with_the_three_figures_of_its_layer(capsys, drawn):
    assert counted.last_token() == pytest.approx(36.5, abs=0.05)
    assert capsys.readouterr().out == "36.5, 0.57 and 0.40 GFLOP\n"
    assert [bar.get_width() for bar in drawn[0].axes[0].patches] == pytest.approx([36.5, 0.57, 0.40], abs=0.05)


def test_caches_are_those_of_the_four_kinds_of_attention():
    rows = counted.cache_rows()
    assert [row["bytes per token and layer"] for row in rows] == [65_536, 4096, 1152, 1284]
    assert [f"{row['times MLA']:.3g}" for row in rows] == ["56.9", "3.56", "1", "1.11"]
    assert [f"{row['61 layers, 128 K tokens: GB']:.3g}" for row in rows] == ["524", "32.7", "9.21", "10.3"]
    assert counted.caches() == pytest.approx(65_536 / 1152)


def test_a_pair_takes_more_flops_absorbed_and_reads_less():
    rows = counted.pair_rows()
    assert [row["FLOP"] for row in rows] == [81_920, 278_528, 33_636_352]
    assert [row["bytes read per key, decoding"] for row in rows] == [81_920, 1152, "-"]
    assert counted.pair_flops() == pytest.approx(3.4)


def test_unpacking_each_key_gives_the_same_for_more_flops_and_bytes():
    rebuilt, dense = core.counted_reprojected()
    assert rebuilt["the same, up to bf16"] and dense["the same, up to bf16"]
    assert [f"{row['MFLOP, by formula']:.3g}" for row in (rebuilt, dense)] == ["1.59", "0.0722"]
    asked = [row["global KiB asked for"] for row in (rebuilt, dense)]
    assert asked == pytest.approx([6134, 13.8], abs=0.5)


def test_scores_by_hand_are_those_of_the_eight_words(capsys):
    assert indexer.by_hand().tolist() == [0, 2, -1.5, 0, 0, 0, 2, 1.5]
    assert "fox -1.5" in capsys.readouterr().out


def test_fewer_heads_leave_more_scores_at_exactly_zero():
    assert {heads: f"{share:.1f}" for heads, share in indexer.shares_of_zeros().items()} == {
        2: "25.3",
        4: "6.7",
        8: "0.5",
        64: "0.0",
    }


def test_scores_depend_on_the_distance_alone_but_where_the_conventions_are_mixed():
    spread = {}
    for name, scores in eight_bits.scores_by_place().items():
        spread[name] = max(scores.diagonal(-distance).std().item() for distance in range(49))
    assert spread["interleaved"] < 1e-4 and spread["half-split"] < 1e-4 < 1 < spread["mixed"]


def test_hadamard_helps_where_the_large_number_is_in_both_and_varies():
    right = {
        row["10 more in place 5"]: (row["% right, without"], row["% right, with Hadamard"])
        for row in eight_bits.case_rows()
    }
    gains = {name: round(after - before) for name, (before, after) in right.items()}
    assert gains["in q and k"] == 13 and gains["in q and k, constant in k"] == -2
    assert all(abs(gains[name]) <= 1 for name in ("in no vector", "in q", "in k"))


def test_nsa_attends_to_the_keys_of_its_three_branches(drawn):
    rows = counted.nsa_rows()
    assert [row["keys in all"] for row in rows] == [2047, 5631, 9727]
    assert [row["fewer than L"] for row in rows] == ["4.0 times", "11.6 times", "13.5 times"]
    counted.nsa_keys()
    assert len(drawn[0].axes[0].patches) == 9


def test_dsa_gains_are_the_last_of_the_recording():
    taken = recorded.record()
    assert recorded.gain_over_dense(taken) == pytest.approx(16.2, abs=0.05)
    assert recorded.faster_than_multi_head_from(taken) == 16_384
    assert recorded.lengths_of(taken)[-1] == 131_072


def test_a_verdict_is_green_where_a_mistake_is_seen(drawn):
    core.verdicts()
    said = [text.get_text() for text in drawn[0].axes[0].texts]
    assert said.count("sees it") == 4 + 2 + 1  # the test sees all, the sanitizer two, compute-sanitizer one


def test_heads_of_one_query_need_the_keys_of_one_list():
    own, one = plots.shared_list(chosen=5).axes
    assert one.texts[0].get_text().endswith("5 of 24") and not own.texts[0].get_text().endswith(" 5 of 24")


def test_facts_of_a_question_are_marked():
    ax = plots.facts_of_a_question(torch.tensor([0, 1, 0]), torch.tensor([5, 6, 7]), asked=0)
    faces = [patch.get_facecolor() for patch in ax.patches]
    assert faces[0] == faces[2] != faces[1]
