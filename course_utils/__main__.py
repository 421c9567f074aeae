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
    from course_utils import bench

    return bench.run(options)


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
        from course_utils.bench import add_arguments

        add_arguments(bench)
    return main


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser(command=arguments[0] if arguments else "").parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
