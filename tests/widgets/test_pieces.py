"""The cut list of scores: every cut gives the sum of the whole."""

import itertools

import pytest
import torch

from course_utils.widgets import two_pieces
from course_utils.widgets.pieces import merged

SCORES = [1.0, 2.0, 0.5, 1.5, 2.5, 4.0, 1.0, 3.0, 3.5, 2.0, 6.0, 1.0]


@pytest.mark.parametrize("cut", range(1, len(SCORES)))
def test_every_cut_gives_maximum_and_sum_of_the_whole(cut):
    x = torch.tensor(SCORES, dtype=torch.float64)
    at = merged(SCORES, cut)
    assert at.m == 6 and at.l == pytest.approx(float(torch.exp(x - 6).sum()), rel=1e-14)


def test_it_opens_where_a_piece_shrinks_and_stays_visible():
    widget = two_pieces(SCORES)
    at = merged(SCORES, widget.step + 1)
    assert 0.1 < min(at.a1, at.a2) < 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: two_pieces([1.0]), "scores: got"),
        (lambda: two_pieces([1.0, float("nan")]), "scores: got"),
        (lambda: two_pieces([1.0] * 25), "scores: got 25"),
        (lambda: two_pieces(SCORES, cut=12), "cut: got 12, takes 1 to 11"),
        (lambda: two_pieces(SCORES).static_figure(11), "step: got 11, takes 0 to 10"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.browser
def test_a_click_moves_the_cut(open_widget):
    page = open_widget(two_pieces(SCORES, cut=3))
    box = page.locator("canvas").bounding_box()
    for x, moved in itertools.product((0, 1), (5, 9)):
        left = 8 + x * (12 * 26 + 44)
        page.mouse.click(box["x"] + left + moved * 26, box["y"] + 80)
        assert page.evaluate("model.get('step')") == moved - 1
