"""A site of one page of each kind, for `make test`: of what a few files of this checkout become."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from course_utils.site.build import ROOT, Built, set_site
from course_utils.site.execute import execute

CHAPTERS = ("00_start_here", "08_choosing")
FILES = (
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/glossary.md", "docs/notation.md"),
    *("docs/*.svg", "docs/*.png", "docs/*.gif"),
    *("docs/games/paint_a_mask.md", "docs/games/race_past_cudnn.md"),  # the third records seven kernels
    "docs/cheat_sheets/02_flash_attention_minimal.md",
    "exercises/02_flash_attention_minimal/mini_flash.*",
    "kernels/02_flash_attention_minimal/forward.cu",
    "kernels/02_flash_attention_minimal/broken/missing_syncwarp.diff",
    "kernels/include/pieces.cuh",
)


def small_site(folder: Path) -> Built:
    """Builds it in `folder`, with the chapters as `make test` has run them. Of its links to pages that only the whole
    site has, nothing is wrong if the file of which that page is made is there."""
    root = folder / "course"
    for path in (path for pattern in FILES for path in ROOT.glob(pattern)):
        copy = root / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
    notebooks = [ROOT / "notebooks" / f"{slug}.ipynb" for slug in CHAPTERS]
    executed = execute(ROOT, notebooks, ROOT / "build" / "site-run")
    chapters = {root / path.relative_to(ROOT): notebook for path, notebook in executed.items()}
    site = set_site(root, chapters, folder)
    return replace(site, wrong=tuple(line for line in site.wrong if not _is_left_out(line, site.folder)))


def _is_left_out(line: str, site: Path) -> bool:
    """Whether a line of `Built.wrong` is about a link to a page that the whole site has."""
    page, link, why = [*line.split(": ", 2), ""][:3]
    target = (site / page).parent.joinpath(link.partition("#")[0]).resolve()
    if why != "no such file" or target.suffix != ".html":
        return False
    target = target.relative_to(site.resolve())
    if target.name == "index.html":
        return (ROOT / target.parent).is_dir()
    source = ROOT / target.with_suffix("")
    if source.suffix in (".cu", ".cuh"):
        return source.is_file() or source.with_suffix(".diff").is_file()
    return any(source.with_name(f"{source.name}{ending}").is_file() for ending in (".ipynb", ".md"))
