"""Machines other than a Linux box: a Mac, which runs the course in a container, and the versions that others have."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import course_utils
from course_utils import doctor
from course_utils.__main__ import parser

ROOT = Path(__file__).resolve().parents[1]


def test_on_a_mac_make_lab_says_what_to_do(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    uname = tmp_path / "uname"
    uname.write_text("#!/bin/sh\necho Darwin\n")
    uname.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}  # and nothing that a make around this test has set
    done = subprocess.run(["make", "lab"], cwd=tmp_path, env=path, capture_output=True, text=True, check=False)
    assert done.returncode and "in a container: docker compose up" in done.stdout
    assert not (tmp_path / ".venv").exists()


def test_the_container_opens_the_learners_folder_for_this_machine_alone():
    compose = (ROOT / "compose.yaml").read_text(encoding="utf-8")
    image = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    (port,) = re.findall(r'ports: \["127\.0\.0\.1:\d+:(\d+)"\]', compose)
    (folder,) = re.findall(r'volumes: \["\./[\w-]+:(/[\w-]+)"\]', compose)
    python, m, module, *words = json.loads(re.search(r"^CMD (.*)$", image, re.MULTILINE)[1])
    options = parser("start").parse_args(words)
    assert (python, m, module, str(options.folder)) == ("python", "-m", "course_utils", folder)
    assert options.lab == ["--ip=0.0.0.0", f"--port={port}", "--no-browser"]
    kept = re.findall(r"XDG_\w+=(\S+)", image)
    assert len(kept) == 2 and all(place.startswith(f"{folder}/") for place in kept)


def test_the_steps_for_each_machine_name_what_is_there():
    steps = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"(?:^|`)make (\w+)", steps, re.MULTILINE)) <= {*targets}
    environment = (ROOT / "environment.yml").read_text(encoding="utf-8")
    assert re.search(r"conda activate (\S+)", steps)[1] == re.search(r"^name: (\S+)", environment, re.MULTILINE)[1]
    assert "attention-kernels/my-course" in steps and "./my-course:" in (ROOT / "compose.yaml").read_text()
    assert f"needs {doctor.OLDEST_DRIVER[13]} or newer" in " ".join(steps.split())
    (wheel,) = set(re.findall(r"course_kernels-\S+?\.whl", steps))
    assert wheel == f"course_kernels-{course_utils.__version__}-py3-none-any.whl"
    command = re.search(r"-m course_utils (start .*)", steps)[1]
    assert parser("start").parse_args(command.split()).lab == []
    assert all((ROOT / name).is_file() for name in re.findall(r"notebooks/\w+\.ipynb", steps))


def test_the_image_holds_nothing_of_a_persons_own():
    own = re.findall(r"^/([\w-]+)/$", (ROOT / ".gitignore").read_text(encoding="utf-8"), re.MULTILINE)
    assert "classroom" in own
    assert set(own) <= set((ROOT / ".dockerignore").read_text(encoding="utf-8").split())


def test_the_lowest_versions_are_those_that_may_be_installed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lowest = dict(re.findall(r"^(\w+)==([\d.]+)\.\*$", (ROOT / ".ci" / "lowest.txt").read_text(), re.MULTILINE))
    assert {f"{name}>={number}" for name, number in lowest.items()} <= set(project["dependencies"])
    workflow = (ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8")
    ran = dict(re.findall(r'python: "([\d.]+)", constraints: ([\w./]+)', workflow))
    assert ran["3.11"] == ".ci/lowest.txt" and ran["3.13"] == ".ci/highest.txt"
    assert project["requires-python"] == ">=3.11" and (ROOT / ran["3.13"]).is_file()
