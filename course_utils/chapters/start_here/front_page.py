"""The recording that the course's first page opens with."""

from __future__ import annotations

from typing import Any

from course_utils.emulator import record
from course_utils.launches.chapters import course_launches

WORDS = (
    "A kernel of chapter 00, as it runs on the course's emulator: 32 warps turn a tile of 32 × 32 numbers. "
    "Each step is what one warp does."
)


def recording() -> tuple[dict[str, Any], bytes]:
    """One block of the kernel that transposes by tiles, packed."""
    return record(course_launches()["transpose_tiled"].run, block=(0, 0, 0)).without_variables().packed()
