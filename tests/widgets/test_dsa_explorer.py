"""What the DSA explorer shows is what top-k and the true attention say, in Python and in the browser alike."""

import base64
import random

import pytest
import torch
from matplotlib.figure import Figure

from course_utils import costs, reference
from course_utils.widgets import dsa_explorer, dsa_state, example_scores
from course_utils.widgets.frame import pack
from tests.helpers.all_of import all_of
from tests.helpers.large_values import computed
from tests.helpers.redraw import OTHER_PICTURES, assert_redrawn_within_a_frame, canvases

LOGITS, WEIGHTS = example_scores()


def drawn(seed):
    """Random scores with many ties, some below zero, random attention; a query may see no key at all."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    queries, keys = rng.randrange(1, 40), rng.randrange(1, 90)
    logits = torch.randn(queries, keys, generator=generator)
    if seed % 3:
        logits = (logits - 0.3 * (seed % 2)).relu() - 0.5 * (seed % 2)  # ties
    if seed % 4 == 0:
        logits = (2 * logits).round() / 2
    unseen = torch.arange(keys) > torch.arange(queries)[:, None] + keys - queries
    if seed % 5 == 0:
        unseen |= torch.rand(queries, keys, generator=generator) < 0.4
    weights = torch.softmax(torch.randn(queries, keys, generator=generator).masked_fill(unseen, -torch.inf), 1)
    return logits.masked_fill(unseen, -torch.inf), weights.nan_to_num(0.0), rng.randrange(queries), rng.randint(1, keys)


# ---- the Python half


@all_of("seed", range(40))
def test_the_state_is_that_of_a_slow_loop(seed):
    logits, weights, query, k = drawn(seed)
    state = dsa_state(logits, weights, query, k)
    scores = logits[query].tolist()
    visible = [s for s, score in enumerate(scores) if score > -torch.inf]
    chosen = []
    while len(chosen) < min(k, len(visible)):
        left = [s for s in visible if s not in chosen]
        chosen.append(next(s for s in left if scores[s] == max(scores[left_] for left_ in left)))
    window = [s for s in visible if sum(later > s for later in visible) < k]
    assert state.visible == tuple(visible) and state.window == tuple(window)
    assert state.chosen == tuple(sorted(chosen))
    assert sorted(chosen) == sorted(s for s in reference.select_topk(logits, k)[query].tolist() if s >= 0)
    assert state.threshold == (scores[chosen[-1]] if chosen else -torch.inf)
    assert state.missed_by_window == tuple(s for s in sorted(chosen) if s not in window)
    for mass, keys in (
        (state.mass_kept, chosen),
        (state.window_mass, window),
        (state.missed_mass, state.missed_by_window),
    ):
        assert mass == pytest.approx(weights[query][list(keys)].double().sum().item(), abs=1e-12)


def test_of_equal_scores_the_first_are_taken():
    logits = torch.tensor([[0.0, 3.0, 0.0, 1.0, -0.0, 0.0]])
    state = dsa_state(logits, torch.full((1, 6), 1 / 6), 0, 4)
    assert (state.chosen, state.threshold, state.missed_by_window) == ((0, 1, 2, 3), 0.0, (0, 1))


def test_with_all_keys_nothing_is_lost():
    for query in (0, 20, 63):
        state = dsa_state(LOGITS, WEIGHTS, query, 64)
        assert len(state.chosen) == query + 1 and not state.missed_by_window
        assert state.mass_kept == state.window_mass == pytest.approx(1)


def test_in_the_example_a_window_misses_what_top_k_finds():
    for ours, again in zip((LOGITS, WEIGHTS), example_scores(), strict=True):
        assert torch.equal(ours, again)
    for query in range(32, 64):
        state = dsa_state(LOGITS, WEIGHTS, query, 8)
        assert state.mass_kept > 0.75 and state.window_mass < 0.65 and len(state.missed_by_window) >= 2
    assert (LOGITS == 0).sum() > 500  # ties, as ReLU leaves them


def test_flops_are_those_of_costs():
    meta = dsa_explorer().meta
    assert meta["pair"] == {"indexer": 16384, "core": 278528}
    small = costs.DeepSeekDims(n_heads=4, kv_lora_rank=32, qk_rope_head_dim=16, index_n_heads=2, index_head_dim=8)
    meta = dsa_explorer(config=small).meta
    assert meta["widths"] == [4, 32, 16] and meta["pair"] == {"indexer": 2 * 2 * 8, "core": 2 * 4 * (48 + 32)}
    long = meta["long"]
    assert long["indexer"] + long["core"] == costs.dsa_flops(1, long["keys"], long["top_k"], config=small)
    assert long["dense"] == costs.mla_flops(1, long["keys"], config=small)


def test_any_floating_tensors_are_taken():
    widget = dsa_explorer(LOGITS.double().requires_grad_(), WEIGHTS.bfloat16(), top_k=3)
    assert widget.data == pack(LOGITS, WEIGHTS.bfloat16()) and widget.meta["top_k"] == 3
    assert len(dsa_explorer(*example_scores(256)).data) == 2 * 256 * 256 * 4
    assert dsa_explorer(*example_scores(256)).meta["top_k"] == 32


@pytest.mark.parametrize("scores", [drawn(10)[:2], pytest.param(example_scores(256), marks=OTHER_PICTURES)])
def test_every_query_has_a_small_still_picture(scores):
    widget = dsa_explorer(*scores)
    assert isinstance(widget.static_figure(widget.meta["queries"] - 1), Figure)
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


ONES = torch.ones(2, 3)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: dsa_explorer(LOGITS), TypeError, "weights: got NoneType, takes a torch.Tensor"),
        (lambda: dsa_explorer(LOGITS.tolist(), WEIGHTS), TypeError, "logits: got list"),
        (lambda: dsa_explorer(LOGITS.int(), WEIGHTS), TypeError, "logits: got dtype torch.int32, takes a floating"),
        (lambda: dsa_explorer(LOGITS[None], WEIGHTS), ValueError, r"logits: got shape \[1, 64, 64\], takes \[S, T\]"),
        (lambda: dsa_explorer(LOGITS, WEIGHTS[1:]), ValueError, r"weights: got shape \[63, 64\], takes that of logits"),
        (lambda: dsa_explorer(*example_scores(257)), ValueError, "logits: queries: got 257, this widget draws at most"),
        (lambda: dsa_explorer(ONES.log().log() * 0, ONES / 3), ValueError, "logits: got NaN or .inf"),
        (lambda: dsa_explorer(ONES, -ONES), ValueError, "weights: got NaN or negative"),
        (lambda: dsa_explorer(ONES, ONES), ValueError, "weights: got a sum of 3 in row 0, takes 1: probabilities"),
        (
            lambda: dsa_explorer(-ONES / 0, ONES / 3),
            ValueError,
            r"weights: got 0.333 at \[0, 0\], takes 0 where logits",
        ),
        (lambda: dsa_explorer(ONES, ONES / 3, top_k=4), ValueError, "top_k: got 4, takes a whole number from 1 to 3"),
        (lambda: dsa_explorer(top_k=2.5), ValueError, "top_k: got 2.5, takes a whole number from 1 to 64"),
        (lambda: dsa_state(LOGITS, WEIGHTS, 64, 1), ValueError, "query: got 64, takes a whole number from 0 to 63"),
        (lambda: dsa_state(LOGITS, WEIGHTS, 0, 0), ValueError, "k: got 0, takes a whole number from 1 to 64"),
        (lambda: dsa_explorer().static_figure(64), ValueError, "step: got 64, takes a whole number from 0 to 63"),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


# ---- in the browser: what is common to all widgets is in test_widget_pages.py

COMPUTE = """async (cases) => {
    const { dsaState } = await import(scriptUrl);
    const floats = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
    return cases.map(([scores, attention, k]) => {
        const state = dsaState(floats(scores), floats(attention), k);
        return { ...state, threshold: String(state.threshold) };
    });
}"""


@pytest.mark.browser
def test_the_browser_computes_the_same_states_as_python(open_widget):
    cases = [drawn(seed) for seed in range(60)] + [
        (LOGITS, WEIGHTS, query, k) for query in range(0, 64, 7) for k in (1, 8)
    ]
    sent = [
        [*(base64.b64encode(pack(of[query])).decode() for of in (logits, weights)), k]
        for logits, weights, query, k in cases
    ]
    for case, got in zip(cases, computed(open_widget(dsa_explorer()), COMPUTE, sent), strict=True):
        state = dsa_state(*case)
        assert tuple(got["visible"]) == state.visible and tuple(got["window"]) == state.window
        assert tuple(got["chosen"]) == state.chosen and tuple(got["missed"]) == state.missed_by_window
        assert float(got["threshold"].replace("Infinity", "inf")) == state.threshold
        masses = (got["massKept"], got["windowMass"], got["missedMass"])
        assert masses == pytest.approx((state.mass_kept, state.window_mass, state.missed_mass), abs=1e-12)


def status(page):
    return page.locator(".ak-status").inner_text()


def stage(page, n):
    page.locator(".ak-stage").nth(n - 1).click()
    return status(page)


@pytest.mark.browser
def test_the_words_and_figures_of_each_stage_are_right(open_widget):
    page = open_widget(dsa_explorer(top_k=20))
    for query in (3, 19, 40, 63):
        page.evaluate("(t) => model.set('step', t)", query)
        state, scores = dsa_state(LOGITS, WEIGHTS, query, 20), LOGITS[query]
        zeros, best = int((scores == 0).sum()), int(scores.argmax())
        words = stage(page, 1)
        assert words.startswith(f"Query {query}: the indexer scores {query + 1} keys of 64")
        assert f"is that of key {best}." in words and (f"ReLU leaves {zeros} at" in words) == (zeros > 0)
        words = stage(page, 2)
        if query < 20:
            assert f"k = 20 takes every key that it sees, {query + 1} in all" in words
        else:
            equal = int((scores == state.threshold).sum())
            out = equal - sum(scores[s] == state.threshold for s in state.chosen)
            assert f"of {query + 1} scores the 20 highest are kept" in words
            assert (f"{equal} keys share that score, and {out} of them stay out" in words) == (out > 0)
        assert f"{len(state.chosen)} rows of the cache, spread over" in stage(page, 3)
        words = stage(page, 4)
        assert f"hold {100 * state.mass_kept:.1f} % of its attention" in words
        assert f"window of the last {len(state.window)} keys holds {100 * state.window_mass:.1f} %" in words
        missed = ", ".join(map(str, state.missed_by_window[:6]))
        assert (f"misses {len(state.missed_by_window)} chosen key" in words and missed in words) or not missed
        shown = page.locator(".ak-figures").inner_text()
        assert f"Attention kept by top-k: {100 * state.mass_kept:.1f} %" in shown
        used = ((query + 1) * 16384 + len(state.chosen) * 278528) / ((query + 1) * 278528)
        assert f"FLOPs of this query: {100 * used:.1f} % of dense" in shown
        assert "2.15 + 0.57 instead of 36.5 GFLOP" in shown
        assert "core: 278,528 FLOP a key" in shown and "counted for 128 heads and latents of 512 + 64" in shown


@pytest.mark.browser
def test_every_control_changes_what_is_shown(open_widget):
    page = open_widget(dsa_explorer())

    def shown():
        picture = canvases(page)
        return status(page), page.locator(".ak-figures").inner_text(), picture

    def press(key):
        page.focus(".ak-k")
        page.keyboard.press(key)

    for act in (lambda: press("ArrowRight"), lambda: press("End"), lambda: press("Home"), lambda: stage(page, 3)):
        before = shown()
        act()
        assert all(old != new for old, new in zip(before, shown(), strict=True))
    assert page.locator(".ak-k").input_value() == "1"
    for n in (2, 1):
        words, _, picture = shown()
        page.locator(".ak-stage").nth(n - 1).focus()
        page.keyboard.press("Enter")
        assert shown()[0] != words and shown()[2] != picture
    assert [b.get_attribute("aria-pressed") for b in page.locator(".ak-stage").all()] == ["true"] + ["false"] * 3
    assert "shown with the attention" in shown()[1]


@pytest.mark.browser
def test_a_query_without_keys_is_said_to_see_none(open_widget):
    logits, weights = torch.full((3, 2), -torch.inf), torch.zeros(3, 2)
    logits[1:, 0], weights[1:, 0] = 0.0, 1.0
    page = open_widget(dsa_explorer(logits, weights))
    page.evaluate("model.set('step', 0)")
    for n in (1, 2, 3, 4):
        assert "sees no key" in stage(page, n)


@pytest.mark.browser
def test_k_is_moved_within_a_frame(open_widget):
    page = open_widget(dsa_explorer(*example_scores(256)))
    change = """(n) => {
        const input = document.querySelector(".ak-k");
        input.value = 1 + ((n * 97) % 256);
        input.dispatchEvent(new Event("input"));
    }"""
    assert_redrawn_within_a_frame(page, change, "k")
