"""What a launch leaves behind: the mirror of runtime/report.h, and its failure as a Python exception."""

from __future__ import annotations

import ctypes
import os
from collections import Counter
from collections.abc import Callable

from course_utils.emulator import words
from course_utils.emulator.defects import RawDefect, defect_of
from course_utils.emulator.endless import endless_loop
from course_utils.emulator.launcher import Dim3
from course_utils.emulator.memory import Nearest
from course_utils.toolchain.errors import KernelError
from course_utils.toolchain.parameters import argument_label
from course_utils.toolchain.source import line_text

RUNNING, FINISHED, CRASH, TIME_LIMIT = range(4)
UNDEFINED = 8  # what C++ leaves undefined and a GPU defines
KINDS = ("died", "finished", "crash", "time limit", "divergent barrier", "deadlock", "bad collective", "trap")


class Sample(ctypes.Structure):
    _fields_ = [("program_counter", ctypes.c_uint64), ("waited_at", ctypes.c_int32), ("padding", ctypes.c_int32)]


class Report(ctypes.Structure):
    _fields_ = [
        ("outcome", ctypes.c_uint32),
        ("line", ctypes.c_int32),
        ("file", ctypes.c_char * 4096),
        ("defect", RawDefect),
        ("message", ctypes.c_char * 512),
        ("program_counter", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("sample_count", ctypes.c_uint32),
        ("samples", Sample * 256),
        ("block", Dim3),
        ("thread", Dim3),
        ("has_thread", ctypes.c_uint32),
        ("access", ctypes.c_uint32),
        ("blocks_done", ctypes.c_uint64),
        ("print_lost", ctypes.c_uint64),
        ("printed", ctypes.c_uint32),
        ("output", ctypes.c_char * (1 << 20)),
    ]


REPORT_BYTES = ctypes.sizeof(Report)


def printed_text(report: Report) -> str:
    """What the kernel printed. Past the 1 MiB of CUDA's printf buffer the rest is lost, and a last line says so."""
    start = ctypes.addressof(report) + Report.output.offset
    text = ctypes.string_at(start, report.printed).decode(errors="replace")
    return text + (f"\n[{report.print_lost} more bytes were printed and lost]\n" if report.print_lost else "")


def _endless_loop(
    report: Report, kernel: str, places: Callable[[int], list[tuple[str, int]]], source: Callable[[str], str]
) -> tuple[str, int] | None:
    """The loop in which the kernel was after the time limit, in the file where it was seen most."""
    samples = report.samples[: min(report.sample_count, len(report.samples))]
    waits_in = report.file.decode(errors="replace")
    seen = [places(one.program_counter) or [(waits_in, one.waited_at)] * bool(one.waited_at) for one in samples]
    files = Counter(frames[0][0] for frames in seen if frames)
    if not files:
        return None
    file = files.most_common(1)[0][0]
    lines = [[line for name, line in reversed(frames) if name == file] for frames in seen if frames]
    at_one_place = len({one.program_counter for one in samples}) == 1 and all(seen)
    return file, endless_loop([one for one in lines if one], source(file), kernel, jumps_to_itself=at_one_place)


def _where(address: int, nearest: Nearest | None, kernel: str) -> str:
    if nearest is None:
        return words.beside_nothing(address)
    array = nearest.array
    return words.beside_array(
        nearest.side, nearest.distance, argument_label(array.index, array.name, kernel), array.size
    )


def failure(
    report: Report,
    *,
    kernel: str,
    exit_status: int,
    places: Callable[[int], list[tuple[str, int]]],
    source: Callable[[str], str],
    nearest: Callable[[int], Nearest | None],
) -> KernelError:
    """The exception for a launch that did not finish.

    `places` turns a program counter into (file, line) of its frames, the innermost first, `source` gives a file's text,
    and `nearest` finds the argument that an address is next to.
    """
    if report.outcome == RUNNING:
        how = f"signal {os.WTERMSIG(exit_status)}" if os.WIFSIGNALED(exit_status) else f"status {exit_status}"
        return KernelError(f"{kernel}: the worker process ended without a word ({how})", kind="died", kernel=kernel)
    if report.outcome == TIME_LIMIT:
        place = _endless_loop(report, kernel, places, source)
    elif report.line:
        place = report.file.decode(errors="replace"), report.line
    else:
        place = next(iter(places(report.program_counter)), None)
    message = report.message.decode(errors="replace")
    if report.defect.kind:
        message = words.failure(defect_of(report.defect), report.thread.as_tuple())
    if report.outcome == CRASH and report.access:
        message += f": {('', 'read', 'write')[report.access]} {_where(report.address, nearest(report.address), kernel)}"
    details = [f"kernel {kernel}"]
    if report.has_thread:
        details += [f"block {report.block.as_tuple()}", f"thread {report.thread.as_tuple()}"]
    text = f"{message} [{', '.join(details)}]"
    if place:
        code = line_text(source(place[0]), place[1])
        text = f"{place[0]}:{place[1]}: {text}" + (f"\n{place[1]:6d} | {code}" if code else "")
    return KernelError(
        text,
        kind=KINDS[report.outcome],
        kernel=kernel,
        file=place[0] if place else None,
        line=place[1] if place else None,
        block=report.block.as_tuple() if report.has_thread else None,
        thread=report.thread.as_tuple() if report.has_thread else None,
    )
