"""compute-sanitizer and ncu: what they print is read right, on any machine; and what happens where they are missing.

The captured texts are theirs, shortened; a fake program that prints one stands in for the tool where it is run.
"""

import os
import stat
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from course_utils import measured
from course_utils.cuda import read_kernel
from course_utils.launches import Launch
from course_utils.nvidia import measure as bench_counters
from course_utils.nvidia import tools as nvidia_tools
from course_utils.nvidia.tools import FIGURES, METRICS, ToolError

LAUNCH = Launch("00_start_here/vector_add.cu", "vector_add", (1,), (256,), (*torch.zeros(3, 256), np.int32(300)))
ADDITION = next(n for n, line in enumerate(read_kernel(LAUNCH.source).splitlines(), 1) if "c[i] = a[i]" in line)

MEMCHECK = f"""\
========= COMPUTE-SANITIZER
========= Invalid __global__ read of size 4 bytes
=========     at vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========     by thread (1,0,0) in block (3,2,0)
=========     Access at 0x7f3c4f400400 is out of bounds
=========     and is 1 bytes after the nearest allocation at 0x7f3c4f400000 of size 1,024 bytes
=========         Device Frame: vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========
========= Invalid __global__ read of size 4 bytes
=========     at vector_add+0x90 in /tmp/tmp1ab/6f3c.cubin.cu:{ADDITION}
=========     by thread (2,0,0) in block (3,2,0)
=========     Access at 0x7f3c4f400404 is out of bounds
=========
Traceback (most recent call last):
========= Target application returned an error
========= ERROR SUMMARY: 2 errors
"""
INLINED = """\
========= COMPUTE-SANITIZER
========= Barrier error detected. Divergent thread(s) in block
=========     at half_barrier(int)+0x40 in /home/me/smoke.cu:16
=========     by thread (31, 0, 0) in block (0, 0, 0)
=========         Device Frame: divergent_barrier(float *, int)+0x40 in /home/me/smoke.cu:21
=========
========= ERROR SUMMARY: 1 error
"""
RACECHECK = """\
========= COMPUTE-SANITIZER
========= Error: Race reported between Write access at void turn<(int)32>(float *, int)+0x130 in /tmp/a.cubin.cu:12
=========     and Read access at void turn<(int)32>(float *, int)+0x170 in /tmp/a.cubin.cu:13 [896 hazards]
=========     and Write access at void turn<(int)32>(float *, int)+0x130 in /tmp/a.cubin.cu:12 [4 hazards]
=========
========= Warning: Race reported between Read access at void turn<(int)32>(float *, int)+0x10
=========     and Write access at void turn<(int)32>(float *, int)+0x20 [1 hazard]
=========
========= RACECHECK SUMMARY: 2 hazards displayed (1 error, 1 warning)
"""
CLEAN = """\
========= COMPUTE-SANITIZER
launched vector_add()
========= ERROR SUMMARY: 0 errors
"""
READ, SECTORS, LDSM = "dram__bytes_read", "l1tex__t_sectors_pipe_lsu_mem_global_op_ld", "smsp__inst_executed_op_ldsm"
NCU = f"""\
==PROF== Connected to process 123 (/usr/bin/python3.12)
==PROF== Profiling "vector_add" - 0: 0%....50%....100% - 4 passes
"ID","Process ID","Kernel Name","Block Size","Grid Size","CC","{READ}.sum","{SECTORS}.sum","{LDSM}.sum"
"","","","","","","byte","sector",""
"0","123","vector_add","(256, 1, 1)","(1, 1, 1)","9.0","2,304","64","0"
"1","123","void turn<32>(float *, int)","(32, 1, 1)","(1, 1, 1)","9.0","1.5e+03","1,024","n/a"
"""


# ---- reading


def test_a_memcheck_finding_names_the_file_and_line_of_the_launch():
    (finding,) = nvidia_tools.parse_sanitizer(MEMCHECK, "memcheck", LAUNCH)
    assert finding.tool == "memcheck" and finding.message == "Invalid __global__ read of size 4 bytes"
    assert (finding.kernel, finding.file, finding.line) == ("vector_add", LAUNCH.source, ADDITION)
    assert finding.source.startswith("c[i] = a[i] + b[i];")
    assert (finding.block, finding.thread) == ((3, 2, 0), (1, 0, 0))
    assert finding.count == 2  # the same line, by two threads


def test_a_finding_in_an_inlined_function_belongs_to_the_kernel_that_calls_it():
    (finding,) = nvidia_tools.parse_sanitizer(INLINED, "synccheck")
    assert (finding.kernel, finding.file, finding.line) == ("divergent_barrier", "/home/me/smoke.cu", 16)
    assert finding.message == "Barrier error detected. Divergent thread(s) in block"


def test_a_race_has_two_parties_and_counts_its_hazards():
    first, second = nvidia_tools.parse_sanitizer(RACECHECK, "racecheck")
    assert first.message == "Race between write access and read or write access"
    assert (first.kernel, first.line, first.other_line, first.count) == ("turn", 12, 13, 900)
    assert (first.block, first.thread) == (None, None)  # racecheck's summary of hazards names no thread
    assert (second.line, second.other_line, second.count) == (None, None, 1)  # compiled without -lineinfo


def test_summaries_and_errors_of_the_cuda_api_are_no_findings():
    api = (
        '========= Program hit cudaErrorLaunchFailure (error 719) due to "unspecified launch failure"\n'
        "=========     Saved host backtrace up to driver entry point at error\n"
        "=========         Host Frame: [0x3a5f2c] in libcuda.so.1\n"
    )
    assert nvidia_tools.parse_sanitizer(CLEAN + api, "memcheck", LAUNCH) == []


def test_ncu_rows_come_by_launch_with_plain_numbers():
    assert nvidia_tools.parse_ncu(NCU) == [
        ("vector_add", {READ: 2304, SECTORS: 64, LDSM: 0}),
        ("turn", {READ: 1500, SECTORS: 1024}),
    ]


def test_a_figure_is_the_sum_of_the_metrics_that_there_are():
    atom, red = FIGURES["global atomic sectors"].metrics
    assert nvidia_tools.ncu_figures({atom: 3, red: 4, "dram__bytes_read": 5}) == {"global atomic sectors": 7}


def test_shared_memory_is_counted_at_l1_and_only_the_stores_of_cp_async_by_their_instructions():
    name = "pipe_lsu_wavefronts_mem_shared_op"
    metrics = {f"l1tex__data_{name}_{op}": n for op, n in [("ld", 16), ("st", 4), ("atom", 2)]}
    metrics |= {f"smsp__sass_l1tex_data_{name}_{op}": n for op, n in [("ld", 28), ("st", 5), ("ldgsts", 8)]}
    assert nvidia_tools.ncu_figures(metrics) == {
        "shared load wavefronts": 16,
        "shared store wavefronts": 12,
        "shared atomic wavefronts": 2,
    }


# ---- command lines


def test_command_lines_are_what_a_person_would_type():
    assert nvidia_tools.compute_sanitizer_command(LAUNCH, "racecheck") == (
        "compute-sanitizer --tool racecheck --kernel-name kns=vector_add python my_script.py"
    )
    assert nvidia_tools.compute_sanitizer_command("scores").startswith(
        "PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --padding 1024 "
    )
    command = nvidia_tools.ncu_command(LAUNCH, [f"{READ}.sum", f"{SECTORS}.sum"], "python x.py")
    words = f"ncu --clock-control none -k vector_add --metrics {READ}.sum,{SECTORS}.sum python x.py"
    assert command.replace("\\\n", "").split() == words.split()


def test_bad_arguments_are_named():
    with pytest.raises(
        ValueError, match="tool takes one of memcheck, racecheck, initcheck, synccheck, got 'leakcheck'"
    ):
        nvidia_tools.compute_sanitizer_command(LAUNCH, "leakcheck")
    with pytest.raises(ValueError, match="program takes one of compute-sanitizer, ncu, got 'nsys'"):
        nvidia_tools.why_unavailable("nsys")


# ---- running


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    nvidia_tools.known_metrics.cache_clear()
    nvidia_tools._find.cache_clear()
    yield
    nvidia_tools.known_metrics.cache_clear()
    nvidia_tools._find.cache_clear()


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
    for program in nvidia_tools.PROGRAMS:
        assert "needs an NVIDIA GPU" in nvidia_tools.why_unavailable(program)
    with pytest.raises(ToolError, match="ncu needs an NVIDIA GPU"):
        nvidia_tools.run_ncu([LAUNCH])
    with pytest.raises(ToolError, match="compute-sanitizer needs an NVIDIA GPU"):
        nvidia_tools.run_compute_sanitizer(LAUNCH)


def test_without_the_tool_the_reason_is_given(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(nvidia_tools, "FOLDERS", (str(tmp_path / "cuda"),))
    assert "ncu is not installed" in nvidia_tools.why_unavailable("ncu")


def test_compute_sanitizer_watches_a_replay_without_torchs_pool(fake):
    fake(
        "compute-sanitizer",
        f"if '--help' in args: print('  --padding arg (=0)'); sys.exit()\n"
        f"assert args[:2] == ['--tool', 'memcheck'], args\n"
        f"assert args[-5:-2] == ['-m', 'course_utils.nvidia.tools', 'replay'] and os.path.exists(args[-2])\n"
        f"assert args[args.index('--padding') + 1] == '1024'\n"
        f"assert os.environ['PYTORCH_NO_CUDA_MEMORY_CACHING'] == '1'\n"
        f"print({MEMCHECK!r})",
    )
    run = nvidia_tools.run_compute_sanitizer(LAUNCH)
    assert [finding.line for finding in run.findings] == [ADDITION]
    assert MEMCHECK in run.output and not run.failure


def test_a_clean_launch_gives_no_finding(fake):
    fake("compute-sanitizer", f"print({CLEAN!r})")
    assert nvidia_tools.run_compute_sanitizer(LAUNCH, "synccheck").findings == []


def test_what_was_found_before_the_time_limit_is_kept(fake):
    fake("compute-sanitizer", f"print('launching vector_add()')\nprint({MEMCHECK!r}, flush=True)\ntime.sleep(60)")
    run = nvidia_tools.run_compute_sanitizer(LAUNCH, "synccheck", timeout=2)
    assert run.failure == "hangs: stopped after 2 s" and len(run.findings) == 1


@pytest.mark.parametrize("said", ["launch failed: CUDA error: misaligned address", "hangs: stopped after 12 s"])
def test_a_kernel_that_does_not_end_is_a_verdict(fake, said):
    fake("compute-sanitizer", f"print('launching vector_add()')\nprint({said!r})\nsys.exit(1)")
    run = nvidia_tools.run_compute_sanitizer(LAUNCH, "racecheck")
    assert (run.findings, run.failure) == ([], said)


# A fake compute-sanitizer that does replay, without a GPU: `run` takes the place of the launch.
REPLAY = """
import torch
from course_utils.nvidia import tools as nvidia_tools
from course_utils.launches import Launch

class Tensor:
    def __del__(self):
        os.abort()  # as torch does after a failed launch

def fail(*_):
    raise RuntimeError({message!r})

def fails_at_once(self, device):
    tensor = Tensor()
    fail()

def fails_later(self, device):
    torch.cuda.synchronize = fail
    return [Tensor()]

def hangs(self, device):
    torch.cuda.synchronize = lambda: time.sleep(60)
    return [Tensor()]

torch.cuda.synchronize = lambda: None
nvidia_tools.RawModule.compile = lambda self, device: None
Launch.run = {run}
nvidia_tools.replay(args[-2], 1)
"""


@pytest.mark.parametrize(
    ("run", "message", "failure"),
    [
        (
            "fails_at_once",
            "CUDA error: misaligned address\nSearch for it",
            "launch failed: CUDA error: misaligned address",
        ),
        (
            "fails_later",
            "cudaErrorLaunchFailure: unspecified launch failure",
            "launch failed: CUDA error: unspecified launch failure",
        ),
        ("hangs", "", "hangs: stopped after 1 s"),
    ],
)
def test_a_replay_says_why_a_kernel_did_not_end(fake, run, message, failure):
    fake("compute-sanitizer", REPLAY.format(run=run, message=message))
    result = nvidia_tools.run_compute_sanitizer(LAUNCH, "racecheck")
    assert result == ([], f"launching vector_add()\n{failure}\n", failure)


def test_a_failure_that_is_not_cudas_is_no_verdict(fake):
    fake("compute-sanitizer", REPLAY.format(run="fails_at_once", message="no such file"))
    with pytest.raises(ToolError, match=r"did not get as far as vector_add\(\)"):
        nvidia_tools.run_compute_sanitizer(LAUNCH, "racecheck")


def test_a_replay_that_never_launched_is_no_clean_result(fake):
    fake(
        "compute-sanitizer",
        "print('========= COMPUTE-SANITIZER\\nImportError: no cupy\\n========= ERROR SUMMARY: 0 errors')",
    )
    with pytest.raises(ToolError, match=r"did not get as far as vector_add\(\):(.|\n)*no cupy"):
        nvidia_tools.run_compute_sanitizer(LAUNCH)


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
    first, second = nvidia_tools.run_ncu([LAUNCH, LAUNCH])
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
        nvidia_tools.run_ncu([LAUNCH])


def test_kernels_of_any_program_can_be_counted(fake):
    fake("ncu", fake_ncu(NCU))
    found = nvidia_tools.count_program(["-c", "pass"], METRICS[:3])
    assert [(name, counters[SECTORS]) for name, counters in found] == [("vector_add", 64), ("turn", 1024)]


def test_versions_are_read(fake):
    fake("ncu", "print('NVIDIA (R) Nsight Compute Command Line Profiler\\nVersion 2025.3.1.0 (build 1)')")
    assert nvidia_tools.version("ncu") == "2025.3.1.0"


# ---- the record


def test_launches_are_told_apart_by_all_that_decides_their_addresses():
    def describe(**changes: object) -> str:
        return nvidia_tools.describe(Launch(**{**vars(LAUNCH), **changes}))

    index = torch.arange(8, dtype=torch.int32)
    texts = [
        describe(),
        describe(grid=(2,)),
        describe(options=("-DN=1",)),
        describe(args=(index,)),
        describe(args=(index.flip(0),)),
        describe(args=(np.int32(3),)),
    ]
    assert len(set(texts)) == len(texts)
    assert describe(args=(*torch.ones(3, 256), np.int32(300))) == describe()


def test_recorded_figures_are_found_by_the_launch(tmp_path, monkeypatch):
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    assert nvidia_tools.recorded_figures(LAUNCH) is None
    metric = FIGURES["global load sectors"].metrics[0]
    rows = [{"name": "add", "launch": nvidia_tools.describe(LAUNCH), "metrics": {metric: 64}}]
    versions = {"torch": "2.11.0", "cuda": "13.0"}
    measured.write(measured.Measurement("counters", "NVIDIA H200", "1", versions, "2026-11-21", "bench", rows))
    figures, caption = nvidia_tools.recorded_figures(LAUNCH)
    assert figures == {"global load sectors": 64} and "NVIDIA H200" in caption


@pytest.mark.gpu
@pytest.mark.parametrize("program", nvidia_tools.PROGRAMS)
def test_the_tools_run_on_a_gpu(program):
    if reason := nvidia_tools.why_unavailable(program):
        pytest.skip(reason)
    fits = Launch(**{**vars(LAUNCH), "args": (*torch.zeros(3, 256), np.int32(256))})
    if program == "ncu":
        figures = nvidia_tools.ncu_figures(nvidia_tools.run_ncu([fits])[0])
        assert (figures["global load requests"], figures["global store sectors"]) == (16, 32)
    else:
        overrun = Launch(**{**vars(LAUNCH), "grid": (2,)})
        assert nvidia_tools.run_compute_sanitizer(fits)[::2] == ([], "")
        assert {f.line for f in nvidia_tools.run_compute_sanitizer(overrun).findings} == {ADDITION}


def test_side_by_side_without_a_gpu_shows_the_emulators_column_and_says_why(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("course_utils.measured.measurement.FOLDER", tmp_path)
    overrun = Launch(**{**vars(LAUNCH), "grid": (2,)})
    shown = nvidia_tools.side_by_side(overrun)
    assert {row["by"] for row in shown.findings} == {"emulator"}
    assert {row["line"] for row in shown.findings} == {ADDITION}
    assert {row["figure"] for row in shown.counters} == {
        name for name in FIGURES if name.startswith(("global l", "global s"))
    }
    assert "not recorded" in shown.note and "compute-sanitizer needs an NVIDIA GPU" in shown.note


# ---- the benches


def test_launches_of_a_failed_ncu_process_are_left_out_and_the_others_kept(monkeypatch, capsys):
    def run_ncu(launches, timeout):
        if launches[0].kernel == "load_float":
            raise ToolError("ncu failed")
        return [{"dram__bytes_read": 1}] * len(launches)

    monkeypatch.setattr(nvidia_tools, "run_ncu", run_ncu)
    rows = bench_counters.measure_counters()
    lost = bench_counters.NCU_LAUNCHES
    assert len(rows) == len(bench_counters.counter_cases()) - lost
    assert "load_float stride 1 ... " in capsys.readouterr().out
    large = next(row for row in rows if row["name"] == "scores, L=1024")
    assert (large["bytes_only_read"], large["bytes_written"]) == (2 * 4 * 1024 * 64 * 4, 4 * 1024 * 1024 * 4)


def test_sanitizer_runs_that_fail_or_come_too_late_are_left_out_and_the_others_kept(monkeypatch, capsys):
    def run(launch, tool):
        if launch.kernel == "copy":
            raise ToolError("no such kernel")
        found = nvidia_tools.parse_sanitizer(MEMCHECK, tool, launch) if launch.grid == (2,) else []
        return nvidia_tools.SanitizerRun(found, "", "hangs: stopped after 9 s" if tool == "synccheck" else "")

    copy = bench_counters.course_launches()["copy"]
    cases = [
        bench_counters.SanitizerCase("overrun", "broken", Launch(**{**vars(LAUNCH), "grid": (2,)}), "memcheck"),
        bench_counters.SanitizerCase("overrun", "mended", LAUNCH, "memcheck"),
        bench_counters.SanitizerCase("copy", "clean", copy),
    ]
    monkeypatch.setattr(nvidia_tools, "run_compute_sanitizer", run)
    monkeypatch.setattr(bench_counters, "sanitizer_cases", lambda: cases)
    rows = bench_counters.measure_sanitizer()
    assert [(row["name"], row["state"], row["tool"]) for row in rows] == [
        *(("overrun", "broken", tool) for tool in ("memcheck", "racecheck", "initcheck", "synccheck")),
        ("overrun", "mended", "memcheck"),
    ]
    assert rows[0]["findings"][0]["line"] == ADDITION and rows[3]["failure"] == "hangs: stopped after 9 s"
    assert "no such kernel" in capsys.readouterr().out
    monkeypatch.setattr(bench_counters, "SANITIZER_BUDGET", -1)
    assert bench_counters.measure_sanitizer() == []


def test_every_launch_has_a_name_and_a_description_of_its_own():
    cases = bench_counters.counter_cases()
    assert (
        len({case.name for case in cases}) == len({nvidia_tools.describe(case.launch) for case in cases}) == len(cases)
    )


def test_the_file_of_a_replay_holds_the_launches(tmp_path):
    command = nvidia_tools._replay(str(tmp_path), [LAUNCH])
    (loaded,) = torch.load(Path(command[-2]), weights_only=False)
    assert nvidia_tools.describe(loaded) == nvidia_tools.describe(LAUNCH)
