"""Drawings (SVG) of matplotlib made small for a page: they look the same at any size that a page shows."""

from __future__ import annotations

import math
import re
from collections import Counter

# What no browser draws: the head of the file, who made it, comments; and the spaces between two elements.
_UNSEEN = re.compile(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<metadata>.*?</metadata>|<!--.*?-->", re.DOTALL)
_BETWEEN = re.compile(r">\s+<")
_STYLE = re.compile(r' style="([^"]+)"')
# Where places stand; the letters of a font lie in a grid of 1/64 point, and their own factor is no place.
_PLACES = re.compile(r'(?<= )(?:d|x|y|points)="[^"]*"|translate\([^)]*\)')
_AXES = re.compile(r'<g id="axes_\d+">')
_GROUP = re.compile(r"<g\b[^>]*[^/]>|<g>|</g>")  # an empty one begins and ends at once: <g id="text_1"/>
_DEFINED = re.compile(r"<defs>.*?</defs>")  # letters and marks, at their first use: others may use them, too
# Where something stands from the left: the points of a line, what has a place of its own, and where a word begins.
_LINE = re.compile(r'<path\b[^>]*\bd="([^"]*)"')
_PLACE = re.compile(r'<(?:use|rect|image)\b[^>]*? x="(-?[\d.]+)"|<g\b[^>]*\btransform="translate\((-?[\d.]+)')
_NUMBER = re.compile(r"-?[\d.]+")
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


def without_others(drawing: str, left: float, right: float) -> str:
    """A slim drawing without the axes that lie wholly left of `left` or right of `right`, in points."""
    parts, at = [], 0
    for axes in _AXES.finditer(drawing):
        if axes.start() < at:
            continue  # it is part of axes that are gone
        end = _end_of_group(drawing, axes.start())
        first, last = _reach(drawing[axes.start() : end])
        if last < left or first > right:
            parts += [drawing[at : axes.start()], *_DEFINED.findall(drawing, axes.start(), end)]
            at = end
    return "".join([*parts, drawing[at:]])


def _reach(group: str) -> tuple[float, float]:
    """The left and right ends of a group."""
    group = _DEFINED.sub("", group)
    places = [float(x) for line in _LINE.findall(group) for x in _NUMBER.findall(line)[::2]]
    places += [float(x or begins) for x, begins in _PLACE.findall(group)]
    return min(places, default=-math.inf), max(places, default=math.inf)


def _end_of_group(drawing: str, start: int) -> int:
    depth = 0
    for tag in _GROUP.finditer(drawing, start):
        depth += -1 if tag[0] == "</g>" else 1
        if depth == 0:
            return tag.end()
    raise ValueError(f"drawing: the group at {start} has no end")


def _rounded(figure: re.Match[str]) -> str:
    return f"{float(figure[0]):.{_DIGITS}f}".rstrip("0").rstrip(".")
