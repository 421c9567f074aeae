"""Paint a mask: figures, aims and code of a grid, and painting by mouse and keyboard."""

import base64
import random

import pytest
import torch
from matplotlib.figure import Figure

from course_utils import patterns
from course_utils.widgets import paint_a_mask
from course_utils.widgets.explorer import layers_to, make_pattern, packed_bits
from course_utils.widgets.paint import (
    CELLS,
    LEVELS,
    PRESETS,
    SIDE,
)
from tests.helpers.large_values import computed

RATES = {"flops_per_second": 3e14, "bytes_per_second": 4e12, "heads": 16, "label": "some GPU, some day"}


def of_tokens(grid, cell):
    """The mask of a grid with so many tokens to a cell."""
    return grid.repeat_interleave(cell, 0).repeat_interleave(cell, 1)


def preset(kind):
    return make_pattern(kind, PRESETS[kind], SIDE).mask(SIDE)


def with_ends(block=8):
    """Each row sees the last one of the block before; these see one another and their own blocks."""
    grid = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    ends = list(range(block - 1, SIDE, block))
    for i in range(SIDE):
        begin = i // block * block
        grid[i, [i - back for back in (1, 2, 4) if i - back >= begin]] = True
        if begin:
            grid[i, begin - 1] = True
        if i in ends:
            grid[i, [end for end in ends if end < i]] = True
            grid[i, begin:i] = True
    return grid


def everybody():
    """One that sees all and is seen by all."""
    grid = torch.zeros(SIDE, SIDE, dtype=torch.bool)
    grid[0], grid[:, 0] = True, True
    return grid


def whole_tiles():
    """Tiles of 128, which are 8 cells: the diagonal, and those 1, 2 and 4 before it."""
    tiles = torch.zeros(8, 8, dtype=torch.bool)
    for back in (0, 1, 2, 4):
        tiles |= torch.eye(8, dtype=torch.bool).roll(-back, 1) & torch.ones(8, 8, dtype=torch.bool).tril()
    return of_tokens(tiles, 8) & torch.ones(SIDE, SIDE, dtype=torch.bool).tril()


def drawn(seed):
    """A random grid: a pattern with a few cells changed, or few cells, or documents of random lengths."""
    rng = random.Random(seed)
    grid = preset(rng.choice(list(PRESETS)))
    match seed % 4:
        case 0:
            ends = sorted({0, SIDE, *(rng.randrange(1, SIDE) for _ in range(5))})
            return patterns.document([b - a for a, b in zip(ends, ends[1:], strict=False)]).mask(SIDE)
        case 1:
            return torch.rand(SIDE, SIDE, generator=torch.Generator().manual_seed(seed)) < 0.05
        case 2:
            grid[rng.randrange(SIDE), rng.randrange(SIDE)] ^= True
    return grid


GRIDS = [*map(preset, PRESETS), *map(drawn, range(12)), torch.zeros(SIDE, SIDE, dtype=torch.bool)]
GRIDS += [patterns.sliding_window(13).mask(SIDE), patterns.streaming(3, 9).mask(SIDE), patterns.strided(5).mask(SIDE)]
GRIDS += [patterns.local(7).mask(SIDE), patterns.global_tokens([3, 40]).mask(SIDE), patterns.dilated(5, 3).mask(SIDE)]
GRIDS += [with_ends(), everybody(), whole_tiles()]


COMPUTE = """async ([grids, levels, presets, cells]) => {
    const m = await import(scriptUrl);
    const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const bitsOf = (text) => ({ length: 64, words: 2, bits: new Uint32Array(bytesOf(text).buffer) });
    const tiles = (grid, cell, size) => m.tilesOf(m.tokensOf(grid, cell), size);
    const skipped = (...of) => [tiles(...of).skipped, tiles(...of).side ** 2];
    return grids.map(bitsOf).map((grid) => ({
        codes: cells.map((cell) => m.pythonOf(grid, cell, presets)),
        aims: levels.map((level) => m.judged(grid, level)),
        skipped: cells.map((cell) => [64, 128].map((size) => skipped(grid, cell, size))),
        reach: [1, 2, 3].map((layers) => [true, false].map((isCausal) => m.reach(grid, layers, isCausal))),
        again: m.gridOf(m.textOf(grid, presets), presets).bits.join() === grid.bits.join(),
    }));
}"""


@pytest.fixture
def told(open_widget):
    """told([grid, ...]) -> of each grid codes and skipped tiles, by the tokens of a cell, aims, by level, and reach."""
    page = open_widget(paint_a_mask())

    def compute(grids):
        packed = [base64.b64encode(packed_bits(grid)).decode() for grid in grids]
        found = computed(page, COMPUTE, [packed, LEVELS, PRESETS, CELLS])
        return [
            one | {name: dict(zip(CELLS, one[name], strict=True)) for name in ("codes", "skipped")} for one in found
        ]

    return compute


BLOCKS = ("full", "block_diagonal", "local", "random_blocks", "bigbird")  # with a call of their own
ONE_OF_EACH_KIND = [*map(preset, BLOCKS), preset("longformer"), drawn(1), drawn(4)]  # a mask_mod takes long to try


@pytest.mark.browser
@pytest.mark.parametrize(("cell", "grids"), [(1, GRIDS), (16, ONE_OF_EACH_KIND)])
def test_the_code_makes_the_mask_and_the_text_of_an_address_the_grid(cell, grids, told):
    for grid, found in zip(grids, told(grids), strict=True):
        made = {}
        exec(found["codes"][cell], made)
        assert torch.equal(made["pattern"].mask(SIDE * cell), of_tokens(grid, cell)), found["codes"][cell]
        assert found["again"]


@pytest.mark.browser
def test_a_known_pattern_is_named(told):
    calls = ["sliding_window(window=13)", "streaming(sinks=3, window=9)", "document([10, 20, 34])"]
    calls += ["global_tokens([3, 40])"]
    codes = [one["codes"] for one in told([eval(call, vars(patterns)).mask(SIDE) for call in calls])]
    assert [one[1].rpartition("pattern = ")[2].strip() for one in codes] == calls
    assert codes[2][16].endswith("pattern = document([160, 320, 544])\n")
    bigbird, longformer, other = (one["codes"] for one in told([preset("bigbird"), preset("longformer"), drawn(1)]))
    assert "pattern = bigbird(block=16, global_blocks=2" in bigbird[16]
    assert "seen = (local(radius=2) | global_tokens(" in longformer[16]
    assert "from_csr(indptr, indices)" in other[1] and "Block CSR" in other[16]


@pytest.mark.browser
def test_reach_counts_what_each_row_draws_on_by_then(told):
    grid = preset("strided")
    after = torch.stack([layers_to(grid, query) for query in range(SIDE)])
    (found,) = told([grid])
    for layers, (causal, whole) in enumerate(found["reach"], 1):
        drawn_on = (after >= 0) & (after <= layers)
        assert causal == [int(drawn_on.tril().sum()), SIDE * (SIDE + 1) // 2]
        assert whole == [int(drawn_on.sum()), SIDE**2]


@pytest.mark.browser
def test_tiles_of_a_grid_are_counted_in_tokens(told):
    (found,) = told([preset("causal")])
    assert found["skipped"] == {1: [[0, 1], [0, 1]], 16: [[120, 256], [28, 64]]}


@pytest.mark.browser
@pytest.mark.parametrize(("level", "grid"), [(1, with_ends()), (2, everybody()), (3, whole_tiles())])
def test_each_level_can_be_reached_and_not_by_what_is_there_first(level, grid, told):
    others = [preset("strided"), preset("full"), torch.zeros(SIDE, SIDE, dtype=torch.bool), preset("sliding_window")]
    reached, *missed = (one["aims"][level] for one in told([grid, *others]))
    assert all(done for _, done in reached), reached
    assert not any(all(done for _, done in aims) for aims in missed)


def test_a_still_picture_and_bad_input():
    widget = paint_a_mask("bigbird", rates=RATES)
    assert widget.meta["start"]["level"] > 0, "it opens without an aim"
    assert isinstance(widget.static_figure(), Figure) and widget.meta["start"]["preset"] == "bigbird"
    bundle, _ = widget._repr_mimebundle_()
    assert len(bundle["image/png"]) <= 60_000
    with pytest.raises(ValueError, match="preset: got 'x', takes causal, "):
        paint_a_mask("x")
    with pytest.raises(ValueError, match="head_dim: got 96, takes 64 or 128"):
        paint_a_mask(head_dim=96)
    with pytest.raises(ValueError, match="rates: got"):
        paint_a_mask(rates={"heads": 1})


@pytest.mark.browser
def test_what_no_address_of_ours_says_is_no_grid(open_widget):
    page = open_widget(paint_a_mask())
    call = "(texts) => import(scriptUrl).then((m) => texts.map((text) => m.gridOf(text, {causal: {}})))"
    assert computed(page, call, ["", ".abc", "toString", "." + "A" * 682, "." + "!" * 683]) == [None] * 5


@pytest.mark.browser
def test_strokes_cover_what_they_say(open_widget):
    page = open_widget(paint_a_mask())
    call = "(strokes) => import(scriptUrl).then((m) => strokes.map((one) => m.strokeAt(...one)))"
    shapes = [["square", 4, 9, 2], ["row", 2, 9, 2], ["column", 8, 9, 2], ["diagonal", 4, 9, 2]]
    square, row, column, diagonal = computed(page, call, shapes)
    assert square == [[r, c] for r in range(8, 12) for c in range(4)]
    assert row == [[r, c] for r in (8, 9) for c in range(SIDE)]
    assert column == [[r, c] for r in range(SIDE) for c in range(8)]
    assert diagonal == [[r, c] for r in range(SIDE) for c in range(SIDE) if 4 <= r - c < 8]


@pytest.mark.browser
def test_a_level_is_won_by_mouse_and_keyboard_and_keeps_its_score(open_widget):
    page = open_widget(paint_a_mask(rates=RATES))
    aims, score, code = page.locator(".ak-paint-aims li"), page.locator(".ak-paint-score"), page.locator("code")
    page.dispatch_event(".ak-paint-reset", "click")
    page.select_option(".ak-paint-level", "2")
    assert page.locator(".ak-paint-cell").is_disabled()
    page.click(".ak-paint-clear")
    page.select_option(".ak-paint-size", "1")
    page.check("input[value=row]")
    page.focus("canvas")
    for _ in range(8):
        page.keyboard.press("Shift+ArrowUp")
    page.keyboard.press(" ")
    assert page.locator(".ak-aloud").inner_text() == "Row 0, column 0: seen."
    assert [text[0] for text in aims.all_inner_texts()] == ["✗", "✓"] and "Your best: none yet." in score.inner_text()
    page.check("input[value=column]")
    canvas = page.locator("canvas").bounding_box()
    page.mouse.click(canvas["x"] + 33, canvas["y"] + 200)
    assert [text[0] for text in aims.all_inner_texts()] == ["✓", "✓"]
    assert score.inner_text() == f"✓ Done. Your best: {100 * 127 / 4096:.2f} % of the pairs."
    assert "global_tokens(" in code.inner_text()
    page.check("input[value=square]")
    page.check("input[value=erases]")
    page.mouse.move(canvas["x"] + 33, canvas["y"] + 200)
    page.mouse.down()
    page.mouse.move(canvas["x"] + 33, canvas["y"] + 260)  # a fast pointer leaves no gaps
    page.mouse.up()
    assert "✓ at most" in aims.last.inner_text() and "Done" not in score.inner_text() and "3.10" in score.inner_text()
    pairs = page.locator(".ak-table td").first
    few = int(pairs.inner_text().replace(",", ""))
    page.click(".ak-paint-undo")
    assert int(pairs.inner_text().replace(",", "")) == few + 10 * 256
    page.dispatch_event(".ak-paint-reset", "click")
    page.click(".ak-paint-clear")
    assert score.inner_text() == "Your best: none yet."


@pytest.mark.browser
def test_the_row_is_followed_through_the_layers(open_widget):
    page = open_widget(paint_a_mask("sliding_window"))
    page.evaluate("model.set('step', 30)")
    reached = layers_to(preset("sliding_window"), 30)
    within = int(((reached >= 0) & (reached <= 3)).sum())
    assert f"Row 30 draws on {within} of 64 blocks within 3 layers." in page.locator(".ak-status").inner_text()
