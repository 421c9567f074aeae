"""Questions by id, and that a seed draws the same question everywhere."""

import subprocess
import sys

import pytest

from course_utils import course
from course_utils.questions import catalog

DRAW = """import sys; sys.path.insert(0, sys.argv[1])
import demo_questions; demo_questions.install()
from course_utils.questions import catalog
print([catalog.question(one, 5) for one in catalog.question_ids("99_demo")])"""


def test_ids_stand_in_the_order_of_the_source(demo):
    names = "concept scenario true_false votes trade_off number aggregate grid".split()
    assert catalog.question_ids("99_demo") == tuple(f"99_demo/{name}" for name in names)


def test_a_title_is_the_docstring_without_its_full_stop(demo):
    assert catalog.title("99_demo/trade_off") == "Least memory within 2 ms"
    assert catalog.source("99_demo/grid") is demo.grid


def test_what_does_not_exist_is_a_lookup_error(demo):
    with pytest.raises(LookupError, match="slug: got '77_none'"):
        catalog.question_ids("77_none")
    with pytest.raises(LookupError, match="'99_demo/none', takes one of 99_demo/concept, "):
        catalog.question("99_demo/none", 0)
    with pytest.raises(LookupError):
        catalog.title("nothing")
    with pytest.raises(TypeError, match="seed: got '3', takes an int"):
        catalog.question("99_demo/grid", "3")


def test_a_chapter_without_a_source_has_no_questions(monkeypatch):
    monkeypatch.setattr(course, "CHAPTERS", (course.Chapter("98_empty", "Empty", "nothing yet"),))
    assert catalog.question_ids("98_empty") == ()


def test_a_source_that_cannot_be_imported_is_not_taken_for_a_missing_one(monkeypatch, tmp_path):
    (tmp_path / "broken.py").write_text("import a_module_that_is_not_there\n")
    import course_utils.questions.sources as package

    monkeypatch.setattr(package, "__path__", [str(tmp_path)])
    monkeypatch.setattr(course, "CHAPTERS", (course.Chapter("97_broken", "Broken", "nothing"),))
    with pytest.raises(ModuleNotFoundError, match="a_module_that_is_not_there"):
        catalog.question_ids("97_broken")


@pytest.mark.parametrize("hash_seed", ["0", "1"])
def test_another_process_draws_the_same_question(demo, hash_seed):
    here = [catalog.question(one, 5) for one in catalog.question_ids("99_demo")]
    folder = demo.__file__.rpartition("/")[0]
    command = [sys.executable, "-c", DRAW, folder]
    there = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": hash_seed})
    assert there.stdout.strip() == repr(here)


def test_classmates_see_other_figures(demo):
    assert len({repr(catalog.question("99_demo/number", seed)) for seed in range(20)}) > 1


def test_the_draw_of_a_seed_stays_what_it_is(demo):
    # Pinned: a learner who comes back after an update must find the same figures.
    drawn = [catalog.question("99_demo/number", seed).figure.value for seed in range(4)]
    assert drawn == [67.108864, 67.108864, 67.108864, 268.435456]
