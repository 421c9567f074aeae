"""Tables of the record of best peers, which is made by hand here."""

from dataclasses import asdict, replace

import pytest

from course_utils import measured, show
from course_utils.chapters import best_peers as shown
from course_utils.measured.best_peers import (
    BLOCKS,
    CORE,
    CUDNN_VIEW,
    DENSE,
    DENSE_BACKWARD,
    DILATED,
    DOCUMENTS,
    FLASH_4,
    FLASH_MLA,
    OTHERS_BACKWARD,
    WINDOWS,
    WINDOWS_BACKWARD,
    Pair,
    pairs,
)
from course_utils.measured.measurement import Measurement


def pair(part, work, peer, speed):
    return Pair(part, work, 4096, "ours", None, peer, 1 / speed, 0.1, 1.0, 0.1, speed, speed, speed)


@pytest.fixture
def record(monkeypatch):
    """A record of a few pairs, in the place of the course's."""
    made = [
        pair(DENSE, "full, d = 64", FLASH_4, 1.25),
        pair(DENSE_BACKWARD, "causal, d = 64", FLASH_4, 0.9),
        pair(WINDOWS, "window of 256", FLASH_4, 0.5),
        pair(WINDOWS_BACKWARD, "window of 256", FLASH_4, 0.5),
        pair(DOCUMENTS, "documents", FLASH_4, 4.0),
        pair(BLOCKS, "blocks of 256", CUDNN_VIEW, 0.75),
        pair(CORE, "1 query", FLASH_MLA, 0.8),
    ]
    versions = {"torch": "2.11.0+cu130", "cuda": "13.0", "flash-attn-4": "4.0.0b36", "sgl-flash-mla": "1.0.0"}
    rows = [asdict(one) for one in made]
    found = Measurement("best_peers", "NVIDIA H200", "580.1", versions, "2026-11-29", "bench best_peers", rows)
    monkeypatch.setattr(measured, "load", {"best_peers": found}.__getitem__)
    return found


@pytest.fixture
def tables(monkeypatch):
    """What cells show: rows and caption."""
    found = []
    monkeypatch.setattr(show, "table", lambda rows, caption, decimals=None: found.append((rows, caption)))
    return found


def test_pairs_of_a_record_are_read_by_their_parts(record):
    assert [one.work for one in pairs(record, (WINDOWS, DENSE))] == ["full, d = 64", "window of 256"]
    with pytest.raises(ValueError, match="best_peers has no pair of nothing"):
        pairs(record, (DENSE, "nothing"))


def test_a_chapter_shows_both_times_and_the_ratio_with_device_date_and_versions(record, tables):
    shown.compare(DENSE, DENSE_BACKWARD, BLOCKS)
    ((rows, caption),) = tables
    shapes, where = "B · L = 16384, H · d = 2048, fp16; B = 1, H = 16, d = 128, fp16; ", "NVIDIA H200, 2026-11-29, "
    versions = "torch 2.11.0, CUDA 13.0, flash-attn-4 4.0.0b36, sgl-flash-mla 1.0.0"
    assert caption == f"keys: 4,096; our kernel: ours; {shapes}{where}{versions}"
    assert [(row["work"], row["peer"], row["our speed ÷ the peer's"]) for row in rows] == [
        ("full, d = 64", FLASH_4, 1.25),
        ("backward, causal, d = 64", FLASH_4, 0.9),
        ("blocks of 256", CUDNN_VIEW, 0.75),
    ]
    assert all(list(row) == ["work", "our ms", "peer", "its ms", "our speed ÷ the peer's"] for row in rows)
    assert all(row["its ms"] / row["our ms"] == pytest.approx(row["our speed ÷ the peer's"]) for row in rows)


def test_sparse_patterns_have_a_line_for_each_pass_and_peer_and_a_column_for_each_length(record, tables):
    more = pair(DILATED, "dilated", FLASH_4, 2.0), pair(OTHERS_BACKWARD, "documents", FLASH_4, 3.0)
    longer = replace(pair(BLOCKS, "blocks of 256", CUDNN_VIEW, 1.5), length=16384)
    record.rows.extend(map(asdict, (*more, longer)))
    shown.sparse_by_length()
    ((rows, caption),) = tables
    assert [list(row.values()) for row in rows] == [
        ["forward", "window of 256", FLASH_4, "0.50", ""],
        ["forward", "documents", FLASH_4, "4.00", ""],
        ["forward", "blocks of 256", CUDNN_VIEW, "0.75", "1.50"],
        ["forward", "dilated", FLASH_4, "2.00", ""],
        ["backward", "window of 256", FLASH_4, "0.50", ""],
        ["backward", "documents", FLASH_4, "3.00", ""],
    ]
    assert list(rows[0])[3:] == ["4 K", "16 K"] and "B = 1, H = 16, d = 128, fp16" in caption


def test_a_table_of_one_line_has_all_of_it(record, tables):
    shown.compare(CORE)
    ((rows, caption),) = tables
    assert [(row["keys"], row["our kernel"], row["peer"]) for row in rows] == [(4096, "ours", FLASH_MLA)]
    assert not caption.startswith("keys")


def test_each_kind_of_attention_has_the_mean_of_its_speeds_and_the_extremes(record, tables):
    shown.by_kind()
    ((rows, _),) = tables
    assert [row["mean"] for row in rows] == pytest.approx([1.125**0.5, 1, 0.8])
    assert [(row["lowest"], row["highest"]) for row in rows] == [(0.9, 1.25), (0.5, 4), (0.8, 0.8)]
    assert [row["faster"] for row in rows] == ["flash-attn-4 in 1 of 2", "flash-attn-4 in 2 of 3", "FlashMLA in 1 of 1"]


def test_without_a_record_a_cell_says_how_to_make_it(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    for cell in (shown.by_kind, lambda: shown.compare(DENSE)):
        with pytest.raises(FileNotFoundError, match="bench best_peers --record"):
            cell()
