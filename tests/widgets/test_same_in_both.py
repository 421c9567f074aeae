"""What a widget computes in JavaScript, so that it moves on a page without Python, is what Python computes.

Where a widget's controls have few settings, all of them are compared; else Hypothesis draws settings. The masks of the
explorer and DeepSeek Sparse Attention are compared in files of their own: test_explorer.py, test_dsa_explorer.py.
"""

import base64
import dataclasses
import itertools
import json
import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from course_utils import patterns
from course_utils.costs import least_bytes, time_floor
from course_utils.widgets import tile_stepper
from course_utils.widgets.bank_places import LAYOUTS, WIDTHS, bank_state
from course_utils.widgets.bank_turns import MOST as MOST_PITCH
from course_utils.widgets.bank_turns import column_state
from course_utils.widgets.explorer import LENGTHS, SLIDERS, TILES, make_pattern, tiles_of
from course_utils.widgets.frame import esm, pack
from course_utils.widgets.heatmap import scores_and_weights
from course_utils.widgets.launch_grid import MOST as MOST_ELEMENTS
from course_utils.widgets.launch_grid import SIZES, grid_state
from course_utils.widgets.load_sectors import ELEMENTS, load_state
from course_utils.widgets.load_sectors import MOST as MOST_STRIDE
from course_utils.widgets.pieces import MOST_SCORES, merged
from tests.helpers.large_values import computed

pytestmark = pytest.mark.browser

SCRIPTS = ("bank_places", "bank_turns", "explorer", "launch_grid", "load_sectors", "pipeline", "score_heatmap",
           "tile_stepper", "two_pieces")  # fmt: skip
LOAD = """async (texts) => {
    window.scripts = {};
    for (const [name, text] of texts)
        window.scripts[name] = await import(URL.createObjectURL(new Blob([text], { type: "text/javascript" })));
    window.floats = (text) => new Float32Array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0)).buffer);
}"""
A_FEW = settings(max_examples=40, deadline=None)  # each draw asks the browser, which takes some milliseconds


@pytest.fixture(scope="module")
def page(browser):
    """One page that has all the widgets' scripts as `scripts`, and draws nothing."""
    page = browser.new_page()
    page.set_content("<!doctype html>")
    page.evaluate(LOAD, [[name, esm(f"{name}.js")] for name in SCRIPTS])
    yield page
    page.close()


def as_json(value):
    """As it arrives in the browser: tuples are lists."""
    return json.loads(json.dumps(value))


def base64_of(*tensors):
    return base64.b64encode(pack(*tensors)).decode()


def randoms(*shapes, seed):
    generator = torch.Generator().manual_seed(seed)
    return [1.5 * torch.randn(*shape, generator=generator) for shape in shapes]


# ---- all settings

WHOLE = {
    ("launch_grid", "gridState"): (grid_state, range(MOST_ELEMENTS + 1), SIZES),
    ("load_sectors", "loadState"): (load_state, range(MOST_STRIDE + 1), ELEMENTS),
    ("bank_turns", "columnState"): (column_state, range(MOST_PITCH + 1)),
    ("bank_places", "bankState"): (bank_state, LAYOUTS, WIDTHS, range(8)),
}


@pytest.mark.parametrize(("script", "name"), WHOLE)
def test_for_every_setting_of_its_controls_the_browser_has_pythons_state(page, script, name):
    state, *choices = WHOLE[script, name]
    cases = list(itertools.product(*choices))
    found = computed(page, f"(cases) => cases.map((one) => scripts.{script}.{name}(...one))", cases)
    for case, got in zip(cases, found, strict=True):
        assert got == as_json(dataclasses.asdict(state(*case))), case


# ---- drawn settings


@A_FEW
@given(st.lists(st.floats(-800, 800), min_size=2, max_size=MOST_SCORES), st.data())
def test_two_pieces_of_a_list_are_merged_alike(page, scores, data):
    cut = data.draw(st.integers(1, len(scores) - 1))
    got = computed(page, "(one) => scripts.two_pieces.merge(...one)", [scores, cut])
    assert got == pytest.approx(dataclasses.asdict(merged(scores, cut)), rel=1e-12, abs=1e-300)


ATTEND = """([values, rows, cols, dim, scale, causal]) => {
    const { dotProducts, attend } = scripts.score_heatmap;
    const [query, key] = [floats(values).subarray(0, rows * dim), floats(values).subarray(rows * dim)];
    const { scores, weights } = attend(dotProducts(query, key, rows, cols, dim), rows, cols, scale, causal);
    return [[...scores].map((one) => (one === -Infinity ? null : one)), [...weights]];
}"""
SIZE = st.integers(1, 12)


@A_FEW
@given(SIZE, SIZE, SIZE, st.floats(0.01, 8), st.booleans(), st.integers(0, 1000))
def test_scores_and_weights_are_alike(page, rows, cols, dim, scale, causal, seed):
    query, key = randoms((rows, dim), (cols, dim), seed=seed)
    found = computed(page, ATTEND, [base64_of(query, key), rows, cols, dim, scale, causal])
    wanted = scores_and_weights(query.double(), key.double(), scale=scale, is_causal=causal)
    for got, tensor in zip(found, wanted, strict=True):
        got = torch.tensor([-math.inf if one is None else one for one in got], dtype=torch.float64)
        torch.testing.assert_close(got.reshape(rows, cols), tensor, atol=1e-9, rtol=1e-9)


UNPACK = """([meta, data]) => {
    const plain = (values) => values && [...values].map((one) => (Number.isFinite(one) ? one : String(one)));
    return scripts.tile_stepper.unpack(meta, floats(data))
        .map(({ S, m, l, tail, O, requested }) => [[S, m, l, tail, O].map(plain), requested]);
}"""


@A_FEW
@given(st.integers(1, 20), st.integers(1, 20), SIZE, SIZE, SIZE, st.booleans(), st.integers(0, 1000))
def test_the_steps_of_tiles_are_taken_apart_as_they_were_packed(
    page, queries, keys, dim, block_rows, block_cols, causal, seed
):
    tensors = randoms((queries, dim), (keys, dim), (keys, dim), seed=seed)
    widget = tile_stepper(*tensors, block_rows=block_rows, block_cols=block_cols, is_causal=causal)
    found = computed(page, UNPACK, [widget.meta, base64.b64encode(widget.data).decode()])
    total = 0
    for step, (arrays, requested) in zip(widget.steps, found, strict=True):
        total += step.read_bytes + step.written_bytes
        assert requested == total
        tail = step.LSE if step.kind == "write" else step.rescale
        for tensor, values in zip((step.S, step.m, step.l, tail, step.O), arrays, strict=True):
            if tensor is None:
                assert values is None
            else:
                numbers = [float(str(value).replace("Infinity", "inf")) for value in values]
                assert torch.equal(torch.tensor(numbers), tensor.flatten())


KINDS = st.sampled_from(["S", "PV", "waits"])
SPANS = st.lists(st.tuples(st.integers(0, 120), st.integers(1, 60), KINDS), max_size=8).map(
    lambda some: sorted([begin, begin + length, kind] for begin, length, kind in some)
)
COVERED = """([spans, from, to]) => [scripts.pipeline.seen(spans, from, to),
    scripts.pipeline.covered(spans, from, to, (kind) => kind !== "waits")]"""


@A_FEW
@given(SPANS, st.integers(0, 100), st.integers(1, 100))
def test_cycles_of_a_recorded_block_are_counted_as_by_going_through_each(page, spans, begin, length):
    end = begin + length
    seen, covered = computed(page, COVERED, [spans, begin, end])
    assert seen == [[max(b, begin), min(e, end), kind] for b, e, kind in spans if e > begin and b < end]
    at_work = [range(b, e) for b, e, kind in spans if kind != "waits"]
    assert covered == sum(any(cycle in span for span in at_work) for cycle in range(begin, end))


@st.composite
def mask_settings(draw):
    """A kind of pattern, its sliders anywhere between their ends, a length and a tile."""
    kind = draw(st.sampled_from([kind for kind in SLIDERS if kind != "dilated_sorted"]))
    values = {name: draw(st.sampled_from(range(low, high + 1, step))) for name, (low, high, step, _) in
              SLIDERS[kind].items()}  # fmt: skip
    least, _, step = LENGTHS
    return kind, values, draw(st.sampled_from(range(least, 401, step))), draw(st.sampled_from(TILES))


MASKS = """([kind, values, length, size]) => {
    const { codeOf, maskOf, tilesOf, visitedAt } = scripts.explorer;
    const { partial, full } = tilesOf(maskOf(kind, values, length), size);
    return [codeOf(kind, values, length), visitedAt(kind, values, length, size), partial + full];
}"""


@settings(A_FEW, max_examples=20)  # a mask takes Python milliseconds
@given(mask_settings())
@example(
    ("global_tokens", {"count": 4, "spacing": 27}, 80, 32)
)  # the last would be past the end, and the tile is there
def test_the_code_that_is_shown_makes_the_mask_and_its_visited_tiles_are_counted_alike(page, drawn):
    kind, values, length, size = drawn
    code, estimated, counted = computed(page, MASKS, drawn)
    mask = make_pattern(kind, values, length).mask(length)
    shown = eval(code, vars(patterns) | {"range": range})
    assert torch.equal(shown.mask(length), mask)
    assert counted == tiles_of(mask, size).visited
    assert estimated == counted  # what is estimated for long sequences is exact for short ones


RATES = {"flops_per_second": 3e14, "bytes_per_second": 4e12, "heads": 16}


@A_FEW
@given(st.integers(0, 10**6), st.sampled_from(TILES), st.integers(64, 2**17), st.sampled_from((64, 128)))
def test_the_estimated_time_is_that_of_the_costs(page, tiles, size, length, dim):
    got = computed(page, "(one) => scripts.explorer.secondsOf(...one)", [tiles, size, length, dim, RATES])
    flops = RATES["heads"] * 4 * dim * tiles * size**2  # all pairs of a visited tile are computed
    least = least_bytes(1, RATES["heads"], length, length, dim, 2)
    assert got == pytest.approx(time_floor(flops, least, RATES["flops_per_second"], RATES["bytes_per_second"]))
