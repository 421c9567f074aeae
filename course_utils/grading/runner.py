"""The child process: compiles and launches a student's kernel, runs the Python cells, and sends back what came out.

Started by sandbox/child.py with two file numbers, JOB and RESULTS, and two more if it may ask for more cases when it is
done with the first. It judges nothing and knows no right answer. Frames that it sends:

    {"kind": "ready"}
    {"kind": "python", "answers": {...}, "tensors": [...], "errors": {...}}    blob: the tensors' bytes
    {"kind": "begin", "index": i}
    {"kind": "case", "index": i, "error": ..., "findings": [...], ...}        blob: the outputs' bytes, in order
    {"kind": "more"}
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import json
import math
import os
import pickle
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils.cuda import CompileError, KernelError, LaunchError, RawModule, TensorMap, read_kernel, tensor_map
from course_utils.emulator import configure, profile, sanitize
from course_utils.emulator.module import presented_architecture
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.tracing import in_step
from course_utils.grading import catalog
from course_utils.grading.exercise import Boxes, Launch
from course_utils.grading.job import (
    COUNTED,
    LATER_SECONDS,
    LAUNCH_SECONDS,
    NOT_SENT,
    PYTHON_BYTES,
    PYTHON_SECONDS,
    Job,
    Run,
)
from course_utils.grading.kernel_rules import broken_rule
from course_utils.grading.sandbox.child import ask, read_job, send
from course_utils.grading.sandbox.parent import hide
from course_utils.grading.variables import added_to_unset
from course_utils.toolchain.nvrtc import compile_kernel
from course_utils.toolchain.serialized import serialized_lines
from course_utils.toolchain.source import (
    KernelSource,
    blank_comments,
    find_kernels,
    line_text,
    required_architecture,
)

MOST_FINDINGS = 40
MOST_PRINTED = 20  # lines of what a case's kernel prints
USED_UNSET = r'\((\d+)\): warning #549-D: variable "(\w+)" is used before its value is set'  # in NVRTC's words
UNCLOSED = r'At end of source: error: expected a "}}"\n{}\((\d+)\): note'  # in NVRTC's words
MOST_TIMEOUTS = 2  # launches that never end, before the rest is left alone
LARGEST_PYTHON = 64 << 20  # bytes that the Python cells may give back
TASKS = Path(__file__).resolve().with_name("tasks")  # know the right answers; nothing of them is imported before


def main() -> None:
    gc.freeze()
    gc.enable()  # off while its imports came: see child.py
    job_file, results, *asking = map(int, sys.argv[1:])
    job: Job = pickle.loads(read_job(job_file))
    torch.set_num_threads(1)
    run_job(job, results, asking)


def run_job(job: Job, results: int, asking: Sequence[int] = ()) -> None:
    """Does a job, and sends the frames of what comes out to the file number `results`. asking: see `child.ask`."""
    send(results, {"kind": "ready"})  # from here on, what goes wrong is the student's
    if job.cells:
        _send_python(job, results, asking)
    if job.runs or asking:
        _send_cases(job, results, asking)


# ---- the student's Python


def _send_python(job: Job, results: int, asking: Sequence[int]) -> None:
    """Runs the cells for their answers, and again for their tensors where the exercise takes some."""
    ours = (results, *asking)
    header, blob = _in_a_process(_give_answers, job, ours, hidden=TASKS)
    if job.collects:
        of_tensors, blob = _in_a_process(_give_tensors, job, ours)
        errors = {cell: how for cell, how in _errors(header).items() if cell == "answers"}
        header = {**of_tensors, "answers": header.get("answers"), "errors": _errors(of_tensors) | errors}
    send(results, {**header, "kind": "python"}, blob)


def _errors(header: Mapping[str, Any]) -> dict[str, Any]:
    """By cell; the header came from a process that the student's code has run in."""
    errors = header.get("errors")
    return errors if isinstance(errors, dict) else {}


def _in_a_process(
    give: Callable[[Job], list[bytes]], job: Job, ours: Sequence[int], hidden: Path | None = None
) -> tuple[dict[str, Any], bytes]:
    """What `give` gives in a process of its own, so that exit() or a crash there leaves the kernels alone.

    ours: file numbers that it must not have. hidden: a folder that it cannot read, where the kernel has Landlock, by
    which it cannot reach this process's memory either.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.setsid()
        os.close(reading)
        for file in ours:
            os.close(file)
        hide(hidden)
        _, allowed = resource.getrlimit(resource.RLIMIT_DATA)
        most = _bytes_held() + PYTHON_BYTES
        most = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        with os.fdopen(writing, "wb") as pipe:
            pipe.writelines(give(job))
        os._exit(0)
    os.close(writing)
    content, deadline, in_time = bytearray(), time.monotonic() + PYTHON_SECONDS, True
    while len(content) <= LARGEST_PYTHON:
        in_time = bool(select.select([reading], [], [], max(0.0, deadline - time.monotonic()))[0])
        piece = os.read(reading, 1 << 20) if in_time else b""
        if not piece:
            break
        content += piece
    os.close(reading)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    header, blob = _parse_python(bytes(content))
    if header is None:
        how = f"they did not end within {PYTHON_SECONDS:.0f} s"
        if in_time:
            ended = signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
            how = f"they ended the process ({ended}) before the answers were read"
        header, blob = {"errors": dict.fromkeys((cell for cell, _ in job.cells), how)}, b""
    return header, blob


def _bytes_held() -> int:
    """Data of this process: what it has from the one that it was forked from counts against its limit, too."""
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    return pages * resource.getpagesize()


def _give_answers(job: Job) -> list[bytes]:
    """The cells' answers, in a line of JSON."""
    names, errors = _run_cells(job)
    answers: dict[str, float | str | None] = {}
    try:
        if "answers" in names:
            answers = _answers(names["answers"], job.questions)
    except BaseException as error:
        errors.setdefault("answers", _last_line(error))
    return [json.dumps({"answers": answers, "errors": errors}).encode()]


def _give_tensors(job: Job) -> list[bytes]:
    """What the exercise takes from the cells: a line of JSON with name, dtype and shape of each tensor, then bytes."""
    names, errors = _run_cells(job)
    last, tensors = job.cells[-1][0], {}
    try:
        if last not in errors:
            tensors = catalog.exercise(job.exercise).collect(names)
    except BaseException as error:
        errors[last] = _last_line(error)
    listed = [(name, str(t.dtype).removeprefix("torch."), list(t.shape)) for name, t in tensors.items()]
    header = json.dumps({"tensors": listed, "errors": errors}).encode()
    return [header + b"\n", *(_bytes(tensor) for tensor in tensors.values())]


def _run_cells(job: Job) -> tuple[dict[str, object], dict[str, str]]:
    """The cells' variables, and their errors by cell: one that fails does not stop the others."""
    # A cell is run without the notebook around it, where some names are at hand.
    names: dict[str, object] = {"__name__": "__main__", "display": print, "math": math, "np": np, "torch": torch}
    errors: dict[str, str] = {}
    if any("Generator" in source or "import" in source for _, source in job.cells):
        # torch.Generator needs it, and what imports it is left out here (sandbox.parent.LATER): a tenth of the start. A
        # cell that neither names it nor imports anything has no way to it.
        importlib.import_module("torch._prims.rng_prims")
    for cell, source in job.cells:
        try:
            exec(_compiled_cell(cell, source), names)
        except BaseException as error:  # sys.exit too
            errors[cell] = _last_line(error)
    return names, errors


def _answers(given: object, questions: Sequence[str]) -> dict[str, float | str | None]:
    if not isinstance(given, dict):
        raise TypeError(f"answers must be a dict, got {type(given).__name__}")
    return {name: _number(given.get(name)) for name in questions}


def _compiled_cell(cell: str, source: str) -> CodeType:
    """The cell's code; if it is not Python as it stands, without IPython's own lines, such as %matplotlib."""
    name = f"cell {cell!r}"
    try:
        return compile(source, name, "exec")
    except SyntaxError:
        return compile(re.sub(r"^[ \t]*[%!].*$", "", source, flags=re.MULTILINE), name, "exec")


def _number(value: object) -> float | str | None:
    """An answer as a float; None where there is none yet, and what it is instead where it is no number."""
    if value is None or value is Ellipsis:
        return None
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return repr(value)[:80]


def _last_line(error: BaseException) -> str:
    """The exception in one line, with the line of the student's cell that it came from."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename.startswith("cell ")]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {str(error)[:500]}{place}"


def _parse_python(content: bytes) -> tuple[dict[str, Any] | None, bytes]:
    line, _, blob = content.partition(b"\n")
    try:
        header = json.loads(line)
    except (ValueError, RecursionError):
        return None, b""
    return (header, blob) if isinstance(header, dict) else (None, b"")


# ---- the student's kernel


def _send_cases(job: Job, results: int, asking: Sequence[int]) -> None:
    source = KernelSource(job.kernel, Path.cwd() / job.file, job.file)
    problem = _interface_problem(job, source)
    modules: dict[tuple[str, ...], RawModule | dict[str, Any]] = {}
    endless: list[int | None] = []  # lines of the launches that did not end
    for run in _all_runs(job, results, asking):
        send(results, {"kind": "begin", "index": run.index})
        header: dict[str, Any] = {}
        outputs: list[bytes] = []
        if problem is not None:
            header = problem
        elif len(endless) >= MOST_TIMEOUTS:
            words = f"not run, since {len(endless)} launches before did not end"
            header = {"error": words, "error_kind": "time limit", "line": endless[0]}
        else:
            seconds = LATER_SECONDS if endless else LAUNCH_SECONDS
            header, outputs = _run_case(job, run, source, modules, seconds)
            if header.get("error_kind") == "time limit":
                endless.append(header.get("line"))
        send(results, {**header, "kind": "case", "index": run.index}, b"".join(outputs))
        if header.get("error_kind") == "gpu":
            os._exit(1)  # after a fault, or a launch that goes on, CUDA takes no more: the next case has a new process


def _all_runs(job: Job, results: int, asking: Sequence[int]) -> Iterator[Run]:
    yield from job.runs
    while asking and (more := ask(results, *asking)) is not None:
        yield from pickle.loads(more)


def _interface_problem(job: Job, source: KernelSource) -> dict[str, Any] | None:
    """What keeps every launch from being tried, if anything does."""
    rule = broken_rule(source, assembly=job.assembly)
    if rule is not None:
        return {"error": rule[0], "error_kind": "rule", "line": rule[1]}
    there_are = sorted(name for name, kernel in find_kernels(source).items() if kernel.bodies)
    for kernel in job.kernels:
        if kernel not in there_are:
            listed = ", ".join(f"{name}()" for name in there_are) or "no __global__ function"
            return {"error": f"it defines {listed}", "error_kind": "undefined"}
    return None


def _compiled(
    source: KernelSource, options: tuple[str, ...], modules: dict[tuple[str, ...], RawModule | dict[str, Any]]
) -> RawModule | dict[str, Any]:
    """The module of these options, or why there is none. NVIDIA's compiler has the first word: what it refuses would
    not run on a GPU, though the emulator's C++ compiler may take it.
    """
    if options not in modules:
        try:
            _compile_log(source, options)
            modules[options] = RawModule(code=source, options=options)
        except CompileError as error:
            modules[options] = _compile_problem(error, source)
    return modules[options]


@functools.lru_cache(maxsize=16)
def _compile_log(source: KernelSource, options: tuple[str, ...]) -> str:
    """What NVIDIA's compiler says of a kernel that it takes. Raises CompileError for others.

    Where it serializes the products of a warpgroup, the kernel runs on all the same: asynccheck can say why it does.
    """
    try:
        return compile_kernel(source, str(presented_architecture(source)), options).log
    except CompileError as error:
        if not serialized_lines(error.log):
            raise
        return error.log


def _compile_problem(error: CompileError, source: KernelSource) -> dict[str, Any]:
    """The first error in the student's file, with the line that it speaks of."""
    error_line = rf"^.*{re.escape(source.name)}[:(](\d+)\b.*(?:error|the emulator).*$"
    first = re.search(error_line, str(error), flags=re.MULTILINE)
    if first is not None:
        line, said = int(first[1]), first[0].strip()
        if said.endswith('error: expected a ";"') and (ends := _line_without_end(source, line)):
            line, said = ends, f'{source.name}({ends}): error: expected a ";" at the end of this line'
    elif opened := re.search(UNCLOSED.format(re.escape(source.name)), str(error)):
        line, said = int(opened[1]), f'{source.name}: error: expected a "}}" for the "{{" of this line'
    else:
        return {"error": str(error)[:500], "error_kind": "compile", "line": None}
    code = line_text(source, line)
    text = said + (f"\n{line:6d} | {code[:300]}" if code else "")
    return {"error": text, "error_kind": "compile", "line": line}


def _line_without_end(source: KernelSource, line: int) -> int | None:
    """Where a compiler misses a semicolon in a line: the line of code above it, if that is no whole statement."""
    above = [(number, text.rstrip()) for number, text in enumerate(blank_comments(source).split("\n")[: line - 1], 1)]
    number, text = next(((number, text) for number, text in reversed(above) if text), (0, ";"))
    return (
        number if re.search(r"[\w)\]\"']$", text) and not re.match(r"\s*(#|(for|if|while|else|do)\b)", text) else None
    )


@functools.lru_cache(maxsize=16)
def _used_unset(source: KernelSource, options: tuple[str, ...]) -> str:
    """The first local variable that the student's file uses before it has a value, in a sentence, or nothing."""
    found = re.search(re.escape(source.name) + USED_UNSET, _compile_log(source, options))
    return f"{found[2]} is used before its value is set (line {found[1]})" if found else added_to_unset(source)


def _first_lines(printed: str) -> str:
    """What a kernel printed, so much of it that a person reads it."""
    lines = printed.splitlines()
    more = [f"… and {len(lines) - MOST_PRINTED:,} more lines"] if len(lines) > MOST_PRINTED else []
    return "\n".join([line[:200] for line in lines[:MOST_PRINTED]] + more)


def _run_case(
    job: Job,
    run: Run,
    source: KernelSource,
    modules: dict[tuple[str, ...], RawModule | dict[str, Any]],
    seconds: float,
) -> tuple[dict[str, Any], list[bytes]]:
    header: dict[str, Any] = {}
    for launch in run.launches:
        module = _compiled(source, launch.options, modules)
        if isinstance(module, dict):
            return module, []
    problem: dict[str, Any] = {}
    if not run.reference:  # what is to be timed is too large for the emulator
        tensors = copies(run)
        with (
            configure(time_limit=seconds, threads=1),
            contextlib.redirect_stdout(io.StringIO()) as printed,  # printf of a kernel
        ):
            if required_architecture(source).exact:  # of sm_90a each of the two watches alone
                with sanitize() as report:
                    problem = _launch(run, source, modules, tensors)
                with profile() as counters, contextlib.redirect_stdout(io.StringIO()):
                    if not problem:
                        _launch(run, source, modules, copies(run))
            else:
                with sanitize() as report, profile() as counters:
                    problem = _launch(run, source, modules, tensors)
        header["printed"] = _first_lines(printed.getvalue())
        header["unset"] = next(filter(None, (_used_unset(source, launch.options) for launch in run.launches)), "")
        header["serialized"] = "\n".join(
            line for launch in run.launches for line in serialized_lines(_compile_log(source, launch.options))
        )
        found = [asdict(finding) for finding in report.findings[:MOST_FINDINGS]]
        header["findings"] = [{name: value for name, value in one.items() if name not in NOT_SENT} for one in found]
        header["counters"] = [asdict(row) for row in counters.rows]
        header["footprint"] = [asdict(touched) for touched in counters.footprint]
        header |= {name: getattr(counters, name) for name in COUNTED}
    if job.device == "cuda" and not problem and (run.reference or _gpu_takes(source)):
        tensors = _on_gpu(run)
        problem = _launch(run, source, modules, tensors)
        if not problem and run.reference:
            header |= _timings(run, modules)
    outputs = [] if problem else [_bytes(tensors[name]) for name in run.outputs]
    if not run.reference and _lacks_barriers_only(report.findings):
        tensors = copies(run)
        with configure(time_limit=seconds, threads=1), in_step(), contextlib.redirect_stdout(io.StringIO()):
            header["in_step"] = not _launch(run, source, modules, tensors)
        if header["in_step"]:
            outputs += [_bytes(tensors[name]) for name in run.outputs]
    elif run.index == 0 and not (run.reference or problem or report.findings):
        others = _in_reverse(run, source, modules, seconds, outputs)
        header["in_reverse"] = bool(others)
        outputs += others
    return {**header, **problem}, outputs


def _in_reverse(
    run: Run,
    source: KernelSource,
    modules: Mapping[tuple[str, ...], RawModule | dict[str, Any]],
    seconds: float,
    outputs: list[bytes],
) -> list[bytes]:
    """The outputs where the last thread of a block begins, and not the first; none if they are `outputs`, or if that
    ends in no time. The library for watched launches is there, and one block to watch costs the least."""
    tensors = copies(run)
    with (
        configure(time_limit=seconds, threads=1, thread_order="reverse"),
        profile(blocks=0),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        if _launch(run, source, modules, tensors):
            return []
    found = [_bytes(tensors[name]) for name in run.outputs]
    return [] if found == outputs else found


def _gpu_takes(source: KernelSource) -> bool:
    """Whether this GPU runs such a kernel. One for sm_90a alone is left to the emulator where it does not."""
    needed = required_architecture(source)
    return not needed.exact or torch.cuda.get_device_capability() == divmod(needed.number, 10)


def _lacks_barriers_only(findings: Sequence[Finding]) -> bool:
    """Whether threads meet in shared memory, and nothing else is found but reads of what is not written yet."""
    return any(f.tool == "racecheck" and f.space == "shared" for f in findings) and all(
        f.tool in ("racecheck", "initcheck") for f in findings
    )


def _launch(
    run: Run,
    source: KernelSource,
    modules: Mapping[tuple[str, ...], RawModule | dict[str, Any]],
    tensors: Mapping[str, Tensor],
) -> dict[str, Any]:
    """Runs the launches of a case on these tensors; returns what went wrong, or nothing."""
    try:
        for launch in run.launches:
            function = modules[launch.options].get_function(launch.kernel)
            with configure(thread_order=launch.thread_order):
                function(launch.grid, launch.block, arguments(launch, tensors), shared_mem=launch.shared_mem)
        if any(tensor.is_cuda for tensor in tensors.values()):
            _wait_for_gpu()
    except KernelError as error:
        return {"error": str(error), "error_kind": error.kind, "line": error.line}
    except CompileError as error:
        return _compile_problem(error, source)
    except LaunchError as error:
        return {"error": str(error), "error_kind": "launch"}
    except (TypeError, ValueError, LookupError) as error:
        return {"error": str(error), "error_kind": "interface"}
    except Exception as error:  # CuPy's and the driver's own
        return {"error": f"{type(error).__name__}: {error}", "error_kind": "gpu"}
    return {}


def _wait_for_gpu() -> None:
    """Waits until the GPU has done its launches. Raises TimeoutError for one that goes on: the end of this process ends
    it, too."""
    done = torch.cuda.Event()
    done.record()
    deadline = time.monotonic() + LAUNCH_SECONDS
    while not done.query():
        if time.monotonic() > deadline:
            raise TimeoutError(f"the launch did not end within {LAUNCH_SECONDS:.0f} s on the GPU")
        time.sleep(0.001)


def arguments(launch: Launch, tensors: Mapping[str, Tensor]) -> tuple[Tensor | TensorMap | np.generic, ...]:
    """What a launch hands to the kernel, of these tensors."""
    return tuple(_argument(argument, tensors) for argument in launch.arguments)


def _argument(argument: str | Boxes | np.generic, tensors: Mapping[str, Tensor]) -> Tensor | TensorMap | np.generic:
    if isinstance(argument, Boxes):
        tensor = tensors[argument.tensor]
        return tensor_map(tensor[:, None], (1, 1, argument.rows, tensor.shape[-1]))
    return tensors[argument] if isinstance(argument, str) else argument


def copies(run: Run) -> dict[str, Tensor]:
    """The tensors of a case in their first state, for one launch."""
    return {name: tensor.clone() for name, tensor in run.tensors.items()}


def _on_gpu(run: Run) -> dict[str, Tensor]:
    return {name: tensor.to("cuda", copy=True) for name, tensor in run.tensors.items()}


def _timings(run: Run, modules: Mapping[tuple[str, ...], RawModule | dict[str, Any]]) -> dict[str, float]:
    """Times of the student's launches and the reference's, each on tensors of its own: none finds the other's work."""
    from course_utils.timing import compare

    theirs = [(RawModule(code=read_kernel(name), options=launch.options), launch) for name, launch in run.reference]
    ours = [(modules[launch.options], launch) for launch in run.launches]

    def work(pairs: list[tuple[Any, Launch]]) -> Callable[[], None]:
        tensors = _on_gpu(run)
        ready = [(module.get_function(launch.kernel), launch, arguments(launch, tensors)) for module, launch in pairs]

        def run_all() -> None:
            for function, launch, arguments in ready:
                function(launch.grid, launch.block, arguments, shared_mem=launch.shared_mem)

        return run_all

    times = compare({"student": work(ours), "reference": work(theirs)})
    return {"seconds": times["student"].median / 1e3, "reference_seconds": times["reference"].median / 1e3}


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


if __name__ == "__main__":
    main()
