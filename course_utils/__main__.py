"""`python -m course_utils <command>`."""

import argparse
import sys

from course_utils import __version__


def _doctor(_: argparse.Namespace) -> int:
    from course_utils import doctor

    findings = doctor.diagnose()
    print(doctor.render(findings))
    return 0 if doctor.verdict(findings)[0] else 1


def parser() -> argparse.ArgumentParser:
    """The command line of the course. Each command imports what it needs only when it runs."""
    main = argparse.ArgumentParser(prog="python -m course_utils", description="Tools of the attention kernels course.")
    main.add_argument("--version", action="version", version=__version__)
    commands = main.add_subparsers(dest="command", required=True)

    doctor = commands.add_parser("doctor", help="say what this machine can run, and what to do about the rest")
    doctor.set_defaults(run=_doctor)
    return main


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    options = parser().parse_args(arguments)
    return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
