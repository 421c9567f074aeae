"""Recorded figures: written, read back, labelled, and never invented."""

import dataclasses
import json

import pytest
import torch

from course_utils import measured

ROWS = [{"length": 1024, "median_ms": 1.5}, {"length": 2048, "median_ms": 6.0}]


@pytest.fixture(autouse=True)
def cudnn_version(monkeypatch):
    """torch for CUDA asks a GPU for it, and these tests only pretend to have one."""
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91900)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def pretend_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def example(name="02_example"):
    versions = {"torch": "2.11.0+cu130", "cuda": "13.0", "cupy": "14.2.0", "python": "3.12.3"}
    return measured.Measurement(name, "NVIDIA H200", "580.1", versions, "2026-11-21", "bench", ROWS)


def test_written_and_read_back(folder):
    measured.write(example())
    assert measured.load("02_example") == example()
    assert measured.recorded_names() == ["02_example"]


def test_caption_names_device_date_and_versions():
    assert measured.caption(example()) == "NVIDIA H200, 2026-11-21, torch 2.11.0, CUDA 13.0"


def test_save_labels_with_this_machine(folder, pretend_gpu):
    saved = measured.save("02_example", ROWS, "bench")
    assert measured.load("02_example") == saved
    assert saved.device == "NVIDIA H200" and saved.versions["torch"] == torch.__version__ and saved.rows == ROWS


def test_figures_cannot_be_saved_without_a_gpu(folder, no_gpu):
    with pytest.raises(RuntimeError, match="no usable NVIDIA GPU"):
        measured.save("02_example", ROWS, "bench")
    assert not list(folder.iterdir())


def test_live_with_a_gpu_recorded_without_and_on_a_t4(folder, monkeypatch):
    measured.write(example())
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    recorded = measured.live_or_recorded("02_example", lambda: pytest.fail("measured without a GPU"))
    assert recorded == example()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    assert measured.live_or_recorded("02_example", lambda: pytest.fail("measured on a T4")) == example()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "another GPU")
    live = measured.live_or_recorded("02_example", lambda: [{"median_ms": 3.0}])
    assert live.device == "another GPU" and live.rows == [{"median_ms": 3.0}]


def test_missing_figures_say_what_is_recorded_and_how_to_take_them(folder):
    measured.write(example())
    with pytest.raises(FileNotFoundError, match=r"'03_other'.*recorded: 02_example.*bench 03_other --record"):
        measured.load("03_other")


@pytest.mark.parametrize("content", ["{", "[]", json.dumps({"name": "x"})])
def test_a_broken_file_is_named(folder, content):
    (folder / "bad.json").write_text(content)
    with pytest.raises(ValueError, match=r"bad\.json is not a measurement"):
        measured.load("bad")


@pytest.mark.parametrize("name", ["", "../secret", "a/b"])
def test_names_with_folders_are_refused(name):
    with pytest.raises(ValueError, match="name is"):
        measured.load(name)


def test_every_committed_measurement_loads_and_has_a_caption():
    for name in measured.recorded_names():
        measurement = measured.load(name)
        assert measurement.name == name
        assert measured.caption(measurement).startswith(measurement.device)


def test_rows_are_selected_by_the_values_of_their_columns():
    rows = [
        {"part": "ladder", "name": "ours", "head_dim": 64, "ratio": None},
        {"part": "ladder", "name": "ours", "head_dim": 128, "ratio": 1.5},
        {"part": "summary", "name": "ours"},
    ]
    measurement = dataclasses.replace(example(), rows=rows)
    assert measurement.select() == measurement.select(name="ours") == rows
    assert measurement.select(part="ladder", head_dim=128) == rows[1:2]
    assert measurement.select(ratio=None) == rows[:1]  # a row without the column has not this value
    assert measurement.select(name="theirs") == []


def test_a_column_that_no_row_has_is_named_beside_those_that_there_are():
    with pytest.raises(KeyError, match="02_example has no column 'lenght'; it has length, median_ms"):
        example().select(lenght=1024)
