"""A packed recording in Python: its columns, and the bytes of an array before a step. For still pictures; the browser
has js/player/recording.js."""

from __future__ import annotations

import zlib

import numpy as np

_TYPES = {"int32": "<i4", "uint32": "<u4", "uint8": "u1"}
# The NumPy type of each recorded type; types that NumPy does not have are read as bits and then converted.
_NUMBERS = {
    "float32": "<f4",
    "float16": "<f2",
    "float64": "<f8",
    **{f"{sign}int{bits}": f"<{sign[:1] or 'i'}{bits // 8}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bfloat16": "<u2",
    "float8_e4m3": "u1",
    "float8_e5m2": "u1",
    "bool": "u1",
    "bytes": "u1",
}


def columns(meta: dict, data: bytes) -> dict[str, np.ndarray]:
    """The columns of a recording by name: `Recording.packed` says what each holds."""
    raw, found, at = zlib.decompress(data), {}, 0
    for column in meta["columns"]:
        values = np.frombuffer(raw, _TYPES[column["type"]], column["count"], at)
        at += values.nbytes
        found[column["name"]] = np.cumsum(values, dtype=values.dtype) if column["delta"] else values
    return found


def lanes(found: dict[str, np.ndarray], step: int) -> np.ndarray:
    """The byte offsets that the lanes of a step touch, int32 [lanes]; empty for a step without addresses."""
    first = found["steps.first"]
    end = first[step + 1] if step + 1 < len(first) else len(found["lanes.offset"])
    return found["lanes.offset"][first[step] : end]


def bytes_before(meta: dict, found: dict[str, np.ndarray], array: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """The recorded bytes of an array before a step, uint8 [bytes], and the step that last wrote each, int32 [bytes]: -1
    if none did."""
    sizes = [one["bytes"] for one in meta["arrays"]]
    start = sum(sizes[:array])
    held = found["arrays.initial"][start : start + sizes[array]].copy()
    writer = np.full(len(held), -1, np.int32)
    ops, first, width = found["steps.op"], found["steps.first"].astype(np.int64), found["steps.width"].astype(np.int64)
    rows = np.diff(first, append=len(found["lanes.offset"]))
    writes = np.isin(ops, [meta["ops"].index(name) for name in ("write", "atomic", "copy write")])
    words = np.where(writes, rows * ((width + 3) // 4), 0)
    word = np.cumsum(words) - words
    all_bytes = found["words.value"].view(np.uint8)
    low = meta["arrays"][array]["low"]
    for one in np.flatnonzero(writes[:step] & (found["steps.array"][:step] == array)):
        offsets = found["lanes.offset"][first[one] : first[one] + rows[one]] - low
        new = all_bytes[4 * word[one] : 4 * (word[one] + words[one])].reshape(rows[one], -1)[:, : width[one]]
        places = offsets[:, None] + np.arange(width[one])
        inside = (places >= 0) & (places < len(held))
        held[places[inside]], writer[places[inside]] = new[inside], one
    return held, writer


def numbers(held: np.ndarray, dtype: str) -> np.ndarray:
    """Bytes as the numbers of a recorded type: float64 for floats, else integers."""
    bits = held[: len(held) // np.dtype(_NUMBERS[dtype]).itemsize * np.dtype(_NUMBERS[dtype]).itemsize]
    values = bits.view(_NUMBERS[dtype])
    if dtype == "bfloat16":
        with np.errstate(invalid="ignore"):  # a signalling NaN is one, too
            return (values.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype == "float8_e5m2":
        return (values.astype(np.uint16) << 8).view(np.float16).astype(np.float64)
    if dtype == "float8_e4m3":
        return _e4m3()[values]
    return values.astype(np.float64) if values.dtype.kind == "f" else values


def _e4m3() -> np.ndarray:
    """All 256 codes of e4m3 as float64 [256]: 4 bits of exponent with bias 7, 3 of mantissa, no infinity."""
    code = np.arange(256)
    exponent, mantissa = (code >> 3) & 15, code & 7
    sizes = np.where(exponent > 0, 2.0 ** (exponent - 7) * (1 + mantissa / 8), 2.0**-6 * (mantissa / 8))
    return np.where((exponent == 15) & (mantissa == 7), np.nan, np.where(code >= 128, -sizes, sizes))
