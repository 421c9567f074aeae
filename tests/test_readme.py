"""What the README shows works as shown."""

import contextlib
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

import course_utils
from course_utils import measured
from course_utils.__main__ import parser
from course_utils.cuda import RawModule
from course_utils.emulator import sanitize
from course_utils.measured.best_peers import DENSE, DENSE_BACKWARD, WINDOWS, WINDOWS_BACKWARD, pairs
from course_utils.toolchain.errors import KernelError

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_examples_do_what_they_say(capsys):
    first, second = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    names = {}
    exec(first, names)
    torch.testing.assert_close(names["out"], names["a"] + names["b"], rtol=0, atol=0)
    exec(second, names)
    lines = [finding.line for finding in names["report"].findings]
    assert f"read-after-write hazards at lines {' and '.join(map(str, lines))}," in second and names["counters"].rows
    assert capsys.readouterr().out.count("read-after-write hazard") == len(lines)


def test_the_finding_at_the_top_is_what_its_kernel_gets():
    kernel, said = re.search(r"```cuda\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL).groups()
    a, b, c = (torch.ones(125) for _ in range(3))
    with sanitize() as report, contextlib.suppress(KernelError):
        RawModule(code=kernel).get_function("add")((2,), (64,), (a, b, c, np.int32(125)))
    assert " ".join(said.split()) in " ".join(str(report).split())


@pytest.mark.parametrize(
    "kernel, parts",
    [
        ("chapter 07, `flash-attn-4`", (DENSE, DENSE_BACKWARD)),
        ("chapter 04, windows, up to 128 K tokens, `flash-attn-4`", (WINDOWS, WINDOWS_BACKWARD)),
    ],
)
def test_the_speed_beside_the_best_peer_is_that_of_its_record(kernel, parts):
    record = measured.load("best_peers")
    speeds = [[pair.speed for pair in pairs(record, [part])] for part in parts]
    cells = [kernel, *(f"{min(of_part):.2f} to {max(of_part):.2f}" for of_part in speeds)]
    assert f"| {' | '.join(cells)} |" in README.splitlines()


def test_the_speed_beside_cudnn_on_hopper_is_that_of_its_record():
    rows = measured.load("07_hopper").select(name="flash_attention_hopper")
    ratios = [[row["ratio_to_cudnn"] for row in rows if row["part"] == part] for part in ("forward", "backward")]
    cells = "chapter 07 (Hopper GPUs alone), cuDNN", *(f"{min(of):.2f} to {max(of):.2f}" for of in ratios)
    assert f"| {' | '.join(cells)} |" in README.splitlines()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/machines.md"])
def test_links_lead_somewhere(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)#\s]+)", text) if not re.match(r"[a-z]+:", link)]
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_files_and_folders_that_a_page_names_are_there(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:course_utils|docs|kernels|notebooks|tests|\.ci)/[\w./]+)`", text)
    examples = "NN_slug", "/name."
    assert [name for name in named if not any(e in name for e in examples) and not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page, most", [("CONTRIBUTING.md", 1500), ("docs/teaching.md", 1500), ("docs/server.md", 700)])
def test_a_page_to_work_by_is_short(page, most):
    """The steps of adding something stand in the docstring of its room."""
    assert len((ROOT / page).read_text(encoding="utf-8").split()) <= most


def test_the_changelog_begins_with_this_version():
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)[1]
    assert course_utils.__version__.startswith(f"{newest}.")


def test_the_wheel_has_the_name_that_is_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wheel = f"{project['name'].replace('-', '_')}-{course_utils.__version__}-py3-none-any.whl"
    extras = project["optional-dependencies"]
    assert f"pip install '{wheel}[lab]'\n" in README and "lab" in extras
    server = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    assert f"pip install './{wheel}[lab,classroom]'\n" in server and {"classroom", "cuda"} <= extras.keys()
    command = re.search(r"-m course_utils (start .*?) +#", README)[1]
    assert parser("start").parse_args(command.split()).lab == []


@pytest.mark.parametrize("command", sorted(set(re.findall(r"^make (\w+)", README, re.MULTILINE))))
def test_the_commands_exist(command):
    assert re.search(rf"^{command}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
