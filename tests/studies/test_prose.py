"""The model of the course's prose: its text, that it learns, and what is recorded of the weights that are kept."""

import json

import torch

from course_utils import measured
from course_utils.serving.model import SHAPES, WEIGHTS, load_weights, quantised, save_weights
from course_utils.studies import prose


def test_the_text_is_plain_paragraphs_of_notebooks_and_guides(tmp_path):
    (tmp_path / "docs" / "deep").mkdir(parents=True)
    (tmp_path / "notebooks").mkdir()
    long = (
        "Each `warp` of the [block](kernels/a.cu) reads **its own** tile, and waits for\nno other one before the end."
    )
    plain = "Each warp of the block reads its own tile, and waits for no other one before the end."
    dropped = ["# A heading that is longer than sixty letters, as headings seldom are, but may", "| a | table |" * 9]
    dropped += ["- one point of a list, which is longer than sixty letters for the sake of this test", "short"]
    dropped += ["```\ncode that is longer than sixty letters, and so would be taken for a paragraph\n```"]
    (tmp_path / "docs" / "deep" / "a.md").write_text("\n\n".join([long, *dropped]), encoding="utf-8")
    (tmp_path / "README.md").write_text(long, encoding="utf-8")
    cells = [{"cell_type": kind, "source": [long]} for kind in ("markdown", "code")]
    (tmp_path / "notebooks" / "x.ipynb").write_text(json.dumps({"cells": cells}), encoding="utf-8")
    learned, held_out = prose.text(tmp_path)
    assert held_out == plain and learned == "\n".join([plain] * 2)


def test_the_text_of_the_course_is_some_hundred_thousand_letters():
    learned, held_out = prose.text()
    assert len(learned) > 150_000 and "```" not in learned
    assert 10 < len(learned) / len(held_out) < 40, "19 paragraphs for one, of any length"


def test_training_is_repeatable_and_learns():
    words = "to be or not to be, that is the question. " * 40
    first, second = (prose.train(words, steps=6, batch=2) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in SHAPES)
    untrained = {name: matrix.detach() for name, matrix in prose.new_matrices().items()}
    assert prose.loss(first, words, pieces=2) < prose.loss(untrained, words, pieces=2) - 0.5


def test_eight_bits_are_the_nearest_and_come_back_from_the_file(tmp_path):
    matrices = prose.new_matrices()
    weights = {name: quantised(matrix) for name, matrix in matrices.items()}
    for name, matrix in matrices.items():
        off = (weights[name].floats() - matrix).abs() / weights[name].scale[..., None]
        assert off.max() <= 0.5001 and weights[name].numbers.abs().amax(-1).eq(127).all()
    save_weights(weights, tmp_path / "w.npz")
    again = load_weights(tmp_path / "w.npz")
    assert all(torch.equal(a, b) for name in SHAPES for a, b in zip(weights[name], again[name], strict=True))


def test_the_record_is_of_the_weights_that_are_kept():
    row = measured.load(prose.NAME).rows[0]
    assert row["file_bytes"] == WEIGHTS.stat().st_size < 2_000_000
    assert row["tokens_seen"] == prose.STEPS * prose.BATCH * prose.LENGTH and row["steps"] == prose.STEPS
    assert row["parameters"] == sum(matrix.numbers.numel() for matrix in load_weights().values())
    assert row["loss"] < row["loss_held_out"] < 1.5 and abs(row["loss_held_out_8_bits"] - row["loss_held_out"]) < 0.01
