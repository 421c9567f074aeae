"""The cache explorer shows what a paged cache does, and what fits, counted another way here."""

import functools
import itertools
import json

import pytest
from matplotlib.figure import Figure

from course_utils.widgets import cache_explorer
from course_utils.widgets.cache_explorer import CONTEXTS, DTYPES, MODELS, fit
from course_utils.widgets.cache_states import PAGE_SIZES, RESERVED, ROWS, STORY, cache_states
from tests.helpers.redraw import OTHER_PICTURES

states_of = functools.cache(cache_states)


def counted(there, action, waits):
    """Tokens of each sequence after an action, as the story alone has them."""
    if action.kind == "say":
        return {name: tokens + (name in action.who) for name, tokens in there.items()}
    if action.kind == "end":
        return {name: tokens for name, tokens in there.items() if name not in action.who}
    return there if waits else {**there, action.who: action.tokens}


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_every_sequence_has_its_tokens_in_pages_that_are_its_own_or_shared_from_the_start(size):
    lengths = {}
    for state, action in zip(states_of(size)[1:], STORY, strict=True):
        assert state.lengths == (lengths := counted(lengths, action, state.waiting))
        for name, table in state.tables.items():
            assert len(table) == -(-state.lengths[name] // size) == len(set(table))
            for n, page in enumerate(table):
                found = state.pages[page]
                assert name in found.owners and found.first == n * size
                assert found.filled >= min(size, state.lengths[name] - n * size)
                assert all(state.tables[other][n] == page for other in found.owners)
        taken = [page for page in state.pages if page.owners]
        assert len(taken) == state.usage.taken == len({page for table in state.tables.values() for page in table})
        assert state.usage.shared == sum(len(page.owners) > 1 for page in taken)
        assert state.usage.filled == sum(page.filled for page in taken)


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_what_changed_in_a_step_is_what_the_states_before_and_after_differ_in(size):
    for before, after in itertools.pairwise(states_of(size)):
        free = [{n for n, page in enumerate(state.pages) if not page.owners} for state in (before, after)]
        assert set(after.taken) == free[0] - free[1] and set(after.freed) == free[1] - free[0]
        for old, new in after.copies:
            assert len(before.pages[old].owners) == 2 and len(after.pages[old].owners) == 1
            assert new in after.taken and after.pages[new].filled == before.pages[old].filled + 1
            assert f"copies it to page {new}" in after.said
        more = [after.lengths[name] - before.lengths.get(name, 0) for name in after.lengths]
        if "fork" not in after.said:
            assert len(after.written) == len(set(after.written)) == sum(more)
        for slot in after.written:
            assert len(after.pages[slot // size].owners) == 1 and slot % size < after.pages[slot // size].filled


@pytest.mark.parametrize("size", PAGE_SIZES)
def test_the_story_shares_copies_fills_the_pool_and_gives_all_back(size):
    states = states_of(size)
    copies = [n for n, state in enumerate(states) if state.copies]
    assert len(copies) == 1, "the second to write into a shared page has it for itself"
    assert cache_explorer(size).step == copies[0] - 1
    assert "must copy it" in states[copies[0] - 1].said and states[copies[0] - 1].usage.shared
    (full,) = [n for n, state in enumerate(states) if state.waiting]
    assert states[full]._replace(said="", waiting="") == states[full - 1]._replace(said="", taken=(), written=())
    assert "CacheFull" in states[full].said
    used = {page for state in states[:full] for page in state.freed}
    assert any(used & set(state.taken) for state in states), "pages are taken again"
    assert any(state.usage.shared and not state.copies and state.freed for state in states), (
        "one ends, its fork goes on"
    )
    assert states[-1].usage.taken == 0 == states[0].usage.taken


def test_smaller_pages_waste_less_and_reserved_rows_most():
    for states in zip(*map(states_of, PAGE_SIZES), strict=True):
        two, four, eight = (state.usage.waste for state in states)
        assert two <= four <= eight <= states[0].reserved.waste
        for size, state in zip(PAGE_SIZES, states, strict=True):
            assert len(state.placed) == min(len(state.tables), ROWS // RESERVED)
            assert state.reserved.taken * size == RESERVED * len(state.placed)
            assert state.reserved.filled == sum(state.lengths[name] for name in state.placed)


def test_what_fits_is_memory_over_bytes():
    llama = 2 * 32 * 128 * 2  # K and V of a head, in 32 layers, in 16 bits
    assert fit("Llama-3-8B, GQA", 8192, "16 bits") == (
        8 * llama, 8 * llama * 8192, 80 * 10**9 // (8 * llama * 8192), 80 * 10**9 // (8 * llama * 131072)
    ) == (131072, 2**30, 74, 4)  # fmt: skip
    assert fit("Llama-2-7B, MHA", 1024, "16 bits").token == 32 * llama
    assert fit("Llama-2-7B, MHA", 1024, "FP8").token == 16 * llama
    assert fit("DeepSeek-V3.2, MLA", 1024, "16 bits").token == 61 * (512 + 64) * 2
    assert fit("DeepSeek-V3.2, MLA", 1024, "FP8").token == 61 * 656
    for model, dtype in itertools.product(MODELS, DTYPES):
        found = [fit(model, context, dtype) for context in CONTEXTS]
        assert found[-1].sequences == found[0].longest >= 1
        assert all(one.sequence * one.sequences <= 80 * 10**9 < one.sequence * (one.sequences + 1) for one in found)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: cache_explorer(16), "page_size: got 16, takes 2 or 4 or 8"),
        (lambda: cache_states(3), "page_size: got 3, takes 2 or 4 or 8"),
        (lambda: cache_explorer(model="Llama"), "model: got 'Llama', takes 'Llama-2-7B, MHA' or"),
        (lambda: cache_explorer(context=1000), "context: got 1000, takes 1024 or 2048"),
        (lambda: cache_explorer(dtype="fp4"), "dtype: got 'fp4', takes '16 bits' or 'FP8'"),
        (lambda: cache_explorer().static_figure(23), "step: got 23, takes 0 to 22"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_travels_to_the_browser_is_small():
    assert len(json.dumps(cache_explorer().meta)) <= 100_000


@pytest.mark.parametrize("size", [4, *(pytest.param(size, marks=OTHER_PICTURES) for size in (2, 8))])
def test_every_kind_of_step_has_a_small_still_picture(size):
    widget = cache_explorer(size)
    full = next(n for n, state in enumerate(widget.states) if state.waiting)
    assert all(isinstance(widget.static_figure(n), Figure) for n in (0, widget.step + 1, full))
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


# ---- in the browser: what is common to all widgets is in test_widget_pages.py


STEPS = """([size, steps]) => {
    document.querySelector(`input[value="${size}"]`).click();
    const text = (node) => node.textContent;
    return [...Array(steps).keys()].map((n) => {
        model.set("step", n);
        const [pool, tables] = document.querySelectorAll("canvas");
        const titles = [...document.querySelectorAll(".ak-meters b")].map(text);
        return [text(document.querySelector(".ak-status")), tables.getAttribute("aria-label"), titles, pool.height];
    });
}"""


@pytest.mark.browser
def test_every_step_is_told_and_drawn_as_python_has_it(open_widget):
    page = open_widget(cache_explorer())
    assert page.locator(".ak-status").inner_text().startswith("Step 7 of 22. D is a fork of A")
    heights = set()
    for size in PAGE_SIZES:
        states = states_of(size)
        shown = page.evaluate(STEPS, [str(size), len(states)])
        for n, (state, (words, label, titles, height)) in enumerate(zip(states, shown, strict=True)):
            assert words == f"Step {n} of 22. {state.said}"
            held = "; ".join(f"{name} {' '.join(map(str, table))}" for name, table in state.tables.items())
            assert label == f"Block tables. {held or 'No sequence.'}"
            there = len(state.tables)
            of = f"of {there} sequence{'' if there == 1 else 's'}"
            assert titles == [f"In pages: {there} {of}", f"Reserved, 32 rows each: {len(state.placed)} {of}"]
            heights.add(height)
    assert len(heights) == 1, "the pool is as large with every page size"


FITS = """([dtype, model]) => {
    for (const value of [dtype, model]) document.querySelector(`input[value="${value}"]`).click();
    const context = document.querySelector(".ak-context");
    return [...Array(1 + Number(context.max)).keys()].map((n) => {
        context.value = n;
        context.dispatchEvent(new Event("input"));
        const counts = [...document.querySelectorAll(".ak-cache-fits .ak-number")].map((node) => node.textContent);
        const text = (what) => document.querySelector(what).textContent;
        return [counts, text(".ak-picked th"), text(".ak-cache-said")];
    });
}"""


@pytest.mark.browser
def test_what_fits_follows_model_dtype_and_context(open_widget):
    page = open_widget(cache_explorer())
    page.focus(".ak-context")
    page.keyboard.press("ArrowRight")
    assert "16,384 tokens take 2.15 GB: 37 sequences" in page.locator(".ak-cache-said").inner_text()
    for dtype, model in itertools.product(DTYPES, MODELS):
        for context, (counts, picked, said) in zip(CONTEXTS, page.evaluate(FITS, [dtype, model]), strict=True):
            assert counts == [f"{fit(name, context, dtype).sequences:,}" for name in MODELS]
            assert picked == model and f"{context:,} tokens take" in said
            assert f"{fit(model, context, dtype).longest} would have a place" in said
    assert page.evaluate("model.get('step')") == 7
