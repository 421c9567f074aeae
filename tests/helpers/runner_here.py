"""The grader's child without a process of its own: for submissions that we trust, and that end."""

import pickle
import tempfile

from course_utils.grading import children, runner
from course_utils.grading.sandbox.child import END, send
from course_utils.grading.sandbox.parent import Ended, _Parser


def run_here(job, **_):
    """Like `sandbox.run_child` with the runner, without limits, in this very process.

    A fork would copy the page tables of all that pytest has imported, start a launcher of its own and compile anew.
    """
    with tempfile.TemporaryFile() as results:
        runner.run_job(pickle.loads(job), results.fileno())
        send(results.fileno(), {}, END)
        results.seek(0)
        parser = _Parser()
        parser.feed(results.read())
    return Ended("finished", 0, parser.messages)


def cells_here(give, job, ours, hidden=None):
    """Like the runner's `_in_a_process`, in this one."""
    return runner._parse_python(b"".join(give(job)))


def grade_here(patch):
    """The grader of a test that has this `monkeypatch` runs kernels and cells in the test's own process."""
    patch.setattr(children, "run_child", run_here)
    patch.setattr(runner, "_in_a_process", cells_here)
