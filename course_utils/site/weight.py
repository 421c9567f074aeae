"""What the pages of a built site weigh: all that a browser may load for each, before anything is compressed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from course_utils.site.check import Page

FRONT = "index.html"
MOST_FRONT, MOST = 3_000_000, 6_000_000  # bytes that the front page may load, and any other
NAMED = 3  # files that are named of a page that is too heavy
_IN_STYLE = re.compile(r"(?:url\(\s*[\"']?|@import\s*[\"'])([^\"')]+)")
_IN_SCRIPT = re.compile(r"\b(?:from|import)\s*[\"'](\.[^\"']+)[\"']")
_MATHJAX = "tex-chtml.js"
_FONTS = "output/chtml/fonts/woff-v2"  # beside it; which of them a page needs, its formulas say: all are counted


def weights(pages: Mapping[Path, Page], site: Path) -> dict[Path, dict[Path, int]]:
    """For each of the `pages` of the site the files that it may load, itself among them, and the bytes of each."""
    inner: dict[Path, tuple[Path, ...]] = {}  # by file: what it loads in turn
    found = {}
    for path, page in pages.items():
        files = {path}
        rest = [(site / "_static" / "widgets" / script).resolve() for script in page.widgets]
        rest += _targets(path, page.loads)
        while rest:
            file = rest.pop()
            if file in files or not file.is_file():
                continue
            files.add(file)
            if file not in inner:
                inner[file] = tuple(_loaded_by(file))
            rest += inner[file]
        found[path] = {file: file.stat().st_size for file in files}
    return found


def too_heavy(weighed: Mapping[Path, Mapping[Path, int]], site: Path) -> list[str]:
    """The pages that weigh more than they may, one line each with their largest files. weighed: by `weights`."""
    lines = []
    for path, files in weighed.items():
        weight, most = sum(files.values()), MOST_FRONT if path == site / FRONT else MOST
        if weight > most:
            largest = sorted(files, key=files.__getitem__, reverse=True)[:NAMED]
            named = ", ".join(f"{file.name} {files[file] / 1e6:.2f}" for file in largest)
            lines.append(f"{path.relative_to(site)}: loads {weight / 1e6:.2f} MB, at most {most / 1e6:g}; {named}")
    return lines


def _targets(file: Path, links: Iterable[str]) -> Iterator[Path]:
    """The files of the site that links in `file` lead to."""
    for link in links:
        parts = urlsplit(link)
        if parts.path and not parts.scheme and not parts.netloc:
            yield (file.parent / unquote(parts.path)).resolve()


def _loaded_by(file: Path) -> Iterator[Path]:
    """The files that a style sheet or a script loads."""
    pattern = {".css": _IN_STYLE, ".js": _IN_SCRIPT}.get(file.suffix)
    if pattern is not None:
        yield from _targets(file, pattern.findall(file.read_text(encoding="utf-8")))
    if file.name == _MATHJAX:
        yield from (file.parent / _FONTS).glob("*.woff")
