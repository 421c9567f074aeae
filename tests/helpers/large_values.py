"""Large values to a page and back: as JSON, since Playwright looks at each value within a value, several times."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Page


def computed(page: Page, function: str, argument: object) -> object:
    """What a JavaScript function of one argument returns, as `page.evaluate`. JSON must be able to say both."""
    call = f"async (text) => JSON.stringify(await ({function})(JSON.parse(text)))"
    return json.loads(page.evaluate(call, json.dumps(argument)))
