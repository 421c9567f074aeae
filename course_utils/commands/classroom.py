"""`python -m course_utils classroom`: a class of students, from the release to the grades."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

NOT_ENFORCED = """\
warning: --isolation limits sets limits on time, memory, processes and file sizes, but hides nothing: a submission can
read and change what this account can, other submissions too, and can use the network."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the command."""
    actions = parser.add_subparsers(dest="action", required=True)

    grade = actions.add_parser("grade", help="grade what is handed in and not graded yet; write grades.csv")
    _add_folder(grade)
    _add_selection(grade)
    where = grade.add_mutually_exclusive_group()
    where.add_argument("--workers", type=int, metavar="N", help="processes on this machine (default: its cores)")
    where.add_argument("--scheduler", metavar="tcp://HOST:PORT", help="a Dask scheduler, instead of this machine")
    grade.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="the emulator or the GPU")
    grade.add_argument(
        "--isolation",
        choices=("bubblewrap", "limits"),
        default="bubblewrap",
        help="how submissions are kept apart from the machine; limits: weaker, without bubblewrap",
    )
    grade.add_argument(
        "--student", action="append", metavar="ID", help="only this one (may be repeated), graded again in any case"
    )
    grade.add_argument("--new-seed", action="store_true", help="draw other inputs, and grade everything again")
    grade.set_defaults(act=_grade)

    overview = actions.add_parser("overview", help="draw where the class stands, without names")
    _add_folder(overview)
    overview.set_defaults(act=_overview)

    demo = actions.add_parser("demo", help="make a class of fictional students, to try the others on")
    _add_folder(demo)
    _add_selection(demo)
    demo.add_argument("--students", type=int, default=12, metavar="N")
    demo.add_argument("--seed", type=int, default=0, help="of the draw, and of the inputs of the class")
    demo.set_defaults(act=_demo)

    for action, what in (("release", "make the students' version"), ("feedback", "write a page for each hand-in")):
        command = actions.add_parser(action, help=f"{what} (with nbgrader)")
        _add_folder(command)
        command.add_argument("chapters", nargs="*", metavar="NN_slug", help="default: all")
        command.set_defaults(act=_nbgrader)


def run(options: argparse.Namespace) -> int:
    """Runs it; returns the exit status: 1 if something was not done, 130 after Ctrl-C."""
    from course_utils.classroom.class_folder import ClassroomError
    from course_utils.classroom.grading import Interrupted

    try:
        return options.act(options)
    except (Interrupted, KeyboardInterrupt) as error:
        print(str(error) or "stopped", file=sys.stderr)
        return 130
    except (ClassroomError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        if error.name not in ("dask", "distributed", "nbgrader"):
            raise
        print(f"error: {error.name} is not installed: pip install -e '.[classroom]'", file=sys.stderr)
        return 1


def _grade(options: argparse.Namespace) -> int:
    from course_utils.classroom.grading import grade_class

    if options.isolation == "limits":
        print(NOT_ENFORCED, file=sys.stderr)
    summary = grade_class(
        options.folder,
        workers=options.workers,
        scheduler=options.scheduler,
        device=options.device,
        isolation=options.isolation,
        exercises=_selected(options),
        students=options.student,
        new_seed=options.new_seed,
        progress=True,
    )
    print(summary)
    return 1 if summary.failures else 0


def _overview(options: argparse.Namespace) -> int:
    from course_utils.classroom.overview import overview

    print(f"wrote {overview(options.folder)}")
    return 0


def _demo(options: argparse.Namespace) -> int:
    from course_utils.classroom.demo import make_class

    make_class(options.folder, students=options.students, exercises=_selected(options), seed=options.seed)
    print(f"{options.folder}: {options.students} fictional students; who handed in what is in demo.csv")
    print(f"grade them: python -m course_utils classroom grade --folder {options.folder}")
    return 0


def _nbgrader(options: argparse.Namespace) -> int:
    from course_utils.classroom import nbgrader_course

    return getattr(nbgrader_course, options.action)(options.folder, options.chapters or None)


def _selected(options: argparse.Namespace) -> list[str] | None:
    """Ids of the exercises asked for, in the order of the course; None for all."""
    from course_utils.grading.catalog import all_ids

    wanted = {*(options.assignment or ()), *(options.exercise or ())}
    found = [one for one in all_ids() if wanted & {one, *one.split("/")}]
    if unknown := sorted(wanted - {part for one in found for part in (one, *one.split("/"))}):
        raise ValueError(f"there is no {', '.join(unknown)}; there are: {', '.join(all_ids())}")
    return found if wanted else None


def _add_folder(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, default=Path("classroom"), metavar="CLASS", help="the class's folder")


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--assignment", action="append", metavar="NN_slug", help="only this chapter (may be repeated)")
    parser.add_argument("--exercise", action="append", metavar="NAME", help="only this exercise (may be repeated)")
