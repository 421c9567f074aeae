"""The bars at the top and at the end of a chapter's notebook, as Markdown made from the list of chapters.

`.ci/tidy_notebooks.py` writes them into the notebooks; tests/site/test_navigation.py holds the notebooks against them.
Links are relative to notebooks/, as JupyterLab and GitHub follow them.
"""

from __future__ import annotations

import nbformat

from course_utils.course import CHAPTERS, Chapter, chapter
from course_utils.grading.catalog import exercise, exercises_of_notebook
from course_utils.grading.exercise import dots

TAG = "navigation"
TOP, BOTTOM = "navigation-top", "navigation-bottom"  # the cells' ids
CONTENTS = "00_start_here.ipynb#How-to-read-the-course"
GLOSSARY, NOTATION = "../docs/glossary.md", "../docs/notation.md"


def cheat_sheet(slug: str) -> str:
    """The link to a chapter's cheat sheet."""
    return f"../docs/cheat_sheets/{chapter(slug).home}.md"


def neighbours(slug: str) -> tuple[Chapter | None, Chapter | None]:
    """The chapters before and after this one, without side chapters; None at the ends of the course. Raises LookupError
    for another slug."""
    at = CHAPTERS.index(chapter(slug))
    before = [one for one in CHAPTERS[:at] if not one.on_demand]
    after = [one for one in CHAPTERS[at + 1 :] if not one.on_demand]
    return (before[-1] if before else None), (after[0] if after else None)


def side_chapter(slug: str) -> Chapter | None:
    """The side chapter between this chapter and the next, if there is one. Raises LookupError for another slug."""
    following = CHAPTERS[CHAPTERS.index(chapter(slug)) + 1 :][:1]
    return next((one for one in following if one.on_demand), None)


def top(slug: str) -> str:
    """The bar above a chapter: contents, the chapters before and after it, its side chapter, its cheat sheet, the
    glossary, the notation."""
    previous, following = neighbours(slug)
    parts = [f"[Contents]({CONTENTS})"]
    if previous:
        parts.append(f"[← {_label(previous)}]({previous.slug}.ipynb)")
    if following:
        parts.append(f"[{_label(following)} →]({following.slug}.ipynb)")
    if aside := side_chapter(slug):
        parts.append(f"[{_label(aside)}]({aside.slug}.ipynb)")
    parts += [f"[Cheat sheet]({cheat_sheet(slug)})", f"[Glossary]({GLOSSARY})", f"[Notation]({NOTATION})"]
    return " · ".join(parts)


def bottom(slug: str) -> str:
    """The bar below a chapter: its exercises, the chapter before it, and the next and the side chapter with their
    ideas."""
    previous, following = neighbours(slug)
    lines = []
    if ids := exercises_of_notebook(slug):
        lines += [f"**Exercise{'s' if len(ids) > 1 else ''}**", "\n".join(_exercise(one) for one in ids)]
    parts = [f"**Back** [{_label(previous)}]({previous.slug}.ipynb)"] if previous else []
    if following:
        parts.append(f"**Next** [{_label(following)}]({following.slug}.ipynb) ({following.idea})")
    else:
        parts.append(f"**The end of the course** [Contents]({CONTENTS})")
    if aside := side_chapter(slug):
        parts.append(f"**Beside it** [{_label(aside)}]({aside.slug}.ipynb) ({aside.idea})")
    return "\n\n".join([*lines, " · ".join(parts)])


def with_navigation(notebook: nbformat.NotebookNode, slug: str) -> nbformat.NotebookNode:
    """The notebook of this chapter with both bars as its first and last cell, replacing older ones."""
    cells = [cell for cell in notebook.cells if not is_navigation(cell)]
    changed = nbformat.from_dict(notebook)
    changed.cells = [_cell(TOP, top(slug)), *cells, _cell(BOTTOM, bottom(slug))]
    return changed


def is_navigation(cell: nbformat.NotebookNode) -> bool:
    """Whether a cell is one of the bars."""
    return TAG in cell.metadata.get("tags", ()) or cell.get("id") in (TOP, BOTTOM)


def _exercise(exercise_id: str) -> str:
    one = exercise(exercise_id)
    marks = f" · Difficulty {dots(one.difficulty)} · Importance {dots(one.importance)}" if one.difficulty else ""
    return f"- [{one.title}](../exercises/{exercise_id}.ipynb){marks}"


def _label(one: Chapter) -> str:
    return f"{one.number} {one.title}"


def _cell(name: str, text: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_markdown_cell(text, id=name, metadata={"tags": [TAG]})
