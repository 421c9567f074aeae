"""What a launch gives, to compare two processors: outputs, findings, counters and, of small ones, the recording."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import torch

from course_utils.cuda import KernelError
from course_utils.emulator import profile, record, sanitize
from course_utils.launches import hopper, serving
from course_utils.launches.arguments import ints, normal
from course_utils.launches.broken import BROKEN
from course_utils.launches.chapters import course_launches
from course_utils.launches.launch import Launch

BY_CHAPTER = (
    *("vector_add", "two_ways", "transpose_tiled", "matmul_registers"),
    *("scores, L=128", "softmax, L=128"),
    *("forward, L=256, causal", "backward_dk_dv, L=128"),
    *("v2 step2_tensor_cores, d=64, L=200", "v2 forward, d=64, L=200, causal", "v2 backward_dq, d=64, L=200"),
    *("sparse csr_gather, L=200", "sparse merge_parts, L=200"),
    *("deepseek sparse_mla, small", "deepseek lightning_indexer_fp8, H=20"),
    *("serving split_keys, D=64", "serving e4m3_cache, D=64"),
    *("hopper step1_wgmma, d=64, hard", "hopper forward, d=64, hard", "hopper ring"),
    "shared_heads",
)
ON_PURPOSE = ("too_few_warp_slots", "misaligned_float4", "dq_without_atomics", "cp_async_too_early")  # and wrong
RECORDED = ("two_ways", "transpose_tiled", "softmax, L=128", "sparse merge_parts, L=200", "hopper ring")


def launches() -> dict[str, Launch]:
    """Of each chapter with kernels the first ones that differ in what they use, two with wgmma among them, and kernels
    that are broken on purpose."""
    every = course_launches() | serving.hard() | hopper.hard()
    every["shared_heads"] = _shared_heads()
    broken = {kernel.name: kernel for kernel in BROKEN.values()}
    return {name: every[name] for name in BY_CHAPTER} | {f"broken {name}": broken[name].launch() for name in ON_PURPOSE}


def _shared_heads() -> Launch:
    heads, kv_heads, keys, head_dim = 4, 2, 9, 32
    tensors = normal(heads, head_dim), normal(kv_heads, keys, head_dim), normal(kv_heads, keys, head_dim)
    args = (*tensors, torch.zeros(heads, head_dim), *ints(heads, kv_heads, keys, head_dim), np.float32(head_dim**-0.5))
    return Launch("08_choosing/puzzles/shared_heads.cu", "shared_heads", (heads,), (head_dim,), args)


def outputs(launch: Launch) -> object:
    """The bytes of its tensors, or where and how it fails; the words need the address, which qemu has not where the
    processor below it refuses it."""
    try:
        return [tensor.reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in launch.run()]
    except KernelError as error:
        return error.kind, error.file, error.line, error.block, error.thread


def findings(launch: Launch) -> object:
    """What sanitize() says."""
    with sanitize() as report, contextlib.suppress(KernelError):
        launch.run()
    return str(report)


def counters(launch: Launch) -> object:
    """What profile() counts, line by line."""
    with profile() as counted, contextlib.suppress(KernelError):
        launch.run()
    return str(counted)


def recording(launch: Launch) -> object:
    """All columns of a recording, with the names, types and values of the variables."""
    found = record(launch.run)
    columns = {name: np.asarray(column).tobytes() for name, column in found.columns.items()}
    return columns, [str(variable) for variable in found.variables], [str(array) for array in found.arrays]


ASPECTS: dict[str, Callable[[Launch], object]] = {
    "outputs": outputs,
    "findings": findings,
    "counters": counters,
    "recording": recording,
}


def outcomes(name: str, launch: Launch) -> dict[str, object]:
    """Each aspect of a launch that is looked at."""
    return {aspect: look(launch) for aspect, look in ASPECTS.items() if aspect != "recording" or name in RECORDED}
