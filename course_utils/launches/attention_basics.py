"""Launches of chapter 01's kernels, the three passes of naive attention."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from course_utils.launches.arguments import ints, normal
from course_utils.launches.launch import Launch

FOLDER = "01_attention_basics"


def course() -> dict[str, Launch]:
    """Each kernel at a size that fills its tiles; causal where it knows of that."""
    return _passes(heads=2, length=128) | _passes(heads=2, length=128, is_causal=True)


def large(length: int) -> dict[str, Launch]:
    """The three passes at B=1, H=4, d=64, for the bytes from and to HBM, which do not depend on the scores: to draw
    millions of them takes long."""
    launches = _passes(heads=4, length=length, scores_of=torch.zeros)
    return {name: launch for name, launch in launches.items() if "unsafe" not in name and "uncoalesced" not in name}


def busy() -> dict[str, tuple[Launch, int]]:
    """The passes at B=1, H=12, L=2048, d=64, each with its FLOPs: the chapter times them at B=16, which takes 3 GB, and
    the GPU is as busy with these. An exponential counts as none."""
    heads, length, head_dim = 12, 2048, 64
    product = 2 * heads * length * length * head_dim
    launches = _passes(heads, length, head_dim=head_dim, scores_of=torch.zeros)
    return {name: (launch, 0 if "softmax" in name else product) for name, launch in launches.items()}


def _passes(
    heads: int,
    length: int,
    *,
    is_causal: bool = False,
    head_dim: int = 64,
    scores_of: Callable[..., torch.Tensor] = normal,
) -> dict[str, Launch]:
    matrix, scores = normal(1, heads, length, head_dim), scores_of(1, heads, length, length)
    sizes, tiles = ints(length, length, head_dim), length // 32
    score_args = (matrix, matrix.clone(), scores, *sizes, np.float32(head_dim**-0.5), np.int32(is_causal))
    label = f", L={length}" + (", causal" if is_causal else "")
    launches = {
        name + label: Launch(f"{FOLDER}/{name}.cu", name, (tiles * tiles, heads, 1), (32, 32), score_args)
        for name in ("scores", "scores_uncoalesced")
    }
    if is_causal:  # the other kernels are told nothing of it
        return launches
    for name, threads in [("softmax", 256), ("softmax_unsafe", 32)]:
        args = scores, torch.zeros_like(scores), np.int32(length)
        launches[name + label] = Launch(f"{FOLDER}/{name}.cu", name, (length, heads, 1), (threads,), args)
    args = scores, matrix, torch.zeros_like(matrix), *sizes
    grid = head_dim // 32 * tiles, heads, 1
    launches["output" + label] = Launch(f"{FOLDER}/output.cu", "output", grid, (32, 32), args)
    return launches
