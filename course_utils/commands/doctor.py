"""`python -m course_utils doctor`: says what this machine can run, and what to do about the rest."""

from __future__ import annotations

import argparse

from course_utils import doctor


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command takes no options."""


def run(_: argparse.Namespace) -> int:
    """Carry out `doctor`. Returns 0 if the course runs here, 1 if it does not."""
    findings = doctor.diagnose()
    print(doctor.render(findings))
    return 0 if doctor.verdict(findings)[0] else 1
