"""What a puzzle is: a kernel of `kernels/NN_slug/puzzles/`, the lines to find in it, and how it is graded."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

from course_utils.course import chapter
from course_utils.grading.exercise import Diagnosis, Exercise
from course_utils.grading.release import solution_lines
from course_utils.toolchain.source import read_kernel

STUB = "// YOUR CODE HERE"
# By notebook, in the order in which they have them. A puzzle's task stands in the module of its chapter here, also if
# the chapter's second notebook has it, and its id begins with the slug of the first.
PUZZLES = {
    "00_start_here": ("guard", "scores_of_one_query", "attention"),
    "01_attention_basics": ("dot_product", "safe_softmax", "causal_mask"),
    "02_flash_attention_minimal": ("merge", "rescale"),
    "02_flash_attention_backward": ("score_gradient",),
    "03_flash_attention_v2": ("fragment", "swizzle", "sinks"),
    "04_sparse_patterns": ("skip_tile", "packed"),
    "05_deepseek_sparse": ("relu_before_sum", "gather"),
    "06_serving": ("pieces", "page_row", "ancestors"),
    "07_hopper": ("panels", "ring"),
    "08_choosing": ("shared_heads",),
}


@dataclass(frozen=True)
class WrongLines:
    """A mistake: what is said of it, and lines for the hole that make it, each in another way."""

    said: Diagnosis
    lines: tuple[str, ...]


def mistake(name: str, why: str, read_again: str, *lines: str) -> WrongLines:
    """A mistake with its name, why it is one, and the section to read again."""
    return WrongLines(Diagnosis(name, why, read_again), lines)


@dataclass(frozen=True)
class Puzzle:
    """A puzzle. task: graded like an exercise's. lesson: what the right kernel did, and the next idea. hint: a sentence
    or two, without the lines themselves. stub: the text in place of the lines, without indentation: a comment, or wrong
    lines to mend. mistakes: of those that explain as much, the first is named."""

    task: Exercise
    lesson: str
    hint: str
    stub: str = STUB
    mistakes: tuple[WrongLines, ...] = ()

    @property
    def file(self) -> str:
        """The kernel with its solution, for `read_kernel`."""
        home, name = self.task.id.split("/")
        return f"{home}/puzzles/{name}.cu"

    @property
    def lines(self) -> str:
        """The lines to find, without their common indentation."""
        lines, (begin, end) = self._solved()
        indent = lines[begin][: -len(lines[begin].lstrip())]
        return "\n".join(line.removeprefix(indent) for line in lines[begin + 1 : end])

    @property
    def given(self) -> str:
        """The kernel with the hole, without the head of its file: what a chapter's cell holds below its first line."""
        return self.filled(self.stub)

    @property
    def solved(self) -> str:
        """The given kernel with the lines in place."""
        return self.filled(self.lines)

    def filled(self, hole: str) -> str:
        """The kernel with these lines in the hole, without the head of its file."""
        lines, (begin, end) = self._solved()
        indent = lines[begin][: -len(lines[begin].lstrip())]
        lines[begin : end + 1] = [indent + line if line else "" for line in hole.split("\n")]
        first = next(at for at, line in enumerate(lines) if not line.startswith("//"))
        needed = [line for line in lines[:first] if re.fullmatch(r"// arch: \w+ only", line)]  # compilers read it
        return "\n".join([*needed, *lines[first:]]).strip("\n") + "\n"

    def _solved(self) -> tuple[list[str], tuple[int, int]]:
        text = str(read_kernel(self.file))
        (region,) = solution_lines(text, self.file)
        return text.split("\n"), region


def puzzle_ids(slug: str | None = None) -> list[str]:
    """The ids of a notebook's puzzles, or of all: "00_start_here/guard"."""
    return [f"{chapter(one).home}/{name}" for one, names in PUZZLES.items() if slug in (None, one) for name in names]


def find_puzzle(puzzle_id: str) -> Puzzle:
    """The puzzle of that id. Raises LookupError, which lists the ids there are."""
    if puzzle_id not in puzzle_ids():
        raise LookupError(f"there is no puzzle {puzzle_id!r}; there are: {', '.join(puzzle_ids())}")
    home, name = puzzle_id.split("/")
    return importlib.import_module(f"course_utils.puzzles.{chapter(home).name}").PUZZLES[name]
