"""Where compiled kernels are kept: the emulator's builds and NVRTC's."""

import functools
import os
import tempfile
from pathlib import Path


@functools.cache
def cache_folder() -> Path:
    """Where compiled kernels are kept: below XDG_CACHE_HOME, or a temporary folder where that cannot be written."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(home).absolute() / "attention-kernels"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="attention-kernels-"))
