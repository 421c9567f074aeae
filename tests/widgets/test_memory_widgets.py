"""Chapter 00's widgets of launches, sectors and banks: what they show is what the emulator counts."""

import numpy as np
import pytest
import torch

from course_utils import costs
from course_utils.cuda import RawModule, read_kernel
from course_utils.emulator import profile
from course_utils.widgets import bank_turns, launch_grid, load_sectors
from course_utils.widgets.bank_turns import BANK_COLOURS, column_state
from course_utils.widgets.launch_grid import SIZES, grid_state
from course_utils.widgets.load_sectors import load_state
from tests.helpers.all_of import all_of
from tests.helpers.redraw import canvases

GRIDS = [(n, threads) for n in (0, 1, 31, 64, 65, 1000, 1024) for threads in SIZES]
COLUMN = """extern "C" __global__ void column(float* out, int pitch) {
    __shared__ float tile[32 * 40 + 32];
    for (int n = threadIdx.x; n < 32 * 40 + 32; n += 32) tile[n] = n;
    __syncwarp();
    out[threadIdx.x] = tile[threadIdx.x * pitch];
}"""


@all_of("grid", GRIDS)
def test_a_launch_has_a_thread_for_each_element_and_less_than_a_block_too_many(grid):
    n, threads = grid
    state = grid_state(n, threads)
    assert state.blocks * threads == n + state.idle and 0 <= state.idle < threads
    assert state.blocks == costs.ceil_div(n, threads) and state.idle_warps == state.idle // 32


@pytest.mark.parametrize("stride", [1, 2, 4, 8, 32, 0])
def test_sectors_are_those_that_the_emulator_counts(stride):
    kernel = RawModule(code=read_kernel("00_start_here/micro/global_loads.cu")).get_function("load_float")
    words, out = torch.zeros(32 * 1024 + 8), torch.zeros(1024)
    with profile() as counters:
        kernel((1,), (32,), (words, out, np.int32(stride), np.int32(0)))
    assert counters.total("sectors", "global", "load") == len(load_state(stride, 4).sectors)


@pytest.mark.parametrize("pitch", [0, 1, 2, 3, 4, 8, 16, 17, 24, 32, 33, 40])
def test_turns_are_the_wavefronts_that_the_emulator_counts(pitch):
    with profile() as counters:
        RawModule(code=COLUMN).get_function("column")((1,), (32,), (torch.zeros(32), np.int32(pitch)))
    assert counters.total("wavefronts", "shared", "load") == column_state(pitch).count


def test_the_turns_that_a_stride_takes():
    """The figures of chapter 00, section 8: what shares a factor with 32 is dangerous."""
    turns = {stride: column_state(stride).count for stride in (1, 2, 3, 4, 8, 16, 17, 32, 33)}
    assert turns == {1: 1, 2: 2, 3: 1, 4: 4, 8: 8, 16: 16, 17: 1, 32: 32, 33: 1}


def test_neighbouring_banks_differ_in_lightness_and_no_two_have_one_colour():
    assert len(set(BANK_COLOURS)) == 32
    light = [sum(int(colour[n : n + 2], 16) for n in (1, 3, 5)) for colour in BANK_COLOURS]
    assert all(abs(a - b) > 60 for a, b in zip(light, [*light[1:], light[0]], strict=True))


@pytest.mark.browser
@pytest.mark.parametrize("make", [launch_grid, load_sectors])
def test_every_size_changes_words_and_picture(open_widget, make):
    page = open_widget(make())
    shown = set()
    for size in page.locator("input[type=radio]").all():
        size.check()
        picture = canvases(page)
        shown.add((page.locator(".ak-status").inner_text(), picture))
    assert len({words for words, _ in shown}) == len({picture for _, picture in shown}) == 4


@pytest.mark.parametrize("widget", [launch_grid(), load_sectors(), bank_turns()], ids=lambda one: type(one).__name__)
def test_the_still_picture_is_small_and_says_what_it_shows(widget):
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    assert widget.static_figure(20).axes
    words = [
        axes.get_title() + axes.get_title(loc="left") + str([label.get_text() for label in axes.get_yticklabels()])
        for axes in widget.static_figure().axes
    ]
    assert any(word in " ".join(words) for word in ("4 blocks of 256, 24 threads idle", "stride 8: 32", "32 turns"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: launch_grid(2000), "n: got 2000, takes 0 to 1024"),
        (lambda: launch_grid(threads=100), "threads: got 100, takes 64 or 128 or 256 or 512"),
        (lambda: load_sectors(33), "stride: got 33, takes 0 to 32"),
        (lambda: load_sectors(element_bytes=3), "element_bytes: got 3, takes 2 or 4 or 8 or 16"),
        (lambda: bank_turns(41), "pitch: got 41, takes 0 to 40"),
    ],
)
def test_bad_input_is_named(make, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        make()
