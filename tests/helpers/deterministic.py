"""torch's switch for deterministic algorithms."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def told_to_be_deterministic(*, warn_only: bool = False) -> Iterator[None]:
    """As use_deterministic_algorithms() has it, which first imports the modules of torch.compile and takes 3 s."""
    torch.set_deterministic_debug_mode("warn" if warn_only else "error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode("default")
