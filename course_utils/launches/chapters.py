"""The launches of all chapters, by name. Each chapter's own module says what they are."""

from __future__ import annotations

from course_utils.launches import (
    attention_basics,
    deepseek_sparse,
    flash_attention_minimal,
    flash_attention_v2,
    hopper,
    serving,
    sparse_patterns,
    start_here,
)
from course_utils.launches.launch import Launch


def course_launches() -> dict[str, Launch]:
    """Each kernel of chapters 00 to 02 at sizes that fill its tiles, and those from 03 on at one that does not: these
    are counted, and looked at by the sanitizers."""
    chapters = start_here, attention_basics, flash_attention_minimal, flash_attention_v2, sparse_patterns
    return {name: launch for of in (*chapters, deepseek_sparse) for name, launch in of.course().items()}


def large_launches() -> dict[str, Launch]:
    """Naive attention and both loop orders of FlashAttention at B=1, H=4, d=64: for the bytes from and to HBM."""
    launches: dict[str, Launch] = {}
    for length in (1024, 2048):
        launches |= attention_basics.large(length) | flash_attention_minimal.large(length)
    return launches


def busy_launches() -> dict[str, tuple[Launch, int]]:
    """Launches that fill the GPU as the chapters' timings do, each with the FLOPs that its work needs: for what limits
    a kernel."""
    chapters = start_here, attention_basics, flash_attention_minimal, flash_attention_v2, hopper
    return {name: found for of in chapters for name, found in of.busy().items()}


def hard_launches() -> dict[str, Launch]:
    """The kernels from chapter 03 on where most can go wrong, for the sanitizers only."""
    return flash_attention_v2.hard() | sparse_patterns.hard() | deepseek_sparse.hard() | serving.hard() | hopper.hard()
