"""`python -m course_utils exercises`: makes exercises/ from solutions/, and counts what these load, for authors."""

from __future__ import annotations

import argparse
import sys

from course_utils.grading import comparison, release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no options."""


def run(_: argparse.Namespace) -> int:
    """Carry out `exercises`. Returns 0, or 1 if a mark is wrong; then nothing was written."""
    try:
        changed = release.make_exercises()
    except (release.MarkError, OSError) as error:
        print(f"exercises: {error}", file=sys.stderr)
        return 1
    for path in changed:
        print(f"{'written' if path.exists() else 'removed'} {path.relative_to(release.ROOT)}")
    print(f"{len(changed)} file{'s' if len(changed) != 1 else ''} changed in {release.EXERCISES.name}/")
    text = comparison.count_solutions(release.SOLUTIONS)
    if not comparison.RECORD.exists() or comparison.RECORD.read_text(encoding="utf-8") != text:
        comparison.RECORD.write_text(text, encoding="utf-8")
        print(f"written {comparison.RECORD.relative_to(release.ROOT)}")
    return 0
