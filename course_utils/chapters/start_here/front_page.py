"""The recording that the course's first page opens with."""

from __future__ import annotations

from typing import Any

import torch

from course_utils.chapters.tensors import normal
from course_utils.emulator import record
from course_utils.operators.loop_orders import flash_plain

TOKENS, HEAD_DIM, KEYS = 8, 4, 4  # a tile has KEYS keys
WORDS = (
    f"FlashAttention at its plainest: {TOKENS} threads, one per query, go over {TOKENS} keys in tiles of {KEYS}. "
    "The scores stay in shared memory."
)


def recording() -> tuple[dict[str, Any], bytes]:
    """The one block of the kernel, packed."""
    query, key, value = (normal(1, 1, TOKENS, HEAD_DIM, seed=seed, dtype=torch.float32) for seed in (1, 2, 3))
    tile = TOKENS, KEYS
    return record(lambda: flash_plain(query, key, value, tile=tile)).without_variables().packed()
