"""docs/server.md with four users of one machine: a read-only course, homes of their own, and nbgrader's exchange.

The page's commands run as they stand there, but for what JupyterHub and its installer do.
"""

import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from traitlets.config import Config

from course_utils.course import SOURCE

pytest.importorskip("nbgrader")

CHAPTER, NAME = "02_flash_attention_minimal", "online_softmax"
PAGE = (SOURCE / "docs" / "server.md").read_text(encoding="utf-8")
INSTALL, RELEASE, GRADE = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)[:3]
COURSE = "attention-kernels"
FETCH = f"nbgrader fetch_assignment --course {COURSE} {CHAPTER}"
USERS = {"root": 0, "jupyter-teacher": 2001, "jupyter-ada": 2002, "jupyter-ben": 2003}
LEARNERS = "jupyter-ada", "jupyter-ben"
INBOUND = Path("/usr/local/share/nbgrader/exchange") / COURSE / "inbound"
PYTHON = Path(sys.executable).parent
KERNEL = """
import torch
from course_utils.cuda import RawModule
code = 'extern "C" __global__ void one(float* a) { a[threadIdx.x] = 1.0f; }'
a = torch.zeros(32)
RawModule(code=code).get_function("one")((1,), (32,), (a,))
print(a.sum().item())
"""


def open_to_all(*needed: Path) -> list[str]:
    """bubblewrap's options that lead everybody to these folders, also where one above them is closed to others."""
    closed = {path: [one for one in reversed(path.parents) if not one.stat().st_mode & stat.S_IXOTH] for path in needed}
    options = [
        ["--perms", "0755", "--tmpfs", str(first)] for first in {folders[0] for folders in closed.values() if folders}
    ]
    for path, folders in closed.items():
        if folders:
            between = [one for one in reversed(path.parents) if folders[0] in one.parents]
            options += [["--perms", "0755", "--dir", str(one)] for one in between]
            options += [["--ro-bind", str(path), str(path)]]
    return [word for option in options for word in option]


@pytest.fixture(scope="module")
def as_user(tmp_path_factory) -> Callable[[str, str], str]:
    """Runs a script as one of USERS on a machine that has them, and returns what it prints.

    The machine is a namespace of bubblewrap over this one, with homes and an exchange in a temporary folder.
    """
    if os.geteuid() != 0 or shutil.which("bwrap") is None:
        pytest.skip("needs root, to become other users, and bubblewrap")
    place = tmp_path_factory.mktemp("server")
    (place / "passwd").write_text(
        "".join(f"{name}:x:{uid}:{uid}::/home/{name}:/bin/bash\n" for name, uid in USERS.items())
    )
    for name, uid in USERS.items():
        (place / "home" / name).mkdir(parents=True, mode=0o750)
        os.chown(place / "home" / name, uid, uid)
    (place / "share").mkdir()
    (place / "programs").mkdir()
    (place / "programs" / "jupyterhub-singleuser").write_text('#!/bin/sh\necho "started with $@"\n')
    (place / "programs" / "jupyterhub-singleuser").chmod(0o755)
    machine = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-pid", "--proc", "/proc"]
    machine += [word for path in ("/tmp", "/dev/shm") for word in ("--perms", "1777", "--tmpfs", path)]
    machine += open_to_all(Path(os.path.realpath(sys.executable)).parents[1], Path(sys.prefix), SOURCE)
    machine += ["--bind", str(place / "home"), "/home", "--bind", str(place / "share"), "/usr/local/share"]
    machine += ["--ro-bind", str(place / "passwd"), "/etc/passwd", "--ro-bind", str(place / "programs"), "/opt"]
    machine += ["--clearenv", "--setenv", "PATH", f"/opt:{PYTHON}:/usr/sbin:/usr/bin:/sbin:/bin"]
    machine += ["--setenv", "PYTHONPATH", str(SOURCE), "--setenv", "OMP_NUM_THREADS", "1"]

    def run(name: str, script: str, check: bool = True) -> str:
        who = ["--setenv", "HOME", f"/home/{name}", "--chdir", f"/home/{name}", "--cap-add", "ALL"]
        become = ["setpriv", f"--reuid={USERS[name]}", f"--regid={USERS[name]}", "--clear-groups"]
        command = [*machine, *who, "--", *(become if name != "root" else []), "bash", "-ec", script]
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0 or not check, f"{name}: {done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    return run


@pytest.mark.exhaustive("becomes four users; tests/commands and test_nbgrader have the steps for one user")
def test_each_learner_has_notebooks_and_a_cache_of_their_own_and_the_course_is_read_only(as_user):
    hub = Config()
    exec(re.search(r"<<'END'\n(.*?)END\n", INSTALL, re.DOTALL)[1], {"c": hub})
    for name in LEARNERS:
        assert "--port=8888" in as_user(name, shlex.join([*hub.Spawner.cmd, "--port=8888"]))
        as_user(name, f"echo >> ~/attention/kernels/00_start_here/vector_add.cu; test ! -w {SOURCE}/kernels")
        everywhere_else = "find /tmp /dev/shm /usr/local/share -user $(id -u)"
        said = as_user(name, f"cd ~/attention/notebooks; python3 -c {shlex.quote(KERNEL)}; {everywhere_else}")
        assert said.split() == ["32.0"]
        assert as_user(name, "find ~/.cache/attention-kernels -name '*.so' -user $(id -u)").strip()
    assert "Permission denied" in as_user("jupyter-ben", "ls /home/jupyter-ada", check=False)


@pytest.mark.exhaustive("becomes four users and grades for one; test_nbgrader has each step for one user")
def test_the_class_of_the_page_goes_through_the_exchange(as_user):
    by_root = "".join(line for line in RELEASE.splitlines(True) if line.startswith("sudo "))
    as_user("root", by_root.replace("sudo ", ""))
    as_user("jupyter-teacher", RELEASE.replace(by_root, ""))
    for name in LEARNERS:
        as_user(name, f"{FETCH}; echo '// {name}' > {CHAPTER}/{NAME}.cu; nbgrader submit --course {COURSE} {CHAPTER}")
    harm = f"set +e; ls {INBOUND}; rm -r {INBOUND.parent}; mv {INBOUND.parent} {INBOUND.parents[1]}/gone"
    said = as_user("jupyter-ben", f"{harm}; cat /home/jupyter-teacher/classroom/students.csv", check=False)
    assert all(words in said for words in ("ls: cannot open", "mv: cannot move", "cat: /home/jupyter-teacher"))
    as_user("jupyter-ben", f"sleep 1; nbgrader submit --course {COURSE} --student jupyter-ada {CHAPTER}")
    # In this machine, itself made by bubblewrap, another one cannot be started.
    as_user("jupyter-teacher", GRADE.replace("classroom grade", "classroom grade --isolation limits"))
    for name in LEARNERS:
        handed_in = as_user("jupyter-teacher", f"cat classroom/submitted/{name}/{CHAPTER}/{NAME}.cu")
        assert handed_in == f"// {name}\n"
    as_user("jupyter-ada", f"nbgrader fetch_feedback --course {COURSE} {CHAPTER}")
    assert as_user("jupyter-ada", f"ls {CHAPTER}/feedback/*/{NAME}.html").count(".html") == 1
