"""Chapter 04's kernels in passages that are folded: who wants to read the code opens them."""

from __future__ import annotations

import html

from course_utils import show
from course_utils.cuda import read_kernel

RANGES, RANGE = "include/ranges.cuh", "04_sparse_patterns/range.cu"
BLOCKS, BLOCKS_BACKWARD = "04_sparse_patterns/block_sparse.cu", "04_sparse_patterns/block_sparse_backward.cu"
RANGE_BLOCK = "include/range_block.cuh"
GATHER = "04_sparse_patterns/csr_gather.cu"


def show_folded(summary: str, *passages: tuple[str, str, str | None]) -> None:
    """Shows passages of kernels once their summary is clicked. passages: name, start and end, as `show.passage` has
    them."""
    pages, texts = [], []
    for name, start, end in passages:
        first, last = show.passage_lines(name, start, end)
        text = _lines(name, start, end)
        where = f"kernels/{name}, lines {first} to {last}"
        pages.append(f"<p>{html.escape(where)}</p>{show.highlighted(text)}")
        texts += [where, text]
    show.folded(summary, "\n".join(texts), "".join(pages))


def _lines(name: str, start: str, end: str | None) -> str:
    """The text of a passage."""
    first, last = show.passage_lines(name, start, end)
    return "\n".join(read_kernel(name).splitlines()[first - 1 : last])


def ranges() -> None:
    """Shows what a row of a range sees, and which tiles a block visits."""
    show_folded(
        "Read the code: what a row sees, and which tiles a block visits",
        (RANGES, "// Keys [start, end)", "// Tiles first"),
        (RANGES, "// Tiles first", None),
        (RANGE, "const Keys block_sees", "const float factor"),
    )


def on_hopper() -> None:
    """Shows which tiles a block of range_hopper.cu visits, and the lines in which its loop differs from that of chapter
    07's dense kernel."""
    show_folded(
        "Read the code: which tiles a block visits, and which of them need no mask",
        (RANGE_BLOCK, "// Both ends of what", "// S = −∞"),
    )
    dense, ranges = "07_hopper/forward.cu", "04_sparse_patterns/range_hopper.cu"
    loops = [_lines(name, "    int j = work.", "give_back(shared.gate_Q") for name in (dense, ranges)]
    changed = [line for line in show.difference_lines(*loops, context=0)[2:] if line[0] in "-+"]
    text = "\n".join(changed)
    show.folded(f"Read the code: the {len(changed)} lines that change in the loop", text, show.highlighted(text))
    for name in (dense, ranges):
        print(f"{name}: {len(read_kernel(name).splitlines())} lines")


def residue_classes() -> None:
    """Shows how range.cu visits the positions of a residue class."""
    show_folded(
        "Read the code: residue classes, with tiles",
        (RANGES, "// Every `dilation`-th", "// Keys [start"),
        (RANGE, "// A block has one tile", "// Both ends"),
    )


def blocks() -> None:
    """Shows the loop of block_sparse.cu."""
    show_folded("Read the code: the loop over a row's blocks", (BLOCKS, "auto start_copies", "// Of a split row"))


def merge() -> None:
    """Shows how the parts of a split row are merged."""
    show_folded("Read the code: the merge", (BLOCKS, "float m = NEG_INF, l = 0;", None))


def gather() -> None:
    """Shows the loads, the sums and the loop of csr_gather.cu."""
    show_folded(
        "Read the code: loads, sums and loop",
        (GATHER, "// The chunk of this lane", 'extern "C"'),
        (GATHER, "while (__any_sync", "// The groups saw"),
    )


def backward() -> None:
    """Shows the loop of block_sparse_backward.cu."""
    show_folded(
        "Read the code: the loop over a column of block lists",
        (BLOCKS_BACKWARD, "int place = 0;", "// nobody reads Q and"),
    )
