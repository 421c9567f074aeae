"""The maps of CONTRIBUTING.md show the rooms that are there, with the arrows that structure.toml allows."""

import runpy
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MAP = runpy.run_path(str(ROOT / ".ci" / "draw_map.py"))
LAYOUT = tomllib.loads((ROOT / "tests" / "structure.toml").read_text(encoding="utf-8"))
FLOORS = [list(floor.rooms) for floor in MAP["FLOORS"]]
WHERE = {room: (floor, place) for floor, rooms in enumerate(FLOORS) for place, room in enumerate(rooms)}


def test_every_room_is_drawn_and_modules_are_drawn_as_such():
    assert sorted(WHERE) == sorted(LAYOUT["rooms"])
    assert sorted(MAP["MODULES"]) == sorted(LAYOUT["loose"])


def test_every_arrow_runs_down_or_to_the_left():
    sideways = set()
    for room, others in LAYOUT["rooms"].items():
        for other in others:
            (floor, place), (its_floor, its_place) = WHERE[room], WHERE[other]
            below, left = its_floor > floor, its_floor == floor and its_place < place
            assert below or left, f"{room} imports {other}: move one of them in FLOORS of .ci/draw_map.py"
            sideways |= {floor} if left else set()
    assert sideways == {number for number, floor in enumerate(MAP["FLOORS"]) if floor.sideways}


@pytest.mark.parametrize("name", ["rooms", "launch"])
def test_the_pictures_are_what_the_script_draws(name):
    drawn = (ROOT / "docs" / f"{name}.svg").read_text(encoding="utf-8")
    assert drawn == MAP[name](), "run: .venv/bin/python .ci/draw_map.py"
    assert f"docs/{name}.svg" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
