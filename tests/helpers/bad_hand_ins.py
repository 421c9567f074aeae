"""What students hand in by mistake: twenty ways to spoil a hand-in that was right, and what its page must say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from course_utils.grading.release import SOLUTIONS

LARGE = 200 << 20  # bytes


def _change(suffix: str, change: Callable[[bytes], bytes]) -> Callable[[Path, str], None]:
    """Changes the content of one file."""

    def spoil(place: Path, name: str) -> None:
        path = place / f"{name}{suffix}"
        path.write_bytes(change(path.read_bytes()))

    return spoil


def _remove(*suffixes: str) -> Callable[[Path, str], None]:
    def spoil(place: Path, name: str) -> None:
        for suffix in suffixes:
            (place / f"{name}{suffix}").unlink()

    return spoil


def _rename(pattern: str, *suffixes: str) -> Callable[[Path, str], None]:
    """Another name; * stands for the one it has."""

    def spoil(place: Path, name: str) -> None:
        for suffix in suffixes:
            (place / f"{name}{suffix}").rename(place / pattern.replace("*", name).replace("SUFFIX", suffix))

    return spoil


def _large(place: Path, name: str) -> None:
    with (place / f"{name}.ipynb").open("wb") as file:
        file.truncate(LARGE)  # a hole: it takes no room on the disk


def _other_exercise(place: Path, name: str) -> None:
    for suffix in (".cu", ".ipynb"):
        shutil.copy(SOLUTIONS / "02_flash_attention_minimal" / f"mini_flash{suffix}", place / f"{name}{suffix}")


def _link(place: Path, name: str) -> None:
    (place / f"{name}.cu").unlink()
    (place / f"{name}.cu").symlink_to("/etc/hostname")


def _folder_for_kernel(place: Path, name: str) -> None:
    (place / f"{name}.cu").unlink()
    (place / f"{name}.cu").mkdir()


def _pipe(place: Path, name: str) -> None:
    (place / f"{name}.ipynb").unlink()
    os.mkfifo(place / f"{name}.ipynb")


def _two_copies(place: Path, name: str) -> None:
    shutil.copy(place / f"{name}.cu", place / f"{name} (2).cu")
    (place / f"{name}.cu").rename(place / f"{name} (1).cu")


def _no_folder(place: Path, name: str) -> None:
    shutil.rmtree(place)
    place.write_bytes(b"PK\3\4")


def _half_a_pair(content: bytes) -> bytes:
    """A cell that JSON can hold and UTF-8 cannot."""
    notebook = json.loads(content)
    for cell in notebook["cells"]:
        if cell["metadata"].get("nbgrader", {}).get("grade_id") == "answers":
            cell["source"] = "answers = {}  # \ud800"
    return json.dumps(notebook).encode()


BAD: dict[str, tuple[Callable[[Path, str], None], str]] = {
    "no_json": (_change(".ipynb", lambda content: b"print('hello')\n"), "NAME.ipynb is not a notebook: bad JSON"),
    "truncated": (_change(".ipynb", lambda content: content[:700]), "bad JSON, it ends in the middle"),
    "no_cells": (_change(".ipynb", lambda content: b'{"cells": []}'), "NAME.ipynb has no cells"),
    "cells_of_no_kind": (_change(".ipynb", lambda content: b'{"cells": 3}'), "it has no list of cells"),
    "too_large": (_large, "NAME.ipynb has 209,715,200 bytes"),
    "other_exercise": (_other_exercise, "holds the kernel mini_flash, which is that of the exercise 02_flash"),
    "browsers_name": (_rename("* (1)SUFFIX", ".cu", ".ipynb"), "NAME (1).cu was taken as NAME.cu"),
    "two_copies": (_two_copies, "NAME.cu is missing; there are NAME (1).cu, NAME (2).cu: hand in the one that counts"),
    "renamed": (_rename("final.cu", ".cu"), "NAME.cu is missing; there is final.cu: files keep the names"),
    "no_kernel": (_remove(".cu"), "NAME.cu is missing"),
    "no_notebook": (_remove(".ipynb"), "NAME.ipynb is missing"),
    "empty_folder": (_remove(".cu", ".ipynb"), "is empty"),
    "empty_kernel": (_change(".cu", lambda content: b"\n"), "NAME.cu is empty"),
    "latin_1": (
        _change(".cu", lambda content: "// größer\n".encode("latin-1") + content),
        "not text in UTF-8 (byte 5)",
    ),
    "utf_16": (_change(".cu", lambda content: content.decode().encode("utf-16")), "not text in UTF-8 but in UTF-16"),
    "web_page": (_change(".cu", lambda content: b"<!DOCTYPE html><title>Log in</title>"), "NAME.cu is a web page"),
    "link": (_link, "NAME.cu is a symbolic link: hand in the file itself"),
    "kernel_is_a_folder": (_folder_for_kernel, "NAME.cu is not a file"),
    "pipe": (_pipe, "NAME.ipynb is not a file"),
    "folder_is_a_file": (_no_folder, "is a file: hand in a folder of that name"),
    "half_a_pair": (_change(".ipynb", _half_a_pair), ""),
}
"""By kind: how to spoil the folder of a hand-in, and the words that its page must hold."""


def words_of(kind: str, name: str) -> str:
    return BAD[kind][1].replace("NAME", name)
