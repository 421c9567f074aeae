"""Checks of a built site: each link leads somewhere, each picture has a description, no page shows a path of this
machine."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from course_utils.site import places

# What gives words of code their colours: most tags of the site, with neither an id nor a link in them.
COLOURS = re.compile(r'<span class="[\w -]*">|</span>')
LINKING = {"a": "href", "link": "href", "img": "src", "script": "src", "source": "src", "iframe": "src"}


@dataclass
class Page:
    """One HTML page: the ids in it, what it links to, the pictures without alt text."""

    ids: set[str] = field(default_factory=set)
    repeated: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    bare_pictures: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.page = Page()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        for name in ("id", "name") if tag == "a" else ("id",):
            if value := values.get(name):
                if name == "id" and value in self.page.ids:
                    self.page.repeated.add(value)
                self.page.ids.add(value)
        if (link := values.get(LINKING.get(tag, ""))) is not None:
            self.page.links.append(link)
        if tag == "img" and not values.get("alt", "").strip():
            self.page.bare_pictures.append(values.get("src", "")[:80])

    handle_startendtag = handle_starttag


def read_page(path: Path) -> Page:
    """The links, ids and pictures of an HTML file."""
    reader = _Reader()
    reader.feed(COLOURS.sub("", path.read_text(encoding="utf-8")))
    return reader.page


def page_files(site: Path) -> list[Path]:
    """All pages in the folder `site`, without the theme's templates in `_static`. Raises ValueError if there are
    none."""
    paths = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.relative_to(site).parts]
    if not paths:
        raise ValueError(f"site: {site} holds no page")
    return paths


def read_site(site: Path) -> dict[Path, Page]:
    """The links, ids and pictures of each page in the folder `site`."""
    return {path: read_page(path) for path in page_files(site)}


def broken_links(pages: Mapping[Path, Page], site: Path) -> list[str]:
    """Links on the `pages` of the site that lead nowhere, and ids that occur twice in a page; one line each."""
    return [line for path, page in pages.items() for line in _wrong(site, path, page, pages)]


def local_paths(site: Path, private: Mapping[str, str]) -> list[str]:
    """The places where pages of the site show one of the paths in `private` (`places.private`), one line each."""
    return [
        f"{path.relative_to(site)}: shows {place}, a path of the machine that built it"
        for path in page_files(site)
        for place in places.shown(_with_and_without_tags(path.read_text(encoding="utf-8")), private)
    ]


def _with_and_without_tags(page: str) -> str:
    """The page's text with its tags and without: a path may be in an attribute, and colours may cut one into pieces."""
    return f"{page}\n{unescape(re.sub(r'<[^>]*>', '', page))}"


def bare_pictures(pages: Mapping[Path, Page], site: Path) -> list[str]:
    """Pictures without alt text on the `pages` of the site, one line each."""
    return [
        f"{path.relative_to(site)}: the picture {picture} has no alt text"
        for path, page in pages.items()
        for picture in page.bare_pictures
    ]


def _wrong(site: Path, path: Path, page: Page, pages: Mapping[Path, Page]) -> Iterator[str]:
    name = path.relative_to(site)
    for repeated in sorted(page.repeated):
        yield f"{name}: the id {repeated} stands there twice"
    for link in dict.fromkeys(page.links):
        if why := _broken(link, site, path, pages):
            yield f"{name}: {link}: {why}"


# The side bars of a folder's pages link to the same files.
_resolved = functools.cache(Path.resolve)


def _broken(link: str, site: Path, path: Path, pages: Mapping[Path, Page]) -> str:
    """Why a link leads nowhere; an empty string if it does not."""
    try:
        parts = urlsplit(link)
    except ValueError as error:
        return f"no address: {error}"
    if parts.scheme in ("http", "https"):
        return "" if parts.hostname and " " not in link else "no address"
    if parts.scheme or not link:
        return "" if parts.scheme in ("mailto", "data") else "no address"
    if parts.netloc or parts.path.startswith("/"):
        return "leaves the folder of the site"
    target = _resolved(path.parent / unquote(parts.path)) if parts.path else path
    if not target.is_relative_to(_resolved(site)):
        return "leaves the folder of the site"
    if not target.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and target in pages and anchor not in pages[target].ids:
        return "no such id on that page"
    return ""
