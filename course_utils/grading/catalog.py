"""The exercises by id: the course's, and a teacher's own in a folder outside of the course's files."""

from __future__ import annotations

import importlib
import os
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from course_utils.course import ROOT, SOURCE

if TYPE_CHECKING:  # the ids alone are there without PyTorch, which takes seconds to load
    from course_utils.grading.exercise import Exercise

SOLUTIONS = SOURCE / "solutions"
EXERCISE_IDS = (
    "00_start_here/conflict_free_tile",
    "01_attention_basics/coalesced_scores",
    "02_flash_attention_minimal/online_softmax",
    "02_flash_attention_minimal/mini_flash",
    "02_flash_attention_minimal/mend_the_race",
    "02_flash_attention_minimal/register_tile",
    "03_flash_attention_v2/causal_skip",
    "03_flash_attention_v2/split_kv",
    "03_flash_attention_v2/tensor_core_tile",
    "03_flash_attention_v2/backward_tiles",
    "04_sparse_patterns/custom_mask",
    "05_deepseek_sparse/topk_gather",
    "06_serving/merge_parts",
    "06_serving/paged_gather",
    "07_hopper/barrier_ring",
    "07_hopper/softmax_overlap",
    "08_choosing/measure_and_decide",
)
"""In the order of the course."""
IN_SECOND_NOTEBOOK = {
    "00_start_here/conflict_free_tile": "00_memory_and_tools",
    "03_flash_attention_v2/backward_tiles": "03_flash_attention_training",
}
"""The exercises that a chapter's second notebook leads to, and its slug; their ids begin with that of the first."""


def exercise_ids(slug: str) -> tuple[str, ...]:
    """The ids of a chapter's exercises."""
    return tuple(one for one in EXERCISE_IDS if one.startswith(f"{slug}/"))


def exercises_of_notebook(slug: str) -> tuple[str, ...]:
    """The ids of the exercises that this notebook of a chapter leads to."""
    return tuple(one for one in EXERCISE_IDS if IN_SECOND_NOTEBOOK.get(one, one.split("/")[0]) == slug)


def own_folder() -> Path:
    """Where a teacher's own exercises lie, as NN_slug/name.py and name.cu: own_exercises/ beside exercises/, or the
    folder that COURSE_OWN_EXERCISES names.
    """
    return Path(os.environ.get("COURSE_OWN_EXERCISES") or ROOT / "own_exercises")


def own_ids() -> tuple[str, ...]:
    """The ids of a teacher's own exercises. Raises ValueError where two exercises have one name."""
    found = [f"{path.parent.name}/{path.stem}" for path in sorted(own_folder().glob("[0-9][0-9]_*/*.py"))]
    known = {one.split("/")[1]: one for one in EXERCISE_IDS}
    for one in found:
        if (other := known.setdefault(one.split("/")[1], one)) != one:
            raise ValueError(f"{own_folder() / one}.py has the name of the exercise {other}: give it another")
    return tuple(found)


def all_ids() -> tuple[str, ...]:
    """The ids of the course's exercises and of a teacher's own, chapter by chapter."""
    return tuple(sorted((*EXERCISE_IDS, *own_ids()), key=lambda one: one.split("/")[0]))


def exercise(exercise_id: str) -> Exercise:
    """The exercise of that id. Raises LookupError, which lists the ids there are, and ValueError for a mistake in a
    teacher's own.
    """
    if exercise_id in EXERCISE_IDS:
        return importlib.import_module(f"course_utils.grading.tasks.{exercise_id.split('/')[1]}").EXERCISE
    if exercise_id in own_ids():
        path = own_folder() / f"{exercise_id}.py"
        return _own_exercise(path, exercise_id, path.read_bytes())
    raise LookupError(f"there is no exercise {exercise_id!r}; there are: {', '.join(all_ids())}")


@cache
def _own_exercise(path: Path, exercise_id: str, source: bytes) -> Exercise:
    """source: the module's text, which may change while a worker runs."""
    module = ModuleType(f"own_exercises.{path.stem}")
    module.__file__ = str(path)
    try:
        exec(compile(source, path, "exec"), vars(module))
        task: Exercise = module.EXERCISE
        named = task.id
    except Exception as error:
        raise ValueError(f"{path} cannot be used: {type(error).__name__}: {error}") from error
    if named != exercise_id:
        raise ValueError(f"{path}: EXERCISE has the id {named!r}, its place says {exercise_id!r}")
    if task.collect or not task.kernels:
        raise ValueError(f"{path}: an exercise of your own takes kernels, and questions if you like; no `collect`")
    return task
