"""What the mask explorer shows is what course_utils.patterns says: masks, tiles, reach, and estimates."""

import base64
import random

import pytest
import torch
from matplotlib.figure import Figure

from course_utils import patterns
from course_utils.plots.look import UNSEEN
from course_utils.widgets import mask_explorer
from course_utils.widgets.explorer import (
    FULL,
    LENGTHS,
    PARTIAL,
    SLIDERS,
    TILES,
    layers_to,
    make_pattern,
    packed_bits,
    settings_of,
    tiles_of,
)
from tests.helpers.large_values import computed
from tests.helpers.redraw import OTHER_PICTURES, assert_redrawn_within_a_frame, canvases

OTHER_KINDS = pytest.mark.exhaustive("each kind is computed in the browser above; drawing is the same for all")
RATES = {"flops_per_second": 3e14, "bytes_per_second": 4e12, "heads": 16, "label": "some GPU, some day"}
START = {kind: {name: start for name, (*_, start) in sliders.items()} for kind, sliders in SLIDERS.items()}
KINDS = [kind for kind in SLIDERS if kind != "dilated_sorted"]


def drawn(kind, seed):
    """Random sliders and a random length for `kind`: three quarters small values, at which there is more to see."""
    rng = random.Random(f"{kind} {seed}")
    values = {}
    for name, (low, high, step, _) in SLIDERS[kind].items():
        most = high if rng.random() < 0.25 else min(high, low + 12 * step)
        values[name] = rng.randrange(low, most + 1, step)
    if "seed" in values:
        values["seed"] = rng.getrandbits(32)
    return values, rng.randrange(LENGTHS[0], 640, LENGTHS[2])


# ---- the Python half


@pytest.mark.parametrize("kind", KINDS)
def test_tiles_are_those_of_the_block_lists(kind):
    for seed, size in ((0, 64), (1, 128)):
        values, length = drawn(kind, seed)
        pattern = make_pattern(kind, values, length)
        tiles, lists = tiles_of(pattern.mask(length), size), pattern.block_lists(length, block=size)
        assert tiles.pairs == pattern.pairs(length)
        assert tiles.visited == len(lists.indices)
        assert tiles.count(PARTIAL) == int((lists.bits_index >= 0).sum())
        rows = torch.repeat_interleave(torch.arange(len(lists.indptr) - 1), lists.indptr.diff())
        assert ((tiles.state[rows, lists.indices.long()] == FULL) == (lists.bits_index < 0)).all()


@pytest.mark.parametrize("kind", ["sliding_window", "strided", "global_tokens", "random_blocks", "tree"])
def test_layers_are_the_powers_of_the_mask(kind):
    values, length = drawn(kind, 2)
    mask = make_pattern(kind, values, length).mask(length)
    step = (mask | torch.eye(length, dtype=torch.bool)).float()
    query = length - 3
    row, layers = torch.eye(length)[query], layers_to(mask, query)
    for layer in range(6):
        assert torch.equal(row > 0, (layers >= 0) & (layers <= layer))
        row = ((row @ step) > 0).float()


def test_reach_of_a_window_grows_by_a_window_in_each_layer():
    layers = layers_to(patterns.sliding_window(window=8).mask(64), 60)
    assert [int(((layers >= 0) & (layers <= n)).sum()) for n in range(4)] == [1, 8, 15, 22]
    assert layers_to(patterns.block_diagonal(block=16).mask(64), 20).tolist().count(-1) == 48


@pytest.mark.parametrize("kind", KINDS)
def test_a_pattern_sets_the_sliders_that_show_it(kind):
    pattern = make_pattern(kind, START[kind], 256)
    assert settings_of(pattern, 256) == (kind, START[kind])
    start = mask_explorer(pattern, 256).meta["start"]
    assert (start["kind"], start["values"]) == (kind, START[kind])


@pytest.mark.parametrize(
    "make",
    [
        lambda: patterns.causal() & patterns.local(radius=5),
        lambda: patterns.document([28, 100]),
        lambda: patterns.tree([-1, 0, 0, 0] + [1] * 124),
        lambda: patterns.global_tokens([0, 7, 100]),
        lambda: patterns.sliding_window(window=5000),
        lambda: patterns.local(radius=4) | patterns.global_tokens([5]),
        lambda: patterns.from_mask_mod(lambda b, h, i, j: (i + j) % 3 == 0),
    ],
)
def test_other_patterns_are_sent_as_they_are(make):
    widget = mask_explorer(make(), 128)
    assert widget.meta["given"] == {"name": widget.pattern.name, "length": 128}
    assert widget.data == packed_bits(widget.pattern.mask(128)) and len(widget.data) == 128 * 4 * 4
    assert isinstance(widget.static_figure(), Figure)


@pytest.mark.parametrize(
    ("kind", "length"),
    [("bigbird", 256), *(pytest.param(kind, 1024, marks=OTHER_PICTURES) for kind in ("bigbird", "power_of_two"))],
)
def test_a_saved_notebook_holds_a_small_picture(kind, length):
    bundle, _ = mask_explorer(make_pattern(kind, START[kind], length), length)._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


def test_where_nobody_sees_it_there_is_no_still_picture(monkeypatch):
    widget = mask_explorer(length=64)
    monkeypatch.delenv(UNSEEN, raising=False)
    seen, sizes = widget._repr_mimebundle_()
    monkeypatch.setenv(UNSEEN, "1")
    bundle, metadata = widget._repr_mimebundle_()
    assert seen.keys() - bundle.keys() == sizes.keys() - metadata.keys() == {"image/png"}


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: mask_explorer("causal"), TypeError, "pattern: got str, takes a Pattern"),
        (lambda: mask_explorer(length=100), ValueError, "length: got 100, takes a multiple of 16 from 64 to 1024"),
        (lambda: mask_explorer(length=2048), ValueError, "length: got 2048"),
        (lambda: mask_explorer(tile=48), ValueError, "tile: got 48, takes 16, 32, 64 or 128"),
        (lambda: mask_explorer(head_dim=96), ValueError, "head_dim: got 96, takes 64 or 128"),
        (
            lambda: mask_explorer(rates={"label": "x"}),
            ValueError,
            r"rates: got \['label'\], takes a dict with flops_per",
        ),
        (
            lambda: mask_explorer(rates={**RATES, "heads": 0}),
            ValueError,
            "rates: heads: got 0, takes a positive number",
        ),
        (lambda: mask_explorer().static_figure(256), ValueError, "step: got 256, takes a query from 0 to 255"),
    ],
)
def test_bad_input_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


# ---- in the browser: what is common to all widgets is in test_widget_pages.py

COMPUTE = """async (cases) => {
    const { maskOf, tilesOf, layersTo } = await import(scriptUrl);
    const join = (all, byte) => all + String.fromCharCode(byte);
    const text = (array) => btoa(new Uint8Array(array.buffer).reduce(join, ""));
    return cases.map(([kind, values, length, query, sizes]) => {
        const mask = maskOf(kind, values, length);
        const tiles = sizes.map((size) => tilesOf(mask, size)).map((t) => [t.pairs, text(t.state)]);
        return { bits: text(mask.bits), layers: [...layersTo(mask, query)], tiles };
    });
}"""


@pytest.mark.browser
def test_the_browser_computes_what_the_patterns_say(open_widget):
    page = open_widget(mask_explorer())
    assert page.evaluate("import(scriptUrl).then((m) => Object.keys(m.PATTERNS).sort())") == sorted(SLIDERS)
    cases = [(kind, *drawn(kind, seed)) for kind in KINDS for seed in range(5)]
    cases = [(*case, (case[2] * 5) // 7, TILES) for case in cases]
    for (kind, values, length, query, _), got in zip(cases, computed(page, COMPUTE, cases), strict=True):
        mask = make_pattern(kind, values, length).mask(length)
        assert base64.b64decode(got["bits"]) == packed_bits(mask), (kind, values, length)
        assert got["layers"] == layers_to(mask, query).tolist()
        for size, (pairs, state) in zip(TILES, got["tiles"], strict=True):
            tiles = tiles_of(mask, size)
            assert (pairs, list(base64.b64decode(state))) == (tiles.pairs, tiles.state.flatten().tolist())


@pytest.mark.browser
def test_dilated_sorted_is_dilated_in_another_order(open_widget):
    page = open_widget(mask_explorer())
    for values, length in ({"window": 5, "dilation": 3}, 200), ({"window": 9, "dilation": 64}, 80):
        case = ["dilated_sorted", values, length, 0, [16]]
        order = sorted(range(length), key=lambda i: (i % values["dilation"], i))
        mask = patterns.dilated(**values).mask(length)[order][:, order]
        assert base64.b64decode(computed(page, COMPUTE, [case])[0]["bits"]) == packed_bits(mask)


@pytest.mark.browser
def test_the_tiles_of_a_long_sequence_are_about_right(open_widget):
    page = open_widget(mask_explorer())
    call = "(cases) => import(scriptUrl).then((m) => cases.map((c) => m.visitedAt(...c)))"
    kinds = ["causal", "sliding_window", "power_of_two", "document", "longformer", "random_blocks", "bigbird"]
    for kind, got in zip(kinds, page.evaluate(call, [[kind, START[kind], 8192, 64] for kind in kinds]), strict=True):
        lists = make_pattern(kind, START[kind], 8192).block_lists(8192, block=64)
        assert got == pytest.approx(len(lists.indices), rel=0.05), kind


@pytest.mark.browser
def test_the_code_shown_makes_the_pattern_shown(open_widget):
    page = open_widget(mask_explorer(length=208))
    for kind in KINDS:
        page.select_option(".ak-pattern", kind)
        shown = eval(page.locator(".ak-widget code").inner_text(), vars(patterns) | {"range": range})
        assert torch.equal(shown.mask(208), make_pattern(kind, START[kind], 208).mask(208)), kind


@pytest.mark.browser
def test_every_control_changes_what_is_shown(open_widget):
    page = open_widget(mask_explorer(rates=RATES))

    def shown():
        page.wait_for_timeout(120)  # the table of long sequences follows when a slider rests
        pictures = canvases(page)
        return page.locator(".ak-status").inner_text(), page.locator(".ak-table").all_inner_texts(), pictures

    def press(name, key="ArrowRight"):
        page.focus(f".ak-{name}")
        page.keyboard.press(key)

    after = shown()
    for act, changes in (
        (lambda: page.select_option(".ak-pattern", "streaming"), (True, True, True)),
        (lambda: press("sinks"), (True, True, True)),
        (lambda: press("window"), (True, True, True)),
        (lambda: press("length"), (True, True, True)),
        (lambda: press("layers", "ArrowLeft"), (True, False, True)),
        (lambda: page.select_option(".ak-tile", "16"), (False, True, True)),
        (lambda: page.locator(".ak-tiles").click(position={"x": 100, "y": 60}), (True, False, True)),
        (lambda: page.select_option(".ak-pattern", "bigbird"), (True, True, True)),
        (lambda: press("seed"), (None, None, True)),
    ):
        act()
        before, after = after, shown()
        changed = tuple(old != new for old, new in zip(before, after, strict=True))
        wanted = tuple(old if new is None else new for old, new in zip(changed, changes, strict=True))
        assert changed == wanted, page.locator(".ak-status").inner_text()
    assert page.evaluate("model.get('step')") < 60  # the row that was clicked


@pytest.mark.browser
def test_the_figures_shown_are_right(open_widget):
    page = open_widget(mask_explorer(patterns.streaming(sinks=4, window=40), 256, tile=32, rates=RATES))
    mask = patterns.streaming(sinks=4, window=40).mask(256)
    tiles, causal = tiles_of(mask, 32), tiles_of(patterns.causal().mask(256), 32)
    rows = {row[0]: row[1:] for row in (text.split("\t") for text in page.locator("tr").all_inner_texts())}
    assert rows["pairs kept"] == [f"{tiles.pairs:,}", f"{causal.pairs:,}", "65,536"]
    assert rows["tiles partial"] == [str(tiles.count(PARTIAL)), "8", "0"]
    assert rows["tiles full"] == [str(tiles.count(FULL)), "28", "64"]
    assert rows["FLOPs of tiles"][0] == f"{4 * 128 * tiles.visited * 32**2 / 1e6:.1f} M"
    now = layers_to(mask, 192)
    within = int(((now >= 0) & (now <= 3)).sum())
    words = page.locator(".ak-status").inner_text()
    assert words.startswith(
        f"Query 192 of 256 sees {int((now == 1).sum())} other keys. After 3 layers it draws on {within}"
    )
    assert f"all of them after {int(now.max())} layers" in words


@pytest.mark.browser
def test_a_pattern_of_ones_own_is_shown_as_it_is(open_widget):
    page = open_widget(mask_explorer(patterns.causal() & patterns.local(radius=5), 128))
    assert page.locator(".ak-pattern").input_value() == "given"
    assert page.locator(".ak-length").is_disabled()
    assert (
        "Query 96 of 128 sees 5 other keys. After 3 layers it draws on 16 tokens"
        in page.locator(".ak-status").inner_text()
    )
    page.select_option(".ak-pattern", "full")
    assert page.locator(".ak-length").is_enabled()
    assert "Query 96 of 128 sees 127 other keys." in page.locator(".ak-status").inner_text()


@pytest.mark.browser
@pytest.mark.parametrize(
    "kind", ["bigbird", *(pytest.param(kind, marks=OTHER_KINDS) for kind in ("sliding_window", "longformer", "fixed"))]
)
def test_a_changed_pattern_is_redrawn_within_a_frame(open_widget, kind):
    page = open_widget(mask_explorer(length=1024, rates=RATES))
    page.select_option(".ak-pattern", kind)
    slider = list(SLIDERS[kind])[-1]
    for name, (low, high) in {slider: SLIDERS[kind][slider][:2], "length": LENGTHS[:2]}.items():
        move = f"""(n) => {{
            const slider = document.querySelector(".ak-{name}");
            slider.value = {low} + {high - low} * (n * 7 % 20) / 19;
            slider.dispatchEvent(new Event("input"));
        }}"""
        assert_redrawn_within_a_frame(page, move, name)
