"""What the fragments widget shows is what ldmatrix and mma.sync do, and what the profiler counts."""

import pytest
import torch
from matplotlib.figure import Figure

from course_utils.costs import ldmatrix_turns
from course_utils.cuda import RawModule
from course_utils.emulator import profile
from course_utils.widgets import warp_fragments
from course_utils.widgets.fragments import HEAD_DIMS, LAYOUTS, READS, lane_registers, ldmatrix_request
from tests.helpers.all_of import all_of
from tests.helpers.redraw import OTHER_PICTURES, canvases

TILES = [(reads, layout, head_dim) for reads in READS for layout in LAYOUTS for head_dim in HEAD_DIMS]

# One ldmatrix.x4 of a tile that holds its own indices, then D = I · B.
KERNEL = """
#define THREADS 32
#include "swizzled_tile.cuh"

extern "C" __global__ void fragments(const scalar_t* matrix, unsigned* loaded, float* product) {
    __shared__ __align__(256) scalar_t tile[16 * D];
    const int lane = threadIdx.x;
    const int row = READS_K ? lane % 8 + lane / 16 * 8 : lane % 16;
    const int chunk = READS_K ? lane / 8 % 2 : lane / 16;
    for (int n = lane; n < 16 * D; n += 32) {
        const int c = n % D / 8;
        tile[SWIZZLED ? swizzled(n / D, c) + n % 8 : n] = matrix[n];
    }
    __syncwarp();
    const unsigned address = SWIZZLED ? row_address(tile, row) ^ 16 * chunk
        : (unsigned)__cvta_generic_to_shared(tile + row * D + 8 * chunk);
    unsigned registers[4];
#if TRANSPOSED
    ldmatrix_x4_trans(registers, address);
#else
    ldmatrix_x4(registers, address);
#endif
    const int g = lane / 4, t = lane % 4;
    const unsigned one = pack(g == 2 * t, g == 2 * t + 1), identity[4] = {one, 0, 0, one};
    float d[2][4] = {};
    for (int second = 0; second < 2; second++)
        mma_16x8x16(d[second], identity, registers[2 * second], registers[2 * second + 1]);
    for (int n = 0; n < 4; n++) {
        loaded[4 * lane + n] = registers[n];
        for (int second = 0; second < 2; second++) product[8 * lane + 4 * second + n] = d[second][n];
    }
}
"""


def load(reads, layout, head_dim):
    """The registers of ldmatrix [32, 4, 2], I · B of both products [32, 2, 4], and the line's counters."""
    options = (f"-DD={head_dim}", "-DBF16=0", f"-DSWIZZLED={int(layout == 'swizzled')}")
    options += (f"-DREADS_K={int(reads == 'K')}", f"-DTRANSPOSED={int(reads == 'V')}")
    kernel = RawModule(code=KERNEL, options=options).get_function("fragments")
    matrix = torch.arange(16 * head_dim).to(torch.float16)  # up to 2047: exact
    loaded, product = torch.zeros(32, 4, dtype=torch.int32), torch.zeros(32, 2, 4)
    with profile() as counters:
        kernel((1,), (32,), (matrix, loaded, product))
    (row,) = [row for row in counters.select("shared", "load") if row.bytes == 32 * 16]
    return loaded.view(torch.float16).reshape(32, 4, 2), product, row


@pytest.mark.parametrize(("reads", "layout", "head_dim"), TILES)
def test_registers_and_wavefronts_are_those_of_the_emulator(reads, layout, head_dim):
    loaded, product, counted = load(reads, layout, head_dim)
    matrix = torch.arange(16 * head_dim).reshape(16, head_dim)
    for lane in range(32):
        held = lane_registers(lane)
        for n in range(4):
            if reads == "Q":
                places = held[f"a{n}"]
            else:  # B of two products; K is transposed by being taken as columns
                places = [(r, c + n // 2 * 8) for r, c in held[f"b{n % 2}"]]
                places = [(c, r) for r, c in places] if reads == "K" else places
            assert loaded[lane, n].tolist() == [matrix[place].item() for place in places]
        if reads != "Q":
            B = matrix[:16, :16].T if reads == "K" else matrix[:16, :16]
            for second in (0, 1):
                places = [held[f"d{n}"][0] for n in range(4)]
                assert product[lane, second].tolist() == [B[r, c + 8 * second].item() for r, c in places]
    request = ldmatrix_request(reads, layout, head_dim)
    assert counted.requests == 1
    assert counted.wavefronts == sum(request.wavefronts) == (32 if layout == "plain" else 4)
    assert counted.ideal_wavefronts == 4


@pytest.mark.parametrize("registers", ["a0 a1 a2 a3", "b0 b1", "d0 d1 d2 d3"])
def test_the_warp_holds_every_element_once(registers):
    held = [place for lane in range(32) for name in registers.split() for place in lane_registers(lane)[name]]
    columns = 16 if registers[0] == "a" else 8
    assert sorted(held) == [(row, column) for row in range(16) for column in range(columns)]


@all_of("lane", range(32))
def test_two_packed_d_are_one_a(lane):
    held = lane_registers(lane)
    for n in range(4):
        low, high = (held[f"d{2 * (n % 2) + k}"][0] for k in (0, 1))
        assert held[f"a{n}"] == tuple((row, column + n // 2 * 8) for row, column in (low, high))


@pytest.mark.parametrize(("reads", "layout", "head_dim"), TILES)
def test_a_wavefront_asks_each_bank_for_one_word(reads, layout, head_dim):
    request = ldmatrix_request(reads, layout, head_dim)
    assert sorted(set(zip(request.rows, request.chunks, strict=True))) == [(r, c) for r in range(16) for c in (0, 1)]
    for first in range(0, 32, 8):
        served = [(request.turns[lane], request.offsets[lane] // 4 + word) for lane in range(first, first + 8)
                  for word in range(4)]  # fmt: skip
        assert len({(turn, word % 32) for turn, word in served}) == len(served) == 32
    assert request.wavefronts == ((8,) * 4 if layout == "plain" else (1,) * 4)


def test_turns_count_the_rows_before_in_the_same_banks():
    padded = [row * (128 + 16) for row in range(32)]  # a row of padding also frees all the banks
    assert ldmatrix_turns(padded) == (0,) * 32
    assert ldmatrix_turns([row * 64 for row in range(32)]) == (0, 0, 1, 1, 2, 2, 3, 3) * 4


def test_the_browser_gets_what_the_functions_say():
    meta = warp_fragments().meta
    assert [dict(lane) for lane in meta["lanes"]] == [lane_registers(lane) for lane in range(32)]
    for reads, layout, head_dim in TILES:
        request = ldmatrix_request(reads, layout, head_dim)
        assert meta["requests"][f"{reads} {layout} {head_dim}"]["turns"] == request.turns


@pytest.mark.parametrize(
    "reads", [pytest.param(reads, marks=OTHER_PICTURES) if number else reads for number, reads in enumerate(READS)]
)
def test_every_lane_has_a_small_still_picture(reads):
    widget = warp_fragments(reads=reads, head_dim=128)
    assert isinstance(widget.static_figure(31), Figure)
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: warp_fragments(reads="O"), "reads: got 'O', takes 'Q' or 'K' or 'V'"),
        (lambda: warp_fragments(layout="padded"), "layout: got 'padded', takes 'plain' or 'swizzled'"),
        (lambda: warp_fragments(head_dim=96), "head_dim: got 96, takes 64 or 128"),
        (lambda: warp_fragments().static_figure(32), "step: got 32, takes 0 to 31"),
        (lambda: lane_registers(-1), "lane: got -1, takes 0 to 31"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# ---- in the browser: what is common to all widgets is in test_widget_pages.py


@pytest.mark.browser
def test_every_control_changes_the_picture_and_the_words(open_widget):
    page = open_widget(warp_fragments())

    def shown():
        pictures = canvases(page)
        return page.locator(".ak-status").inner_text(), pictures

    assert "4 of 32 banks, 8 wavefronts (D = 64, plain)" in shown()[0]
    for value, words in (
        ("swizzled", "32 of 32 banks, 1 wavefront (D = 64, swizzled)"),
        ("128", "32 of 32 banks, 1 wavefront (D = 128, swizzled)"),
        ("plain", "4 of 32 banks, 8 wavefronts (D = 128, plain)"),
        ("K", "becomes b0 of S[n]"),
        ("V", "P is not loaded: a0 is d0 and d1 of S[n], packed, in the same lane"),
    ):
        before = shown()
        page.check(f"input[value='{value}']")
        assert words in shown()[0]
        assert all(old != new for old, new in zip(before, shown(), strict=True))


@pytest.mark.browser
def test_the_words_of_each_lane_are_right(open_widget):
    page = open_widget(warp_fragments(reads="K", layout="swizzled"))
    for lane in range(32):
        page.evaluate("(lane) => model.set('step', lane)", lane)
        words = page.locator(".ak-status").inner_text()
        g, t = divmod(lane, 4)
        assert words.startswith(f"Lane {lane} = 4·{g} + {t} holds rows {g} and {g + 8} of Q and of S.")
        becomes = f"b{lane // 8 % 2} of S[n{' + 1' if lane >= 16 else ''}]"
        assert f"the address of row {lane % 8} of matrix {lane // 8}, which becomes {becomes}." in words


@pytest.mark.browser
def test_a_click_on_an_element_goes_to_its_lane(open_widget):
    page = open_widget(warp_fragments())
    page.locator("canvas").first.click(position={"x": 24 + 14 * 4.5, "y": 294 + 14 * 11.5})  # A[11][4]
    assert page.evaluate("model.get('step')") == 4 * 3 + 2


@pytest.mark.browser
def test_the_pointer_is_a_hand_where_a_click_is_answered_and_nowhere_else(open_widget):
    canvas = open_widget(warp_fragments()).locator("canvas").first
    canvas.hover(position={"x": 24 + 14 * 4.5, "y": 294 + 14 * 11.5})  # A[11][4]
    assert canvas.evaluate("(canvas) => getComputedStyle(canvas).cursor") == "pointer"
    canvas.hover(position={"x": 4, "y": 290})
    assert canvas.evaluate("(canvas) => getComputedStyle(canvas).cursor") == "default"
