"""The doctor's findings on this machine, and its words on machines that lack something."""

import subprocess
import sys

import pytest

from course_utils import __main__, __version__, doctor
from course_utils.doctor import Finding
from course_utils.toolchain.errors import CompileError


def test_this_machine_can_run_kernels(capsys):
    assert __main__.main(["doctor"]) == 0
    report = capsys.readouterr().out
    for subject in ("Python", "PyTorch", "C++ compiler", "Emulator", "NVRTC", "NVIDIA driver", "GPU", "CuPy"):
        assert subject in report
    assert "run" in report.splitlines()[-1]


def test_nothing_is_broken_here():
    assert [finding for finding in doctor.diagnose() if finding.state == "broken"] == []


def test_a_check_that_fails_is_reported_and_the_rest_still_runs(monkeypatch):
    def check_something():
        raise OSError("disk on fire")

    monkeypatch.setattr(doctor, "CHECKS", (check_something, doctor.check_python))
    first, second = doctor.diagnose()
    assert first == Finding("something", "broken", "OSError: disk on fire")
    assert second.state == "ok"


def test_without_a_compiler_the_advice_is_the_wheel(monkeypatch):
    def none_found(command=None):
        raise CompileError("the emulator needs a C++ compiler")

    monkeypatch.setattr("course_utils.emulator.compiler.find_compiler", none_found)
    finding = doctor.check_compiler()
    assert (finding.state, finding.advice) == ("broken", "pip install ziglang")


def test_a_kernel_that_does_not_run_breaks_the_emulator(monkeypatch):
    def crash(device):
        raise RuntimeError("first line\nsecond line")

    monkeypatch.setattr(doctor, "_run_kernel", crash)
    finding = doctor.check_emulator()
    assert finding.state == "broken"
    assert finding.text.endswith("RuntimeError: first line")


def test_without_a_driver_gpu_and_cupy_are_absent_not_broken(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr(doctor, "driver_cuda_version", lambda: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert doctor.check_gpu().state == "absent"
    assert doctor.check_cupy().state == "absent"


def test_a_driver_with_a_cpu_build_of_pytorch_is_broken(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", None)
    monkeypatch.setattr(doctor, "driver_cuda_version", lambda: (13, 0))
    finding = doctor.check_gpu()
    assert finding.state == "broken"
    assert "CPU build" in finding.text
    assert "make lab" in finding.advice


def test_a_driver_without_cupy_is_broken(monkeypatch):
    monkeypatch.setattr(doctor, "driver_cuda_version", lambda: (13, 0))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    finding = doctor.check_cupy()
    assert (finding.state, finding.advice) == ("broken", "pip install 'cupy-cuda13x[ctk]'")


def test_a_driver_too_old_for_pytorch_is_named_with_both_versions(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr(doctor, "driver_cuda_version", lambda: (12, 4))
    finding = doctor.check_gpu()
    assert finding.state == "broken"
    assert "CUDA 13.0" in finding.text and "CUDA 12.4" in finding.text
    assert "580" in finding.advice


@pytest.mark.parametrize("needs, driver, too_old", [("13.0", (13, 0), False), ("13.2", (13, 0), False)])
def test_minor_versions_are_compatible(needs, driver, too_old):
    assert (doctor.cuda_mismatch("CuPy", needs, driver) is not None) == too_old


@pytest.mark.parametrize(
    "states, runs, words",
    [
        ({"Emulator": "ok", "GPU": "ok", "CuPy": "ok", "NVIDIA driver": "ok"}, True, "on the GPU and"),
        ({"Emulator": "ok", "GPU": "absent", "CuPy": "absent", "NVIDIA driver": "absent"}, True, "there is no GPU"),
        ({"Emulator": "ok", "GPU": "broken", "CuPy": "ok", "NVIDIA driver": "ok"}, True, "cannot be used yet"),
        ({"Emulator": "broken", "GPU": "ok", "CuPy": "ok", "NVIDIA driver": "ok"}, True, "not on the emulator"),
        ({"Emulator": "broken", "GPU": "absent", "CuPy": "absent", "NVIDIA driver": "absent"}, False, "No kernel"),
    ],
)
def test_verdict(states, runs, words):
    can_run, sentence = doctor.verdict([Finding(subject, state, "") for subject, state in states.items()])
    assert can_run is runs
    assert words in sentence


def test_advice_is_printed_only_where_something_is_missing():
    text = doctor.render([Finding("GPU", "ok", "fine", "hidden"), Finding("CuPy", "broken", "no", "install it")])
    assert "hidden" not in text
    assert "to do: install it" in text


def test_the_exit_status_says_whether_kernels_run(monkeypatch):
    monkeypatch.setattr(doctor, "diagnose", lambda: [Finding("Emulator", "broken", "")])
    assert __main__.main(["doctor"]) == 1


def run_module(*arguments):
    command = [sys.executable, "-m", "course_utils", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_command_line_names_its_commands():
    done = run_module()
    assert done.returncode == 2
    assert "doctor" in done.stderr


def test_the_doctor_does_not_need_the_other_commands(monkeypatch):
    monkeypatch.setitem(sys.modules, "course_utils.commands.bench", None)  # importing it fails
    assert __main__.main(["doctor"]) == 0


def test_bench_rejects_an_unknown_subject(capsys):
    with pytest.raises(SystemExit):
        __main__.main(["bench", "99_nothing"])
    assert "99_nothing" in capsys.readouterr().err


def test_the_command_line_knows_its_version():
    assert run_module("--version").stdout.strip() == __version__
