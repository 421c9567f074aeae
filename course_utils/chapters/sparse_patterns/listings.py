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
        text = "\n".join(read_kernel(name).splitlines()[first - 1 : last])
        where = f"kernels/{name}, lines {first} to {last}"
        pages.append(f"<p>{html.escape(where)}</p>{show.highlighted(text)}")
        texts += [where, text]
    show.folded(summary, "\n".join(texts), "".join(pages))


def ranges() -> None:
    """Shows what a row of a range sees, and which tiles a block visits."""
    show_folded(
        "Read the code: what a row sees, and which tiles a block visits",
        (RANGES, "// Keys [start, end)", "// Tiles first"),
        (RANGES, "// Tiles first", None),
        (RANGE, "const Keys block_sees", "const float factor"),
    )


def on_hopper() -> None:
    """Shows which tiles a block of range_hopper.cu visits, and counts the lines in which it differs from chapter 07's
    dense kernel."""
    show_folded(
        "Read the code: which tiles a block visits, and which of them need no mask",
        (RANGE_BLOCK, "// Both ends of what", "// S = −∞"),
    )
    dense, ranges = read_kernel("07_hopper/forward.cu"), read_kernel("04_sparse_patterns/range_hopper.cu")
    marks = [line[0] for line in show.difference_lines(dense, ranges, context=0, skip_header=True)[2:]]
    print(f"from forward.cu to range_hopper.cu: {marks.count('-')} lines removed, {marks.count('+')} added")


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
