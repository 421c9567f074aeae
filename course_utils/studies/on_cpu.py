"""What the studies share: they train on one CPU thread, and record their results."""

from __future__ import annotations

import contextlib
import datetime
import platform
from collections.abc import Iterator
from pathlib import Path

import torch

from course_utils import measured


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """torch on one thread: the results do not depend on the machine, the training does not wait for busy cores, and a
    small model is as fast."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def record(name: str, rows: list[measured.Row], command: str) -> Path:
    """Saves the rows as figures of this machine's processor. Returns the file."""
    versions = {"torch": torch.__version__, "cuda": "none", "cupy": "none", "python": platform.python_version()}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return measured.write(measured.Measurement(name, f"{_processor()} (CPU)", "none", versions, today, command, rows))


def _processor() -> str:
    """The name of this machine's processor in /proc."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
