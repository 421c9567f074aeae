"""Pictures on a page. A picture with panels side by side is cut between them, so that they stack on a phone."""

from __future__ import annotations

import html
import io
import os
import re
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from PIL import Image

from course_utils.site.drawings import slim

FOLDER = "pictures"
NARROWEST_PANEL = 240  # pixels of the page; a narrower part is no panel, but a legend or a column of labels
GAP = 6  # pixels of the page, at least, between two panels: nothing is drawn there; a bar and its figure are 5 apart


@dataclass(frozen=True)
class Picture:
    """A picture of a cell's output. kind: its media type; width, height: pixels of the page, None for its own.

    pixels: the PNG of a drawing (SVG), if the cell has one, too.
    """

    content: bytes
    kind: str
    width: int | None = None
    height: int | None = None
    pixels: bytes | None = None


def to_html(picture: Picture, name: str, alt: str, page: Path, root: Path, extra: Path) -> str:
    """Writes the picture below `extra`, as `name` with the ending of its kind; returns the HTML that shows it.

    page: the file of the repository in `root` in whose place the HTML stands.
    """
    folder = extra / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    up = os.path.relpath(root / FOLDER, page.parent)
    ending = picture.kind.partition("/")[2].partition("+")[0]
    images = []
    if picture.kind == "image/svg+xml":
        picture = replace(picture, content=slim(picture.content.decode()).encode())
    for number, part in enumerate(_panels(picture)):
        file = f"{name}.{ending}" if number == 0 else f"{name}-panel{number + 1}.{ending}"
        (folder / file).write_bytes(part.content)
        size = f' width="{part.width}" height="{part.height}"' if part.width and part.height else ""
        says = alt if number == 0 else f"Panel {number + 1} of the picture before."
        images.append(f'<img src="{up}/{file}" alt="{html.escape(says if alt else "")}"{size} loading="lazy">')
    return f'<div class="course-picture">{"".join(images)}</div>'


def _panels(picture: Picture) -> list[Picture]:
    """The panels of a picture from left to right; without a gap, or without pixels, the picture itself."""
    pixels = picture.content if picture.kind == "image/png" else picture.pixels
    if not pixels:
        return [picture]
    image = Image.open(io.BytesIO(pixels))
    width, height = picture.width or image.width, picture.height or image.height
    scale = image.width / width
    edges = [0, *_gaps(image, scale), image.width]
    if len(edges) == 2:
        return [replace(picture, width=width, height=height)]
    cut = _cut_drawing if picture.kind == "image/svg+xml" else _cut_pixels
    parts = []
    for left, right in pairwise(edges):
        content = cut(picture.content, left / image.width, right / image.width)
        parts.append(Picture(content, picture.kind, round((right - left) / scale), height))
    return parts


def _cut_pixels(content: bytes, left: float, right: float) -> bytes:
    """The part of a PNG between two shares of its width."""
    image, part = Image.open(io.BytesIO(content)), io.BytesIO()
    edges = (round(left * image.width), 0, round(right * image.width), image.height)
    image.crop(edges).save(part, format="png", optimize=True)
    return part.getvalue()


def _cut_drawing(content: bytes, left: float, right: float) -> bytes:
    """The part of an SVG between two shares of its width: a narrower view."""
    text = content.decode()
    head = re.search(r"<svg\b[^>]*>", text)
    view = re.search(r'viewBox="([^"]*)"', head[0])
    x, y, width, height = map(float, view[1].split())
    window = f'viewBox="{x + left * width:g} {y:g} {(right - left) * width:g} {height:g}"'
    narrow = re.sub(r' (?:width|height)="[^"]*"', "", head[0].replace(view[0], window))
    size = f' width="{(right - left) * width:g}" height="{height:g}">'
    return text.replace(head[0], narrow.removesuffix(">") + size, 1).encode()


def _gaps(image: Image.Image, scale: float) -> list[int]:
    """The gaps between panels: the middles of columns that are one colour from top to bottom, with a panel on both
    sides."""
    pixels = np.asarray(image.convert("RGBA")).view(np.uint32)[:, :, 0]  # a colour is one number
    blank = (pixels == pixels[0, 0]).all(axis=0)
    starts = np.flatnonzero(np.diff(blank.astype(int), prepend=0) == 1)
    ends = np.flatnonzero(np.diff(blank.astype(int), append=0) == -1) + 1
    drawn = np.flatnonzero(~blank)
    if not drawn.size:
        return []
    found, panel = [], drawn[0]
    for start, end in zip(starts, ends, strict=True):
        if (
            end - start >= GAP * scale
            and start - panel >= NARROWEST_PANEL * scale
            and drawn[-1] - end >= NARROWEST_PANEL * scale
        ):
            found.append(int(start + end) // 2)
            panel = end
    return found
