"""What was measured in best_peers.json: kernels of the course beside the best that a user can install.

`bench` writes the pairs, chapters read them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from course_utils.measured.measurement import Measurement

RECORD = "best_peers"
DENSE, DENSE_BACKWARD = "dense", "dense, backward"
WINDOWS, WINDOWS_BACKWARD = "window", "window, backward"
NARROW_WINDOWS, NARROW = "window, d = 64", "other patterns, d = 64"
DOCUMENTS, BLOCKS, CORE = "documents", "equal blocks", "sparse MLA core"
DILATED, OTHERS_BACKWARD = "dilated", "other patterns, backward"
FLEX_BY_FLASH = "FlexAttention by flash-attn-4"  # has no pair where torch refuses it
FLASH_4, FLASH_MLA, CUDNN_VIEW = "flash-attn-4", "FlashMLA", "cuDNN, a batch of blocks"
PACKAGES = {FLASH_4: "flash-attn-4", FLASH_MLA: "sgl-flash-mla"}  # what pip installs; torch brings cuDNN


@dataclass(frozen=True)
class Pair:
    """A kernel of the course and a peer, timed by turns on the same inputs.

    Attributes:
        part: one of the parts above.
        work: what is computed, such as "causal, d = 128" or "window of 256".
        length: keys that there are.
        ours: the operator of the course, and kernel: what it chose to launch; None where it has one kernel.
        peer: the other kernel.
        our_ms, peer_ms: medians; our_spread_ms, peer_spread_ms: the interquartile ranges.
        speed: our speed as a multiple of the peer's, the median of several runs; low, high: the extremes.
    """

    part: str
    work: str
    length: int
    ours: str
    kernel: str | None
    peer: str
    our_ms: float
    our_spread_ms: float
    peer_ms: float
    peer_spread_ms: float
    speed: float
    low: float
    high: float


def pairs(record: Measurement, parts: Iterable[str]) -> list[Pair]:
    """The pairs of these parts, in the order of the record.

    Raises:
        ValueError: the record has no pair of one of the parts.
    """
    parts = set(parts)
    found = [Pair(**row) for row in record.rows if row["part"] in parts]
    missing = parts - {pair.part for pair in found}
    if missing:
        raise ValueError(f"{record.name} has no pair of {', '.join(sorted(missing))}")
    return found
