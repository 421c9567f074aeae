"""Runs sections of a chapter as a learner does who begins in the middle: their cells, in order, with no names before.

python -m tests.helpers.run_sections 02_flash_attention_minimal 6 10     each in a fresh __main__ of this process
"""

import sys
import traceback
from collections.abc import Collection
from types import ModuleType

from IPython.display import display

from course_utils.reading.names import python
from course_utils.reading.sections import HEAD, Section, chapter_sections


def run_sections(chapter: Collection[Section], keys: Collection[str]) -> dict:
    """The names that are left after the cells of these sections. What the cells raise is raised, with a note which."""
    module, before = ModuleType("__main__"), sys.modules["__main__"]
    module.display = display  # which every kernel has
    sys.modules["__main__"] = module  # as a kernel does: FlexAttention looks functions up there
    try:
        for section in chapter:
            for number, source in section.codes if section.key in keys else ():
                _run(python(source), f"section {section.key}, cell {number}", vars(module))
    finally:
        sys.modules["__main__"] = before
    return vars(module)


def _run(source: str, place: str, names: dict) -> None:
    try:
        exec(compile(source, place, "exec"), names)
    except Exception as error:
        error.add_note(place)
        raise


def main(slug: str, *runs: str) -> int:
    """Runs each of these lists of sections from a fresh start; 1 if one of them fails."""
    import matplotlib

    matplotlib.use("Agg")
    chapter, failed = chapter_sections(slug), 0
    for run in runs:
        print(f"== {slug}, sections {run}", flush=True)
        try:
            run_sections(chapter, {HEAD, *run.split(",")})
        except Exception:
            print(f"{slug}, sections {run} failed:", file=sys.stderr)
            traceback.print_exc()
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
