"""A mistake that students make in several exercises and puzzles has one name, from `names.py`."""

import re

from course_utils.grading import names
from course_utils.grading.release import ROOT

SHARED = {value: constant for constant, value in vars(names).items() if constant.isupper()}
FOLDERS = [ROOT / "course_utils" / folder for folder in ("grading/tasks", "puzzles")]
CODE = {path.name: path.read_text() for folder in FOLDERS for path in folder.glob("*.py")}


def test_a_shared_name_is_in_use_and_nothing_spells_it_out():
    whole = "\n".join(CODE.values())
    unused = [constant for constant in SHARED.values() if not re.search(rf"\b{constant}\b", whole)]
    spelled = [(file, name) for file, text in CODE.items() for name in SHARED if f'"{name}"' in text]
    assert (unused, spelled) == ([], [])
