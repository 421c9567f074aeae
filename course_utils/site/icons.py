"""The theme's icons: its script holds two thousand of them, more than the rest of most pages. The site keeps ten."""

from __future__ import annotations

import re
from pathlib import Path

from course_utils.site.check import page_files

SCRIPT = "scripts/fontawesome.js"  # below _static
# An icon in the script: "name":[width,height,[other names],"code point",outline].
_ICON = re.compile(
    r'"?(?P<name>[\w-]+)"?:\[\d+,\d+,\[(?P<others>[^\]]*)\],"[0-9a-f]+",(?:"[^"]*"|\["[^"]*","[^"]*"\])\],?'
)
_SHOWN = re.compile(r"\bfa-([a-z0-9-]+)")


def keep_shown(site: Path) -> None:
    """Leaves in the script of a built site the icons whose names stand on its pages or in its other scripts.

    Raises ValueError if the script holds no icon: the theme then writes it in another way.
    """
    script = site / "_static" / SCRIPT
    text = script.read_text(encoding="utf-8")
    if not _ICON.search(text):
        raise ValueError(f"site: {script} holds no icon as this theme is known to write them")
    others = [path for path in (site / "_static").rglob("*.js") if path != script]
    shown = {name for path in (*page_files(site), *others) for name in _SHOWN.findall(path.read_text(encoding="utf-8"))}

    def kept(icon: re.Match[str]) -> str:
        return icon[0] if shown & {icon["name"], *re.findall(r'"([^"]+)"', icon["others"])} else ""

    script.write_text(_ICON.sub(kept, text), encoding="utf-8")
