"""Achievements for chapters, questions and exercises. They are computed from the store and not stored themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from course_utils.course import CHAPTERS
from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.progress.state import finished
from course_utils.progress.store import Overview
from course_utils.questions.catalog import question_ids

Piece = tuple[str, str]  # what there is to do: its kind and its id
_CHAPTER, _QUESTION, _EXERCISE = "chapter", "question", "exercise"


@dataclass(frozen=True)
class Achievement:
    """One achievement. done of `of` pieces are complete; when: the date of the last piece (UTC)."""

    name: str
    description: str
    done: int
    of: int
    when: datetime | None

    @property
    def reached(self) -> bool:
        """Whether it is complete."""
        return self.when is not None

    @property
    def progress(self) -> str:
        """ "6 of 8"."""
        return f"{self.done} of {self.of}"


@dataclass(frozen=True)
class _Rule:
    """pieces: `enough` of them are needed, all if it is 0."""

    name: str
    description: str
    pieces: Callable[[], list[Piece]]
    enough: int = 0


def achievements(overview: Overview) -> tuple[Achievement, ...]:
    """All achievements of the course, reached or not, in its order."""
    done: dict[Piece, datetime] = {
        **{(_CHAPTER, slug): one.first_at for slug, one in finished(overview).items()},
        **{(_QUESTION, one.question): one.right_at for one in overview.questions if one.right_at},
        **{(_EXERCISE, one.exercise): one.best_at for one in overview.exercises if one.best.full},
    }
    return tuple(_judged(rule, done) for rule in _RULES)


def _judged(rule: _Rule, done: dict[Piece, datetime]) -> Achievement:
    pieces = rule.pieces()
    of = rule.enough or len(pieces)
    dates = sorted(done[piece] for piece in pieces if piece in done)
    # Nothing to do is no achievement: a chapter whose questions are not written yet.
    when = dates[of - 1] if 0 < of <= len(dates) else None
    return Achievement(rule.name, rule.description, min(len(dates), of), of, when)


# ---- the pieces


def _run(*numbers: str) -> list[Piece]:
    return [(_CHAPTER, slug) for slug in _slugs(numbers)]


def _questions(*numbers: str) -> list[Piece]:
    return [(_QUESTION, one) for slug in _slugs(numbers) for one in question_ids(slug)]


def _exercises(*names: str) -> list[Piece]:
    """The exercises of these names; without names all."""
    return [(_EXERCISE, one) for one in EXERCISE_IDS if not names or one.split("/")[1] in names]


def _slugs(numbers: tuple[str, ...]) -> list[str]:
    """The chapters of these numbers; without numbers all."""
    return [one.slug for one in CHAPTERS if not numbers or one.number in numbers]


_RULES = (
    _Rule("First chapter", "One chapter run to its end.", _run, enough=1),
    _Rule("First kernel", "One exercise with all its points.", _exercises, enough=1),
    _Rule(
        "Counted before measured",
        "Every question of chapters 00 and 01 right: floors, sectors, and what the score matrix costs.",
        lambda: _questions("00", "01"),
    ),
    _Rule(
        "Nothing wasted",
        "conflict_free_tile and coalesced_scores with all their points: no bank conflict, no sector read in vain.",
        lambda: _exercises("conflict_free_tile", "coalesced_scores"),
    ),
    _Rule(
        "Never stored",
        "online_softmax and mini_flash with all their points: attention without the score matrix in memory.",
        lambda: _exercises("online_softmax", "mini_flash"),
    ),
    _Rule(
        "Race hunter",
        "mend_the_race with all its points: races found with the sanitizer, and mended.",
        lambda: _exercises("mend_the_race"),
    ),
    _Rule(
        "Every tile explained",
        "Every question of chapters 02 and 03 right: the algorithm, and where its speed comes from.",
        lambda: _questions("02", "03"),
    ),
    _Rule(
        "Skipped and split",
        "causal_skip and split_kv with all their points: work left out, and work shared out.",
        lambda: _exercises("causal_skip", "split_kv"),
    ),
    _Rule(
        "All patterns",
        "Chapter 04 run to its end, its questions right, and custom_mask with all its points.",
        lambda: [*_run("04"), *_questions("04"), *_exercises("custom_mask")],
    ),
    _Rule(
        "The keys that matter",
        "Chapter 05 run to its end, its questions right, and topk_gather with all its points.",
        lambda: [*_run("05"), *_questions("05"), *_exercises("topk_gather")],
    ),
    _Rule(
        "One token at a time",
        "Chapter 06 run to its end, its questions right, and merge_parts and paged_gather with all their points.",
        lambda: [*_run("06"), *_questions("06"), *_exercises("merge_parts", "paged_gather")],
    ),
    _Rule(
        "A choice with reasons",
        "Chapter 08 run to its end, and its questions right.",
        lambda: [*_run("08"), *_questions("08")],
    ),
    _Rule(
        "Every exercise",
        "All exercises with all their points; register_tile, tensor_core_tile, backward_tiles, measure_and_decide, "
        "merge_parts, paged_gather, barrier_ring and softmax_overlap, which came last, among them.",
        _exercises,
    ),
    _Rule("Every question", "All questions of all chapters right.", _questions),
    _Rule("Through the course", "Every chapter run to its end.", _run),
)
