"""What the height of a chapter's page is made of: text, code, puzzles, kernels, pictures, tables, other outputs;
and what the page loads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.course import CHAPTERS
from course_utils.reading.firsts import ATTENTION, WHAT, first
from course_utils.site.browsing import browsed, wait_until_complete
from course_utils.site.check import read_page
from course_utils.site.weight import MOST, weights
from course_utils.tables import aligned

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, SCREEN = 1440, 900  # pixels of the window
KINDS = ("text", "code", "puzzles", "kernels", "pictures and widgets", "tables", "questions", "other outputs")
# A page is mostly pictures and sentences; of its height in %, and the number of tables that are seen unfolded.
MOST_CODE, LEAST_PICTURES, MOST_TABLES = 10, 20, 8

_PAGE = """# What the chapters' pages are made of

A page should be mostly pictures and sentences, and a learner should write a kernel soon. Of the height of a chapter's
page at most {code} % may be code that nobody edits, and at least {pictures} % must be pictures and widgets. At most
{tables} tables are seen unfolded.

This page is the output of `python -m course_utils.site measure --markdown docs/pages.md` for a site that `make site`
has built.

## Before and now

In November 2026 the course was rewritten to show before it tells.

| | before | now |
| --- | --- | --- |
| read before a first kernel of one's own | 135 cells, 5,461 words | {kernel} |
| read before a first complete attention kernel | 431 cells, 17,088 words | {attention} |
| code, of a page's height | 15 to 26 % | {of_code} |
| pictures and widgets, of a page's height | 5 to 8 % | {of_pictures} |
| tables that are seen, a page | 13 to 37 | {of_tables} |

## By chapter

Shares of the height of a page {width} pixels wide; a screen is {screen} high. MB: all that the page may load, before
it is compressed on its way; at most {most}.

{chapters}
"""

# Of each cell its input and its outputs; what is in no cell is text. The heights are those on the page.
_HEIGHTS = """
() => {
  const article = document.querySelector("article");
  const high = (element) => element.getBoundingClientRect().height;
  const asks = "[data-widget=questions], .ak-questions-page"; // the form of the chapter's questions
  const seen = (element) => !element.closest("details:not([open])");
  const sums = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
  let tables = 0, cells = 0;
  for (const cell of article.querySelectorAll("div.cell")) {
    for (const input of [...cell.querySelectorAll(".cell_input")].filter(seen))
      sums[input.textContent.trim().startsWith("%%puzzle") ? "puzzles" : "code"] += high(input);
    for (const output of cell.querySelectorAll(".cell_output > *")) {
      const picture = output.querySelector("img, svg, canvas, .course-picture, .ak-widget");
      const kind = output.querySelector(asks) ? "questions"
        : picture || output.matches("img, svg, .course-picture") ? "pictures and widgets"
        : /^\\s*kernels\\//.test(output.textContent) ? "kernels"
        : output.querySelector("table") ? "tables" : "other outputs";
      sums[kind] += high(output);
    }
    tables += [...cell.querySelectorAll(".cell_output table:not([role=presentation])")]
      .filter((table) => seen(table) && !table.closest(asks)).length;
    cells += high(cell);
  }
  const outside = [...article.querySelectorAll("table")].filter((table) => !table.closest("div.cell"));
  tables += outside.filter(seen).length;
  sums.text = high(article) - cells;
  return {height: high(article), tables, sums};
}
""".replace("KINDS", repr(list(KINDS)))


def main(site: Path, markdown: Path | None = None) -> int:
    """Prints the table for the chapters of a built site, and writes the page `markdown`. Needs Playwright and its
    browser, or Chromium on the PATH."""
    found = heights(site)
    print(aligned(rows(found)))
    print(f"\nShares of the height of a page {WIDTH} pixels wide; a screen is {SCREEN} high.")
    for slug, measured in found.items():
        for words in beyond_limits(measured):
            print(f"{slug}: {words}")
    if markdown:
        markdown.write_text(report(found), encoding="utf-8")
    return 0


def rows(found: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """A heading, and what each chapter's page is made of. found: by slug, of `heights`."""
    table = [("chapter", "screens", *KINDS, "number of tables", "MB")]
    for slug, measured in found.items():
        shares = (f"{_share(measured, kind):.0f} %" for kind in KINDS)
        screens, loads = f"{measured['height'] / SCREEN:.0f}", f"{measured['bytes'] / 1e6:.1f}"
        table.append((slug, screens, *shares, str(measured["tables"]), loads))
    return table


def report(found: Mapping[str, Mapping[str, Any]]) -> str:
    """docs/pages.md: the limits, before and now, and `rows`."""
    heading, *lines = rows(found)
    table = [heading, ("---",) * len(heading), *lines]
    return _PAGE.format(
        code=MOST_CODE,
        pictures=LEAST_PICTURES,
        tables=MOST_TABLES,
        kernel=_until(WHAT["puzzle"]),
        attention=_until(re.compile(f"^%%puzzle {ATTENTION}$", re.MULTILINE)),
        of_code=_from_to([_share(one, "code") for one in found.values()], " %"),
        of_pictures=_from_to([_share(one, "pictures and widgets") for one in found.values()], " %"),
        of_tables=_from_to([one["tables"] for one in found.values()]),
        width=WIDTH,
        screen=SCREEN,
        most=f"{MOST / 1e6:g}",
        chapters="\n".join(f"| {' | '.join(line)} |" for line in table),
    )


def _share(measured: Mapping[str, Any], kind: str) -> float:
    """Percent of a page's height."""
    return 100 * measured["sums"][kind] / measured["height"]


def _until(pattern: re.Pattern[str]) -> str:
    """What the course, which begins with its first chapter, has to read before a cell."""
    above = first(CHAPTERS[0].slug, pattern)
    assert above is not None
    return f"{above.cells} cells, {above.words:,} words"


def _from_to(values: Sequence[float], unit: str = "") -> str:
    return f"{min(values):.0f} to {max(values):.0f}{unit}"


def beyond_limits(measured: Mapping[str, Any]) -> list[str]:
    """Which limits a page does not keep, in words. measured: by `page_heights`."""
    code, pictures = (_share(measured, kind) for kind in ("code", "pictures and widgets"))
    tables = measured["tables"]
    found = [f"{code:.1f} % code: at most {MOST_CODE} %"] * (code > MOST_CODE)
    found += [f"{pictures:.1f} % pictures and widgets: at least {LEAST_PICTURES} %"] * (pictures < LEAST_PICTURES)
    return found + [f"{tables} tables: at most {MOST_TABLES}"] * (tables > MOST_TABLES)


def heights(site: Path) -> dict[str, dict[str, Any]]:
    """By chapter: what `page_heights` says of its page, and the "bytes" that it may load."""
    found = {}
    with browsed(site) as (page, address):
        page.set_viewport_size({"width": WIDTH, "height": SCREEN})
        for chapter in CHAPTERS:
            name = f"notebooks/{chapter.slug}.html"
            page.goto(f"{address}/{name}")
            wait_until_complete(page)
            files = weights({site / name: read_page(site / name)}, site)[site / name]
            found[chapter.slug] = page_heights(page) | {"bytes": sum(files.values())}
    return found


def page_heights(page: Page) -> dict[str, Any]:
    """Of an open page: "height" in pixels, "sums" of it by kind, and how many "tables" are seen."""
    return page.evaluate(_HEIGHTS)
