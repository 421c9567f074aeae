"""Compiles the kernels of one file by NVRTC and by the emulator, and says what each made of them."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from course_utils.emulator.module import EmulatedModule
from course_utils.toolchain.declarations import declarations
from course_utils.toolchain.errors import CompileError, LaunchError
from course_utils.toolchain.host_code import device_part
from course_utils.toolchain.host_launches import instances
from course_utils.toolchain.nvrtc import compile_kernel
from course_utils.toolchain.source import KernelFunction, KernelSource, find_kernels

NO_ANSWER = "(no answer)"
OURS = re.compile(r"^(?:static assertion failed: )?the (?:CPU )?emulator\b|; the CPU emulator is\b")


@dataclass(frozen=True)
class Outcome:
    """What both made of a kernel, or of an instance of a template: what each refused it with; "" if it took it.

    ours: whether the emulator's message is a sentence of the course.
    `kernel` is NO_ANSWER for a file that took too long.
    """

    file: str
    kernel: str
    nvrtc: str
    emulator: str
    ours: bool = False

    @property
    def disagrees(self) -> bool:
        """Whether one takes what the other refuses, and no sentence of ours says why."""
        return bool(self.nvrtc) != bool(self.emulator) and not self.ours


def outcomes(path: Path, name: str, folders: Sequence[Path], options: tuple[str, ...] = ()) -> list[Outcome]:
    """The kernels of a file, by themselves where the file as a whole is refused. Several instances of a template: the
    first two. Raises nothing that the file can cause."""
    code = KernelSource(path.read_text(encoding="utf-8", errors="replace"), path.resolve(), name)
    part = device_part(code, folders).code
    kernels = [kernel for kernel in find_kernels(part).values() if kernel.bodies]
    if not kernels:
        return []
    flags = (*options, *(f"-I{folder}" for folder in folders))
    declared = find_kernels(code)  # launches are the host's, and the kernels in front of them have other places there
    expressions = {k.name: instances(code, declared[k.name])[:2] for k in kernels if k.template}
    every = [name for names in expressions.values() for name in names]
    named = [name for kernel in kernels for name in expressions.get(kernel.name, [kernel.name])]
    if not _nvrtc(part, flags, every) and not _emulator(part, flags, every):
        return [Outcome(name, kernel, "", "") for kernel in named]
    found = []
    for kernel in kernels:
        alone = _alone(part, kernel, kernels)
        for expression in expressions.get(kernel.name, [kernel.name]):
            instance = [expression] if kernel.template else []
            nvrtc, emulator = _nvrtc(alone, flags, instance), _emulator(alone, flags, instance)
            found.append(Outcome(name, expression, nvrtc, emulator, bool(OURS.search(emulator))))
    return found


def _alone(code: str, kernel: KernelFunction, kernels: Sequence[KernelFunction]) -> str:
    """The code without the other kernels."""
    others = {other.name for other in kernels} - {kernel.name}
    text = list(code)
    for d in declarations(code):
        if d.kind == "function" and d.names & others and "__global__" in d.declared:
            text[d.start : d.end] = re.sub(r"[^\n]", " ", code[d.start : d.end])
    alone = "".join(text)
    return KernelSource(alone, code.path, code.name) if isinstance(code, KernelSource) else alone


def _nvrtc(code: str, flags: tuple[str, ...], expressions: Sequence[str]) -> str:
    try:
        compile_kernel(code, "sm_90", flags, tuple(expressions))
    except (CompileError, RuntimeError) as error:  # RuntimeError: NVRTC itself fails, at a name expression
        return _first_error(getattr(error, "log", "") or str(error))
    return ""


def _emulator(code: str, flags: tuple[str, ...], expressions: Sequence[str]) -> str:
    try:
        EmulatedModule(code, flags, tuple(expressions))
    except CompileError as error:
        said = _first_error(str(error))  # a sentence of the course, if it has one; else the compiler's
        return said if OURS.search(said) else _first_error(error.log or str(error))
    except LaunchError as error:
        return str(error)
    except Exception as error:  # a defect of the emulator, and as such in the table
        return f"{type(error).__name__}: {error}"
    return ""


def _first_error(log: str) -> str:
    """The first error of a compiler's log, without the file's name and line."""
    for line in log.splitlines():
        if match := re.search(r"(?:\(\d+\): |:\d+:\d+: |^)(?:fatal |catastrophic )?error: (.*)", line):
            return match[1].strip()
    first = next((line for line in log.splitlines() if line.strip()), "no message")
    return re.sub(r"^\S*:\d+: ", "", first).strip()


# ---- a file that takes too long


def outcomes_within(
    seconds: float, path: Path, name: str, folders: Sequence[Path], options: tuple[str, ...] = ()
) -> list[Outcome]:
    """As `outcomes`, in a process of its own that has so much time."""
    here, there = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(
        target=_send, args=(there, path, name, folders, options), daemon=True
    )
    process.start()
    there.close()
    try:
        if here.poll(seconds):
            return here.recv()
        return [Outcome(name, NO_ANSWER, "", f"took more than {seconds:g} s")]
    except EOFError:
        return [Outcome(name, NO_ANSWER, "", "the process that compiled it died")]
    finally:
        if process.is_alive():
            process.join(0.2)
        if process.is_alive():
            os.killpg(process.pid, signal.SIGKILL)
        process.join()
        here.close()


def _send(there: Connection, path: Path, name: str, folders: Sequence[Path], options: tuple[str, ...]) -> None:
    os.setpgid(0, 0)  # with the compilers that it starts
    there.send(outcomes(path, name, folders, options))
