"""The theme's icons: its script has two thousand of them, more bytes than the rest of most pages. The site has ten."""

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
    """Removes from the script of a built site all icons whose names occur neither on its pages nor in its other
    scripts.

    Raises ValueError if no icon is found in the script: the theme's format has changed.
    """
    script = site / "_static" / SCRIPT
    text = script.read_text(encoding="utf-8")
    if not _ICON.search(text):
        raise ValueError(f"site: {script} holds no icon as this theme is known to write them")
    others = [path for path in (site / "_static").rglob("*.js") if path != script]
    shown = {name for path in (*page_files(site), *others) for name in _SHOWN.findall(path.read_text(encoding="utf-8"))}

    def if_shown(icon: re.Match[str]) -> str:
        return icon[0] if shown & {icon["name"], *re.findall(r'"([^"]+)"', icon["others"])} else ""

    script.write_text(_ICON.sub(if_shown, text), encoding="utf-8")
