"""A mistake that students make in several exercises and puzzles has one name, from `names.py`."""

import re

from course_utils.grading import names
from course_utils.grading.release import ROOT

SHARED = {value: constant for constant, value in vars(names).items() if constant.isupper()}
ROOMS = [path for room in ("grading", "puzzles") for path in (ROOT / "course_utils" / room).rglob("*.py")]
CODE = {path.name: path.read_text() for path in ROOMS if path.name != "names.py"}


def test_a_shared_name_is_in_use_and_nothing_spells_it_out():
    whole = "\n".join(CODE.values())
    unused = [constant for constant in SHARED.values() if not re.search(rf"\b{constant}\b", whole)]
    spelled = [(file, name) for file, text in CODE.items() for name in SHARED if f'"{name}"' in text]
    assert (unused, spelled) == ([], [])
