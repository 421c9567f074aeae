"""What chapter 08's cells call: the figures that stand in pictures now, and what a guess is compared with."""

import pytest

from course_utils import measured, plots
from course_utils.chapters import choosing


def test_dense_ends_where_the_planner_says_so():
    rows = choosing.memory_rows()
    assert [row["dense fits"] for row in rows] == [True] * 4 + [False] * 2
    assert [row["dense, all"] for row in rows] == ["1.14 GB", "4.43 GB", "17.4 GB", "69.3 GB", "276 GB", "1.1 TB"]
    assert [row["flash, all"] for row in rows][::5] == ["67.4 MB", "2.16 GB"]
    assert choosing.where_dense_ends() == 65_536


def test_measured_ceilings_are_said_beside_the_datasheet(capsys):
    choosing.ceilings()
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[-1] for line in said[:4]] == ["88%", "61%", "75%", "78%"]


def test_floors_are_those_of_the_planner():
    rows = choosing.floor_rows()
    assert [row["at least"] for row in rows] == ["459 ms", "71.1 ms", "4.38 ms", "2.42 s", "161 ms"]
    assert [row["memory"] for row in rows] == ["1.1 TB", "2.16 GB", "2.16 GB", "36.7 GB", "108 GB"]
    assert [row["runs out at"] for row in rows] == ["S", "-", "-", "-", "-"]
    assert choosing.floors() == pytest.approx(16.3, abs=0.05)


def test_a_window_pays_from_where_the_recording_says_so():
    record = measured.load("08_choosing")
    assert choosing.lengths_of(record)[0] == 512
    assert choosing.where_a_window_pays(record) == 16_384


def test_kernels_run_where_their_architecture_is():
    found = choosing.who_runs_where()
    assert all(found["flash_attention_minimal, fp32"].values())
    assert [gpu for gpu, runs in found["flash_attention_v2"].items() if not runs] == ["T4"]
    assert [gpu for gpu, runs in found["its Hopper kernel"].items() if runs] == ["H100", "H200"]


def test_a_window_keeps_least_of_the_head_that_looks_far(monkeypatch):
    kept = choosing.kept_by_head()
    monkeypatch.setattr(choosing, "kept_by_head", lambda: kept)
    assert [found["window 64"] for found in kept.values()] == [98, 32, 36, 48, 14, 66]
    assert [found["4 sinks + window 60"] for found in kept.values()] == [98, 98, 46, 49, 20, 65]
    assert [found["window 256"] for found in kept.values()] == [99, 62, 83, 93, 99, 90]
    assert choosing.kept_mass() == "far band"


def test_models_answer_what_they_see():
    rows = {row["pattern"]: (row["facts in sight"], row["accuracy"]) for row in choosing.recall_rows()}
    assert rows["dense"] == rows["the 4 highest scores"] == (100, 100)
    assert (rows["window 16"], rows["window 48"]) == ((12, 34), (87, 90))


def test_every_picture_of_the_recording_is_drawn(drawn):
    record = measured.load("08_choosing")
    for show in (choosing.three_choices, choosing.times_the_floor, choosing.backends):
        show(record)
    choosing.training()
    assert len(drawn) == 4


def test_each_key_of_a_split_belongs_to_one_block():
    _, split = plots.ways_to_decode(keys=22, parts=4).axes
    blocks = [patch.get_width() for patch in split.patches if patch.get_y() == 1.7]
    assert blocks == pytest.approx([5.9, 5.9, 5.9, 3.9])
