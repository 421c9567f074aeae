"""Multiply each row of x by its own scale, `y[r][c] = s[r] · x[r][c]`. All arrays are fp32 and contiguous."""

import numpy as np
import torch

from course_utils.grading.exercise import Case, Exercise, Launch, Output, Part


def case(generator, part, rows, columns):
    x, s = torch.randn(rows, columns, generator=generator), torch.randn(rows, 1, generator=generator)
    arguments = ("x", "s", "y", np.int32(rows), np.int32(columns))
    launch = Launch("scale_rows", ((rows * columns + 127) // 128,), (128,), arguments)
    outputs = {"y": Output(s.double() * x.double())}
    return Case(part, f"{rows} × {columns}", (launch,), {"x": x, "s": s}, outputs, must_be_clean=True)


EXERCISE = Exercise(
    id="01_attention_basics/scale_rows",
    title="A scale for each row",
    parts=(Part("whole", 3, "128 elements"), Part("ragged", 2, "Any number of elements")),
    kernels=("scale_rows",),
    cases=lambda generator, python: [case(generator, "whole", 4, 32), case(generator, "ragged", 5, 33)],
)
