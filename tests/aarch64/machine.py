"""An emulator whose kernels are built for aarch64 and whose worker runs under qemu; Python itself runs here.

COURSE_AARCH64 names the folder that `.ci/aarch64_machine` fills (build/aarch64): in it `root`, files of Debian's arm64
packages with Python, `tools`, with qemu, and `cross`, with g++ for aarch64. Nothing is installed for it, and no program
of another processor becomes known to the system: qemu is called by its name.

What qemu cannot show: an x86 processor orders memory more strictly than ARM does, so a missing fence goes unseen. qemu
7.2 does not give the address where a misaligned vector fails, which is then called a null pointer. It takes guards of
stacks (MADV_GUARD_INSTALL) without making them: no_guards.cpp refuses them, and the emulator makes the other kind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import platform
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from course_utils.emulator import compiler as compilers
from course_utils.emulator import launch, module
from course_utils.emulator.compiler import Compiler
from course_utils.emulator.library_tables import Symbol
from course_utils.toolchain.errors import CompileError

FOLDER = Path(os.environ.get("COURSE_AARCH64") or Path(__file__).parents[2] / "build" / "aarch64").absolute()
ROOT, QEMU = FOLDER / "root", FOLDER / "tools/usr/bin/qemu-aarch64-static"
PYTHON = ROOT / "usr/bin/python3.11"
CROSS = FOLDER / "cross/usr"
GCC = CROSS / "bin/aarch64-linux-gnu-g++-12"
MACHINE = "aarch64"


def why_not() -> str:
    """Why no worker of aarch64 runs here; empty if one does."""
    if platform.machine() == MACHINE:
        return "this is an aarch64: all the other tests of the emulator show what this one would"
    missing = [str(file) for file in (QEMU, PYTHON) if not file.exists()]
    return f"no {' and no '.join(missing)}: .ci/aarch64_machine puts them there" if missing else ""


def zig() -> Compiler | None:
    """zig, which builds for any processor."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    from importlib.metadata import version

    command = (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.31")
    return Compiler("zig", command, f"ziglang {version('ziglang')}", MACHINE)


def gcc() -> Compiler | None:
    """Debian's g++ 12 for aarch64, which makes of a kernel what g++ 12 makes of it there."""
    if not GCC.exists():
        return None
    libraries = f"LD_LIBRARY_PATH={CROSS / 'lib/x86_64-linux-gnu'}"
    return Compiler("gcc", ("env", libraries, str(GCC)), "aarch64-linux-gnu-g++-12 (Debian) 12.2.0", MACHINE)


COMPILERS = {"g++": gcc, "zig": zig}


class _Inspector:
    """The process that has the libraries loaded."""

    def __init__(self, python: str) -> None:
        script = Path(__file__).with_name("inspect_library.py")
        command = [python, "-I", "-S", str(script)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(
        self, library: Path, function: str, numbers: list[int] | None = None, offset: int = 0, size: int = 0
    ) -> Any:
        request = {"library": str(library), "function": function, "numbers": numbers, "offset": offset, "size": size}
        self._process.stdin.write(f"{json.dumps(request)}\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        if isinstance(answer, dict):
            raise OSError(answer["error"])
        return answer

    def stop(self) -> None:
        self._process.communicate()


class _Loaded:
    """In the place of a library that this process cannot load: its functions, called under qemu."""

    def __init__(self, inspector: _Inspector, library: Path) -> None:
        self.inspector, self.library = inspector, library

    def __getattr__(self, function: str) -> Any:
        def call(array: Any) -> int:
            result, array[:] = self.inspector.ask(self.library, function, list(array))
            return result

        return call


@contextlib.contextmanager
def on_aarch64(compiler: Compiler, *processor: str) -> Iterator[None]:
    """Modules that are made inside are built for aarch64 and run there. processor: qemu's options."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        python = Path(folder, "python")
        compilers._link(compiler, "no_guards.so", [str(Path(__file__).with_name("no_guards.cpp"))], Path(folder))
        options = [*processor, "-E", f"LD_PRELOAD={folder}/no_guards.so", "-0", str(python), "-L", str(ROOT)]
        command = shlex.join([str(QEMU), *options, str(PYTHON)])
        python.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        python.chmod(0o755)
        inspector = _Inspector(str(python))
        stack.callback(inspector.stop)

        def load(library: Path) -> _Loaded:
            return _Loaded(inspector, library)

        def load_runtime(runtime: Path) -> None:
            for name, size in (
                ("emu_report_bytes", module.report.REPORT_BYTES),
                ("emu_trace_results_bytes", module.RESULTS_BYTES),
                ("emu_recording_bytes", module.RECORDING_BYTES),
            ):
                assert inspector.ask(runtime, name, [])[0] == size, name

        def first_bytes(library: Any, variable: Symbol) -> bytearray:
            base = library.symbols["emu_dynamic_shared_base"].offset
            offset = variable.offset - base
            found = inspector.ask(library.path, "emu_dynamic_shared_base", offset=offset, size=variable.size)
            return bytearray.fromhex(found)

        exact = zig() if compiler.kind == "gcc" else compiler

        def exact_compiler(found: Compiler) -> Compiler:
            compilers.exact_compiler(found)  # raises what a learner reads where there is no clang
            if exact is None:
                raise CompileError("the ziglang package is not installed")
            return exact

        for name, stand_in in (
            ("_load", load),
            ("_load_runtime", load_runtime),
            ("find_compiler", lambda command: compiler),
            ("exact_compiler", exact_compiler),
        ):
            stack.enter_context(mock.patch.object(module, name, stand_in))
        stack.enter_context(mock.patch.object(module._Library, "first_bytes", first_bytes))
        stack.enter_context(mock.patch.object(sys, "executable", str(python)))
        stack.enter_context(mock.patch.object(launch, "_launcher", None))
        stack.callback(lambda: launch._launcher and launch._launcher.stop())
        yield
