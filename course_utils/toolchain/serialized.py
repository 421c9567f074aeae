"""A gate for kernels of sm_90a: a kernel whose wgmma ptxas runs one after the other does not compile here.

ptxas does that where accumulators are touched in flight, a fence is missing, or registers run short, and says so only
in a line of its log (C7510 and the numbers behind it). Such a kernel is right, and slow.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile

from course_utils.toolchain.cache import cache_folder
from course_utils.toolchain.errors import CompileError


def serialized_lines(log: str) -> list[str]:
    """The lines of ptxas's log that say that it has serialized products, and why."""
    return [line.strip() for line in log.splitlines() if re.search(r"\(C75[12]\d\)|wgmma.* serialized", line)]


def refuse_serialized(name: str, log: str) -> None:
    """Raises CompileError if ptxas's log says that it has serialized the products of the kernels in `name`."""
    if lines := serialized_lines(log):
        raise CompileError("\n".join([f"{name}: ptxas serializes its wgmma, which is slow:", *lines]), log)


def cached_log(log: str, *compilation: object) -> str:
    """The log of a compilation. If `log` is empty, because the compiler took its result from a cache, the log of the
    compilation that made that result.

    compilation: all that it depends on.
    """
    key = hashlib.sha256(repr(compilation).encode()).hexdigest()[:24]
    kept = cache_folder() / f"log-{key}.txt"
    if not log:
        return kept.read_text(encoding="utf-8") if kept.exists() else ""
    with tempfile.NamedTemporaryFile("w", dir=kept.parent, delete=False, encoding="utf-8") as file:
        file.write(log)
    os.replace(file.name, kept)
    return log
