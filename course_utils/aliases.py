"""Names that stand for others: what notebooks call by its subject, and what had another name in earlier versions.

Edited chapters, copies of the exercises and folders of classes are out there and use them: a name that was here once
keeps working.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
from collections.abc import Callable, Sequence
from types import ModuleType

# Room → name → the module that has it. These are widgets, which lie above the rooms whose subject they show.
SHOWN_BY = {
    "course_utils.grading": {"check": "course_utils.widgets.grade_panel", "grade": "course_utils.grading.grader"},
    "course_utils.progress": dict.fromkeys(("finish", "show"), "course_utils.widgets.progress_card"),
    "course_utils.questions": {"ask": "course_utils.widgets.questions"},
}

# Former name → the modules that took its place. Nothing in the course itself uses these names.
MOVED: dict[str, tuple[str, ...]] = {
    "attention_maps": ("studies.maps",),
    "bench_choosing": ("bench.choosing",),
    "bench_counters": ("nvidia.measure", "launches.chapters", "launches.micro"),
    "bench_deepseek": ("bench.deepseek_sparse",),
    "bench_flash_v2": ("bench.flash_attention_v2",),
    "bench_gpu": ("bench.timed", "bench.start_here", "bench.attention_basics", "bench.flash_attention_minimal"),
    "bench_sparse": ("bench.timed", "bench.flex", "bench.one_pattern", "bench.sparse_patterns"),
    "broken_kernels": ("launches.broken",),
    "devices": ("planner.devices",),
    "errors": ("toolchain.errors",),
    "flash_ladder": ("launches.ladder",),
    "grading.nbgrader_course": ("classroom.nbgrader_course",),
    "indexer_study": ("studies.indexer",),
    "kernel_source": ("toolchain.source",),
    "nvidia_tools": ("nvidia.tools", "nvidia.output", "nvidia.figures", "nvidia.comparison"),
    "nvrtc": ("toolchain.nvrtc",),
    "operators.deepseek_weights": ("reference.deepseek_weights",),
    "recall_study": ("studies.recall",),
    "reference_deepseek": ("reference.deepseek",),
    "report_pages": ("emulator.pages",),
}


def look_up_in(room: str) -> Callable[[str], object]:
    """The `__getattr__` of a room in SHOWN_BY: what a name stands for is imported when it is first looked up."""

    def look_up(name: str) -> object:
        if name not in SHOWN_BY[room]:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(SHOWN_BY[room][name]), name)

    return look_up


class FormerModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """`import course_utils.errors` gives a module with all that `course_utils.toolchain.errors` holds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        package, _, name = fullname.partition(".")
        known = package == "course_utils" and name in MOVED
        return importlib.machinery.ModuleSpec(fullname, self) if known else None

    def exec_module(self, module: ModuleType) -> None:
        for name in MOVED[module.__name__.partition(".")[2]]:
            there = importlib.import_module(f"course_utils.{name}")
            vars(module).update({key: value for key, value in vars(there).items() if not key.startswith("__")})
