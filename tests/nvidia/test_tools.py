"""compute-sanitizer and ncu: the command lines, how they are run, and what happens where they are missing.

A fake program that prints what a tool printed stands in for it.
"""

import faulthandler
import os
import stat
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.launches import Launch
from course_utils.nvidia import tools
from course_utils.nvidia.figures import METRICS, ncu_figures
from course_utils.nvidia.replay import replay
from course_utils.nvidia.tools import ToolError
from tests.helpers.nvidia_output import ADDITION, CLEAN, LAUNCH, MEMCHECK, NCU, READ, SECTORS

# ---- command lines


def test_command_lines_are_what_a_person_would_type():
    assert tools.compute_sanitizer_command(LAUNCH, "racecheck") == (
        "compute-sanitizer --tool racecheck --kernel-name kns=vector_add python my_script.py"
    )
    assert tools.compute_sanitizer_command("scores").startswith(
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --padding 1024 "
    )
    command = tools.ncu_command(LAUNCH, [f"{READ}.sum", f"{SECTORS}.sum"], "python x.py")
    words = f"ncu --clock-control none -k vector_add --metrics {READ}.sum,{SECTORS}.sum python x.py"
    assert command.replace("\\\n", "").split() == words.split()


def test_bad_arguments_are_named():
    with pytest.raises(
        ValueError, match="tool takes one of memcheck, racecheck, initcheck, synccheck, got 'leakcheck'"
    ):
        tools.compute_sanitizer_command(LAUNCH, "leakcheck")
    with pytest.raises(ValueError, match="program takes one of compute-sanitizer, ncu, got 'nsys'"):
        tools.why_unavailable("nsys")


# ---- running


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    tools._known.cache_clear()
    tools._find.cache_clear()
    yield
    tools._known.cache_clear()
    tools._find.cache_clear()


@pytest.fixture
def fake(gpu, tmp_path, monkeypatch):
    """Puts a program on the PATH, a Python script that has its arguments in `args`."""

    def write(name: str, script: str) -> None:
        program = tmp_path / name
        program.write_text(f"#!{sys.executable}\nimport os, sys, time\nargs = sys.argv[1:]\n{script}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return write


def test_without_a_gpu_the_reason_is_given_and_nothing_runs(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for program in tools.PROGRAMS:
        assert "needs an NVIDIA GPU" in tools.why_unavailable(program)
    with pytest.raises(ToolError, match="ncu needs an NVIDIA GPU"):
        tools.run_ncu([LAUNCH])
    with pytest.raises(ToolError, match="compute-sanitizer needs an NVIDIA GPU"):
        tools.run_compute_sanitizer(LAUNCH)


def test_without_the_tool_the_reason_is_given(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(tools, "FOLDERS", (str(tmp_path / "cuda"),))
    assert "ncu is not installed" in tools.why_unavailable("ncu")


def test_compute_sanitizer_watches_a_replay_without_torchs_pool(fake):
    fake(
        "compute-sanitizer",
        f"if '--help' in args: print('  --padding arg (=0)'); sys.exit()\n"
        f"assert args[:2] == ['--tool', 'memcheck'], args\n"
        f"assert args[-4:-2] == ['-m', 'course_utils.nvidia.replay'] and os.path.exists(args[-2])\n"
        f"assert args[args.index('--padding') + 1] == '1024'\n"
        f"assert os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] == '1'\n"
        f"print({MEMCHECK!r})",
    )
    run = tools.run_compute_sanitizer(LAUNCH)
    assert [finding.line for finding in run.findings] == [ADDITION]
    assert MEMCHECK in run.output and not run.failure


def test_a_clean_launch_gives_no_finding(fake):
    fake("compute-sanitizer", f"print({CLEAN!r})")
    assert tools.run_compute_sanitizer(LAUNCH, "synccheck").findings == []


def test_launches_under_one_process_are_silent_if_all_end_and_nothing_is_found(fake):
    for said, silent in ((CLEAN, False), (CLEAN + CLEAN, True), (CLEAN + CLEAN + MEMCHECK, False)):
        fake("compute-sanitizer", f"print({said!r})")
        assert tools.compute_sanitizer_is_silent([LAUNCH, LAUNCH], "racecheck") == silent


def test_what_was_found_before_the_time_limit_is_kept(fake):
    fake("compute-sanitizer", f"print('launching vector_add()')\nprint({MEMCHECK!r}, flush=True)\ntime.sleep(60)")
    run = tools.run_compute_sanitizer(LAUNCH, "synccheck", timeout=1)
    assert run.failure == "hangs: stopped after 1 s" and len(run.findings) == 1


@pytest.mark.parametrize("said", ["launch failed: CUDA error: misaligned address", "hangs: stopped after 12 s"])
def test_a_kernel_that_does_not_end_is_a_verdict(fake, said):
    fake("compute-sanitizer", f"print('launching vector_add()')\nprint({said!r})\nsys.exit(1)")
    run = tools.run_compute_sanitizer(LAUNCH, "racecheck")
    assert (run.findings, run.failure) == ([], said)


class Tensor:
    """What stands for one on a GPU whose launch has failed."""

    def __del__(self):
        os.abort()  # as torch does


def fails_at_once(message):
    tensor = Tensor()  # noqa: F841
    raise RuntimeError(message)


def fails_later(message):
    torch.cuda.synchronize = partial(fails_at_once, message)
    return [Tensor()]


def hangs(message):
    torch.cuda.synchronize = lambda: time.sleep(60)
    return [Tensor()]


@pytest.fixture
def replayed(fake, monkeypatch):
    """replayed(run, message): replays under compute-sanitizer are forks of this process, which has imported torch;
    without a GPU, `run` takes the place of a launch there."""
    fake("compute-sanitizer", "")

    def choose(run, message):
        def fork(command, folder, timeout, environment):
            output = Path(folder) / "output.txt"
            child = os.fork()
            if child == 0:
                try:
                    faulthandler.disable()
                    sys.stdout = sys.stderr = output.open("w")
                    torch.cuda.synchronize = lambda: None
                    RawModule.compile = lambda self, device: None
                    Launch.run = lambda self, device: run(message)
                    replay(command[-2], 1)
                finally:
                    os._exit(1)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.read_text()

        monkeypatch.setattr(tools, "_run", fork)

    return choose


@pytest.mark.parametrize(
    ("run", "message", "failure"),
    [
        (
            fails_at_once,
            "CUDA error: misaligned address\nSearch for it",
            "launch failed: CUDA error: misaligned address",
        ),
        (
            fails_later,
            "cudaErrorLaunchFailure: unspecified launch failure",
            "launch failed: CUDA error: unspecified launch failure",
        ),
        (hangs, "", "hangs: stopped after 1 s"),
    ],
)
def test_a_replay_says_why_a_kernel_did_not_end(replayed, run, message, failure):
    replayed(run, message)
    result = tools.run_compute_sanitizer(LAUNCH, "racecheck")
    assert result == ([], f"launching vector_add()\n{failure}\n", failure)


def test_a_failure_that_is_not_cudas_is_no_verdict(replayed):
    replayed(fails_at_once, "no such file")
    with pytest.raises(ToolError, match=r"did not get as far as vector_add\(\)"):
        tools.run_compute_sanitizer(LAUNCH, "racecheck")


def test_a_replay_that_never_launched_is_no_clean_result(fake):
    fake(
        "compute-sanitizer",
        "print('========= COMPUTE-SANITIZER\\nImportError: no cupy\\n========= ERROR SUMMARY: 0 errors')",
    )
    with pytest.raises(ToolError, match=r"did not get as far as vector_add\(\):(.|\n)*no cupy"):
        tools.run_compute_sanitizer(LAUNCH)


def fake_ncu(text: str, code: int = 0) -> str:
    known = "\\n".join(["Metric Name  Metric Type", *(f"{name}  Counter" for name in METRICS[:3])])
    return (
        f"if '--query-metrics' in args: print({known!r}.replace(chr(92) + 'n', chr(10))); sys.exit()\n"
        f"assert args[args.index('--metrics') + 1] == {','.join(f'{name}.sum' for name in METRICS[:3])!r}, args\n"
        f"open(args[args.index('--log-file') + 1], 'w').write({text!r})\n"
        f"sys.exit({code})"
    )


def test_ncu_asks_for_the_metrics_that_it_knows_and_matches_launches_by_order(fake):
    lines = NCU.splitlines(keepends=True)
    fake("ncu", fake_ncu("".join([*lines[:5], lines[4].replace('"64"', '"65"')])))
    first, second = tools.run_ncu([LAUNCH, LAUNCH])
    assert (first[SECTORS], second[SECTORS]) == (64, 65)


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (NCU, 0, "reported 2 of 1 launches"),
        ("==ERROR== ERR_NVGPUCTRPERM", 1, "permission.*\n(.|\n)*ERR_NVGPUCTRPERM"),
        ("==ERROR== broken", 9, r"failed \(exit status 9\)(.|\n)*broken"),
    ],
)
def test_a_failure_of_ncu_is_an_error_with_the_end_of_its_output(fake, text, code, message):
    fake("ncu", fake_ncu(text, code))
    with pytest.raises(ToolError, match=message):
        tools.run_ncu([LAUNCH])


def test_kernels_of_any_program_can_be_counted(fake):
    fake("ncu", fake_ncu(NCU))
    found = tools.count_program(["-c", "pass"], METRICS[:3])
    assert [(name, counters[SECTORS]) for name, counters in found] == [("vector_add", 64), ("turn", 1024)]


def test_versions_are_read(fake):
    fake("ncu", "print('NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)')")
    assert tools.version("ncu") == "2025.3.1.0"


def test_the_file_of_a_replay_holds_the_launches(tmp_path):
    command = tools._replay(str(tmp_path), [LAUNCH])
    (loaded,) = torch.load(Path(command[-2]), weights_only=False)
    assert loaded.describe() == LAUNCH.describe()


@pytest.mark.gpu
@pytest.mark.parametrize("program", tools.PROGRAMS)
def test_the_tools_run_on_a_gpu(program):
    if reason := tools.why_unavailable(program):
        pytest.skip(reason)
    fits = Launch(**{**vars(LAUNCH), "args": (*torch.zeros(3, 256), np.int32(256))})
    if program == "ncu":
        figures = ncu_figures(tools.run_ncu([fits])[0])
        assert (figures["global load requests"], figures["global store sectors"]) == (16, 32)
    else:
        overrun = Launch(**{**vars(LAUNCH), "grid": (2,)})
        assert tools.run_compute_sanitizer(fits)[::2] == ([], "")
        assert {f.line for f in tools.run_compute_sanitizer(overrun).findings} == {ADDITION}
        assert tools.compute_sanitizer_is_silent([fits, fits], "memcheck")
        assert not tools.compute_sanitizer_is_silent([fits, overrun], "memcheck")
