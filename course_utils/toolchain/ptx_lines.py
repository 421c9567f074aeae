"""Where a line of PTX comes from: ptxas gives the lines of a text that its user never sees."""

from __future__ import annotations

import re
from pathlib import Path

ERROR = re.compile(r"^ptxas application ptx input, line (\d+);? *", flags=re.MULTILINE)


def with_source_lines(log: str, ptx: str) -> str:
    """ptxas's errors as the compiler gives its own, "file(line): error ...". ptx: compiled with -lineinfo."""
    files = dict(re.findall(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', ptx, flags=re.MULTILINE))
    lines = ptx.splitlines()

    def place(error: re.Match[str]) -> str:
        before = reversed(lines[: int(error[1])])
        source = next((found for line in before if (found := re.match(r"\s*\.loc\s+(\d+)\s+(\d+)", line))), None)
        if source is None or source[1] not in files:
            return error[0]
        return f"{files[source[1]].removeprefix(f'{Path.cwd()}/')}({source[2]}): ptxas "  # NVRTC names it from here

    return ERROR.sub(place, log)
