"""The machine code that ptxas makes of chapter 07's kernels, where results are right either way.

The new maximum is found while P V of the tile before runs: `hold` of warpgroup_tile.cuh is there for that. Step 1's
copies stand before the first product, or after it. A kernel without its softmax or its products has all else.
"""

import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from course_utils.launches.ablations import without
from course_utils.launches.hopper import COPIES_AFTER, LADDER, Step
from course_utils.toolchain.nvrtc import compile_kernel
from course_utils.toolchain.source import KernelSource, read_kernel

HOLDS = [step for step in LADDER if "hold(" in read_kernel(step.file)]
D = 128
# Of an instruction, 128 bits: the lowest 12 say which it is, by the names of nvdisasm.
SHFL_BFLY, WARPGROUP = 0xF89, 0x9C5
LDGSTS, MUFU, HGMMA = 0xFAE, 0x308, {0x9F0, 0xDF0}  # a copy, an exponential, a product with A in shared memory or not
ROWS_AND_STEPS = 2 * 2  # shuffles for a new maximum: a lane has two rows, and a row four lanes


def machine_code(cubin: bytes) -> Iterator[tuple[int, int]]:
    """The lower and the upper half of each instruction of a cubin's only kernel."""
    (table,), (size, count, of_names) = struct.unpack_from("<Q", cubin, 40), struct.unpack_from("<3H", cubin, 58)
    sections = [struct.unpack_from("<2I4Q", cubin, table + number * size) for number in range(count)]
    names = sections[of_names][4]
    (code,) = [
        cubin[start : start + length]
        for name, _, _, _, start, length in sections
        if cubin.startswith(b".text.", names + name)
    ]
    return struct.iter_unpack("<2Q", code)


def shuffles_beside_p_v(source: KernelSource, options: tuple[str, ...]) -> list[int]:
    """How many shuffles stand in front of each wait for all products that comes after a wait for all but one."""
    found, here = [], None
    for low, high in machine_code(compile_kernel(source, "sm_90a", options).cubin):
        if low & 0xFFF == SHFL_BFLY and here is not None:
            here += 1
        elif low & 0xFFF == WARPGROUP and low >> 47 & 1:  # WARPGROUP.DEPBAR; without that bit WARPGROUP.ARRIVE
            if high >> 8 & 7:  # products that may still run
                here = 0
            elif here is not None:
                found.append(here)
                here = None
    return found


@pytest.mark.parametrize("step", HOLDS, ids=lambda step: step.kernel)
def test_the_new_maximum_is_found_before_the_wait_for_p_v(step):
    assert shuffles_beside_p_v(read_kernel(step.file), step.options(D, torch.float16)) == [ROWS_AND_STEPS]


def test_without_hold_ptxas_waits_first():
    """Where this fails, ptxas has learned better, and `hold` can go."""
    step = LADDER[-1]
    source = read_kernel(step.file)
    text, count = re.subn(r"\n *hold\(.*\);", "", source)
    without = KernelSource(text, source.path, source.name)
    assert count == 1 and shuffles_beside_p_v(without, step.options(D, torch.float16)) == [0]


def test_the_steps_that_overlap_in_a_consumer_hold():
    assert [step.number for step in HOLDS] == ["4", "5", "6", "7"]


# ---------------------------------------------------------------------------------------------- one thing changed


def kinds(source: KernelSource, step: Step) -> list[str]:
    """The copies, exponentials and products of a step's machine code, in their order."""
    names = {LDGSTS: "copy", MUFU: "exponential"} | dict.fromkeys(HGMMA, "product")
    code = machine_code(compile_kernel(source, "sm_90a", step.options(D, torch.float16)).cubin)
    return [names[low & 0xFFF] for low, _ in code if low & 0xFFF in names]


@pytest.mark.parametrize(
    ("step", "order"),
    [(LADDER[0], ["copy", "product"]), (COPIES_AFTER, ["copy", "product", "copy", "product"])],
    ids=lambda part: getattr(part, "title", None),
)
def test_step_1_requests_the_next_tiles_before_its_first_product_or_after_it(step, order):
    """The first copies, of both, are those of the first tile."""
    found = [kind for kind in kinds(read_kernel(step.file), step) if kind != "exponential"]
    assert [kind for kind, _ in itertools.groupby(found)] == order


@pytest.mark.parametrize("step", [LADDER[0], LADDER[3]], ids=lambda step: step.kernel)
def test_a_kernel_without_a_part_has_the_others_in_full(step):
    text = read_kernel(step.file)
    sources = text, without(text, "softmax"), without(text, "products")
    whole, no_softmax, no_products = (Counter(kinds(source, step)) for source in sources)
    assert no_softmax["product"] == whole["product"] > 0 == no_products["product"]
    assert no_products["exponential"] == whole["exponential"] > 64 > 8 >= no_softmax["exponential"]
    assert whole["copy"] == no_softmax["copy"] == no_products["copy"]
