"""What the studies share: they train on one thread of a CPU, and record what came of it."""

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
    """torch on one thread: results then do not depend on the machine, busy cores do not wait for it, and a small model
    is as fast."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def record(name: str, rows: list[measured.Row], command: str) -> Path:
    """Keeps the rows as figures of this machine's processor; the file that holds them."""
    versions = {"torch": torch.__version__, "cuda": "none", "cupy": "none", "python": platform.python_version()}
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return measured.write(measured.Measurement(name, f"{_processor()} (CPU)", "none", versions, today, command, rows))


def _processor() -> str:
    """What /proc calls this machine's processor."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
