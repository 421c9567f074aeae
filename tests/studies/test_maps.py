"""The synthetic attention maps: what exercise 04.1 is designed for."""

import pytest
import torch

from course_utils.patterns import causal, sliding_window, streaming
from course_utils.studies.maps import HEADS, attention_maps, density, kept_mass, mask_of


@pytest.mark.parametrize("length", [1, 3, 97, 256])
def test_each_map_is_causal_and_its_rows_sum_to_one(length: int) -> None:
    maps = attention_maps(length, seed=5)
    assert maps.shape == (len(HEADS), length, length) and maps.dtype == torch.float64
    assert torch.equal(maps, maps.tril()) and (maps >= 0).all()
    torch.testing.assert_close(maps.sum(dim=2), torch.ones(len(HEADS), length, dtype=torch.float64))


def test_a_seed_is_a_text_and_only_the_last_head_looks_elsewhere() -> None:
    one, other = attention_maps(256, seed=1), attention_maps(256, seed=2)
    assert torch.equal(one, attention_maps(256, seed=1)) and not torch.equal(one, other)
    best = sliding_window(8).mask(256)
    torch.testing.assert_close(kept_mass(one, best)[0], kept_mass(other, best)[0], rtol=0, atol=0.02)
    columns = one[5, 200:].mean(dim=0).topk(4).indices
    assert one[5, 200:, columns].sum() > 4 * other[5, 200:, columns].sum()


def test_recall_and_density_of_everything_and_of_sinks() -> None:
    maps = attention_maps(128, seed=3)
    everything = mask_of(causal(), 128)
    assert density(everything) == 1.0
    torch.testing.assert_close(kept_mass(maps, everything), torch.ones(len(HEADS), dtype=torch.float64))
    assert kept_mass(maps, mask_of(streaming(4, 8), 128))[HEADS.index("sinks")] > 0.8


def test_a_mask_mod_gives_the_mask_of_its_pattern() -> None:
    window = mask_of(lambda b, h, i, j: (j <= i) & (i - j < 5), 40)
    assert torch.equal(window, mask_of(sliding_window(5), 40))


@pytest.mark.parametrize(
    ("pattern", "error", "words"),
    [
        (7, TypeError, "a Pattern of course_utils.patterns"),
        (lambda b, h, i, j: i - j, TypeError, "must give a bool tensor"),
        (lambda b, h, i, j: torch.ones(3, dtype=torch.bool), ValueError, r"shape \(3,\)"),
    ],
)
def test_what_is_no_mask_is_named(pattern: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        mask_of(pattern, 16)


def test_a_map_needs_a_token() -> None:
    with pytest.raises(ValueError, match="length is 0"):
        attention_maps(0, seed=0)
