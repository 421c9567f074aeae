"""GPUs by their datasheets: memory, bandwidth and peaks.

These are ceilings on paper. What a device reaches is lower: `measured_ceilings` has what chapter 00 measured on one,
and kernels stay below that. Peaks are dense: where a datasheet gives figures "with sparsity" (of the weights, 2 of 4,
which has nothing to do with sparse attention), half of them stand here. Gigabytes are 10⁹ bytes; the driver shows a
little more or less, and keeps some for itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import torch

from course_utils import measured

DTYPES = {"float16": 2, "bfloat16": 2, "float32": 4}  # bytes of an element
_TERA = 10**12


@dataclass(frozen=True)
class Device:
    """One GPU.

    Attributes:
        name: short, as in the table.
        memory_bytes: device memory.
        bandwidth: of that memory, bytes/s.
        half_flops: FLOP/s of the tensor cores in fp16 and, from compute capability 8.0 on, bf16, summed in fp32.
        float32_flops: FLOP/s of the CUDA cores in fp32; TF32 is something else.
        fp8_flops: FLOP/s of the tensor cores in FP8; None where there is none.
        l2_bytes: L2 cache.
        multiprocessors: how many there are.
        capability: compute capability.
        source: where the figures are from.
    """

    name: str
    memory_bytes: int
    bandwidth: float
    half_flops: float
    float32_flops: float
    fp8_flops: float | None
    l2_bytes: int
    multiprocessors: int
    capability: tuple[int, int]
    source: str

    def peak_flops(self, dtype: str) -> float:
        """FLOP/s in "float16", "bfloat16" or "float32".

        Raises:
            ValueError: another dtype, or one that this device's tensor cores do not have.
        """
        takes = [name for name in DTYPES if name != "bfloat16" or self.capability >= (8, 0)]
        if dtype not in takes:
            raise ValueError(f"dtype: got {dtype!r}, takes {', '.join(takes[:-1])} or {takes[-1]} on {self.name}")
        return self.float32_flops if dtype == "float32" else self.half_flops


def _device(
    name: str, gigabytes: int, gb_per_s: float, half: float, float32: float, fp8: float | None, l2_bytes: int,
    multiprocessors: int, capability: tuple[int, int], source: str,
) -> Device:  # fmt: skip
    """Gigabytes, GB/s and TFLOP/s, as datasheets have them, to bytes and FLOP/s."""
    fp8_flops = None if fp8 is None else fp8 * _TERA
    memory, bandwidth = gigabytes * 10**9, gb_per_s * 1e9
    return Device(
        name,
        memory,
        bandwidth,
        half * _TERA,
        float32 * _TERA,
        fp8_flops,
        l2_bytes,
        multiprocessors,
        capability,
        f"NVIDIA, {source}",
    )


_MIB = 2**20
_TABLE = (
    _device("T4", 16, 320, 65, 8.1, None, 4 * _MIB, 40, (7, 5), "T4 datasheet; L2, multiprocessors: Turing whitepaper"),
    _device("RTX 3090", 24, 936, 71, 35.6, None, 6 * _MIB, 82, (8, 6), "GA102 whitepaper"),
    _device("RTX 4090", 24, 1008, 165.2, 82.6, 330.3, 72 * _MIB, 128, (8, 9), "Ada whitepaper"),
    _device(
        "L4", 24, 300, 121, 30.3, 242.5, 48 * _MIB, 58, (8, 9),
        "L4 datasheet, half of its figures with sparsity, and its CUDA cores over 128; L2: Ada whitepaper",
    ),
    _device(
        "A100 40 GB", 40, 1555, 312, 19.5, None, 40 * _MIB, 108, (8, 0),
        "A100 datasheet, SXM4; L2, multiprocessors: Ampere whitepaper",
    ),
    _device(
        "A100 80 GB", 80, 2039, 312, 19.5, None, 40 * _MIB, 108, (8, 0),
        "A100 datasheet, SXM4; L2, multiprocessors: Ampere whitepaper",
    ),
    _device(
        "H100", 80, 3350, 989.4, 67, 1978.9, 50 * _MIB, 132, (9, 0),
        "H100 datasheet, SXM; dense peaks of the tensor cores, L2, multiprocessors: Hopper whitepaper",
    ),
    _device(
        "H200", 141, 4800, 989.4, 67, 1978.9, 60 * _MIB, 132, (9, 0),
        "H200 datasheet, SXM; dense peaks of the tensor cores: Hopper whitepaper; L2, multiprocessors: as its driver "
        "says",
    ),
    _device(
        "B200", 180, 8000, 2250, 75, 4500, 126 * _MIB, 148, (10, 0),
        "DGX B200 datasheet (memory, bandwidth), HGX B200 datasheet (peaks), an eighth, half of its figures with "
        "sparsity; L2, multiprocessors: in no datasheet, as its driver is quoted",
    ),
)  # fmt: skip
DEVICES: dict[str, Device] = {device.name: device for device in _TABLE}
# The name that the driver gives -> the name here. Other boards of a chip (PCIe, NVL) have other memories and clocks.
_DRIVER_NAMES = {
    "T4": "T4",
    "RTX 3090": "RTX 3090",
    "RTX 4090": "RTX 4090",
    "L4": "L4",
    "A100-SXM4-40GB": "A100 40 GB",
    "A100-SXM4-80GB": "A100 80 GB",
    "H100 80GB HBM3": "H100",
    "H200": "H200",
    "B200": "B200",
}


def device(name: str | Device) -> Device:
    """The device of this name; a `Device` is returned unchanged. Raises ValueError."""
    if isinstance(name, Device):
        return name
    if name not in DEVICES:
        raise ValueError(f"device: got {name!r}, takes a Device, or one of {', '.join(DEVICES)}")
    return DEVICES[name]


def this_device() -> Device | None:
    """This machine's GPU: the datasheet's rates, memory and L2 as its driver has them; None without a usable GPU.

    Raises:
        LookupError: a GPU that is not in the table; make a `Device` of it from its datasheet.
    """
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(torch.cuda.current_device())
    known = by_driver_name(found.name)
    if known is None:
        raise LookupError(f"{found.name!r} is not in the table of devices: make a Device(...) from its datasheet")
    return replace(known, memory_bytes=found.total_memory, l2_bytes=found.L2_cache_size)


def by_driver_name(name: str) -> Device | None:
    """The device whose driver gives this name, such as "NVIDIA A100-SXM4-80GB"; None if it is not in the table."""
    plain = re.sub(r"^(NVIDIA|Tesla|GeForce|\s)+", "", name)
    return DEVICES[_DRIVER_NAMES[plain]] if plain in _DRIVER_NAMES else None


def measured_ceilings() -> dict[str, float]:
    """Bytes/s of a copy and FLOP/s of matrix products that chapter 00 measured, by the name of the row; `device` and
    date are those of `measured.load("00_start_here")`."""
    rows = measured.load("00_start_here").rows
    rates = {row["name"]: 1e9 * row["gb_per_s"] for row in rows if row["name"] == "device memory copy"}
    rates |= {row["name"]: 1e12 * row["tflop_per_s"] for row in rows if "tensor cores" in str(row["name"])}
    return rates
