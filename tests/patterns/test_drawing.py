"""The picture of a pattern."""

import matplotlib.pyplot as plt
import numpy as np

from course_utils import patterns
from course_utils.patterns import drawing
from course_utils.plots import look


def test_a_drawing_shows_the_mask_its_tiles_and_its_density():
    pattern = patterns.streaming(4, 30)
    figure = pattern.draw(200, tile=64)
    ax = figure.axes[0]
    assert np.array_equal(ax.images[0].get_array(), pattern.mask(200).numpy())
    assert "streaming(sinks=4, window=30)" in ax.get_title(loc="left")
    assert f"{pattern.density(200):.1%}" in ax.get_title(loc="left")
    assert [len(lines.get_segments()) for lines in ax.collections] == [3, 3]
    plt.close(figure)


def test_its_colours_are_those_of_all_pictures():
    assert (drawing.BLUE, drawing.GREY) == (look.BLUE, look.GREY)
