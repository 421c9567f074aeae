"""Builds the site: runs the chapters, writes the pages, sets them with Sphinx, checks the result."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from nbformat import NotebookNode

from course_utils.course import chapter_notebooks
from course_utils.site import badges, check, places
from course_utils.site.execute import SiteError, execute
from course_utils.site.pages import write_sources

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Built:
    """A site. folder: where it is; wrong: broken links, local paths and pictures without alt text, one line each."""

    folder: Path
    wrong: tuple[str, ...]


def build(root: Path, folder: Path, repository: str | None = None, notebooks: Sequence[Path] | None = None) -> Built:
    """Builds the site of the course in `root` as `folder`/site, replacing an older one.

    folder: also holds the outputs of the chapters (site-run) and the sources for Sphinx (site-source); repository:
    "owner/name" on GitHub for the badges, None for no badges; notebooks: by default all chapters of `root`. Raises
    SiteError if a cell fails or Sphinx warns.
    """
    notebooks = chapter_notebooks(root) if notebooks is None else notebooks
    executed = execute(root, notebooks, folder / "site-run")
    shown = {path.stem: badges.markdown(repository, path.stem) for path in notebooks} if repository else None
    return set_site(root, executed, folder, shown)


def set_site(
    root: Path, chapters: Mapping[Path, NotebookNode], folder: Path, badges: Mapping[str, str] | None = None
) -> Built:
    """Builds the site of `root` as `folder`/site, replacing an older one, with `chapters` and `badges` as for
    `write_sources`.

    Raises SiteError if Sphinx warns.
    """
    source, site = folder / "site-source", folder / "site"
    for old in (source, site):
        shutil.rmtree(old, ignore_errors=True)
    sources = write_sources(root, chapters, source, badges)
    _set_pages(sources.pages, sources.extra, site)
    # The cell that lacks an alt text says more than the picture that was made of it.
    pages = check.read_site(site)
    bare = sources.missing_alt or check.bare_pictures(pages, site)
    links, local = check.broken_links(pages, site), check.local_paths(site, places.private(root))
    return Built(site, (*bare, *links, *local))


def _set_pages(pages: Path, extra: Path, site: Path) -> None:
    """Runs Sphinx; a warning is an error. In one process: two would spend a third more in passing data to each
    other."""
    command = [sys.executable, "-m", "sphinx", "-q", "-b", "html", "-c", str(HERE), "-W", "--keep-going"]
    command += ["-d", str(pages.parent / "doctrees"), "-D", f"html_extra_path={extra}", str(pages), str(site)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SiteError(f"Sphinx found something wrong with the pages in {pages}:\n{done.stdout}{done.stderr}")


def main(repository: str | None, folder: Path) -> int:
    """The command: builds the site of this checkout and prints its place."""
    start = time.monotonic()
    try:
        site = build(ROOT, folder, repository)
    except SiteError as error:
        print(error, file=sys.stderr)
        return 1
    count = len(list(site.folder.rglob("*.html")))
    print(f"{count} pages in {time.monotonic() - start:.0f} s. To look at them (widgets and questions need a server):")
    print(f"{sys.executable} -m http.server --bind 127.0.0.1 -d {site.folder} 8080    # http://127.0.0.1:8080")
    if site.wrong:
        print(f"{len(site.wrong)} things are wrong with them:", *site.wrong, sep="\n", file=sys.stderr)
    return 1 if site.wrong else 0
