"""A page of its own with what the site's pages have: the widgets' scripts and styles, and how it starts them."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from course_utils.site import widgets
from course_utils.site.build import HERE
from tests.helpers.browsing import served


@contextmanager
def served_page(folder: Path, body: str) -> Iterator[str]:
    """The address of a page with this body, served from `folder`."""
    static = folder / "_static"
    for name, text in widgets.files():
        (static / name).parent.mkdir(parents=True, exist_ok=True)
        (static / name).write_text(text, encoding="utf-8")
    for name in ("widgets.js", "model.js"):
        shutil.copyfile(HERE / "static" / name, static / name)
    styles = "".join(f'<link rel="stylesheet" href="_static/{name}">' for name in widgets.STYLES)
    start = '<script type="module" src="_static/widgets.js"></script>'
    (folder / "page.html").write_text(f'<!doctype html><meta charset="utf-8">{styles}{body}{start}', encoding="utf-8")
    with served(folder) as host:
        yield f"{host}/page.html"
