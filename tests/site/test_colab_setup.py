"""The set-up on Colab and Kaggle: what is there is kept and pinned, what is too old is said, CUDA's parts fit."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from course_utils.operators.minimal import BACKWARD_TILES, FORWARD_TILES
from course_utils.toolchain.nvrtc import SM_LIMITS
from course_utils.toolchain.source import kernel_names, read_kernel, required_architecture

ROOT = Path(__file__).resolve().parents[2]
TESTED = "# tested\nnumpy==2.4.6\nnvidia-cuda-nvrtc==13.0.88\nnvidia-cuda-crt==13.0.88\n"


@pytest.fixture(scope="module")
def setup():
    """.ci/colab_setup.py as a module."""
    spec = importlib.util.spec_from_file_location("colab_setup", ROOT / ".ci" / "colab_setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def put(folder, name, number):
    metadata = folder / f"{name}-{number}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n")


def test_of_a_package_on_two_paths_the_one_that_is_imported_is_there(setup, tmp_path, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    put(first, "Py_Six", "1.17.0")
    put(second, "py-six", "1.16.0")
    put(second, "other", "2.0")
    monkeypatch.setattr(sys, "path", [str(first), str(second)])
    assert setup.installed() == {"py-six": "1.17.0", "other": "2.0"}


def test_a_version_that_pip_cannot_read_is_not_pinned(setup):
    there = {"six": "1.17.0", "python-apt": "2.4.0+ubuntu_4~x", "blinker": "1.4-final.x"}
    assert setup.pins(there, "") == "six==1.17.0\n"


@pytest.mark.parametrize(
    "nvrtc, crt",
    [
        ("13.0.48", "13.0.88"),
        ("13.2.51", "13.2.*"),
        ("12.8.93", "13.0.88"),
    ],
)
def test_a_missing_part_of_cuda_is_the_tested_one_unless_another_part_is_newer(setup, nvrtc, crt):
    pinned = setup.pins({"nvidia-cuda-nvrtc": nvrtc}, TESTED)
    assert pinned == f"nvidia-cuda-nvrtc=={nvrtc}\nnvidia-cuda-crt=={crt}\n"


def test_the_headers_that_the_emulator_reads_stay_the_tested_ones(setup):
    assert "nvidia-cuda-cccl==13.0.85\n" in setup.pins(
        {"nvidia-cuda-nvrtc": "13.2.51"}, "nvidia-cuda-nvrtc==13.0.88\nnvidia-cuda-cccl==13.0.85\n"
    )


def test_the_tested_versions_of_all_four_wheels_are_found(setup):
    ours = setup.pins({}, (ROOT / "constraints.txt").read_text(encoding="utf-8")).splitlines()
    assert [line.partition("==")[0] for line in ours] == [
        f"nvidia-cuda-{part}" for part in ("cccl", "crt", "nvrtc", "runtime")
    ]


@pytest.mark.parametrize(
    "number, said",
    [
        ("2.9.1", "kept: torch 2.9.1"),
        ("2.12.0+cu130", "kept: torch 2.12.0+cu130"),
        ("2.8.1", "kept: torch 2.8.1, too old: needs <3,>=2.9"),
        ("3.0", "kept: torch 3.0, too new: needs <3,>=2.9"),
        ("2023-nightly_x", "kept: torch 2023-nightly_x, a version that cannot be compared: needs <3,>=2.9"),
    ],
)
def test_what_is_there_is_kept_and_compared(setup, capsys, number, said):
    assert setup.missing(["torch>=2.9,<3"], {"torch": number}) == []
    assert capsys.readouterr().out.strip() == said


def test_what_is_not_there_is_missing(setup, capsys):
    assert setup.missing(["ziglang>=0.13"], {}) == ["ziglang>=0.13"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "smi, slug, hidden",
    [
        ("Tesla T4, 7.5", "03_flash_attention_v2", True),
        ("Tesla T4, 7.5\nTesla T4, 7.5", "02_flash_attention_minimal", False),
        ("Tesla P100-PCIE-16GB, 6.0", "02_flash_attention_minimal", True),
        ("NVIDIA A100-SXM4-40GB, 8.0", "03_flash_attention_v2", False),
        ("", "03_flash_attention_v2", False),
    ],
)
def test_a_gpu_that_is_too_old_for_a_chapter_is_left_alone(setup, tmp_path, monkeypatch, capsys, smi, slug, hidden):
    command = tmp_path / "nvidia-smi"
    command.write_text(f'#!/bin/sh\necho "{smi}"\n' if smi else "#!/bin/sh\nexit 9\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    setup.choose_machine(slug)
    assert (os.environ["CUDA_VISIBLE_DEVICES"] == "") == hidden
    assert ("This chapter's kernels need an sm_" in capsys.readouterr().out) == hidden


def test_what_the_first_chapters_run_on_a_gpu_is_for_an_sm_75(setup):
    """tests/toolchain/test_nvrtc.py compiles each kernel for its lowest architecture. Those with cp.async in chapter 00
    run on the emulator: two are broken on purpose, and one is for the comparison with NVIDIA's tools."""
    names = [name for name in kernel_names() if "cp_async" not in name]
    lowest = {name: required_architecture(read_kernel(name)).number for name in names}
    first = [name for name in names if name[:2] < setup.FIRST_WITH_TENSOR_CORES]
    assert first and {lowest[name] for name in first} == {setup.needed("00_start_here")}
    assert setup.needed("03_flash_attention_v2") in {lowest[name] for name in names if name not in first}
    smallest = [tiles[-1].shared_bytes for tiles in (*FORWARD_TILES.values(), *BACKWARD_TILES.values())]
    assert max(smallest) <= SM_LIMITS[75].shared_per_block


def test_without_packaging_pips_own_copy_reads_the_requirements():
    hide = "import sys; sys.modules['packaging'] = None; import runpy; runpy.run_path(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-c", hide, str(ROOT / ".ci" / "colab_setup.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
