"""The Python half of the widgets: what is sent, and what is stored in a notebook."""

import pytest
import torch
from matplotlib.figure import Figure

from course_utils import costs, reference
from course_utils.widgets import score_heatmap, tile_stepper
from course_utils.widgets.heatmap import scores_and_weights
from tests.helpers.redraw import OTHER_PICTURES

PNG_LIMIT = 60_000
PNG_START = b"\x89PNG"


def random(*shape, seed=0):
    return 1.5 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heatmap(rows=64, cols=64, dim=64, **options):
    return score_heatmap(random(rows, dim), random(cols, dim, seed=1), **options)


def stepper(rows=64, cols=64, dim=16, **options):
    return tile_stepper(random(rows, dim), random(cols, dim, seed=1), random(cols, dim, seed=2), **options)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("lengths", [(1, 1), (7, 7), (3, 9), (9, 3)])
def test_weights_times_value_is_attention(lengths, is_causal):
    query, key, value = random(lengths[0], 8), random(lengths[1], 8, seed=1), random(lengths[1], 8, seed=2)
    _, weights = scores_and_weights(query, key, scale=0.4, is_causal=is_causal)
    out = reference.attention(query[None, None], key[None, None], value[None, None], scale=0.4, is_causal=is_causal)
    torch.testing.assert_close((weights @ value).double(), out[0, 0], atol=1e-5, rtol=1e-5)


def test_the_payload_is_small():
    assert len(heatmap().data) == 2 * 64 * 64 * 4
    assert len(stepper().data) <= 64 * 1024
    assert len(stepper(128, 128, 64, block_rows=32, block_cols=32).data) <= 1 << 20


def test_shared_memory_parts_add_up_to_costs():
    parts = stepper(block_rows=16, block_cols=8).meta["shared"]
    assert sum(parts.values()) == costs.tile_shared_bytes(16, 8, 16, 4, score_tile=True)


def test_naive_bytes_are_those_of_costs():
    assert stepper().meta["naive_bytes"] == costs.total_bytes(costs.naive_traffic(1, 1, 64, 64, 16, 4))


@pytest.mark.parametrize(
    "make",
    [
        heatmap,
        lambda: stepper(50, 41, block_rows=16, block_cols=32, is_causal=True),
        *(
            pytest.param(make, marks=OTHER_PICTURES)
            for make in (
                lambda: heatmap(9, 5, is_causal=True, tokens=([f"token {n}" for n in range(9)], ["key"] * 5)),
                lambda: stepper(is_causal=True),
                lambda: stepper(1, 1),
            )
        ),
    ],
)
def test_a_saved_notebook_holds_a_small_picture(make):
    bundle, _ = make()._repr_mimebundle_()
    assert bundle["image/png"].startswith(PNG_START)
    assert len(bundle["image/png"]) <= PNG_LIMIT
    assert "Still picture" in bundle["text/plain"]
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_every_step_has_a_still_picture():
    widget = stepper(8, 8, 4, block_rows=4, block_cols=4, is_causal=True)
    assert {step.kind for step in widget.steps} == {"tile", "skipped", "write"}
    for step in range(len(widget.steps)):
        assert isinstance(widget.static_figure(step), Figure)
    with pytest.raises(ValueError, match="step: got 99"):
        widget.static_figure(99)
    with pytest.raises(ValueError, match="step: got 64, takes a query row from 0 to 63"):
        heatmap().static_figure(64)


def test_tokens_may_be_one_list_or_a_pair():
    assert heatmap(3, 3, tokens=["a", "b", "c"]).meta["query_tokens"] == ["a", "b", "c"]
    pair = heatmap(2, 3, tokens=(["a", "b"], ["x", "y", "z"])).meta
    assert (pair["query_tokens"], pair["key_tokens"]) == (["a", "b"], ["x", "y", "z"])
    assert heatmap(2, 2, tokens=("a", "b")).meta["key_tokens"] == ["a", "b"]


def test_a_heat_map_opens_on_the_row_that_is_asked_for():
    assert heatmap(5, 5).step == 2
    assert heatmap(5, 5, row=0).step == 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: heatmap(65, 3), ValueError, "query: tokens: got 65, this widget draws at most 64"),
        (lambda: heatmap(3, 65), ValueError, "key: tokens: got 65"),
        (lambda: heatmap(3, 3, 257), ValueError, "query: head dimension: got 257"),
        (lambda: heatmap(3, 3, row=3), ValueError, "row: got 3, takes a query row from 0 to 2"),
        (lambda: heatmap(2, 3, tokens=["a", "b", "c"]), ValueError, "tokens: got 3 names for 2 queries"),
        (lambda: heatmap(2, 2, tokens=[1, 2]), TypeError, "tokens: got int among the names of queries"),
        (lambda: score_heatmap(torch.full((2, 2), torch.nan), torch.ones(2, 2)), ValueError, "query: got values"),
        (lambda: score_heatmap(torch.ones(2, 3), torch.ones(2, 2)), ValueError, "key: got head dimension 2"),
        (lambda: score_heatmap(None, torch.ones(2, 2)), TypeError, "query: got NoneType"),
        (lambda: stepper(129, 3), ValueError, "query: tokens: got 129"),
        (lambda: stepper(3, 3, 65), ValueError, "query: head dimension: got 65"),
        (lambda: stepper(block_rows=33), ValueError, "block_rows: got 33, this widget draws at most 32"),
        (lambda: stepper(128, 128, 64, block_rows=2, block_cols=2), ValueError, "block_rows, block_cols: got 2 and 2"),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()
