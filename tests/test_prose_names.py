"""What the text sets as code is a name of the course's code: a function that was renamed or removed is named no more.

Only names with an underscore are looked up, in backquotes: others are words of the language or of mathematics.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.notebooks import read_notebook

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ("course_utils/**/*.py", "course_utils/**/*.js", "course_utils/**/*.cu", "kernels/**/*", "solutions/**/*.cu*")
TEXTS = sorted(
    path
    for pattern in ("notebooks/*.ipynb", "solutions/*/*.ipynb", "docs/cheat_sheets/*.md")
    for path in ROOT.glob(pattern)
)
THEIRS = set(  # names in other people's code, which the text links or quotes
    "cu_seq_q cu_seq_k cu_seqlens max_q max_k full_kv_ fp8_mqa_logits topk_selector need_weights score_mod "
    "flash_fwd fmha_cutlass activate_flash_attention_impl sdp_utils check_prefer_cudnn_attention".split()
)
NAME = re.compile(r"\b[A-Za-z_]\w*_\w*")


@pytest.fixture(scope="module")
def names_of_the_course() -> set[str]:
    files = (path for pattern in SOURCES for path in ROOT.glob(pattern) if path.is_file())
    return {name for path in files for name in re.findall(r"\w+", path.read_text(encoding="utf-8"))}


def texts(path: Path) -> Iterator[str]:
    """The Markdown of a notebook or page, without blocks of code."""
    cells = read_notebook(path).cells if path.suffix == ".ipynb" else None
    sources = [cell.source for cell in cells if cell.cell_type == "markdown"] if cells else [path.read_text()]
    return (re.sub(r"```.*?```", "", source, flags=re.DOTALL) for source in sources)


def code_of(path: Path) -> str:
    """The code of a notebook itself."""
    if path.suffix != ".ipynb":
        return ""
    return "\n".join(cell.source for cell in read_notebook(path).cells if cell.cell_type == "code")


def unknown(text: str, known: set[str]) -> list[str]:
    """The names in backquotes that are not known."""
    spans = re.findall(r"`([^`\n]+)`", text)
    return [name for span in spans for name in NAME.findall(span) if name not in known]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_a_name_in_the_text_is_one_of_the_code(path: Path, names_of_the_course: set[str]):
    known = names_of_the_course | THEIRS | set(re.findall(r"\w+", code_of(path)))
    assert [name for text in texts(path) for name in unknown(text, known)] == []


def test_a_name_that_is_gone_is_found(names_of_the_course: set[str]):
    assert unknown("The operator packs (`packs_heads(query)`), by `forward_tile`.", names_of_the_course) == [
        "packs_heads"
    ]
