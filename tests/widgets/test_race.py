"""The race past cuDNN: what answers was measured or is a model, and what does not fit."""

import json
import math

import pytest
from matplotlib.figure import Figure

from course_utils import measured
from course_utils.chapters.hopper import race, variants
from course_utils.chapters.hopper.race import CHOICES, STEPS, figures, last_step, name_of
from course_utils.widgets import race_past_cudnn
from course_utils.widgets.race import START, title_of
from tests.helpers.large_values import computed

FIGURES = figures()
PROBLEMS = FIGURES["problems"]
OTHERS = 24  # registers of a thread beside S, P and O: a model's
CALL = """([name, first, cases]) => import(scriptUrl).then((m) => cases.map((one) => m[name](...first, ...one)))"""


@pytest.fixture
def asked(open_widget):
    """asked(name, case, ...) -> what this function of race.js returns for each case."""
    page = open_widget(race_past_cudnn(FIGURES))
    return lambda name, *cases: computed(page, CALL, [name, [FIGURES] if name == "answer" else [], cases])


def steps_of(problem):
    """Number → choices of each step of the ladder."""
    made, all_of = {}, {}
    for number, changes in enumerate(STEPS.values(), 1):
        made = made | changes
        all_of[number] = made if number < len(STEPS) else last_step(problem["head_dim"])
    return all_of


@pytest.mark.browser
def test_every_step_and_everything_that_was_tried_answers_with_its_figure(asked):
    assert set(race.CHANGES) == set(variants.IDEAS)
    ladder, tried = measured.load("07_hopper"), measured.load("hopper_tried")
    for place, problem in enumerate(PROBLEMS):
        case = {of: problem[of] for of in race.CASES}
        rows = {row["name"]: row for row in ladder.select(part="rungs", **case)}
        steps = asked("answer", *([place, choices] for choices in steps_of(problem).values()))
        for name, found in zip(STEPS, steps, strict=True):
            assert (found["kind"], found["ratio"]) == ("measured", rows[name]["ratio_to_cudnn"]), name
            assert f"{rows[name]['tflop_per_s']:.0f} TFLOP/s ({ladder.device}, {ladder.date})" in found["text"]
        for row in tried.select(**case):
            if row["name"] in race.CHANGES:
                (found,) = asked("answer", [place, last_step(problem["head_dim"]) | race.CHANGES[row["name"]]])
                assert found["ratio"] == pytest.approx(rows["order"]["ratio_to_cudnn"] * row["ratio"])
                assert found["tflops"] == row["tflop_per_s"] and row["name"] in found["text"]


@pytest.mark.browser
def test_resources_are_those_of_the_recorded_kernels(asked):
    rows = {(row["name"], row["head_dim"]): row for row in measured.load("07_hopper").select(part="rungs")}
    for problem in PROBLEMS:
        steps = steps_of(problem).values()
        found = asked("resources", *([problem, choices] for choices in steps))
        for name, choices, needs in zip(STEPS, steps, found, strict=True):
            row = rows[name, problem["head_dim"]]
            assert needs["why"] == "" and abs(needs["shared"] - row["shared_bytes"]) <= 1200, (name, problem)
            if choices["copies"] != "producer":  # with one, a kernel is compiled for what all warps have together
                assert abs(needs["needed"] - row["registers"]) <= OTHERS // 2, (name, problem)


@pytest.mark.browser
def test_what_does_not_fit_says_why(asked):
    wide, last = PROBLEMS[-1], last_step(128)
    assert wide["head_dim"] == 128
    four, three = asked("resources", [wide, last | {"places": "4"}], [wide, last | {"consumers": "3"}])
    assert four["shared"] == 2 * 128 * (2 * 128 + 8 * 128) + 1056 + 24 + 128 > 227 * 1024
    assert four["why"] == "321 KiB of shared memory, and a block may have 227 KiB"
    assert three["why"] == "about 184 registers for a computing thread, which may have 160"
    (found,) = asked("answer", [len(PROBLEMS) - 1, last | {"consumers": "3", "places": "4"}])
    assert found["kind"] == "does not fit" and "; and about 184 registers" in found["text"] and found["ratio"] == 0


@pytest.mark.browser
def test_what_changes_nothing_is_not_a_choice(asked):
    full = next(problem for problem in PROBLEMS if not problem["is_causal"] and problem["head_dim"] == 128)
    last = last_step(128)
    for choices, settled in (
        (last | {"order": "one"}, last),
        (last | {"order": "all"}, last),
        (last | {"order": "shortest"}, last),
        (last | {"order": "lie"}, last | {"order": "lie"}),
        (last | {"blocks": "end", "idea": "early"}, last | {"blocks": "end", "idea": "none"}),
        (START | {"idea": "hold"}, START),
        (last | {"idea": "registers"}, last | {"idea": "registers"}),
    ):
        assert asked("settled", [full, choices]) == [settled]


@pytest.mark.browser
def test_the_model_multiplies_what_single_choices_cost(asked):
    place = next(n for n, problem in enumerate(PROBLEMS) if problem["is_causal"] and problem["head_dim"] == 128)
    problem, last = PROBLEMS[place], last_step(128)
    record = problem["measured"][name_of(last)]["ratio"]
    for changes in ({"keys": "64"}, {"order": "one", "copies": "engine"}, {"overlap": "all", "turns": "no"}):
        (found,) = asked("answer", [place, last | changes])
        assert found["kind"] == "model" and found["text"].startswith("Model: about ")
        (factors,) = asked("losses", [problem, last | changes])
        product = record * math.prod(factor for _, factor in factors)
        assert found["ratio"] == pytest.approx(product) and found["ratio"] < record
    (both,) = asked("losses", [problem, last | {"overlap": "all", "turns": "no"}])
    assert [names for names, _ in both] == [["overlap", "turns"]]
    (unknown,) = asked("answer", [place, last | {"keys": "64", "consumers": "3"}])
    assert unknown["text"].endswith("tile × 0.87. No figure is known of: warpgroups.")


def test_a_problem_has_a_small_still_picture_and_another_is_named():
    widget = race_past_cudnn(FIGURES, 64, is_causal=True)
    assert title_of(PROBLEMS[widget.step]) == "d = 64, causal, L = 2,048"
    assert isinstance(widget.static_figure(), Figure)
    bundle, _ = widget._repr_mimebundle_()
    assert len(bundle["image/png"]) <= 60_000
    with pytest.raises(ValueError, match="head_dim: got 96, takes 64 or 128"):
        race_past_cudnn(FIGURES, 96)


# ---- in the browser: what is common to all widgets is in test_widget_pages.py


@pytest.mark.browser
def test_a_race_is_scored_once_and_a_model_sets_no_record(open_widget):
    page = open_widget(race_past_cudnn(FIGURES))
    status, score = page.locator(".ak-status"), page.locator(".ak-race-score")
    page.dispatch_event(".ak-race-reset", "click")
    assert score.inner_text() == "Tries: 0. Best here: none yet."
    page.focus(".ak-race-go")
    for _ in range(2):  # the same kernel again is no try
        page.keyboard.press("Enter")
    record = PROBLEMS[page.evaluate("model.get('step')")]
    first = record["measured"][name_of(START)]["ratio"]
    assert score.inner_text().startswith(f"Tries: 1. Best here: {first:.2f} of ")
    page.select_option(".ak-race-copies", "producer")
    assert "Race it." in status.inner_text()
    page.click(".ak-race-go")
    assert "you changed “copies by”" in status.inner_text()
    for name, value in (last_step(128) | {"overlap": "all", "turns": "no"}).items():  # a model of it is faster
        page.select_option(f".ak-race-{name}", value)
    page.click(".ak-race-go")
    assert status.inner_text().startswith("Model: ") and "sets no record" in status.inner_text()
    best = next(found["ratio"] for found in record["measured"].values() if "producer and" in found["said"])
    assert score.inner_text().startswith(f"Tries: 3. Best here: {best:.2f} of ")
    page.select_option(".ak-race-places", "4")
    page.click(".ak-race-go")
    assert status.inner_text().startswith("Does not fit: ")
    for name, value in last_step(128).items():
        page.select_option(f".ak-race-{name}", value)
    page.click(".ak-race-go")
    assert "You have reached the record." in status.inner_text()
    costs = page.locator("details li").all_text_contents()
    assert costs[0] == f"copies by: {CHOICES['copies']['threads']}: × {record['losses']['copies']['threads']:.3f}"
    assert len(costs) >= 12 and costs == sorted(costs, key=lambda text: float(text.rpartition("× ")[2]))


def test_the_figures_travel_as_json():
    assert json.loads(json.dumps(FIGURES)) == FIGURES and len(json.dumps(FIGURES)) < 60_000
