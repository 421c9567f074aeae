"""A unified diff is applied where it says, to the lines that it says, or an error says what is different."""

import os
import shutil
import subprocess

import pytest

from course_utils.toolchain.source import KERNELS, read_kernel
from course_utils.toolchain.unified_diff import apply_diff, changed_file

HEAD = "# a note\n# in two lines\n--- a/kernels/x.cu\n+++ b/kernels/x.cu\n"
TEXT = "".join(f"line {n}\n" for n in range(1, 11))
DIFFS = sorted(KERNELS.rglob("*.diff"))


def apply(hunks: str, text: str = TEXT) -> str:
    return apply_diff(HEAD + hunks, text, "x.diff")


@pytest.mark.parametrize(
    "hunks, old, new",
    [
        ("@@ -4,3 +4,3 @@\n line 4\n-line 5\n+five\n line 6\n", "line 5\n", "five\n"),
        ("@@ -1,2 +1,3 @@\n+zero\n line 1\n line 2\n", "line 1\n", "zero\nline 1\n"),
        ("@@ -1 +1 @@ void f()\n-line 1\n+one\n", "line 1\n", "one\n"),
        ("@@ -9,2 +9 @@\n line 9\n-line 10\n", "line 10\n", ""),
        ("@@ -10,0 +11,2 @@\n+line 11\n+line 12\n", "line 10\n", "line 10\nline 11\nline 12\n"),
        ("@@ -3 +2,0 @@\n-line 3\n", "line 3\n", ""),
        ("@@ -0,0 +1 @@\n+zero\n", "line 1\n", "zero\nline 1\n"),
    ],
    ids=[
        "in the middle",
        "at the first line",
        "first line alone",
        "last line",
        "after the last",
        "removal",
        "in front",
    ],
)
def test_a_hunk_changes_its_lines_and_no_others(hunks, old, new):
    index = TEXT.index(old)
    assert apply(hunks) == TEXT[:index] + new + TEXT[index + len(old) :]


def test_several_hunks_count_the_lines_that_those_ahead_of_them_add_and_remove():
    hunks = "@@ -2 +2,2 @@\n-line 2\n+2a\n+2b\n@@ -6,2 +7 @@\n-line 6\n line 7\n@@ -10 +10 @@\n-line 10\n+ten\n"
    lines = ["line 1", "2a", "2b", "line 3", "line 4", "line 5", "line 7", "line 8", "line 9", "ten"]
    assert apply(hunks).splitlines() == lines


@pytest.mark.parametrize(
    "hunks, words",
    [
        ("@@ -4,2 +4 @@\n line 4\n-line five\n", r"no longer applies: expects .*'line five'.* from line 4 .*'line 5'"),
        ("@@ -5,2 +5 @@\n line 4\n-line 5\n", "no longer applies"),
        ("@@ -4,2 +4 @@\n line 4 \n-line 5\n", "no longer applies"),
        ("@@ -10,2 +10 @@\n line 10\n-line 11\n", "no longer applies"),
        ("@@ -5 +5 @@\n-line 5\n+a\n@@ -4,2 +5,2 @@\n line 4\n-line 5\n+b\n", "no longer applies"),
        ("", "no hunk"),
    ],
    ids=["another line", "a line further up", "a space too many", "behind the end", "overlap", "none"],
)
def test_a_hunk_that_meets_another_text_is_an_error(hunks, words):
    with pytest.raises(ValueError, match=rf"^x\.diff.*{words}"):
        apply(hunks)


def test_the_changed_file_is_the_one_path_ahead_of_the_hunks():
    assert changed_file(HEAD + "@@ -1 +1 @@\n--- a\n+++ b\n", "x.diff") == "kernels/x.cu"  # removes "-- a"
    assert changed_file("--- kernels/x.cu\t2026-01-01\n+++ y\n@@ -1 +1 @@\n", "x.diff") == "kernels/x.cu"
    for diff in ("@@ -1 +1 @@\n-a\n+b\n", HEAD + HEAD):
        with pytest.raises(ValueError, match=r"^x\.diff: a diff has one line '--- a/path' ahead of its hunks"):
            changed_file(diff, "x.diff")


@pytest.mark.skipif(not shutil.which("git"), reason="no git on this machine")
def test_git_applies_the_broken_kernels_diffs_to_the_same_text(tmp_path):
    assert DIFFS
    for diff in DIFFS:
        broken = read_kernel(diff.with_suffix(".cu"))
        changed = changed_file(diff.read_text(encoding="utf-8"), str(diff))
        file = tmp_path / changed
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(KERNELS.parent / changed, file)
        outside = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}  # a plain folder, in no repository
        subprocess.run(["git", "apply", diff], cwd=tmp_path, env=outside, check=True)
        assert file.read_text(encoding="utf-8") == broken
