"""A drawing with fewer letters looks the same."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from course_utils.plots.look import svg
from course_utils.site.drawings import slim


@pytest.fixture(scope="module")
def drawing():
    """Two charts side by side, with marks, bars and letters."""
    figure = Figure((6, 2))
    first, second = figure.subplots(1, 2, gridspec_kw={"wspace": 0.6})
    first.scatter([n / 7 for n in range(60)], [n**0.5 / 3 for n in range(60)], label="s")
    first.set_title("AB")
    second.bar(range(5), [1 / 3, 2 / 3, 3 / 7, 4 / 9, 1])
    second.set_title("BC")
    return svg(figure)


@pytest.fixture
def pixels(browser):
    """pixels(svg) -> what a browser draws of it, [height, width, 3]."""
    page = browser.new_page(device_scale_factor=2)
    page.set_content("<!doctype html><body style='margin: 0'>")

    def drawn(text):
        page.evaluate(
            """async (text) => {
                const image = new Image();
                image.src = URL.createObjectURL(new Blob([text], { type: "image/svg+xml" }));
                await image.decode();
                document.body.replaceChildren(image);
            }""",
            text,
        )
        shot = Image.open(io.BytesIO(page.locator("img").screenshot())).convert("RGB")
        return np.asarray(shot).astype(int)

    yield drawn
    page.close()


@pytest.mark.browser
def test_a_slim_drawing_looks_the_same(drawing, pixels):
    small = slim(drawing)
    assert len(small) < 0.75 * len(drawing) and "metadata" not in small and "<!--" not in small
    before, after = pixels(drawing), pixels(small)
    assert before.min() < 50 and before.shape == after.shape
    assert (np.abs(before - after).max(2) > 24).mean() < 0.001


def test_places_are_rounded_and_factors_of_letters_are_not():
    text = slim('<g transform="translate(1.23456 -7.00001) scale(0.015625)"><path d="M 0.50004 1 \nL -2.0004 3"/></g>')
    assert text == '<g transform="translate(1.235 -7) scale(0.015625)"><path d="M 0.5 1 L -2 3"/></g>'


def test_a_look_that_several_elements_have_is_said_once():
    text = slim('<svg><g style="fill: red"/><g style="fill: red"/><g style="fill: blue"/></svg>')
    assert text == '<svg><style>.s0{fill: red}</style><g class="s0"/><g class="s0"/><g style="fill: blue"/></svg>'
