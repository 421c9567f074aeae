"""The widget of banks shows what the emulator counts."""

import pytest
import torch
from matplotlib.figure import Figure

from course_utils.cuda import RawModule
from course_utils.emulator import profile
from course_utils.widgets import bank_places
from course_utils.widgets.bank_places import LAYOUTS, WIDTHS, bank_state
from tests.helpers.redraw import canvases

# One ldmatrix.x1: lane r brings an address of its own, the others repeat those of the first eight.
KERNEL = """
#include "tensor_core.cuh"
extern "C" __global__ void one_read(const int* offsets, unsigned* loaded) {
    __shared__ __align__(128) unsigned char tile[8 * 256 + 128];
    for (int n = threadIdx.x; n < (int)sizeof(tile); n += 32) tile[n] = 0;
    __syncwarp();
    unsigned registers[4];
    ldmatrix_x4(registers, (unsigned)__cvta_generic_to_shared(tile + offsets[threadIdx.x % 8]));
    loaded[threadIdx.x] = registers[0];
}
"""


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("width", WIDTHS)
def test_the_wavefronts_are_those_that_the_emulator_counts(layout, width):
    kernel = RawModule(code=KERNEL).get_function("one_read")
    for chunk in (0, 3):
        state = bank_state(layout, width, chunk)
        loaded = torch.zeros(32, dtype=torch.int32)
        with profile() as counters:
            kernel((1,), (32,), (torch.tensor(state.offsets, dtype=torch.int32), loaded))
        (row,) = [row for row in counters.select("shared", "load") if "ldmatrix" in row.source]
        assert row.wavefronts == 4 * state.wavefronts  # .x4 reads four matrices, here the same one


def test_a_swizzle_and_padding_free_the_banks_and_rows_of_128_bytes_collide():
    assert {bank_state("row after row", width, chunk).wavefronts for width in WIDTHS for chunk in range(8)} == {8}
    for layout in ("padded", "swizzled"):
        assert {bank_state(layout, width, chunk).wavefronts for width in WIDTHS for chunk in range(8)} == {1}


def test_chunks_of_a_row_only_change_places():
    for row in range(8):
        places = {bank_state("swizzled", 64, chunk).offsets[row] // 16 % 8 for chunk in range(8)}
        assert places == set(range(8))


@pytest.mark.browser
def test_every_choice_changes_words_and_picture(open_widget):
    page = open_widget(bank_places())
    shown = set()
    for layout in LAYOUTS:
        for width in WIDTHS:
            page.check(f"input[value='{layout}']")
            page.check(f"input[value='{width}']")
            picture = canvases(page)
            shown.add((page.locator(".ak-status").inner_text(), picture))
    assert len(shown) == len(LAYOUTS) * len(WIDTHS)
    assert len({words for words, _ in shown}) == len({picture for _, picture in shown}) == len(shown)


def test_the_still_picture_is_small_and_shows_all_layouts():
    widget = bank_places(layout="swizzled", width=128, chunk=3)
    figure = widget.static_figure(0)
    assert isinstance(figure, Figure) and len(figure.axes) == len(LAYOUTS)
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert "Still picture" in bundle["text/plain"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: bank_places(layout="plain"), "layout: got 'plain', takes 'row after row' or 'padded' or 'swizzled'"),
        (lambda: bank_places(width=96), "width: got 96, takes 64 or 128"),
        (lambda: bank_places(chunk=8), "chunk: got 8, takes 0 to 7"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
