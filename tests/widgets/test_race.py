"""The race past cuDNN: what answers was measured or is a model, what does not fit, and the same in the browser."""

import json
import random

import pytest
from matplotlib.figure import Figure

from course_utils import measured
from course_utils.chapters.hopper import race, variants
from course_utils.chapters.hopper.race import CHOICES, STEPS, figures, last_step, name_of
from course_utils.widgets import race_past_cudnn
from course_utils.widgets.race import OTHERS, SHARED_LIMIT, START, answer, losses, resources, settled, title_of
from tests.helpers.large_values import computed

FIGURES = figures()
PROBLEMS = FIGURES["problems"]


def steps_of(problem):
    """Number → choices of each step of the ladder."""
    made, all_of = {}, {}
    for number, changes in enumerate(STEPS.values(), 1):
        made = made | changes
        all_of[number] = made if number < len(STEPS) else last_step(problem["head_dim"])
    return all_of


def drawn(count, seed=0):
    """Random kernels: place of a problem, choices."""
    rng = random.Random(seed)
    return [
        (rng.randrange(len(PROBLEMS)), {name: rng.choice(list(options)) for name, options in CHOICES.items()})
        for _ in range(count)
    ]


def test_every_step_and_everything_that_was_tried_answers_with_its_figure():
    assert set(race.CHANGES) == set(variants.IDEAS)
    ladder, tried = measured.load("07_hopper"), measured.load("hopper_tried")
    for place, problem in enumerate(PROBLEMS):
        case = {of: problem[of] for of in race.CASES}
        rows = {row["name"]: row for row in ladder.select(part="rungs", **case)}
        for name, choices in zip(STEPS, steps_of(problem).values(), strict=True):
            found = answer(FIGURES, place, choices)
            assert (found["kind"], found["ratio"]) == ("measured", rows[name]["ratio_to_cudnn"]), name
            assert f"{rows[name]['tflop_per_s']:.0f} TFLOP/s ({ladder.device}, {ladder.date})" in found["text"]
        for row in tried.select(**case):
            if row["name"] in race.CHANGES:
                found = answer(FIGURES, place, last_step(problem["head_dim"]) | race.CHANGES[row["name"]])
                assert found["ratio"] == pytest.approx(rows["order"]["ratio_to_cudnn"] * row["ratio"])
                assert found["tflops"] == row["tflop_per_s"] and row["name"] in found["text"]


def test_resources_are_those_of_the_recorded_kernels():
    rows = {(row["name"], row["head_dim"]): row for row in measured.load("07_hopper").select(part="rungs")}
    for problem in PROBLEMS:
        for name, choices in zip(STEPS, steps_of(problem).values(), strict=True):
            needs, row = resources(problem, choices), rows[name, problem["head_dim"]]
            assert needs["why"] == "" and abs(needs["shared"] - row["shared_bytes"]) <= 1200, (name, problem)
            if choices["copies"] != "producer":  # with one, a kernel is compiled for what all warps have together
                assert abs(needs["needed"] - row["registers"]) <= OTHERS // 2, (name, problem)


def test_what_does_not_fit_says_why():
    wide, last = PROBLEMS[-1], last_step(128)
    assert wide["head_dim"] == 128
    four = resources(wide, last | {"places": "4"})
    assert four["shared"] == 2 * 128 * (2 * 128 + 8 * 128) + 1056 + 24 + 128 > SHARED_LIMIT
    assert four["why"] == "321 KiB of shared memory, and a block may have 227 KiB"
    three = resources(wide, last | {"consumers": "3"})
    assert three["why"] == "about 184 registers for a computing thread, which may have 160"
    found = answer(FIGURES, len(PROBLEMS) - 1, last | {"consumers": "3", "places": "4"})
    assert found["kind"] == "does not fit" and "; and about 184 registers" in found["text"] and found["ratio"] == 0


def test_what_changes_nothing_is_not_a_choice():
    full = next(problem for problem in PROBLEMS if not problem["is_causal"] and problem["head_dim"] == 128)
    last = last_step(128)
    for changes in ({"order": "one"}, {"order": "all"}, {"order": "shortest"}):
        assert settled(full, last | changes) == last
    assert settled(full, last | {"order": "lie"})["order"] == "lie"
    assert settled(full, last | {"blocks": "end", "idea": "early"})["idea"] == "none"
    assert settled(full, START | {"idea": "hold"}) == START
    assert settled(full, last | {"idea": "registers"})["idea"] == "registers"


def test_the_model_multiplies_what_single_choices_cost():
    place = next(n for n, problem in enumerate(PROBLEMS) if problem["is_causal"] and problem["head_dim"] == 128)
    problem, last = PROBLEMS[place], last_step(128)
    record = problem["measured"][name_of(last)]["ratio"]
    for changes in ({"keys": "64"}, {"order": "one", "copies": "engine"}, {"overlap": "all", "turns": "no"}):
        found = answer(FIGURES, place, last | changes)
        assert found["kind"] == "model" and found["text"].startswith("Model: about ")
        product = record
        for factor in losses(problem, last | changes).values():
            product *= factor
        assert found["ratio"] == pytest.approx(product) and found["ratio"] < record
    both = losses(problem, last | {"overlap": "all", "turns": "no"})
    assert list(both) == [("overlap", "turns")]
    unknown = answer(FIGURES, place, last | {"keys": "64", "consumers": "3"})
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
def test_the_browser_answers_as_python_does(open_widget):
    page = open_widget(race_past_cudnn(FIGURES))
    cases = [*drawn(400), *((place, steps_of(problem)[7]) for place, problem in enumerate(PROBLEMS))]
    call = """([figures, cases]) => import(scriptUrl).then((m) => cases.map(([place, choices]) => {
        const problem = figures.problems[place];
        return [m.answer(figures, place, choices), m.resources(problem, choices), m.settled(problem, choices)];
    }))"""
    for (place, choices), (found, needs, own) in zip(cases, computed(page, call, [FIGURES, cases]), strict=True):
        expected = answer(FIGURES, place, choices)
        assert found["ratio"] == pytest.approx(expected.pop("ratio")) and found["tflops"] == pytest.approx(
            expected.pop("tflops")
        )
        assert {name: found[name] for name in expected} == expected
        assert needs == resources(PROBLEMS[place], choices) and own == settled(PROBLEMS[place], choices)


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
