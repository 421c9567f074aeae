"""Chapter 02's benchmarks, on the emulator; and how long its kernels are."""

import json
import re
from pathlib import Path

import nbformat
import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils import costs
from course_utils.bench import flash_attention_minimal
from course_utils.toolchain.source import blank_comments, read_kernel, with_headers

ROOT = Path(__file__).resolve().parents[2]


def test_minimal_flash_times_forward_and_backward(one_run_each, monkeypatch):
    monkeypatch.setattr(flash_attention_minimal, "SDPA_KERNELS", {"SDPA math": SDPBackend.MATH})
    rows = flash_attention_minimal.minimal_flash(device="cpu", batch=1, heads=2, lengths=(40,))
    names = {(row["pass"], row["name"]) for row in rows}
    everywhere = {"naive torch", "flash_attention_minimal", "SDPA math", "SDPA flash, fp16"}
    assert names == {("forward", "forward_plain.cu")} | {(p, n) for p in ("forward", "backward") for n in everywhere}
    forward = next(row for row in rows if row["name"] == "flash_attention_minimal" and row["pass"] == "forward")
    backward = next(row for row in rows if row["name"] == "flash_attention_minimal" and row["pass"] == "backward")
    assert forward["tflop_per_s"] == pytest.approx(costs.attention_flops(1, 2, 40, 40, 64) / 2e-3 / 1e12)
    assert backward["tflop_per_s"] == pytest.approx(2.5 * forward["tflop_per_s"])
    assert forward["speed_over_naive"] == 1 and forward["peak_mb"] == 3
    json.dumps(rows)


@pytest.mark.parametrize(("free", "options"), [(60, {}), (59, {"batch": 2, "lengths": (512, 1024, 2048)})])
def test_a_gpu_that_others_use_too_gets_a_smaller_batch(free, options, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * 10**9, 141 * 10**9))
    monkeypatch.setattr(flash_attention_minimal, "minimal_flash", lambda **options: options)
    assert flash_attention_minimal.minimal_flash_here() == options


def code_lines(source):
    return sum(bool(line.strip()) for line in blank_comments(source, strings=False).splitlines())


@pytest.mark.parametrize("file", ["forward_plain.cu", "forward.cu"])
def test_minimal_forward_kernels_have_at_most_100_lines_of_at_most_100_columns(file):
    source = with_headers(read_kernel(f"02_flash_attention_minimal/{file}"))
    assert code_lines(source) <= 100
    code = [line for line in source.splitlines() if not line.startswith("//")]
    assert max(map(len, code)) <= 100


def test_the_chapter_says_how_many_lines_its_fast_kernel_has():
    notebook = nbformat.read(ROOT / "notebooks" / "02_flash_attention_minimal.ipynb", as_version=4)
    text = " ".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    said = re.findall(r"the same algorithm in (\d+) lines", text)
    count = code_lines(with_headers(read_kernel("02_flash_attention_minimal/forward.cu")))
    assert said == [str(count)]
