"""Whoever updates an older clone as docs/updating.md says keeps edited notebooks, answers and progress."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from course_utils.progress import progress_file

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "updating.md").read_text(encoding="utf-8"), re.DOTALL)
CHAPTER = "notebooks/01_attention_basics.ipynb"
EXERCISE = "exercises/01_attention_basics/coalesced_scores"
# What the update changes, leaves alone, takes away and brings.
OLD = {
    CHAPTER: "chapter 01, old",
    "notebooks/02_flash_attention_minimal.ipynb": "chapter 02, old",
    "notebooks/03_flash_attention_v2.ipynb": "chapter 03, old",
    f"{EXERCISE}.cu": "// a hole",
    f"{EXERCISE}.ipynb": "the exercise, old",
    "exercises/gone.cu": "// a hole",
    "kernels/broken.cu": "// old",
    "course_utils/toolchain/errors.py": "# old",
    ".gitignore": "build/\n",
}
NEW = {
    CHAPTER: "chapter 01, new",
    "notebooks/02_flash_attention_minimal.ipynb": "chapter 02, old",
    "notebooks/03_flash_attention_v2.ipynb": "chapter 03, new",
    "notebooks/06_serving.ipynb": "chapter 06, new",
    f"{EXERCISE}.cu": "// a hole, and more words",
    f"{EXERCISE}.ipynb": "the exercise, new",
    "kernels/broken.diff": "-new",
    "course_utils/errors/names.py": "# new",
    ".gitignore": "build/\n",
    ".ci/update.py": (ROOT / ".ci" / "update.py").read_text(encoding="utf-8"),
}


@pytest.fixture(autouse=True)
def plain_git(monkeypatch, tmp_path):
    """git without this machine's settings, and without a name and address, as on a learner's new machine."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")


def git(folder, *words):
    named = ("-c", "user.name=Ada", "-c", "user.email=ada@example.org")
    return subprocess.run(["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True).stdout


def write(folder, texts):
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")


@pytest.fixture
def clone(tmp_path):
    """A clone of the old version; the new one is published since."""
    upstream = tmp_path / "upstream"
    git(tmp_path, "init", "--quiet", "--initial-branch", "main", "upstream")
    write(upstream, OLD)
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "old")
    git(tmp_path, "clone", "--quiet", f"file://{upstream}", "clone")
    git(upstream, "rm", "--quiet", "-r", ".")
    write(upstream, NEW)
    git(upstream, "add", ".")
    git(upstream, "commit", "--quiet", "-m", "new")
    return tmp_path / "clone"


def update(clone):
    """Runs the commands of the page; returns what they print and their exit status."""
    (commands,) = COMMANDS
    ran = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", commands],
        cwd=clone,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    return ran.stdout, ran.returncode


def texts(folder, pattern="*"):
    """Path below the folder → text, of all files but git's own."""
    paths = [path for path in folder.rglob(pattern) if path.is_file() and ".git" not in path.parts]
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def branches(clone):
    return git(clone, "branch", "--list", "--format=%(refname:short)", "my-work-*").split()


def test_edited_notebooks_answers_and_progress_are_there_beside_the_new_version(clone, monkeypatch):
    mine = {
        CHAPTER: "chapter 01, run and changed",
        "notebooks/02_flash_attention_minimal.ipynb": "chapter 02, run",
        f"{EXERCISE}.cu": "// my kernel",
        f"{EXERCISE}.ipynb": "my answers",
        "exercises/gone.cu": "// my other kernel",
        "kernels/broken.cu": "// mended",
        "course_utils/toolchain/errors.py": "# with a print",
        "notebooks/my own ü.ipynb": "made here",
        "build/log": "ignored by git",
    }
    write(clone, mine)
    (clone / "notebooks/03_flash_attention_v2.ipynb").unlink()
    monkeypatch.delenv("XDG_DATA_HOME")
    progress_file().parent.mkdir(parents=True)
    progress_file().write_bytes(b"what was done")
    said, status = update(clone)
    assert status == 0, said
    (branch,) = branches(clone)
    beside = {CHAPTER, "kernels/broken.cu", "course_utils/toolchain/errors.py"}
    kept = {name.replace(".", f".{branch}.") if name in beside else name: text for name, text in mine.items()}
    assert texts(clone) == NEW | kept
    assert branch in said and all(name in said for name in beside | {f"{EXERCISE}.cu"})
    assert git(clone, "show", f"{branch}:{CHAPTER}") == mine[CHAPTER]
    assert git(clone, "rev-parse", "HEAD") == git(clone, "rev-parse", "origin/main")
    assert progress_file().read_bytes() == b"what was done"


def test_work_that_was_committed_is_kept_in_the_same_way(clone):
    write(clone, {f"{EXERCISE}.cu": "// committed", CHAPTER: "chapter 01, committed", "exercises/own.cu": "// own"})
    git(clone, "add", ".")
    git(clone, "commit", "--quiet", "-m", "My work")
    write(clone, {f"{EXERCISE}.cu": "// committed, then changed"})
    said, status = update(clone)
    assert status == 0, said
    (branch,) = branches(clone)
    kept = {
        f"{EXERCISE}.cu": "// committed, then changed",
        CHAPTER.replace(".", f".{branch}."): "chapter 01, committed",
        "exercises/own.cu": "// own",
    }
    assert texts(clone) == NEW | kept
    assert "My work" in git(clone, "log", "--format=%s", branch)


def test_a_clone_without_work_of_its_own_gets_the_new_version_once(clone):
    assert update(clone)[1] == 0 and texts(clone) == NEW
    said, status = update(clone)
    assert (status, "up to date already" in said, len(branches(clone))) == (0, True, 1)


OTHER_PLACES = pytest.mark.exhaustive("another own file in the place of a new one: `make test` has a folder for a file")


@pytest.mark.parametrize(
    "name",
    [
        "kernels/broken.diff/note",
        *(pytest.param(name, marks=OTHER_PLACES) for name in ("notebooks/06_serving.ipynb", ".ci")),
    ],
)
def test_an_own_file_in_the_place_of_a_new_one_stops_the_update_before_it_changes_anything(clone, name):
    write(clone, {name: "made here", CHAPTER: "chapter 01, changed"})
    before = texts(clone)
    said, status = update(clone)
    assert status != 0 and name in said and not branches(clone)
    assert texts(clone) == before


def test_a_shallow_clone_is_updated_too(clone):
    shallow = clone.parent / "shallow"
    git(clone.parent, "clone", "--quiet", "--depth", "1", f"file://{clone.parent / 'upstream'}", "shallow")
    write(clone.parent / "upstream", {CHAPTER: "chapter 01, newer"})
    git(clone.parent / "upstream", "commit", "--quiet", "-a", "-m", "newer")
    write(shallow, {f"{EXERCISE}.cu": "// my kernel"})
    said, status = update(shallow)
    assert status == 0, said
    assert texts(shallow) == NEW | {CHAPTER: "chapter 01, newer", f"{EXERCISE}.cu": "// my kernel"}


def test_a_merge_that_is_not_finished_stops_the_update_before_it_changes_anything(clone):
    write(clone, {CHAPTER: "chapter 01, changed"})
    git(clone, "commit", "--quiet", "-a", "-m", "mine")
    git(clone, "fetch", "--quiet", "origin")
    with pytest.raises(subprocess.CalledProcessError):
        git(clone, "merge", "origin/main")
    before = texts(clone)
    said, status = update(clone)
    assert status != 0 and "Stopped, because this failed: git" in said
    assert texts(clone) == before
