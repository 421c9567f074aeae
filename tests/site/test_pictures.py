"""Panels that stand side by side become pictures of their own; no other picture is cut."""

import io
import re

import numpy as np
import pytest
from PIL import Image

from course_utils.site.pictures import Picture, to_html


def png(*drawn, width=1000, height=20):
    """A white picture in which each pair (from, to) of columns is black from top to bottom."""
    pixels = np.full((height, width, 3), 255, np.uint8)
    for left, right in drawn:
        pixels[:, left:right] = 0
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="png")
    return content.getvalue()


def shown(root, picture):
    """The HTML, and by name the size of each file."""
    page = to_html(picture, "plot", "Two charts", root / "notebooks" / "a.ipynb", root, root / "extra")
    return page, {path.name: path for path in (root / "extra" / "pictures").iterdir()}


@pytest.mark.parametrize(
    "drawn",
    [
        [(10, 990)],
        pytest.param([(10, 495), (500, 990)], id="a bar and its figure"),
        pytest.param([(10, 200), (300, 990)], id="a legend at the left"),
        pytest.param([(10, 700), (800, 990)], id="a legend at the right"),
        pytest.param([], id="blank"),
    ],
)
def test_a_picture_of_one_panel_stays_whole(tmp_path, drawn):
    page, files = shown(tmp_path, Picture(png(*drawn), "image/png"))
    assert page.count("<img") == 1 and 'width="1000" height="20"' in page
    assert files["plot.png"].read_bytes() == png(*drawn)


def test_panels_are_cut_in_the_middle_of_the_gap_and_nothing_is_lost(tmp_path):
    page, files = shown(tmp_path, Picture(png((10, 400), (420, 700), (740, 990)), "image/png"))
    images = [Image.open(files[name]) for name in ("plot.png", "plot-panel2.png", "plot-panel3.png")]
    assert [image.width for image in images] == [410, 310, 280]
    whole = np.concatenate([np.asarray(image.convert("RGB")) for image in images], axis=1)
    assert (whole == np.asarray(Image.open(io.BytesIO(png((10, 400), (420, 700), (740, 990)))))).all()
    assert [f'width="{image.width}" height="20"' in page for image in images] == [True] * 3


def test_a_picture_drawn_twice_as_fine_has_half_its_pixels_on_the_page(tmp_path):
    page, _ = shown(tmp_path, Picture(png((10, 480), (500, 990)), "image/png", 500, 10))
    assert page.count("<img") == 1 and 'width="500" height="10"' in page, "either part is narrower than a panel"
    page, _ = shown(tmp_path, Picture(png((10, 960), (1000, 1990), width=2000), "image/png", 1000, 10))
    assert 'width="490" height="10"' in page and 'width="510" height="10"' in page


def test_a_drawing_stays_a_drawing(tmp_path):
    page, files = shown(tmp_path, Picture(b"<svg/>", "image/svg+xml"))
    assert 'src="../pictures/plot.svg"' in page and files["plot.svg"].read_bytes() == b"<svg/>"


def test_a_drawing_is_cut_where_its_pixels_have_a_gap(tmp_path):
    drawing = b'<svg version="1.1" width="72pt" height="14.4pt" viewBox="0 0 72 14.4"><g/></svg>'
    pixels = png((10, 480), (520, 990))
    page, files = shown(tmp_path, Picture(drawing, "image/svg+xml", 1000, 200, pixels))
    assert page.count('width="500" height="200"') == 2
    views = [re.search(r"<svg[^>]*>", files[name].read_text())[0] for name in ("plot.svg", "plot-panel2.svg")]
    assert views == [f'<svg version="1.1" viewBox="{left} 0 36 14.4" width="36" height="14.4">' for left in ("0", "36")]
