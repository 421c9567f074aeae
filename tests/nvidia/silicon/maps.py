"""The 128 bytes by which the driver tells the copy engine of a tensor, one argument changed at a time."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch

from course_utils.measured import Row
from course_utils.toolchain.tensor_map import BYTES, encode


class Encoded(NamedTuple):
    """Arguments of cuTensorMapEncodeTiled: the innermost dimension first, strides in bytes; enums by the end of their
    names. No kernel uses the map: its address need not be anybody's."""

    dtype: str = "FLOAT16"
    address: int = 0x7F12345678C0
    size: tuple[int, ...] = (96, 40)
    strides: tuple[int, ...] = (256,)
    box: tuple[int, ...] = (64, 24)
    steps: tuple[int, ...] | None = None
    interleave: str = "NONE"
    swizzle: str = "NONE"
    promotion: str = "L2_256B"
    fill: str = "NONE"

    def by_driver(self) -> str:
        """The driver's bytes in hexadecimal, or the name of its error."""
        from cuda.bindings import driver

        torch.cuda.init()
        torch.cuda.current_stream().synchronize()  # the driver wants a context
        status, encoded = driver.cuTensorMapEncodeTiled(
            getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{self.dtype}"),
            len(self.size),
            self.address,
            [driver.cuuint64_t(n) for n in self.size],
            [driver.cuuint64_t(n) for n in self.strides or (16,)],  # of one dimension there are none; null is an error
            [driver.cuuint32_t(n) for n in self.box],
            [driver.cuuint32_t(n) for n in self.steps or (1,) * len(self.size)],
            getattr(driver.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{self.interleave}"),
            getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{self.swizzle}"),
            getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{self.promotion}"),
            getattr(driver.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{self.fill}"),
        )
        if status != driver.CUresult.CUDA_SUCCESS:
            return status.name
        return ctypes.string_at(int(encoded.getPtr()), BYTES).hex()

    def by_us(self) -> str:
        """The same bytes, as the emulator has them."""
        return encode(**self._asdict()).hex()

    def __str__(self) -> str:
        changed = [f"{name} {value}" for name, value in self._asdict().items() if value != self._field_defaults[name]]
        return ", ".join(changed) or "plain"


TYPES = ("UINT8", "UINT16", "UINT32", "INT32", "UINT64", "INT64", "FLOAT16", "FLOAT32", "FLOAT64", "BFLOAT16")
TYPES += ("FLOAT32_FTZ", "TFLOAT32", "TFLOAT32_FTZ")
SHAPES = [  # size, strides, box
    ((64,), (), (16,)),
    ((1,), (), (256,)),
    ((2**32,), (), (8,)),
    ((4096, 2**20), (2**14,), (8, 256)),
    ((17, 1000003), (2**20 + 16,), (8, 1)),
    ((24, 7, 5), (48, 512), (8, 3, 2)),
    ((8, 7, 6, 5), (16, 128, 1024), (8, 4, 3, 2)),
    ((8, 7, 6, 5, 4), (16, 128, 1024, 2**15), (8, 5, 4, 3, 2)),
    ((8, 2, 3, 70000, 90000), (2**36, 2**20 + 16, 2**24 + 32, 2**39), (8, 1, 2, 2, 1)),
    ((64, 3), (2**40 - 16,), (64, 3)),
    ((64, 3, 3), (2**35 + 16, 2**38 + 48), (64, 3, 3)),
    ((64, 40), (16,), (64, 40)),
]


def maps() -> list[Encoded]:
    """What is tried."""
    plain = Encoded()
    found = [plain, *(plain._replace(dtype=dtype, box=(16, 24)) for dtype in TYPES)]
    found += [plain._replace(address=16 << n) for n in (0, 1, 20, 27, 28, 40, 52)]
    found += [plain._replace(size=size, strides=strides, box=box) for size, strides, box in SHAPES]
    found += [
        plain._replace(dtype="UINT8", size=size, strides=strides, box=(16, *box[1:])) for size, strides, box in SHAPES
    ]
    found += [plain._replace(box=box) for box in ((8, 1), (16, 256), (256, 2), (248, 9))]
    found += [plain._replace(swizzle=f"{n}B", box=(n // 2, 24)) for n in (32, 64, 128)]
    found += [plain._replace(swizzle=f"{n}B", box=(8, 24)) for n in (32, 64, 128)]
    found += [plain._replace(promotion=one) for one in ("NONE", "L2_64B", "L2_128B")]
    found += [plain._replace(fill="NAN_REQUEST_ZERO_FMA"), plain._replace(steps=(2, 1)), plain._replace(steps=(8, 3))]
    found += [
        plain._replace(interleave=one, size=(96, 40, 3), strides=(256, 10240), box=(16, 24, 2)) for one in ("16B",)
    ]
    found += [plain._replace(box=(64, 24), swizzle="32B"), plain._replace(box=(4, 24)), plain._replace(box=(257, 1))]
    found += [plain._replace(address=8), plain._replace(strides=(200,)), plain._replace(strides=(2**40,))]
    return list(dict.fromkeys(found))


def measure() -> list[Row]:
    """A row for each: the arguments in words, the bytes or the driver's error."""
    rows: list[Row] = []
    for one in maps():
        try:
            found = one.by_driver()
        except Exception as error:  # an enum that this version of the bindings lacks
            found = repr(error)
        rows.append({"group": "maps", "name": str(one), "driver": found})
    return rows
