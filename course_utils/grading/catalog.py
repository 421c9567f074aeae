"""The exercises of the course, by id."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the ids alone are there without PyTorch, which takes seconds to load
    from course_utils.grading.exercise import Exercise

ROOT = Path(__file__).resolve().parents[2]
SOLUTIONS = ROOT / "solutions"
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
    """Those of one chapter."""
    return tuple(one for one in EXERCISE_IDS if one.startswith(f"{slug}/"))


def exercises_of_notebook(slug: str) -> tuple[str, ...]:
    """Those that this notebook of a chapter leads to."""
    return tuple(one for one in EXERCISE_IDS if IN_SECOND_NOTEBOOK.get(one, one.split("/")[0]) == slug)


def exercise(exercise_id: str) -> Exercise:
    """The exercise of that id. Raises LookupError, which lists the ids there are."""
    if exercise_id not in EXERCISE_IDS:
        raise LookupError(f"there is no exercise {exercise_id!r}; there are: {', '.join(EXERCISE_IDS)}")
    return importlib.import_module(f"course_utils.grading.tasks.{exercise_id.split('/')[1]}").EXERCISE


def unlisted() -> list[str]:
    """Modules of tasks/ that are no exercise yet, because their id is not in EXERCISE_IDS: "tasks/name.py"."""
    listed = {exercise_id.split("/")[1] for exercise_id in EXERCISE_IDS}
    modules = sorted(path.stem for path in (Path(__file__).parent / "tasks").glob("*.py"))
    return [f"tasks/{name}.py" for name in modules if not name.startswith("_") and name not in listed]
