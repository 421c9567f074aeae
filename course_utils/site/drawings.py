"""Drawings (SVG) of matplotlib made small for a page: they look the same at any size that a page shows."""

from __future__ import annotations

import re
from collections import Counter

# What no browser draws: the head of the file, who made it, comments; and the spaces between two elements.
_UNSEEN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")
_STYLE = re.compile(r' style="([^"]+)"')
# Where places stand; the letters of a font lie in a grid of 1/64 point, and their own factor is no place.
_PLACES = re.compile(r'(?<= )(?:d|x|y|points)="[^"]*"|translate\([^)]*\)')
_FIGURE = re.compile(r"-?\d+\.\d+")
_DIGITS = 3  # of a point: a thousandth is less than a six-hundredth of a pixel on a page


def slim(drawing: str) -> str:
    """The same drawing in fewer bytes: coordinates are rounded to a hundredth of a point, and a style that several
    elements share becomes a class."""
    text = _BETWEEN.sub("><", _UNSEEN.sub("", drawing)).strip()
    text = _PLACES.sub(lambda places: _FIGURE.sub(_rounded, " ".join(places[0].split())), text)
    looks = [look for look, times in Counter(_STYLE.findall(text)).items() if times > 1]
    names = {look: f"s{number}" for number, look in enumerate(looks)}
    text = _STYLE.sub(lambda style: f' class="{names[style[1]]}"' if style[1] in names else style[0], text)
    rules = "".join(f".{name}{{{look}}}" for look, name in names.items())
    return re.sub(r"(<svg\b[^>]*>)", rf"\1<style>{rules}</style>", text, count=1) if rules else text


def _rounded(figure: re.Match[str]) -> str:
    return f"{float(figure[0]):.{_DIGITS}f}".rstrip("0").rstrip(".")
