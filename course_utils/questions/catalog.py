"""The questions of the course, by id: `<slug>/<name of the source function>`, such as "01_attention_basics/tiles".

The slug is the chapter's, also for a question that its second notebook asks: progress is kept by ids.
"""

from __future__ import annotations

import hashlib
import importlib
from random import Random

from course_utils.course import chapter, notebooks_of
from course_utils.questions.question import Question, Source


def question_ids(slug: str) -> tuple[str, ...]:
    """The ids of the questions in a chapter's notebook, in the order in which they are asked; empty if it has no
    sources.

    Raises LookupError for a chapter that does not exist.
    """
    return tuple(f"{chapter(slug).home}/{one.__name__}" for one in _sources(slug))


def source(question_id: str) -> Source:
    """The function behind the id. Raises LookupError, which lists the ids of the chapter."""
    slug, _, name = question_id.partition("/")
    notebooks = [one.slug for one in notebooks_of(chapter(slug).number)]
    for one in (one for notebook in notebooks for one in _sources(notebook)):
        if one.__name__ == name and chapter(slug).home == slug:
            return one
    known = [one for notebook in notebooks for one in question_ids(notebook)]
    raise LookupError(f"question_id: got {question_id!r}, takes one of {', '.join(known) or 'none yet in ' + slug}")


def question(question_id: str, seed: int) -> Question:
    """The question with the sizes that `seed` draws: the same in every process and version of Python.

    Raises LookupError for an unknown id, TypeError for a seed that is no int.
    """
    if not isinstance(seed, int) or isinstance(seed, bool):
        raise TypeError(f"seed: got {seed!r}, takes an int")
    # hash() of a text differs between processes, and how Random takes a text is not promised to stay as it is.
    digest = hashlib.sha256(f"{seed} {question_id}".encode()).digest()
    return source(question_id)(Random(int.from_bytes(digest[:8], "big")))


def title(question_id: str) -> str:
    """The question's title: the first line of the source's docstring. Raises LookupError."""
    return (source(question_id).__doc__ or "").strip().partition("\n")[0].rstrip(".")


def _sources(slug: str) -> tuple[Source, ...]:
    module = f"course_utils.questions.sources.{chapter(slug).name}"
    try:
        return importlib.import_module(module).QUESTIONS
    except ModuleNotFoundError as error:
        if error.name != module:  # something that the sources import is missing
            raise
        return ()
