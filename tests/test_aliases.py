"""Names of earlier versions that copies of notebooks, exercises and class folders use."""

import importlib

import pytest

from course_utils import aliases
from tests.helpers.fresh_process import run_without_the_course

NEEDS_NBGRADER = "grading.nbgrader_course"  # seconds to import: tests/classroom/test_nbgrader.py has it


@pytest.mark.parametrize("former", sorted(aliases.MOVED.keys() - {NEEDS_NBGRADER}))
def test_a_former_module_has_what_took_its_place(former):
    module = importlib.import_module(f"course_utils.{former}")
    expected: dict[str, object] = {}
    for name in aliases.MOVED[former]:  # of two modules with the same name, the later one counts
        expected.update(vars(importlib.import_module(f"course_utils.{name}")))
    for key, value in expected.items():
        if not key.startswith("__"):
            assert getattr(module, key) is value


def test_the_one_arrow_up_leads_to_the_widgets():
    there = {
        module for room, names in aliases.SHOWN_BY.items() for module in names.values() if not module.startswith(room)
    }
    assert {module.rpartition(".")[0] for module in there} == {"course_utils.widgets"}


@pytest.mark.parametrize("room", sorted(aliases.SHOWN_BY))
def test_a_room_has_the_names_that_notebooks_call(room):
    for name, module in aliases.SHOWN_BY[room].items():
        assert getattr(importlib.import_module(room), name) is getattr(importlib.import_module(module), name)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        importlib.import_module(room).nothing  # noqa: B018


def test_what_handed_out_copies_import_works_in_a_fresh_process():
    """As a notebook does it: nothing of the course was imported before."""
    lines = [
        "from course_utils.attention_maps import HEADS, attention_maps, density, kept_mass, mask_of",
        "from course_utils.grading import check",
        "from course_utils import nvrtc",
        "from course_utils.errors import KernelError",
    ]
    run_without_the_course("\n".join(lines))


def test_an_unknown_module_is_still_unknown():
    with pytest.raises(ModuleNotFoundError, match="course_utils.nothing_at_all"):
        importlib.import_module("course_utils.nothing_at_all")
