"""The states of the tile stepper: float32, in the kernel's order, against the reference and the byte formulas."""

import itertools

import pytest
import torch

from course_utils import costs, reference
from course_utils.widgets import tile_steps
from tests.helpers.all_of import all_of

SHAPES = [(1, 1), (3, 3), (16, 16), (17, 16), (65, 64), (50, 41), (41, 50), (5, 70), (70, 5)]


def head(length, dim, seed, size=1.5):
    return size * torch.randn(length, dim, generator=torch.Generator().manual_seed(seed))


def inputs(L_q, L_k, dim=8, size=1.5):
    return head(L_q, dim, 1, size), head(L_k, dim, 2, size), head(L_k, dim, 3)


def joined(steps, name):
    return torch.cat([getattr(step, name) for step in steps if step.kind == "write"])


def attention(query, key, value, **options):
    out, lse = reference.attention(*(x[None, None] for x in (query, key, value)), return_lse=True, **options)
    return out[0, 0], lse[0, 0]


@all_of("case", itertools.product(SHAPES, [(16, 16), (4, 32), (32, 4), (128, 128)], [False, True]))
def test_output_and_lse_agree_with_the_reference(case):
    lengths, blocks, is_causal = case
    query, key, value = inputs(*lengths)
    steps = tile_steps(query, key, value, block_rows=blocks[0], block_cols=blocks[1], is_causal=is_causal)
    out, lse = attention(query, key, value, is_causal=is_causal)
    torch.testing.assert_close(joined(steps, "O").double(), out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(joined(steps, "LSE").double(), lse, atol=1e-5, rtol=1e-5)


def test_rows_that_see_no_key_are_exactly_zero_and_minus_infinity():
    query, key, value = inputs(12, 5)
    steps = tile_steps(query, key, value, block_rows=4, block_cols=4, is_causal=True)
    assert torch.equal(joined(steps, "O")[:7], torch.zeros(7, 8))
    assert torch.equal(joined(steps, "LSE")[:7], torch.full((7,), -torch.inf))
    assert all(not torch.isnan(tensor).any() for step in steps for tensor in (step.m, step.l, step.rescale, step.O))


def test_logits_up_to_fifty_do_not_overflow():
    query, key, value = inputs(33, 33, size=7.0)
    steps = tile_steps(query, key, value, block_rows=8, block_cols=8)
    assert max(step.S.abs().max() for step in steps if step.kind == "tile") > 50
    out, lse = attention(query, key, value)
    torch.testing.assert_close(joined(steps, "O").double(), out, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(joined(steps, "LSE").double(), lse, atol=1e-5, rtol=1e-5)


def test_scale_is_used():
    query, key, value = inputs(9, 9)
    steps = tile_steps(query, key, value, block_rows=4, block_cols=4, scale=0.7)
    torch.testing.assert_close(
        joined(steps, "O").double(), attention(query, key, value, scale=0.7)[0], atol=1e-5, rtol=0
    )


def test_each_step_holds_the_softmax_of_the_keys_seen_so_far():
    query, key, value = inputs(20, 20)
    scores = (query @ key.T / 8**0.5).masked_fill(~reference.causal_mask(20, 20), -torch.inf)
    for step in tile_steps(query, key, value, block_rows=8, block_cols=8, is_causal=True):
        if step.kind != "tile":
            continue
        (top, bottom), (_, right) = step.rows, step.cols
        seen = scores[top:bottom, :right]
        torch.testing.assert_close(step.m, seen.amax(dim=1))
        weights = torch.exp(seen - seen.amax(dim=1, keepdim=True))
        torch.testing.assert_close(step.l, weights.sum(dim=1))
        torch.testing.assert_close(step.O, weights @ value[:right], atol=1e-5, rtol=1e-5)


def test_rescale_is_the_factor_between_the_old_and_the_new_maximum():
    steps = tile_steps(*inputs(16, 64), block_rows=16, block_cols=16)
    for old, new in zip(steps[:3], steps[1:4], strict=True):
        torch.testing.assert_close(new.rescale, torch.exp(old.m - new.m))
    assert torch.equal(steps[0].rescale, torch.zeros(16))
    assert any((step.rescale < 1).any() for step in steps[1:4])


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", SHAPES)
def test_bytes_and_skipped_tiles_are_those_of_costs(lengths, is_causal):
    steps = tile_steps(*inputs(*lengths), block_rows=16, block_cols=8, is_causal=is_causal)
    traffic = costs.fa2_traffic(1, 1, *lengths, 8, block_rows=16, block_cols=8, element_bytes=4, is_causal=is_causal)
    assert sum(step.read_bytes for step in steps) == sum(part.bytes_read for part in traffic)
    assert sum(step.written_bytes for step in steps) == sum(part.bytes_written for part in traffic)
    computed = [(step.i, step.j) for step in steps if step.kind == "tile"]
    assert computed == list(costs.visited_tiles(*lengths, 16, 8, is_causal))
    tiles = costs.ceil_div(lengths[0], 16) * costs.ceil_div(lengths[1], 8)
    assert len(computed) + sum(step.skipped for step in steps) == tiles


def test_one_head_of_a_batch_in_half_precision_is_taken():
    query, key, value = (x.half()[None, None] for x in inputs(9, 9))
    steps = tile_steps(query, key, value, block_rows=4, block_cols=4)
    out = reference.attention(query, key, value)[0, 0]
    torch.testing.assert_close(joined(steps, "O").double(), out, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": [[1.0]]}, TypeError, "query: got list"),
        ({"query": torch.ones(4, 8, dtype=torch.int32)}, TypeError, "query: got dtype torch.int32"),
        ({"query": torch.ones(2, 3, 4, 8)}, ValueError, r"query: got shape \[2, 3, 4, 8\]"),
        ({"query": torch.ones(0, 8)}, ValueError, r"query: got shape \[0, 8\]"),
        ({"key": torch.ones(4, 7), "value": torch.ones(4, 7)}, ValueError, "key: got head dimension 7, takes .* 8"),
        ({"value": torch.ones(5, 8)}, ValueError, r"value: got shape \[5, 8\], takes .* \[4, 8\]"),
        ({"block_rows": 0}, ValueError, "block_rows: got 0"),
        ({"block_cols": 2.0}, ValueError, "block_cols: got 2.0"),
    ],
)
def test_bad_input_is_named(change, error, message):
    query, key, value = inputs(4, 4)
    arguments = {"query": query, "key": key, "value": value, "block_rows": 2, "block_cols": 2} | change
    with pytest.raises(error, match=message):
        tile_steps(**arguments)
