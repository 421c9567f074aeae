"""What can go wrong with a kernel, as exceptions."""

from __future__ import annotations

Index3 = tuple[int, int, int]


class CompileError(Exception):
    """A kernel did not compile. `log` holds everything that the compiler said."""

    def __init__(self, message: str, log: str = "") -> None:
        super().__init__(message)
        self.log = log


class LaunchError(ValueError):
    """A launch that no device like this one can run: too much shared memory, too many threads, a newer architecture."""


class KernelError(RuntimeError):
    """A kernel failed while it ran.

    Attributes: `kind` ("died", "crash", "time limit", "divergent barrier", "deadlock", "bad collective", "trap"),
    `kernel`, `file` and `line` of its source (None where unknown), `block` and `thread` as (x, y, z) (None where
    unknown).
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str = "died",
        kernel: str = "",
        file: str | None = None,
        line: int | None = None,
        block: Index3 | None = None,
        thread: Index3 | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.kernel = kernel
        self.file = file
        self.line = line
        self.block = block
        self.thread = thread
