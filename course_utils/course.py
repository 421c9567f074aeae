"""The chapters of the course in order, the planned ones, and the paths through them; and where the course's files lie.

A chapter that is too long for one sitting has a second notebook, which is listed behind the first as a chapter of the
same number. Its sections are counted on from the first, so that "chapter 02, section 12" is one place; its kernels,
questions and exercises are kept under the slug of the first (`home`), as they were when there was one notebook.

Everything that lists chapters reads this: navigation, progress, questions, the site. How long chapters and paths take
is counted by `course_utils.reading`.

A chapter has: why, a picture, the kernel explained line by line, run, check, predict then measure, a widget, timing
against PyTorch, what can go wrong, questions with answers, key takeaways, papers, and a link to the next; its last cell
of code is `widgets.finish_chapter("NN_slug")`. It is read in 45 to 150 minutes and runs in 60 seconds without a GPU. No
cell is longer than 25 lines; a helper that is used twice goes into the package. Letters of formulas are in
docs/notation.md, terms in docs/glossary.md. tests/test_notebook_policy.py says what the cells need for nbval and
GitHub, tests/test_prose_figures.py where a figure of the text comes from, `course_utils.widgets.guesses` how a
prediction is asked for. `make format` writes reading times, what sections need of others, and the bars that link
chapters.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("notebooks", "kernels", "exercises", "solutions", "docs")
FILES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
"""What a learner gets of a clone: these folders and files. A wheel has them, too (setup.py)."""
STARTED = ".course.json"  # in a learner's own folder: `python -m course_utils start` writes it
SOURCE_IN_WHEEL = Path(__file__).resolve().parent / "_course"
SOURCE = SOURCE_IN_WHEEL if SOURCE_IN_WHEEL.is_dir() else Path(__file__).resolve().parents[1]
"""The course's files as they came: those of a clone, or those in an installed wheel."""


def started_folder(place: Path) -> Path | None:
    """The learner's own folder that holds this place (`python -m course_utils start`), or None. Warns if its files are
    of another version of the course."""
    folder = next((one for one in (place, *place.parents) if (one / STARTED).is_file()), None)
    if folder is None:
        return None
    from course_utils import __version__  # not at the top: setup.py runs this file before the package is on a path

    version = json.loads((folder / STARTED).read_text(encoding="utf-8"))["version"]
    if version != __version__:
        todo = f"python -m course_utils start {folder}"
        warnings.warn(
            f"{folder} has the files of version {version}, course_utils is {__version__}: {todo}", stacklevel=2
        )
    return folder


def _working_folder() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # somebody removed it
        return SOURCE


ROOT = started_folder(_working_folder()) or SOURCE
"""Where kernels/, notebooks/ and the rest lie for this process: in the learner's own folder, or in `SOURCE`."""


@dataclass(frozen=True)
class Chapter:
    """One chapter. slug: of its notebook and folders; title and idea: for lists, the idea in one line.

    of: in a chapter's second notebook, the slug of the first; "" in all others. on_demand: it is read when a later
    chapter asks for it, so the bars with links lead past it, and to it beside the next.
    """

    slug: str
    title: str
    idea: str
    of: str = ""
    on_demand: bool = False

    @property
    def home(self) -> str:
        """The slug of its kernels, questions and exercises: its own, or the first notebook's."""
        return self.of or self.slug

    @property
    def number(self) -> str:
        """Its two digits."""
        return self.slug[:2]

    @property
    def words(self) -> str:
        """What a sentence calls it: "chapter 02", and a second notebook by its title too."""
        return f"chapter {self.number}, {self.title}" if self.of else f"chapter {self.number}"

    @property
    def name(self) -> str:
        """The slug without its number: the name of Python modules about this chapter."""
        return self.slug[3:]


CHAPTERS = (
    Chapter(
        "00_start_here", "Start here", "attention, one kernel to mend and two to write, and how a kernel goes wrong"
    ),
    Chapter(
        "00_memory_and_tools",
        "Memory and tools",
        "memories, floors, tiles; findings and counters",
        of="00_start_here",
        on_demand=True,
    ),
    Chapter("01_attention_basics", "Attention basics", "three kernels, and what the score matrix costs"),
    Chapter(
        "02_flash_attention_minimal", "FlashAttention, minimal", "online softmax: the score matrix is never stored"
    ),
    Chapter(
        "02_flash_attention_backward",
        "FlashAttention, backward",
        "gradients by recomputation: one number per row is kept",
        of="02_flash_attention_minimal",
    ),
    Chapter("03_flash_attention_v2", "FlashAttention-2", "tensor cores, pipelines, where the speed comes from"),
    Chapter(
        "03_flash_attention_training",
        "FlashAttention-2, training",
        "gradients that vanish, the backward pass, a training step",
        of="03_flash_attention_v2",
    ),
    Chapter("04_sparse_patterns", "Sparse patterns", "windows, blocks, arbitrary masks; when they pay"),
    Chapter("05_deepseek_sparse", "DeepSeek Sparse Attention", "a small network chooses the keys"),
    Chapter("06_serving", "Serving", "one new token against a long cache: splits, pages, one launch for a step"),
    Chapter("07_hopper", "Hopper", "products and copies that run by themselves; ahead of cuDNN"),
    Chapter("08_choosing", "Choosing", "which attention fits, which is fast enough, what to try in which order"),
)


@dataclass(frozen=True)
class ReadingPath:
    """A way through a part of the course. reader: for whom it is, or what it gives. legs: chapters in order, each with
    the numbers of its sections; none stands for all of the chapter, questions included."""

    reader: str
    legs: tuple[tuple[str, tuple[int, ...]], ...]


PATHS = (
    ReadingPath(
        "The idea: why the score matrix need not be stored",
        (
            ("00_start_here", (1, 2, 3)),
            ("00_memory_and_tools", (4, 5, 9, 10)),
            ("01_attention_basics", (1, 2, 3, 4, 6, 8)),
            ("02_flash_attention_minimal", (1, 2, 3, 4, 5, 6)),
        ),
    ),
    ReadingPath(
        "The basics, whole",
        (
            ("00_start_here", ()),
            ("00_memory_and_tools", (4, 5, 6, 7, 8, 9, 10, 11)),
            ("01_attention_basics", ()),
            ("02_flash_attention_minimal", ()),
            ("02_flash_attention_backward", ()),
            ("03_flash_attention_v2", (1, 2)),
        ),
    ),
    ReadingPath(
        "Most of the course",
        (
            ("00_start_here", ()),
            ("00_memory_and_tools", (4, 5, 6, 7, 8, 9, 10, 11)),
            ("01_attention_basics", ()),
            ("02_flash_attention_minimal", ()),
            ("02_flash_attention_backward", ()),
            ("03_flash_attention_v2", ()),
            ("03_flash_attention_training", ()),
            ("04_sparse_patterns", (1, 2, 3, 4, 5, 10)),
            ("05_deepseek_sparse", (1, 2, 3, 4, 5, 6, 7)),
            ("08_choosing", ()),
        ),
    ),
    ReadingPath(
        "You know CUDA already",
        (
            ("00_memory_and_tools", (4, 5, 6, 7, 8, 9, 10, 11, 12)),
            ("02_flash_attention_minimal", ()),
            ("02_flash_attention_backward", ()),
        ),
    ),
    ReadingPath(
        "You know FlashAttention already", (("03_flash_attention_v2", ()), ("03_flash_attention_training", ()))
    ),
    ReadingPath("You came for windows and masks", (("04_sparse_patterns", ()),)),
    ReadingPath("You came for a model's own choice of keys", (("05_deepseek_sparse", ()),)),
    ReadingPath("You came for serving: caches, pages, batches", (("06_serving", ()),)),
    ReadingPath("You came for Hopper: what FlashAttention-3 does", (("07_hopper", ()),)),
    ReadingPath("You know them all and only want to choose", (("08_choosing", ()),)),
)


def chapter_notebooks(root: Path) -> list[Path]:
    """The notebooks of the chapters in a checkout, in the order of the course, without a learner's own that an update
    has laid beside them (docs/updating.md): slugs have no dot."""
    order = {one.slug: place for place, one in enumerate(CHAPTERS)}
    paths = [path for path in sorted((root / "notebooks").glob("*.ipynb")) if "." not in path.stem]
    return sorted(paths, key=lambda path: order.get(path.stem, len(order)))


def chapter(slug: str) -> Chapter:
    """The chapter of this slug. Raises LookupError."""
    for one in CHAPTERS:
        if one.slug == slug:
            return one
    raise LookupError(f"slug: got {slug!r}, takes one of {', '.join(one.slug for one in CHAPTERS)}")


def notebooks_of(number: str) -> tuple[Chapter, ...]:
    """The notebooks of the chapter of this number ("02"), in order."""
    return tuple(one for one in CHAPTERS if one.number == number)
