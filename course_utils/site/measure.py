"""What the height of a chapter's page is made of: text, code, puzzles, kernels, pictures, tables, other outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course_utils.course import CHAPTERS
from course_utils.site.browsing import browsed, wait_until_complete
from course_utils.tables import aligned

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTH, SCREEN = 1440, 900  # pixels of the window
KINDS = ("text", "code", "puzzles", "kernels", "pictures and widgets", "tables", "questions", "other outputs")
# A page is mostly pictures and sentences; of its height in %, and the number of tables that are seen unfolded.
MOST_CODE, LEAST_PICTURES, MOST_TABLES = 10, 20, 8

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


def main(site: Path) -> int:
    """Prints the table for the chapters of a built site. Needs Playwright and its browser, or Chromium on the PATH."""
    rows = [("chapter", "screens", *KINDS, "number of tables")]
    found = heights(site)
    for slug, measured in found.items():
        shares = (f"{100 * measured['sums'][kind] / measured['height']:.0f} %" for kind in KINDS)
        rows.append((slug, f"{measured['height'] / SCREEN:.0f}", *shares, str(measured["tables"])))
    print(aligned(rows))
    print(f"\nShares of the height of a page {WIDTH} pixels wide; a screen is {SCREEN} high.")
    for slug, measured in found.items():
        for words in beyond_limits(measured):
            print(f"{slug}: {words}")
    return 0


def beyond_limits(measured: Mapping[str, Any]) -> list[str]:
    """Which limits a page does not keep, in words. measured: by `page_heights`."""
    share = {kind: 100 * measured["sums"][kind] / measured["height"] for kind in KINDS}
    code, pictures, tables = share["code"], share["pictures and widgets"], measured["tables"]
    found = [f"{code:.1f} % code: at most {MOST_CODE} %"] * (code > MOST_CODE)
    found += [f"{pictures:.1f} % pictures and widgets: at least {LEAST_PICTURES} %"] * (pictures < LEAST_PICTURES)
    return found + [f"{tables} tables: at most {MOST_TABLES}"] * (tables > MOST_TABLES)


def heights(site: Path) -> dict[str, dict[str, Any]]:
    """By chapter: what `page_heights` says of its page."""
    found = {}
    with browsed(site) as (page, address):
        page.set_viewport_size({"width": WIDTH, "height": SCREEN})
        for chapter in CHAPTERS:
            page.goto(f"{address}/notebooks/{chapter.slug}.html")
            wait_until_complete(page)
            found[chapter.slug] = page_heights(page)
    return found


def page_heights(page: Page) -> dict[str, Any]:
    """Of an open page: "height" in pixels, "sums" of it by kind, and how many "tables" are seen."""
    return page.evaluate(_HEIGHTS)
