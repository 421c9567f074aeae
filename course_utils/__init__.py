"""Helpers of the course "Attention kernels in raw CUDA".

Data flows one way: kernel source → loader (`cuda`, `emulator`) → `operators` → `checks`, `timing`, drawing → notebook.
Nothing is imported here, so that `import course_utils.costs` does not load PyTorch's GPU libraries or a compiler.
"""

from collections.abc import Callable

__version__ = "0.1.0"

# What notebooks call by the name of its subject, and what makes it: widgets, which lie above these rooms. Copies of
# the exercises and of edited chapters are out there, so that these names stay.
ALIASES = {
    "course_utils.grading": {"check": "course_utils.widgets.grade_panel", "grade": "course_utils.grading.grader"},
    "course_utils.progress": dict.fromkeys(("finish", "show"), "course_utils.widgets.progress_card"),
    "course_utils.questions": {"ask": "course_utils.widgets.questions"},
}


def aliases(room: str) -> Callable[[str], object]:
    """The `__getattr__` of a room in ALIASES: what a name stands for is imported when it is first looked up."""

    def look_up(name: str) -> object:
        import importlib

        if name not in ALIASES[room]:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        return getattr(importlib.import_module(ALIASES[room][name]), name)

    return look_up
