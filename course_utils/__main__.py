"""`python -m course_utils <command>`."""

import argparse
import sys

from course_utils import __version__


def _doctor(_: argparse.Namespace) -> int:
    from course_utils import doctor

    findings = doctor.diagnose()
    print(doctor.render(findings))
    return 0 if doctor.verdict(findings)[0] else 1


def _bench(options: argparse.Namespace) -> int:
    from course_utils.commands import bench

    return bench.run(options)


def _grade(options: argparse.Namespace) -> int:
    from course_utils.grading import command

    return command.run_grade(options)


def _progress(options: argparse.Namespace) -> int:
    from course_utils.progress import command

    return command.run(options)


def _exercises(options: argparse.Namespace) -> int:
    from course_utils.grading import command

    return command.run_exercises(options)


def _classroom(options: argparse.Namespace) -> int:
    from course_utils.grading import classroom_command

    return classroom_command.run(options)


def parser(command: str = "") -> argparse.ArgumentParser:
    """The command line of the course. Only `command` brings its own options: the doctor must run where others cannot
    even be imported.
    """
    main = argparse.ArgumentParser(prog="python -m course_utils", description="Tools of the attention kernels course.")
    main.add_argument("--version", action="version", version=__version__)
    commands = main.add_subparsers(dest="command", required=True)

    doctor = commands.add_parser("doctor", help="say what this machine can run, and what to do about the rest")
    doctor.set_defaults(run=_doctor)

    bench = commands.add_parser("bench", help="time a chapter's kernels on this GPU, or show the recorded figures")
    bench.set_defaults(run=_bench)
    if command == "bench":
        from course_utils.commands.bench import add_arguments

        add_arguments(bench)

    grade = commands.add_parser("grade", help="grade exercises: points, what is wrong, what to read again")
    grade.set_defaults(run=_grade)
    if command == "grade":
        from course_utils.grading.command import add_grade_arguments

        add_grade_arguments(grade)

    progress = commands.add_parser("progress", help="show what you have done so far, and what comes next")
    progress.set_defaults(run=_progress)
    if command == "progress":
        from course_utils.progress.command import add_arguments

        add_arguments(progress)

    exercises = commands.add_parser("exercises", help="make exercises/ from solutions/, for authors")
    exercises.set_defaults(run=_exercises)

    classroom = commands.add_parser("classroom", help="release, grade and give back the exercises of a class")
    classroom.set_defaults(run=_classroom)
    if command == "classroom":
        from course_utils.grading.classroom_command import add_arguments

        add_arguments(classroom)
    return main


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser(command=arguments[0] if arguments else "").parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
