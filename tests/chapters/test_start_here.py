"""Chapter 00's kernel that is broken in three ways: each stops with the error that the text explains."""

import numpy as np
import pytest
import torch

from course_utils import emulator, reference
from course_utils.chapters.start_here import first_steps
from course_utils.cuda import RawModule
from course_utils.toolchain.errors import KernelError

WORDS = {
    "no bounds check": "past the end",
    "endless loop": "does not end|time",
    "divergent barrier": "barrier|__syncthreads",
}


def test_each_mistake_has_its_words():
    assert WORDS.keys() == first_steps.MISTAKES.keys()


@pytest.mark.parametrize("mistake", WORDS)
def test_a_broken_kernel_stops_with_an_error(mistake):
    kernel = RawModule(code=first_steps.broken(mistake)).get_function("vector_add")
    arrays = [torch.zeros(first_steps.ELEMENTS) for _ in range(3)]
    seconds = 0.3 if mistake == "endless loop" else 5
    with emulator.configure(time_limit=seconds), pytest.raises(KernelError, match=WORDS[mistake]):
        kernel((4,), (first_steps.THREADS,), (*arrays, np.int32(first_steps.ELEMENTS)))


def test_what_is_changed_is_shown(capsys):
    first_steps.break_it("no bounds check")
    assert "+    // if (i < n)" in capsys.readouterr().out


def test_a_line_that_is_gone_is_named(monkeypatch):
    monkeypatch.setattr(first_steps, "read_kernel", lambda name: "nothing")
    with pytest.raises(ValueError, match=r"vector_add\.cu: has '    if \(i < n\) ' 0 times"):
        first_steps.broken("no bounds check")


def test_a_wrong_attention_is_called_wrong(capsys):
    first_steps.check_attention(half, torch.device("cpu"))
    assert capsys.readouterr().out.count("correct = False") == 2


def half(query, key, value, is_causal):
    """Half of the right output."""
    return reference.attention(query, key, value, is_causal=is_causal).float() / 2
