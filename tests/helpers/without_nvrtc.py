"""As on a machine without NVRTC: what the emulator itself says of a kernel that NVRTC refuses."""

import contextlib
from collections.abc import Iterator
from unittest import mock

from course_utils.toolchain import nvrtc


@contextlib.contextmanager
def without_nvrtc() -> Iterator[None]:
    with mock.patch.object(nvrtc, "is_known_to_compile", side_effect=ImportError("there is no NVRTC")):
        yield
