"""The recall study: the task, models that see what their pattern keeps and no more, and the recorded figures."""

import pytest
import torch

from course_utils import measured
from course_utils.studies import recall as recall_study
from course_utils.studies.recall import FACTS, LENGTH, VALUES, Case, Recall, make_batch

CASES = recall_study.cases()


def batch(size=4, seed=0):
    return make_batch(size, torch.Generator().manual_seed(seed))


def answers_of(case, keys, values):
    torch.manual_seed(0)
    with torch.no_grad():
        return Recall(case)(keys, values)


def test_each_answer_is_the_value_of_the_fact_with_the_key():
    keys, values, answers = batch()
    assert keys.shape == values.shape == (4, LENGTH) and (values[:, FACTS:] == VALUES).all()
    for row in range(4):
        assert sorted(keys[row, :FACTS].tolist()) == list(range(FACTS))
        facts = dict(zip(keys[row, :FACTS].tolist(), values[row, :FACTS].tolist(), strict=True))
        assert [facts[key] for key in keys[row, FACTS:].tolist()] == answers[row].tolist()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.name}, {case.layers}")
def test_cases_are_causal_and_no_token_is_left_without_a_key(case):
    mask = case.pattern.mask(LENGTH)
    assert mask.diagonal().all() and not mask.triu(1).any()
    assert recall_study.visible_facts(case) <= recall_study.reachable_facts(case)


@pytest.mark.parametrize("name, layers", [("window 16", 1), ("window 16", 2), ("strided 8", 1)])
def test_an_answer_depends_on_the_facts_in_reach_only(name, layers):
    case = next(case for case in CASES if (case.name, case.layers) == (name, layers))
    reach = torch.linalg.matrix_power(case.pattern.mask(LENGTH).float(), layers) > 0
    keys, values, _ = batch(size=1)
    before = answers_of(case, keys, values)
    for fact in (0, 20, 31):
        changed = values.clone()
        changed[:, fact] = (changed[:, fact] + 1) % VALUES
        differs = (answers_of(case, keys, changed) != before).any(dim=-1)[0]
        assert torch.equal(differs, reach[FACTS:, fact])


def test_all_scores_chosen_is_dense_attention_and_fewer_is_not():
    keys, values, _ = batch()
    dense, every, few = (answers_of(Case("", CASES[0].pattern, 1, k), keys, values) for k in (None, LENGTH, 2))
    assert torch.equal(dense, every) and not torch.allclose(dense, few, atol=1e-3)


def test_training_is_repeatable():
    first, second = (recall_study.train(CASES[0], steps=2, batch=8) for _ in range(2))
    assert first == second < 0.5


def test_the_recorded_study_is_of_these_cases_and_says_what_the_patterns_allow():
    study = measured.load(recall_study.NAME)
    assert "CPU" in study.device
    assert [(row["name"], row["pattern"], row["layers"]) for row in study.rows] == [
        (case.name, case.pattern.name, case.layers) for case in CASES
    ]
    for case, row in zip(CASES, study.rows, strict=True):
        seen, within = recall_study.visible_facts(case), recall_study.reachable_facts(case)
        assert (row["visible_facts"], row["reachable_facts"]) == (seen, within)
        assert row["accuracy"] < recall_study.expected_accuracy(within) + 0.02
        if case.top_k == 1:  # the softmax of one score has no gradient: which key to choose is never learned
            assert row["accuracy"] < 0.3
        elif case.layers == 1:
            assert row["accuracy"] == pytest.approx(recall_study.expected_accuracy(seen), abs=0.02)
        else:
            assert row["accuracy"] > recall_study.expected_accuracy(seen) + 0.05
