"""What the chapter draws of a softcap and of sinks is what the formulas say."""

import pytest
import torch

from course_utils.chapters.flash_attention_v2 import additions


def test_a_row_of_one_key_shows_the_capped_score():
    scores = torch.tensor([-120.0, -3.0, 0.0, 40.0, 200.0])
    assert torch.allclose(additions.capped_scores(scores, 50.0), 50 * torch.tanh(scores / 50), atol=1e-3)


def test_the_keys_share_their_weight_with_the_sink():
    distances = torch.tensor([-8.0, 0.0, 1.0, 8.0])
    assert torch.allclose(additions.weight_of_keys(distances).float(), torch.sigmoid(-distances), atol=1e-3)


def test_the_picture_has_both(drawn):
    additions.show_softcap_and_sinks()
    capped, shares = drawn[0].axes
    assert capped.lines[1].get_ydata().max() == pytest.approx(additions.CAP, abs=0.1)
    assert shares.lines[0].get_ydata()[additions.HEADS // 2] == pytest.approx(50, abs=0.1)
