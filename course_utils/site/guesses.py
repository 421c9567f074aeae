"""The chapters' guesses on a page without a kernel: a stored question with its answer folded.

static/guesses.js makes the widget's own box of it in the browser; without scripts the folded answer stays.
"""

from __future__ import annotations

import re
from html import escape

_HELD_PICTURE = '<img alt="" src="data:image/'


def held_pictures(page: str) -> int:
    """How many pictures a guess in this HTML holds back."""
    return page.count(_HELD_PICTURE)


def described(page: str, alts: list[str]) -> str:
    """The HTML with these descriptions of its held pictures, in order; pictures without one stay without."""
    given = iter(alts)
    return re.sub(re.escape(_HELD_PICTURE), lambda m: m[0].replace('alt=""', f'alt="{escape(next(given, ""))}"'), page)
