"""`python -m course_utils <command>`: one module of `course_utils.commands` for each command."""

import argparse
import importlib
import sys

from course_utils import __version__

COMMANDS = {
    "start": "copy the course's notebooks into a folder of your own, and keep what you changed there",
    "doctor": "say what this machine can run, and what to do about the rest",
    "bench": "time a chapter's kernels on this GPU, or show the recorded figures",
    "record": "record one block of a launch step by step, as a page to look at",
    "grade": "grade exercises: points, what is wrong, what to read again",
    "progress": "show what you have done so far, and what comes next",
    "reading": "how long chapters and paths take to read",
    "exercises": "make exercises/ from solutions/, for authors",
    "classroom": "release, grade and give back the exercises of a class",
}


def parser(command: str = "") -> argparse.ArgumentParser:
    """The command line of the course. Only `command` is imported, with its own options: the doctor must run where
    others cannot even be imported.
    """
    main = argparse.ArgumentParser(prog="python -m course_utils", description="Tools of the attention kernels course.")
    main.add_argument("--version", action="version", version=__version__)
    commands = main.add_subparsers(dest="command", required=True)
    for name, purpose in COMMANDS.items():
        one = commands.add_parser(name, help=purpose)
        if name == command:
            module = importlib.import_module(f"course_utils.commands.{name}")
            module.add_arguments(one)
            one.set_defaults(run=module.run)
    return main


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser(command=arguments[0] if arguments else "").parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
