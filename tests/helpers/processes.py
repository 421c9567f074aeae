"""Processes of this machine, to see that a test has left none behind."""

import contextlib
import os
from pathlib import Path


def processes_with(word: str) -> list[int]:
    """Those with this word in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if word.encode() in Path(f"/proc/{name}/cmdline").read_bytes():
                found.append(int(name))
    return found
