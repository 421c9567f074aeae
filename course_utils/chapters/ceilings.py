"""The ceilings of a GPU, as chapter 00 measured them: what later chapters hold their kernels against."""

from __future__ import annotations

from collections.abc import Mapping

from course_utils import measured

ON_CUDA_CORES, BY_MMA = "fp32 multiply-add, CUDA cores", "fp16 mma.sync alone, tensor cores"
BY_CUBLAS = "fp16 matrix product, tensor cores"  # torch's, on a Hopper by wgmma


def ceilings() -> Mapping[str, Mapping[str, object]]:
    """The rows of the record, by name."""
    return {row["name"]: row for row in measured.load("00_start_here").rows}


def peak(name: str) -> float:
    """TFLOP/s of one of the ceilings."""
    return ceilings()[name]["tflop_per_s"]
