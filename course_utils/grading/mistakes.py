"""Known mistakes as a kernel: the solution with hooks where learners err, all mistakes of an exercise in one launch.

`solutions/NN_slug/name_mistakes.cuh` is the solution with hooks, `WRONG(L_KEPT, rescale, 1)`; `name_mistakes.toml`
says which hooks make a mistake, what is said ({} is the number that a hook takes), and what to read again. Neither is
released to students.
"""

from __future__ import annotations

import functools
import math
import struct
import threading
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from course_utils.cuda import CompileError, KernelError, KernelSource, RawModule
from course_utils.emulator import configure
from course_utils.grading.catalog import SOLUTIONS
from course_utils.grading.exercise import Case, Diagnosis, Mistake, Variant
from course_utils.grading.job import as_run
from course_utils.grading.runner import arguments

HEADER = Path(__file__).with_name("mistakes.cuh")
MOST_VARIANTS, MOST_HOOKS, MOST_ARGUMENTS = 256, 4, 16
SOME_BLOCKS, FEW_VARIANTS = 3, 8  # a look at more variants than these takes so many blocks first
SECONDS = 60.0  # for one launch of all variants

_one_launch_at_a_time = threading.Lock()  # the variants to make are a variable of the module


def read_mistakes(exercise_id: str, solutions: Path = SOLUTIONS) -> tuple[Mistake, ...]:
    """The mistakes in the table of an exercise, in its order; none where the solutions are not there, or must not be
    read (in the sandbox).

    Raises ValueError for a row that cannot be read.
    """
    kernel = solutions / f"{exercise_id}_mistakes.cuh"
    try:
        table = tomllib.loads(kernel.with_suffix(".toml").read_text(encoding="utf-8"))
    except (FileNotFoundError, PermissionError):
        return ()
    mistakes = []
    for ways, row in table["mistakes"].items():
        if len(row) != 3 or row[2] not in table["read"]:
            raise ValueError(f"{kernel.stem}.toml, {ways}: takes what is said, why, and a key of [read], got {row}")
        for way in ways.split(","):
            name, why = (words.replace("{}", way.split()[-1]) for words in row[:2])
            mistakes.append(Mistake(Diagnosis(name, why, table["read"][row[2]]), variant=_variant(kernel, way)))
    return tuple(mistakes)


def _variant(kernel: Path, way: str) -> Variant:
    *hooks, last = way.split()
    number = _number(last)
    hooks += [last] if number is None else []
    if not 0 < len(hooks) <= MOST_HOOKS:
        raise ValueError(f"{kernel.stem}.toml: got {way!r}, takes 1 to {MOST_HOOKS} hooks, then perhaps a number")
    return Variant(kernel, tuple(hooks), number or 0.0)


def _number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


@functools.cache
def _hooks(kernel: Path) -> dict[str, int]:
    """The numbers that stand for the hooks, from 1."""
    ways = tomllib.loads(kernel.with_suffix(".toml").read_text(encoding="utf-8"))["mistakes"]
    names = {hook for way in ",".join(ways).split(",") for hook in _variant(kernel, way).hooks}
    return {name: number for number, name in enumerate(sorted(names), start=1)}


@functools.cache
def _module(kernel: Path) -> RawModule:
    """The kernel with hooks, compiled once: what a case sets by an option, such as -DD=64, is a variable here."""
    hooks = ", ".join(f"{name} = {number}" for name, number in _hooks(kernel).items())
    sizes = f"constexpr int MOST_VARIANTS = {MOST_VARIANTS}, MOST_ARGUMENTS = {MOST_ARGUMENTS};"
    start = f"enum {{ {hooks} }};\n{sizes}\n{HEADER.read_text(encoding='utf-8')}"
    source = f'{start}#line 1 "{kernel.name}"\n{kernel.read_text(encoding="utf-8")}'
    return RawModule(code=KernelSource(source, kernel, kernel.name))


def give(mistakes: Sequence[Mistake], case: Case) -> None:
    """Puts what kernels with these mistakes write into `case.given`, where it is not known yet."""
    unknown = [mistake for mistake in mistakes if mistake not in case.given]
    in_kernel = [mistake for mistake in unknown if mistake.variant is not None and _are_told_by(case)]
    if in_kernel:
        outputs = _launched_or_none([mistake.variant for mistake in in_kernel], case)
        case.given.update(zip(in_kernel, outputs, strict=True))
    for mistake in unknown:
        if mistake not in case.given:
            simulated = mistake.simulate(case) if mistake.simulate and _are_told_by(case) else None
            case.given[mistake] = simulated or {}


def give_in_places(mistakes: Sequence[Mistake], case: Case) -> Mapping[Mistake, Mapping[str, Tensor]]:
    """What these mistakes give in some blocks of the grid, the rest still blank: a quick look at many of them.

    Only of mistakes in kernels, and where few blocks are a part of what a case takes; empty otherwise.
    """
    in_kernel = [mistake for mistake in mistakes if mistake.variant is not None and mistake not in case.given]
    if not _are_told_by(case) or len(case.launches) > 1 or len(in_kernel) <= FEW_VARIANTS:
        return {}
    if math.prod(case.launches[0].grid) < 2 * SOME_BLOCKS:
        return {}
    outputs = _launched_or_none([mistake.variant for mistake in in_kernel], case, SOME_BLOCKS)
    return {mistake: given for mistake, given in zip(in_kernel, outputs, strict=True) if given}


def _are_told_by(case: Case) -> bool:
    return case.names and not case.reference


def _launched_or_none(
    variants: Sequence[Variant], case: Case, most_blocks: int | None = None
) -> list[dict[str, Tensor]]:
    """As `_launched`; no outputs where that fails, with a warning: a submission gets its grade without them."""
    try:
        return _launched(variants, case, most_blocks)
    except (CompileError, KernelError) as error:
        warnings.warn(
            f"{case.name}: the known mistakes of {variants[0].kernel.name} were not tried: {error}", stacklevel=2
        )
        return [{} for _ in variants]


def _launched(variants: Sequence[Variant], case: Case, most_blocks: int | None = None) -> list[dict[str, Tensor]]:
    """The outputs of a case, as each of these variants of one exercise writes them: one launch for all.

    most_blocks: so many blocks run, from the first to the last at equal steps; None: all.
    """
    count, run = len(variants), as_run(0, case)
    outputs = {name: run.tensors[name].expand(count, *run.tensors[name].shape).contiguous() for name in run.outputs}
    words = [number for one in variants for number in _words(one)]
    words += [0] * (MOST_VARIANTS * (MOST_HOOKS + 1) - len(words))
    with _one_launch_at_a_time, configure(time_limit=SECONDS, threads=1):
        module = _module(variants[0].kernel)
        _set(module, "variants", words)
        for number, launch in enumerate(case.launches):
            sizes = [run.tensors[name].numel() if isinstance(name, str) else 0 for name in launch.arguments]
            _set(module, "elements", [*sizes, *[0] * (MOST_ARGUMENTS - len(sizes))])
            _set(module, "launch_number", [number])
            _set(module, "solution_grid", [*launch.grid, 1, 1][:3])
            for option in launch.options:
                name, value = option.removeprefix("-D").split("=")
                _set(module, name, [int(value)])
            blocks = min(most_blocks or math.inf, math.prod(launch.grid))
            given = arguments(launch, run.tensors | outputs)
            module.get_function(launch.kernel)((blocks, count), launch.block, given, shared_mem=launch.shared_mem)
    return [{name: tensor[n] for name, tensor in outputs.items()} for n in range(count)]


def _set(module: RawModule, variable: str, words: Sequence[int]) -> None:
    module.get_global(variable, (len(words),), torch.int32).copy_(torch.tensor(words, dtype=torch.int32))


def _words(variant: Variant) -> list[int]:
    """The variant as `struct Variant` of mistakes.cuh."""
    numbers = [_hooks(variant.kernel)[hook] for hook in variant.hooks]
    (number,) = struct.unpack("i", struct.pack("f", variant.number))
    return [*numbers, *[0] * (MOST_HOOKS - len(numbers)), number]
