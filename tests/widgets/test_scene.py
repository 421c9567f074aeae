"""A scene: the player opens at the moment that a sentence points to."""

import re

import numpy as np
import pytest

from course_utils.chapters.flash_attention_v2 import steps
from course_utils.launches.chapters import course_launches
from course_utils.widgets import recorded, scene
from course_utils.widgets.frame import HERE
from course_utils.widgets.scene import LOOKS


@pytest.fixture(scope="module")
def transpose():
    """A call that launches it: each of 32 warps copies a row of a tile to shared memory and reads a column of it."""
    return course_launches()["transpose_tiled"].run


LOAD, STORE = "tile[threadIdx.y][threadIdx.x] = ", "out["


def opened_at(widget):
    """The kernel's text of the line at which a player opens, its array, op and warp."""
    columns = recorded.columns(widget.meta, widget.data)
    file, line, _ = widget.meta["places"][columns["steps.place"][widget.step]]
    array = widget.meta["arrays"][columns["steps.array"][widget.step]]["name"]
    op = widget.meta["ops"][columns["steps.op"][widget.step]]
    return widget.meta["sources"][file].splitlines()[line - 1], array, op, int(columns["steps.warp"][widget.step])


def test_it_opens_at_the_line_with_a_text_and_there_at_the_array_and_the_visit_asked_for(transpose):
    line, array, op, warp = opened_at(scene(transpose, at=LOAD))
    assert (LOAD in line, array, op, warp) == (True, "in", "read", 0)
    assert opened_at(scene(transpose, at=LOAD, on="tile", visit=3))[1:] == ("tile", "write", 3)
    assert opened_at(scene(transpose, at=LOAD, on="tile", visit=-1))[1:] == ("tile", "write", 31)
    assert opened_at(scene(transpose, at=STORE, on="tile", warp=5))[1:] == ("tile", "read", 5)


def test_a_line_that_calls_a_function_has_the_steps_in_it():
    widget = scene(steps.call("3"), at="load_tile<B_C>(V_tile", on="V")
    assert opened_at(widget)[1:] == ("V", "read", 0)


def test_what_is_chosen_and_the_look_are_in_the_state_that_the_page_starts_from(transpose):
    widget = scene(transpose, at=LOAD, cell=("tile", 132), colour="bank")
    number = [array["name"] for array in widget.meta["arrays"]].index("tile")
    chosen = {"array": number, "cell": {"array": number, "offset": 132}, "looksAtCell": True}
    assert widget.meta["start"] == {"short": True, "colour": "bank", **chosen}


def test_local_variables_come_only_if_asked_for(transpose):
    plain, whole = (scene(transpose, at=LOAD, variables=wanted) for wanted in (False, True))
    assert plain.meta["variables"] == [] and len(plain.data) < len(whole.data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"at": "no such text"},
            "at: got 'no such text', takes a text of one line .*; 0 have it",
        ),
        ({"at": "tile["}, "at: got .*; 2 have it"),
        ({"at": LOAD, "on": "K"}, "on: got the array 'K', takes one of 'in', 'out', 'tile'"),
        ({"at": LOAD, "cell": ("K", 0)}, "cell: got the array 'K'"),
        ({"at": LOAD, "on": "in", "visit": 32}, "visit: got 32; the block has 32 such steps"),
        ({"at": LOAD, "warp": 99}, "warp is 99; it must be an integer from -1 to 31"),
        ({"at": LOAD, "cell": ("tile", 4096)}, "cell: the byte of tile is 4096; it must be an integer from 0 to 4095"),
        ({"at": LOAD, "cell": ("tile", -4)}, "cell: the byte of tile is -4"),
        ({"at": LOAD, "colour": "banks"}, "colour: got 'banks', takes one of 'value', 'writer', 'age', 'bank'"),
        ({"at": LOAD, "lane": 99}, "lane: got 99, takes a number from 0 to 31"),
    ],
)
def test_a_moment_that_is_not_there_is_named(transpose, options, words):
    with pytest.raises(ValueError, match=words):
        scene(transpose, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"at": None}, "at: got None, takes a text of one line"),
        ({"at": LOAD, "visit": 1.5}, "visit is 1.5"),
        ({"at": LOAD, "cell": "tile"}, "cell: got 'tile', takes an array's name and the offset of a byte"),
        ({"at": LOAD, "color": "bank"}, "no argument 'color'; the look of a player has colour, lane"),
    ],
)
def test_what_is_of_another_kind_is_named(transpose, options, words):
    with pytest.raises(TypeError, match=words):
        scene(transpose, **options)


def test_a_byte_in_the_middle_of_a_number_chooses_the_number(transpose):
    assert scene(transpose, at=LOAD, cell=("tile", 135)).meta["start"]["cell"]["offset"] == 132


def test_a_look_is_one_that_the_page_knows():
    script = (HERE / "js" / "player.js").read_text(encoding="utf-8")
    start = re.search(r"const START = \{(.*?)\};", script, re.DOTALL)
    known = {*re.findall(r"(\w+):", start[1]), "type"}
    assert set(LOOKS) <= known
    cells = (HERE / "js" / "player" / "cells.js").read_text(encoding="utf-8")
    assert tuple(re.findall(r"(\w+):", re.search(r"COLOURINGS = \{(.*?)\}", cells)[1])) == LOOKS["colour"]


# ---- the still picture


def test_the_still_picture_outlines_what_is_read_where_it_lies(transpose):
    _, memory = scene(transpose, at=STORE, on="tile").static_figure().axes
    frames = {one.get_xy() for one in memory.patches if not one.get_fill()}
    assert frames == {(0, row) for row in range(32)}  # a column of the tile


def test_what_nobody_wrote_is_left_out_and_banks_are_banks(transpose):
    before = scene(transpose, at=LOAD, on="tile")
    assert np.isnan(image_of(before)).all()
    banks = image_of(scene(transpose, at=LOAD, on="tile", colour="bank"))
    assert (banks == np.arange(32)).all()


def test_ages_are_counted_in_barriers(transpose):
    ages = image_of(scene(transpose, at=STORE, on="tile", colour="age"))
    assert ages.shape == (32, 32) and (ages == 1).all()


def test_a_chosen_cell_is_seen_and_copies_that_will_land_there_are_marked():
    second_buffer = "dynamic shared memory", 2 * 64 * (64 + 64)
    _, memory = scene(steps.call("4", 128), at="ldmatrix_x4(k,", cell=second_buffer).static_figure().axes
    (squares,) = memory.lines
    assert memory.patches[-1].get_xy() == (0, 128) and min(squares.get_ydata()) == 128.5
    assert memory.get_ylim()[1] <= 128 < memory.get_ylim()[0]


def test_a_step_that_is_not_there_is_named(transpose):
    with pytest.raises(ValueError, match="step: got 999999, takes 0 to"):
        scene(transpose, at=LOAD).static_figure(999_999)


def image_of(widget):
    """What the array of a still picture is coloured by, NaN where nothing is shown."""
    return np.ma.filled(widget.static_figure().axes[1].images[0].get_array().astype(float), np.nan)
