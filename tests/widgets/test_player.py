"""The player of a recorded launch: where it opens, its still picture, and in the browser what it says of each step."""

import random
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from course_utils.cuda import RawModule
from course_utils.emulator import record, sanitize
from course_utils.emulator.recorded import WRITING, Access
from course_utils.launches.chapters import course_launches
from course_utils.launches.hopper import LADDER, launch
from course_utils.widgets import play, recorded, scene
from course_utils.widgets.player import MOST_STORED, Player, player
from course_utils.widgets.player_page import page as page_of
from tests.helpers.canvas_texts import pale_canvas_texts, watched_canvases
from tests.helpers.large_values import computed
from tests.helpers.look import CONTRAST
from tests.helpers.recorded import OPS, STATEMENTS, busy, fetched, swap, twice, with_many_changes
from tests.helpers.redraw import assert_redrawn_within_a_frame

READ, WRITE, OPENS, READ_ROW, WRITE_OUT = 0, 2, 6, 7, 9  # the steps of warp 0 in swap()
RACE = {"tool": "racecheck", "line": 7, "other_line": 5}


@pytest.fixture(scope="module")
def transpose():
    """The recording of a real kernel: a tile of 32 × 32 by 32 warps."""
    return record(course_launches()["transpose_tiled"].run, block=(1, 0, 0))


# ---- in Python


def test_it_plays_the_block_of_a_launch():
    widget = play(course_launches()["two_ways"].run)
    assert widget.meta["kernel"] == "two_ways" and widget.step == 0
    assert {"read", "write"} & {OPS[op] for op in recorded.columns(widget.meta, widget.data)["steps.op"]}


def test_of_several_launches_the_one_asked_for_is_played():
    x, y = torch.arange(32.0), torch.zeros(32)

    def naive():
        for name in ("first", "second"):
            code = f'extern "C" __global__ void {name}(float* x, float* y) {{ y[threadIdx.x] = x[threadIdx.x]; }}'
            RawModule(code=code).get_function(name)((1,), (32,), (x, y))

    assert play(naive, launch=1).meta["kernel"] == scene(naive, at="y[", launch=1).meta["kernel"] == "second"
    with pytest.raises(ValueError, match=r"several launches \(0: first\(\), 1: second\(\)\).*launch=0"):
        play(naive)
    with pytest.raises(ValueError, match="no launch number 2; it makes 0: first"):
        play(naive, launch=2)


def test_a_launch_that_failed_before_the_first_step_is_told_with_its_reason():
    meta, data = swap()
    meta = {**meta, "columns": [{**one, "count": 0} for one in meta["columns"]]}
    with pytest.raises(ValueError, match=r"nothing to play; block \(0, 0, 0\) of swap\(\) touches no memory"):
        player(meta, data)
    with pytest.raises(ValueError, match=r"had not touched memory when the launch failed: in ends before that"):
        player({**meta, "failure": "in ends before that"}, data)


def test_it_opens_at_a_line_or_at_a_finding_with_the_other_party():
    assert player(*swap(), at=7).step == player(*swap(), at=np.int64(7)).step == READ_ROW
    widget = player(*swap(has_barrier=False), at=SimpleNamespace(**RACE))
    assert widget.step == 4 and widget.meta["start"] == {"finding": 0}


@pytest.mark.parametrize(
    ("at", "error", "words"),
    [
        (6.5, TypeError, "at: got float, takes a Finding of a report, a line number or None"),
        (True, TypeError, "at: got bool"),
        (3, ValueError, r"at: got line 3, in which this block has no step; takes one of \[4, 5, 6, 7, 8\]"),
        (
            SimpleNamespace(tool="memcheck", line=4, other_line=None),
            ValueError,
            "a finding of memcheck at line 4, which",
        ),
    ],
)
def test_a_place_that_is_not_there_is_named(at, error, words):
    with pytest.raises(error, match=words):
        player(*swap(), at=at)


def test_the_still_picture_shows_the_line_and_the_array_before_the_step():
    widget = player(*swap(), at=7)
    figure = widget.static_figure()
    source, memory = figure.axes
    assert isinstance(figure, Figure) and "step 7 of 10" in figure.get_suptitle()
    assert source.get_title(loc="left") == "warp 0: read, line 7"
    assert any("row[63 - threadIdx.x]" in text.get_text() for text in source.texts)
    assert memory.get_title(loc="left") == "row, coloured by value"
    np.testing.assert_array_equal(memory.images[0].get_array().filled(np.nan).flat, 2 * np.arange(64.0))
    assert len([one for one in memory.patches if not one.get_fill()]) == 64  # the lanes, each with a ground of its own
    bundle, _ = widget._repr_mimebundle_()
    assert bundle["image/png"].startswith(b"\x89PNG") and len(bundle["image/png"]) <= 60_000
    with pytest.raises(ValueError, match="step: got 11, takes 0 to 10"):
        widget.static_figure(11)


def test_shared_memory_that_nobody_wrote_is_empty_in_the_still_picture():
    (_, memory) = player(*swap()).static_figure(WRITE).axes
    assert memory.images[0].get_array().mask.all()


def test_a_step_that_touches_no_memory_has_a_still_picture_too():
    meta, data = swap()
    meta["arrays"][0]["bytes"], meta["arrays"][1]["bytes"] = 0, 512  # the block touches nothing of the first
    (_, memory) = player(meta, data).static_figure(OPENS).axes
    assert memory.get_title(loc="left").startswith("in") and all(one.get_fill() for one in memory.patches)


def test_numbers_of_each_type_are_read_as_torch_reads_them():
    import torch

    kinds = {
        **{"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16, "int32": torch.int32},
        **{"float8_e4m3": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2, "uint8": torch.uint8},
    }
    raw = np.arange(256, dtype=np.uint8)
    for name, dtype in kinds.items():
        right = torch.from_numpy(raw.copy()).view(dtype).double().numpy()
        np.testing.assert_array_equal(recorded.numbers(raw, name).astype(np.float64), right, err_msg=name)


def test_a_large_recording_is_not_kept_in_a_notebook():
    widget = player(*swap())
    assert widget._state()["script"] == "player.js"
    widget.data = bytes(MOST_STORED + 1)
    assert widget._state() == {}


# ---- the states in the browser: no picture is needed for them

LOADED = """const m = await import(scriptUrl);
    const rec = await m.loadRecording(model.get("meta"), model.get("data"));
    await rec.whole;"""


def asked(page, expression, argument=None):
    """What an expression of JavaScript says, which knows the scripts' functions `m`, the recording and `argument`."""
    return computed(page, f"async (argument) => {{ {LOADED} return {expression}; }}", argument)


@pytest.mark.browser
def test_memory_before_a_step_is_what_earlier_steps_made_of_it(open_widget):
    page = open_widget(player(*swap()))
    at = """argument.map(([array, n, step]) => [
        m.elementAt(rec, array, 4 * n, "float32", step), m.lastWrite(rec, array, 4 * n, 4, step)])"""
    cases = {
        (2, 5, 2): [None, -1],  # row[5] before it is written: 0xffffffff, no number
        (2, 5, 3): [10, 2],
        (2, 40, 3): [None, -1],  # the other warp writes at step 3
        (2, 40, 4): [80, 3],
        (0, 9, 0): [9, -1],
        (1, 3, 10): [2 * 60, 9],
        (1, 40, 10): [None, -1],
    }
    assert asked(page, at, list(cases)) == list(cases.values())


@pytest.mark.browser
def test_the_writer_and_the_bytes_of_cells_are_those_of_python(open_widget, transpose):
    page = open_widget(player(*transpose.packed()))
    draw, cells = random.Random(0), []
    for _ in range(200):
        array = draw.randrange(len(transpose.arrays))
        one = transpose.arrays[array]
        cells.append([array, one.low + draw.randrange(one.bytes), draw.randrange(transpose.steps + 1)])
    meta, data = transpose.packed()
    found = recorded.columns(meta, data)
    right = []
    for array, offset, step in cells:
        writer = transpose.writer(array, offset, step)
        held, _ = recorded.bytes_before(meta, found, array, step)
        right.append([writer and [writer.step, writer.thread], int(held[offset - transpose.arrays[array].low])])
    told = """argument.map(([array, offset, step]) => {
        const writer = m.writerOf(rec, array, offset, step), byte = new Uint8Array(4);
        m.bytesAt(rec, array, offset - offset % 4, 4, step, byte);
        return [writer && [writer.step, 32 * writer.warp + writer.lane], byte[offset % 4]]; })"""
    assert asked(page, told, cells) == right
    assert sum(writer is not None for writer, _ in right) > 40


@pytest.mark.browser
def test_a_read_that_no_barrier_orders_is_a_hazard_and_is_said(open_widget):
    hazards = """Array.from({ length: rec.count }, (_, step) =>
        m.hazardsOf(rec, step).map(({ lane, other }) => [lane, other]))"""
    assert not any(asked(open_widget(player(*swap())), hazards))
    page = open_widget(player(*swap(has_barrier=False)))
    found = asked(page, hazards)
    assert [n for n, one in enumerate(found) if one] == [4, 5]
    assert found[4] == [[lane, 3] for lane in range(32)]
    page.evaluate("model.set('step', 4)")
    said = page.locator(".ak-status").inner_text()
    assert "Hazard: lanes 0–31 read what warp 1 wrote at step 3, line 5, and no barrier stands between." in said


@pytest.mark.browser
def test_a_read_of_another_lanes_write_needs_a_barrier_of_the_warp(open_widget):
    code = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[32];
    s[threadIdx.x] = x[threadIdx.x];
    BARRIER
    float mine = s[threadIdx.x];
    y[threadIdx.x] = mine + s[31 - threadIdx.x];
}"""
    hazards = """Array.from({ length: rec.count }, (_, step) => [step, m.hazardsOf(rec, step).length])
        .filter(([, lanes]) => lanes)"""
    x, y = torch.arange(32.0), torch.zeros(32)
    of_halves = "__syncwarp(0xffff << threadIdx.x / 16 * 16);"
    for barrier, lanes in (("__syncwarp();", 0), ("__syncthreads();", 0), (of_halves, 32), ("", 32)):
        kernel = RawModule(code=code.replace("BARRIER", barrier)).get_function("k")
        page = open_widget(player(*record(lambda kernel=kernel: kernel((1,), (32,), (x, y))).packed()))
        found = asked(page, hazards)
        assert sum(count for _, count in found) == lanes, barrier
    page.evaluate("step => model.set('step', step)", found[0][0])
    said = page.locator(".ak-status").inner_text()
    assert (
        "Hazard: lanes 0–31 read what another lane of the warp wrote at step" in said
        and "no __syncwarp() stands" in said
    )


@pytest.mark.browser
def test_lines_that_race_between_warps_too_want_the_barrier_of_the_block(open_widget):
    code = """extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[64];
    s[threadIdx.x] = x[threadIdx.x];
    y[threadIdx.x] = s[(threadIdx.x + 1) % 64];
}"""
    x, y = torch.arange(64.0), torch.zeros(64)
    page = open_widget(player(*record(lambda: RawModule(code=code).get_function("k")((1,), (64,), (x, y))).packed()))
    page.wait_for_function("document.querySelector('.ak-keys').textContent.includes('hazard')")
    (first, _) = asked(page, "[...Array(rec.count).keys()].filter((step) => m.hazardsOf(rec, step).length)")
    page.evaluate("step => model.set('step', step)", first)
    said = page.locator(".ak-status").inner_text()
    assert "what another lane of the warp wrote" in said and "no __syncthreads() stands between" in said


STRUCT = """struct Tiles { float pad[5]; float4 Q[8][3]; float sums[64]; };
extern "C" __global__ void k(const float* x, float* y) {
    __shared__ Tiles tile;
    const int t = threadIdx.x;
    tile.sums[t] = x[t];
    if (t < 8) tile.Q[t][1] = make_float4(x[t], 1, 2, 3);
    __syncthreads();
    y[t] = tile.sums[63 - t] + tile.Q[t % 8][1].y;
}"""


@pytest.mark.browser
def test_members_of_a_struct_have_their_names_and_their_banks(open_widget):
    x, y = torch.arange(64.0), torch.zeros(64)
    meta, data = record(lambda: RawModule(code=STRUCT).get_function("k")((1,), (64,), (x, y))).packed()
    names = [array["name"] for array in meta["arrays"]]
    assert names == ["x", "y", "tile.Q", "tile.sums"]
    assert meta["arrays"][3]["begin"] % 128
    page = open_widget(in_short((meta, data), colour="bank", figures=True, cell={"array": 3, "offset": 4 * 7}))
    trace = page.locator(".ak-player-trace")
    page.evaluate("model.set('step', model.get('meta').columns[0].count - 1)")
    assert "tile.sums[7] = 7 Written by warp 0, lane 7, line 5" in " ".join(trace.inner_text().split())
    write = "[...Array(rec.count).keys()].find((step) => rec.steps.array[step] === 2)"
    page.evaluate("step => model.set('step', step)", asked(page, write))
    assert "8 × 16 bytes of tile.Q at line 6" in page.locator(".ak-status").inner_text()
    assert "Lane 0: tile.Q[0][1].x becomes 0." in page.locator(".ak-status").inner_text()
    # In rows of 32 banks the first number stands under its bank.
    assert asked(page, "m.rowLabel({ array: rec.arrays[2], columns: 12 }, 3, 1)") == "3"


@pytest.mark.browser
def test_the_source_opens_behind_its_header_and_its_lines_turn_at_the_edge(open_widget):
    meta, data = swap()
    lines = meta["sources"]["swap.cu"].splitlines()
    meta["sources"]["swap.cu"] = "\n".join([*["// a header " * 12] * 40, *lines])
    meta["places"] = [(file, line + 40, caller) for file, line, caller in meta["places"]]
    page = open_widget(player(meta, data), width=1440)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box, line = (page.locator(one).bounding_box() for one in (".ak-source", ".ak-line-now"))
    assert box["y"] <= line["y"] and line["y"] + line["height"] <= box["y"] + box["height"]
    source = page.locator(".ak-source")
    assert source.evaluate("(box) => box.scrollWidth <= box.clientWidth")
    high, one = source.evaluate(
        "(box) => [box.querySelector('.ak-line'), box.querySelector('.ak-line-now')].map((line) => line.offsetHeight)"
    )
    assert high > 2 * one


@pytest.mark.browser
def test_a_write_over_what_another_warp_may_still_read_is_a_hazard_too(open_widget):
    hazards = """Array.from({ length: rec.count }, (_, step) => m.hazardsOf(rec, step).map(({ other }) => other))"""
    assert not any(asked(open_widget(player(*twice())), hazards))
    page = open_widget(player(*twice(has_barrier=False)))
    found = asked(page, hazards)
    assert {step: set(others) for step, others in enumerate(found) if others} == {7: {6}, 8: {5}}
    page.evaluate("model.set('step', 7)")
    said = page.locator(".ak-status").inner_text()
    assert "Hazard: lanes 0–31 write over what warp 1 read at step 6, line 7, and no barrier stands between." in said
    assert "hazard: no barrier between" in page.locator(".ak-player-memory .ak-legend").inner_text()


# The colour in the middle of a cell of a picture of 2 rows of 32, and how much of the cell has any.
CELL = """(canvas, [row, column]) => {
    const scale = canvas.width / parseFloat(canvas.style.width);
    const [wide, high] = [(canvas.width / scale - 58) / 32, (canvas.height / scale - 18) / 2]; // GRID of memory.js
    const box = [40 + (column + 0.25) * wide, 16 + (row + 0.25) * high, wide / 2, high / 2].map((at) => at * scale);
    const { data, width, height } = canvas.getContext("2d").getImageData(...box);
    const middle = 4 * (width * Math.floor(height / 2) + Math.floor(width / 2));
    const filled = data.filter((_, at) => at % 4 === 3 && data[at] > 0).length;
    return [[...data.slice(middle, middle + 3)], filled];
}"""


@pytest.mark.browser
def test_a_nan_has_a_colour_and_what_lies_behind_the_array_is_blank(open_widget):
    out = torch.full((40,), torch.nan)
    code = 'extern "C" __global__ void ones(float* out) { if (threadIdx.x < 40) out[threadIdx.x] = 1; }'
    page = open_widget(play(lambda: RawModule(code=code).get_function("ones")((1,), (64,), (out,))))
    cell = lambda row, column: page.locator(".ak-grid").evaluate(CELL, [row, column])  # noqa: E731
    assert cell(1, 7)[0] == [0x8A] * 3
    assert cell(1, 8)[1] == cell(1, 31)[1] == 0
    legend = page.locator(".ak-player-memory .ak-legend")
    assert "NaN" in legend.inner_text()
    page.locator(".ak-player-memory select", has_text="last writer").select_option("writer")
    assert "NaN" not in legend.inner_text()


# What a lane does in shared memory, with and without the line that orders it; and what is said of it without.
ORDERED = {
    "a write over what another lane of the warp read": (
        "s[t] = x[t]; __syncwarp(); float a = s[t ^ 1]; {} s[t] = a; y[t] = a;",
        "__syncwarp();",
        "lanes 0–31 write over what another lane of the warp read",
    ),
    "two numbers to one place": (
        "s[{}t] = t; y[t] = s[t];",
        "",
        "lanes 0–31 write different numbers to one place in this step",
    ),
    "a write where a copy lands": (
        "copy(s + t, x + t); {} s[t] = 2; wait(); y[t] = s[t];",
        "wait();",
        "lanes 0–31 write where a copy under way lands",
    ),
    "a read of what another lane copied": (
        "copy(s + t, x + t); wait(); {} y[t] = s[t ^ 1];",
        "__syncwarp();",
        "lanes 0–31 read what another lane of the warp wrote",
    ),
}
COPY = """__device__ void copy(float* to, const float* from) {
    unsigned at = (unsigned)__cvta_generic_to_shared(to);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"(from) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
}
__device__ void wait() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }
"""


@pytest.mark.browser
@pytest.mark.parametrize("what", ORDERED)
def test_lanes_of_a_warp_race_as_racecheck_says(open_widget, what):
    does, line, words = ORDERED[what]
    x, y = torch.arange(32.0), torch.zeros(32)
    for filled, races in [(line, False), ("0 * " if not line else "", True)]:
        body = does.format(filled).replace("; ", ";\n    ")
        code = f"""{COPY}extern "C" __global__ void k(const float* x, float* y) {{
    __shared__ float s[32];
    int t = threadIdx.x;
    {body}
}}"""
        kernel = RawModule(code=code).get_function("k")
        recording = record(lambda kernel=kernel: kernel((1,), (32,), (x, y)))
        page = open_widget(player(*recording.packed()))
        said = asked(page, "Array.from({ length: rec.count }, (_, step) => m.describeStep(rec, { step, other: -1 }))")
        said = [one for one in said if "Hazard" in one]
        assert bool(said) == any(one.tool == "racecheck" for one in recording.findings) == races
    assert f"Hazard: {words}" in said[0]


@pytest.mark.browser
@pytest.mark.parametrize(("number", "steps"), [("threadIdx.x", {1: [0]}), ("1", {})])
def test_another_number_written_over_what_another_warp_wrote_is_a_hazard(open_widget, number, steps):
    code = rf"""extern "C" __global__ void k(float* y) {{
        __shared__ float s;
        if (threadIdx.x % 32 == 0) s = {number};
        __syncthreads();
        y[threadIdx.x] = s;
    }}"""
    kernel = RawModule(code=code).get_function("k")
    page = open_widget(play(lambda: kernel((1,), (64,), (torch.zeros(64),))))
    hazards = """Array.from({ length: rec.count }, (_, step) => m.hazardsOf(rec, step).map(({ other }) => other))"""
    assert {step: others for step, others in enumerate(asked(page, hazards)) if others} == steps
    if steps:
        said = asked(page, "m.describeStep(rec, { step: 1, lane: 0, other: -1 })")
        assert "Hazard: lane 0 writes over what warp 0 wrote at step 0, line 3, and no barrier stands between." in said


@pytest.mark.browser
def test_a_read_before_a_copy_lands_is_a_hazard(open_widget):
    page = open_widget(player(*fetched(early=True)))
    hazards = """Array.from({ length: rec.count }, (_, step) => m.hazardsOf(rec, step).map(({ other }) => other))"""
    assert {step: set(others) for step, others in enumerate(asked(page, hazards)) if others} == {3: {5}, 5: {3}}
    page.evaluate("model.set('step', 3)")
    said = page.locator(".ak-status").inner_text()
    assert said.endswith("read where a copy under way lands at step 5, line 4, and nobody has waited for it.")


@pytest.mark.browser
def test_two_atomics_are_no_hazard_and_one_beside_a_write_is(open_widget):
    page = open_widget(player(*swap(has_barrier=False)))
    found = """[[3, "write"], [3, "atomic"]].map(([step, op]) => {
        rec.steps.op[4] = rec.op.atomic, rec.steps.op[step] = rec.op[op];
        return m.hazardsOf(rec, 4).length; })"""
    assert asked(page, found) == [32, 0]


@pytest.mark.browser
def test_a_barrier_that_opens_begins_a_sentence(open_widget):
    page = open_widget(player(*swap()))
    words = "[0, 3].map((id) => { rec.steps.extra[rec.steps.extra[argument]] = id; return m.deedOf(rec, argument); })"
    assert asked(page, words, OPENS) == [
        "The block's barrier opens: all have arrived, the last at line 6",
        "Barrier 3 opens: all have arrived, the last at line 6",
    ]


@pytest.mark.browser
def test_jumps_lead_to_the_next_of_their_kind_and_to_the_last_before(open_widget):
    page = open_widget(player(*swap()))
    both = "[false, true].map((back) => {})"
    line = "[7, 8].map((step) => m.otherOfLine(rec, 'swap.cu', 5, step, { backwards: true, warp: 1 }))"
    assert asked(page, both.format("m.otherOfWarp(rec, 1, 5, back)")) == [8, 3]
    assert asked(page, both.format("m.otherBarrier(rec, 6, back)")) == [-1, -1]
    assert asked(page, both.format("m.otherBarrier(rec, back ? 10 : 0, back)")) == [OPENS, OPENS]
    assert asked(page, both.format("m.otherWrite(rec, 2, 20, 4, back ? 10 : 0, back)")) == [WRITE, WRITE]
    assert asked(page, both.format("m.otherWrite(rec, 2, 20, 4, 2, back)")) == [-1, -1]
    assert asked(page, line) == [3, 3]


@pytest.mark.browser
def test_a_variable_has_no_value_before_it_is_set(open_widget):
    page = open_widget(player(*swap()))
    values = "m.variableAt(rec, 5, 1, 0, argument)?.words[0] ?? null"
    assert asked(page, values, WRITE_OUT - 1) is None
    assert asked(page, values, WRITE_OUT) == int(np.float32(2 * 58).view(np.uint32))


def box_past_the_array():
    """Six rows of each input, of the 128 that a copy takes."""
    tensors = [torch.ones(1, 1, 6, 64).half() for _ in range(3)]
    return record(lambda: launch(LADDER[1], *tensors)).without_variables()


def statements():
    kernel = RawModule(code=STATEMENTS).get_function("k")
    return record(lambda: kernel((1,), (32,), (torch.arange(64.0), torch.zeros(224))))


@pytest.mark.browser
@pytest.mark.parametrize(("make", "count"), [(statements, 192), (box_past_the_array, 192)])
def test_what_went_into_a_write_is_what_python_says(open_widget, make, count):
    recording = make()
    c, written, right = recording.columns, [], []
    for step in np.flatnonzero(np.isin(c["steps.op"], WRITING)).tolist():
        lanes = [lane for lane in range(32) if c["steps.mask"][step] >> lane & 1]
        for row, lane in enumerate(lanes, start=int(c["steps.first"][step])):
            thread = 32 * int(c["steps.warp"][step]) + lane if c["steps.warp"][step] >= 0 else -1
            written.append({"step": step, "lane": lane, "delta": 0})
            reads = recording.inputs(Access(step, thread, row))
            right.append([[read.step, int(c["lanes.offset"][read.row])] for read in reads])
    page = open_widget(player(*recording.packed()))
    told = "argument.map((one) => m.inputsOf(rec, one).map(({ step, offset }) => [step, offset]))"
    assert asked(page, told, written) == right
    assert sum(map(bool, right)) == count < len(right)


@pytest.mark.browser
def test_copies_in_flight_phases_and_who_waits_are_known_at_each_step(open_widget):
    page = open_widget(player(*fetched()))
    flights = "argument.map((step) => m.inFlight(rec, step).map(({ begin, end, lands }) => [begin, end, lands]))"
    assert asked(page, flights, [1, 2, 5, 6]) == [[], [[1, 5, [4]]], [[1, 5, [4]]], []]
    phases = "argument.map((step) => Object.values(m.mbarrierAt(rec, rec.mbarriers[0], step)))"
    assert asked(page, phases, [0, 2, 7]) == [[0, 0], [0, 32], [1, 0]]
    assert asked(page, "m.waiting(rec, 4).map(({ warp, since }) => [warp, since])") == [[1, 2]]
    assert asked(page, "[m.hazardsOf(rec, 7), m.waiting(rec, 7)]") == [[], []]
    assert asked(page, "[0, 3, 7].map((step) => m.ended(rec, step).map(({ warp }) => warp))") == [[], [0], [0]]
    assert asked(page, "m.inputsOf(rec, { step: 4, lane: 3, delta: 4 }).map(({ step, offset }) => [step, offset])") == [
        [3, 52]
    ]
    said = {
        1: "Warp 0 orders a copy from the copy engine at line 4.",
        2: "Warp 1 waits at the mbarrier at row + 128 at line 6.",
        3: "The copy engine reads 8 × 16 bytes of in at line 4.",
        4: "The copy engine has a copy land: 8 × 16 bytes of row at line 4.",
        5: "The copy that warp 0 began at step 1 is over.",
        6: "A phase of the mbarrier at row + 128 is over, the one of parity 0.",
    }
    for step, words in said.items():
        page.evaluate("(step) => model.set('step', step)", step)
        assert page.locator(".ak-status").inner_text() == f"Step {step} of 7. {words}"
    assert asked(page, "(rec.steps.op[1] = rec.op.wgmma, m.deedOf(rec, 3))") == (
        "The tensor cores read 8 × 16 bytes of in at line 4 for the product that warp 0 began at step 1"
    )
    page.evaluate("model.set('step', 4)")
    listed = page.locator(".ak-player-flights li").all_inner_texts()
    assert listed == [
        "1 copy of the copy engine to row, since step 1; over at step 5",
        "Warp 1 waits at the mbarrier at row + 128, line 6, since step 2",
        "Warp 0 has ended, after step 1",
    ]
    assert page.locator(".ak-mbarriers tbody tr").all_inner_texts() == ["row + 128\t0\t0\t32"]


@pytest.mark.browser
def test_passes_through_the_banks_are_counted_as_the_profiler_counts_them(open_widget, transpose):
    page = open_widget(player(*transpose.packed()))
    kinds = """Array.from({ length: rec.count }, (_, step) => step)
        .filter((step) => m.lanesOf(rec, step).length && rec.arrays[rec.steps.array[step]].space === "shared")
        .map((step) => [rec.meta.ops[rec.steps.op[step]], m.wavefrontsOf(rec, step)])"""
    assert {tuple(one) for one in asked(page, kinds)} == {("write", 1), ("read", 32)}
    shape = "rec.arrays.map(({ name, dtype, shape }) => [name, dtype, shape])"
    assert ["tile", "float32", [32, 32]] in asked(page, shape)  # as its declaration says


@pytest.mark.browser
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3", "float8_e5m2"])
def test_small_floats_are_those_of_python(open_widget, dtype):
    raw = np.random.default_rng(0).integers(0, 256, 256, dtype=np.uint8)
    meta, data = swap()
    meta["arrays"][0]["dtype"] = dtype
    page = open_widget(player(meta, data))
    size = 2 if "16" in dtype else 1
    element = f'm.elementAt(rec, 0, {size} * n, "{dtype}", 0)'
    call = f"""(() => {{ rec.initial.set(argument);
        return Array.from({{ length: {256 // size} }}, (_, n) => `${{{element}}}`); }})()"""
    told = np.array([float(text.replace("Infinity", "inf")) for text in asked(page, call, raw.tolist())])
    np.testing.assert_array_equal(told, recorded.numbers(raw, dtype))


@pytest.mark.browser
def test_warps_that_came_to_a_barrier_last_wait_until_it_opens_and_have_ended_then(open_widget):
    """Of a block whose second warp does nothing behind the barrier, which opens at step 6."""
    meta, data = swap()
    page = open_widget(player(meta, data))
    states = """[6, 7, 9].map((step) => {
        const mine = new Set([8, 10]);
        rec.ofWarp = m.historyOf(3, (see) => Array.from({ length: rec.count }, (_, at) => at)
            .forEach((at) => mine.has(at) || see(rec.steps.warp[at] + 1, at, at)));
        return [m.waiting(rec, step), m.ended(rec, step)].map((found) => found.map(({ warp }) => warp));
    })"""
    assert asked(page, states) == [[[], []], [[], [1]], [[], [1]]]


@pytest.mark.browser
def test_rows_are_labelled_by_the_dimensions_that_vary(open_widget):
    page = open_widget(player(*swap()))
    labels = """argument.map(([shape, rows, every]) => rows.map((row) =>
        m.rowLabel({ array: { dtype: "float32", shape }, columns: shape.at(-1) }, row, every)))"""
    cases = {
        ((64, 32), (0, 1, 2, 40), 2): ["0", "", "2", "40"],
        ((3, 16, 1, 64), (0, 1, 15, 16, 18, 33), 1): ["0:0", "1", "15", "1:0", "2", "1"],
        ((1, 1, 50, 64), (0, 1, 49), 1): ["0", "1", "49"],
        ((8, 8, 2, 64), (0, 1, 2, 4, 16), 4): ["0:0:0", "", "", "0:2:0", "1:0:0"],
    }
    assert asked(page, labels, list(cases)) == list(cases.values())


@pytest.mark.browser
def test_a_barrier_that_opens_shows_what_the_step_before_it_shows(open_widget):
    page = open_widget(player(*swap()))
    assert asked(page, "[3, 5, 6, 7].map((step) => m.arrayAt(rec, step))") == [2, 2, 2, 2]
    other = "(rec.steps.array[2] = -1, rec.steps.array[3] = 1, [4, 6].map((step) => m.arrayAt(rec, step)))"
    assert asked(page, other) == [
        0,
        1,
    ]  # that of warp 0 before it arrives, and of warp 1 before it opens


@pytest.mark.browser
def test_numbers_are_short_and_ranges_are_words(open_widget):
    page = open_widget(player(*swap()))
    numbers = [0, 3, -2, 0.25, -0.0213, 1234567, 1.5e-7, 12.3456]
    assert asked(page, "argument.map((n) => m.brief(n, 5))", numbers) == (
        ["0", "3", "−2", "0.25", "−0.021", "1e6", "1e−7", "12.3"]
    )
    assert asked(page, "m.ranges([0, 1, 2, 5, 7, 8])") == "0–2, 5, 7–8"
    follow = "argument.map((one) => m.follow(...one))"
    assert asked(page, follow, [[0, 10, 2, 5], [0, 10, 20, 21], [15, 10, 3, 40]]) == [0, 18, 3]


# ---- by mouse and keyboard


@pytest.mark.browser
def test_a_chosen_cell_says_who_wrote_it_and_each_read_leads_there(open_widget, transpose):
    meta, data = transpose.packed()
    start = {"cell": {"array": 2, "offset": 12}, "array": 2, "looksAtCell": True}
    page = open_widget(Player(meta={**meta, "start": start}, data=data, step=transpose.steps - 1))
    trace = page.locator(".ak-trace")
    name = trace.locator("b").inner_text()
    assert name.startswith("tile[0][3] = ")
    words = trace.inner_text().replace("\n", " ")
    assert re.search(
        r"Written by warp 0, lane 3, line \d+: step \d+ Read in the same line or statement: in\[0\]\[35\] = ", words
    )
    trace.get_by_role("button", name="in[0][35]").click()
    assert trace.locator("b").inner_text() == name.replace("tile[0][3]", "in[0][35]")
    assert "as it was at the launch" in trace.inner_text()


PARTLY_COPIED = r"""extern "C" __global__ void k(const float* x, float* y) {
    __shared__ float s[4];
    unsigned to = __cvta_generic_to_shared(s);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, 8;" :: "r"(to), "l"(x) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    atomicAdd(y, s[3]);
    y[1] = 3;
}"""


@pytest.mark.browser
def test_what_went_into_a_write_is_said_in_words(open_widget):
    kernel = RawModule(code=PARTLY_COPIED).get_function("k")
    recording = record(lambda: kernel((1,), (1,), (torch.ones(4), torch.ones(2))))
    meta, data = recording.packed()
    cells = {
        (2, 4): "It was copied from: x[1] = 1 ",
        (2, 8): "It is a zero that the copy fills in: nothing was read for it.",
        (1, 0): "Made of what was there, and read in the same line or statement: s[3] = 0 ",
        (
            1,
            4,
        ): "Nothing was read in the same line or statement since the thread's last write: it was made from",
    }
    for (array, offset), said in cells.items():
        start = {"cell": {"array": array, "offset": offset}}
        page = open_widget(Player(meta={**meta, "start": start}, data=data, step=recording.steps - 1))
        words = page.locator(".ak-inputs")
        words.wait_for()
        assert words.inner_text().replace("\n", " ").startswith(said)


@pytest.mark.browser
def test_a_number_that_the_step_writes_is_shown_as_written(open_widget):
    meta, data = swap()
    start = {"cell": {"array": 2, "offset": 12}, "array": 2, "looksAtCell": True}
    page = open_widget(Player(meta={**meta, "start": start}, data=data, step=WRITE))
    trace = page.locator(".ak-trace")
    assert trace.locator("b").inner_text() == "row[3] becomes 6"
    assert "Written by warp 0, lane 3, line 5: step 2" in trace.inner_text().replace("\n", " ")
    page.click(".ak-next")
    assert trace.locator("b").inner_text() == "row[3] = 6"


@pytest.mark.browser
def test_each_key_does_what_its_button_does(open_widget):
    page = open_widget(player(*swap(has_barrier=False)))
    at = lambda: page.evaluate("model.get('step')")  # noqa: E731
    page.locator(".ak-step").focus()
    for key, step in [("f", 3), ("f", 4), ("Shift+F", 3), ("Shift+ArrowRight", 5), ("Shift+ArrowLeft", 3), ("l", 3)]:
        page.keyboard.press(key)
        assert at() == step, key
    page.get_by_role("button", name="next: this warp").click()
    assert at() == 5
    page.get_by_role("button", name="previous: finding").click()
    assert at() == 4
    assert page.locator(".ak-player-findings .ak-chosen").count() == 1
    assert page.locator(".ak-line-other").inner_text().startswith("5")
    page.get_by_label("to line").fill("8")
    page.keyboard.press("Enter")
    assert at() == 6
    page.get_by_label("to line").fill("2")
    page.keyboard.press("Enter")
    assert at() == 6 and page.locator(".ak-status").inner_text() == "No step of this block lies in line 2 of swap.cu."


@pytest.mark.browser
def test_keys_go_on_working_where_the_last_jump_of_a_kind_was_made(open_widget):
    page = open_widget(player(*swap()))
    for way, key, step in [("next", "End", 10), ("previous", "Home", 0)]:
        page.get_by_role("button", name=f"{way}: barrier").focus()
        page.keyboard.press("Enter")
        assert page.get_by_role("button", name=f"{way}: barrier").is_disabled()
        page.keyboard.press(key)
        assert page.evaluate("model.get('step')") == step


@pytest.mark.browser
def test_a_planted_race_has_jumps_to_its_hazards_and_a_correct_kernel_has_none(open_widget):
    page = open_widget(player(*twice(has_barrier=False)))
    at = lambda: page.evaluate("model.get('step')")  # noqa: E731
    assert asked(page, "[await m.findHazards(rec), rec.hazards.step]") == [True, [7, 8]]
    page.get_by_role("button", name="next: hazard").click()
    assert at() == 7 and "Hazard: lanes 0–31 write over" in page.locator(".ak-status.ak-alarmed").inner_text()
    assert page.locator(".ak-line-other .ak-line-number").inner_text() == "7"  # whose read it is
    assert "other party" in page.locator(".ak-player-memory .ak-legend").inner_text()
    for key, step in [("h", 8), ("h", 8), ("Shift+H", 7), ("Shift+H", 7), ("End", 8), ("Home", 0), ("h", 7)]:
        page.keyboard.press(key)
        assert at() == step, key
    assert page.get_by_role("button", name="previous: hazard").is_disabled()
    assert "h hazard" in page.locator(".ak-keys").inner_text()
    page.keyboard.press("Home")
    assert not page.locator(".ak-line-other").count()

    page = open_widget(player(*twice()))
    assert asked(page, "[await m.findHazards(rec), rec.hazards.step]") == [False, []]
    page.evaluate("() => new Promise((done) => setTimeout(done, 50))")
    assert not page.locator(".ak-jump-pair[aria-label=hazard]").is_visible()
    assert "hazard" not in page.locator(".ak-keys").inner_text()
    page.locator(".ak-step").focus()
    page.keyboard.press("h")
    assert at() == 0


@pytest.mark.browser
def test_the_mark_of_a_hazard_can_be_read_on_the_colour_of_any_cell(open_widget):
    page = open_widget(player(*twice(has_barrier=False)))
    with watched_canvases(page):
        page.evaluate("model.set('step', 7)")
        assert "!" in page.evaluate("canvasTexts.map(([, text]) => text)")
        assert pale_canvas_texts(page, CONTRAST) == []


@pytest.mark.browser
def test_the_strip_beside_the_memory_moves_its_window_until_the_next_step(open_widget):
    page = open_widget(player(*busy(rounds=20)))
    grid = page.locator(".ak-grid")
    seen = lambda: re.search(r"Rows (\d+) to", grid.get_attribute("aria-label"))[1]  # noqa: E731
    box = grid.bounding_box()
    assert seen() == "0"
    page.mouse.click(box["x"] + box["width"] - 5, box["y"] + box["height"] - 5)
    assert int(seen()) > 60
    page.locator(".ak-next").click()
    assert seen() == "0"


@pytest.mark.browser
def test_lanes_show_what_they_touch_and_a_variable_of_all_of_them(open_widget):
    page = open_widget(player(*swap(), at=7))
    lanes = page.locator(".ak-lanes > button")
    assert lanes.nth(3).inner_text().split() == ["3", "120"]  # row[60]
    lanes.nth(3).click()
    page.get_by_label("in each lane").select_option(label="mine  (swap)")
    assert [one.split()[1] for one in lanes.all_inner_texts()[:4]] == ["0", "2", "4", "6"]
    row = page.locator(".ak-variables tbody tr:visible")
    assert row.all_inner_texts() == ["mine\t6\tstep 2"]


@pytest.mark.browser
def test_variables_of_8_bytes_and_of_letters_are_shown(open_widget):
    code = """extern "C" __global__ void k(float* y) {
    long long below[2] = {-3, -4LL << 32};
    double half = 0.5 + threadIdx.x;
    char16_t letter = 3;
    y[threadIdx.x] = half + below[0] + below[1] + letter;
}"""
    recording = record(lambda: RawModule(code=code).get_function("k")((1,), (32,), (torch.zeros(32),)))
    page = open_widget(Player(meta=recording.packed()[0] | {"start": {"lane": 5}}, data=recording.packed()[1], step=0))
    rows = page.locator(".ak-variables tbody tr:visible")
    rows.filter(has_text="half").wait_for()
    assert sorted(rows.all_inner_texts()) == ["below[2]\t−3 −2e10\tnow", "half\t5.5\tnow", "letter\t3\tnow"]
    page.get_by_label("in each lane").select_option(label="half  (k)")
    assert [one.split()[1] for one in page.locator(".ak-lanes > button").all_inner_texts()[:3]] == ["0.5", "1.5", "2.5"]


@pytest.mark.browser
def test_a_long_recording_is_shown_before_its_variables_are_unpacked(open_widget):
    meta, data = with_many_changes(swap(), 1_000_042)
    page = open_widget(Player(meta={**meta, "start": {"lane": 5}}, data=data, step=10))
    row = page.locator(".ak-variables tbody tr", has_text="other")
    row.filter(has_text="41").wait_for()  # 1,000,041 % 100
    assert row.inner_text().endswith("41\tnow")
    told = """async () => {
        const m = await import(scriptUrl);
        const rec = await m.loadRecording(model.get("meta"), model.get("data"));
        const held = () => [rec.isWhole, m.variableAt(rec, 37, 1, 0, 10)?.step ?? null];
        const early = held();
        await rec.whole;
        return [early, held(), m.variableAt(rec, 5, 1, 0, 10)];
    }"""
    assert computed(page, told, None) == [[False, None], [True, 10], None]


@pytest.mark.browser
def test_a_step_of_a_long_recording_is_redrawn_within_a_frame(open_widget):
    page = open_widget(player(*busy()), width=1440)
    for colour in ("value", "writer"):
        page.locator("select", has_text="last writer").select_option(colour)
        last = page.evaluate("Number(document.querySelector('.ak-step').max)")
        assert_redrawn_within_a_frame(page, f"(n) => model.set('step', (n * 7919) % {last})", f"a jump, by {colour}")


# ---- the page from disk


@pytest.fixture(scope="module")
def file_page(tmp_path_factory, transpose):
    path = tmp_path_factory.mktemp("player") / "transpose.html"
    path.write_text(page_of(player(*transpose.packed())), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def bare_page(browser):
    page = browser.new_page()
    yield page
    page.close()


@pytest.fixture
def opened(bare_page, file_page):
    """opened(width, address="", scheme="light") -> the page from disk, loaded anew, once its memory is drawn."""
    errors = []

    def note(error):
        errors.append(str(error))

    def open_page(width, address="", scheme="light"):
        bare_page.goto("about:blank")
        bare_page.set_viewport_size({"width": width, "height": 900})
        bare_page.emulate_media(color_scheme=scheme)
        bare_page.goto(f"{file_page.as_uri()}{address}")
        bare_page.wait_for_selector(".ak-grid")
        assert not errors
        return bare_page

    bare_page.on("pageerror", note)
    yield open_page
    bare_page.remove_listener("pageerror", note)


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 390])
def test_the_page_from_disk_is_there_within_two_seconds_and_fits(opened, width):
    page = opened(width)
    for _ in range(2):  # the best of three: other work on the machine must not count
        if page.evaluate("performance.now()") <= 2000:
            break
        page = opened(width)
    assert page.evaluate("performance.now()") <= 2000
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert_redrawn_within_a_frame(
        page,
        """(n) => { const input = document.querySelector(".ak-step");
            input.value = 5 * n; input.dispatchEvent(new Event("input")); }""",
        "a step of the page",
    )


def assert_shows_what_the_address_says(page):
    """Of an address with step 130, warp 3 and byte 132 of tile."""
    page.locator(".ak-status", has_text="Step 130 of 160.").wait_for()
    assert page.locator(".ak-player-lane select").first.input_value() == "3"
    assert page.locator(".ak-trace b").inner_text().startswith("tile[1][1] = ")


@pytest.mark.browser
def test_the_address_keeps_step_warp_and_cell(opened):
    page = opened(1440, "#player=step:130,warp:3,cell:tile%2B132")
    assert_shows_what_the_address_says(page)
    page.locator(".ak-step").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('step:131')", polling=20)
    assert page.evaluate("location.hash") == "#player=step:131,warp:3,cell:tile%2B132"
    page.evaluate("location.hash = '#player=step:nonsense,cell:nothing%2B5'")
    page.locator(".ak-status", has_text="Step 0 of 160.").wait_for()
    assert not page.locator(".ak-trace b").count()


@pytest.mark.browser
def test_the_address_keeps_how_memory_is_looked_at(opened):
    page = opened(1440, "#player=step:130,warp:3,lane:5,colour:bank,banks:32,array:tile")
    page.locator(".ak-status", has_text="Step 130 of 160.").wait_for()
    shown = "one => one.ariaLabel"
    assert "tile, shared memory" in page.locator(".ak-grid").evaluate(shown)
    assert "coloured by bank" in page.locator(".ak-grid").evaluate(shown)
    assert page.locator(".ak-lanes button[aria-pressed=true] span").inner_text() == "5"
    page.locator(".ak-player-memory select", has_text="last writer").select_option("writer")
    page.wait_for_function("location.hash.includes('colour:writer')", polling=20)
    assert page.evaluate("location.hash") == "#player=step:130,warp:3,cell:,lane:5,colour:writer,banks:32,array:tile"
    page.go_back()
    page.wait_for_function("document.querySelector('.ak-grid').ariaLabel.includes('by bank')", polling=20)
    page.evaluate("location.hash = '#player=step:1e9,lane:99,colour:nonsense,banks:7,array:nothing'")
    page.wait_for_function("document.querySelector('.ak-grid').ariaLabel.includes('by value')", polling=20)
    assert page.locator(".ak-status").inner_text().startswith("Step 0 of 160.")
    assert page.locator(".ak-lanes button[aria-pressed=true] span").inner_text() == "0"


@pytest.mark.browser
def test_an_access_outside_of_every_array_is_told(open_widget):
    code = 'extern "C" __global__ void k(float* y) {\n y[threadIdx.x] = 1;\n y[threadIdx.x + 60] = 2; }'
    kernel, y = RawModule(code=code).get_function("k"), torch.zeros(64)
    with sanitize() as report:
        kernel((1,), (32,), (y,))
    page = open_widget(play(lambda: kernel((1,), (32,), (y,)), at=report.findings[0]))
    said = page.locator(".ak-status", has_text="outside of every array")
    said.wait_for()
    assert "Lanes 4–31 of warp 0 write 28 × 4 bytes outside of every array at line 3." in said.inner_text()


@pytest.mark.browser
def test_a_launch_that_an_access_stopped_has_one_reason_the_finding(open_widget):
    code = 'extern "C" __global__ void k(const float* a, float* y) { y[threadIdx.x] = a[threadIdx.x]; }'
    kernel = RawModule(code=code).get_function("k")
    meta, data = record(lambda: kernel((1,), (64,), (torch.zeros(46), torch.zeros(64)))).packed()
    assert "thread (46, 0, 0)" not in meta["failure"] and "a[46]" in meta["findings"][0]["message"]
    page = open_widget(player(meta, data))
    reason = page.locator(".ak-player-failure")
    assert reason.inner_text() == "The launch stopped at its last step: the finding of memcheck says why."
    page = open_widget(player({**meta, "findings": []}, data))
    assert page.locator(".ak-player-failure").inner_text() == f"The launch stopped here: {meta['failure']}"


@pytest.mark.browser
def test_a_byte_in_the_middle_of_a_number_stands_for_the_number(opened):
    page = opened(1440, "#player=step:130,warp:3,cell:tile%2B134")
    page.locator(".ak-trace b", has_text="tile[1][1] = ").wait_for()
    page.locator(".ak-step").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('step:131')", polling=20)
    assert page.evaluate("location.hash") == "#player=step:131,warp:3,cell:tile%2B132"


@pytest.mark.browser
def test_who_asks_for_less_motion_is_shown_steps_alone(opened):
    page = opened(1440)
    button = page.locator(".ak-play")
    button.click()
    assert button.inner_text() == "Pause"
    page.emulate_media(reduced_motion="reduce")
    try:
        button.wait_for(state="hidden")
        step = page.locator(".ak-step").input_value()
        page.locator(".ak-step").focus()
        page.keyboard.press("p")
        page.wait_for_timeout(300)
        assert page.locator(".ak-step").input_value() == step
    finally:
        page.emulate_media(reduced_motion="no-preference")
    button.wait_for()


@pytest.mark.browser
def test_the_address_is_left_alone_until_the_reader_does_something_and_what_others_keep_there_stays(opened):
    for address in ("#the-picture-three-passes", "#explorer=layer:3"):
        page = opened(1440, address)
        page.wait_for_timeout(500)  # more than what address.js waits before it writes
        assert page.evaluate("location.hash") == address
    page.locator(".ak-step").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash.includes('step:1')", polling=20)
    assert page.evaluate("location.hash").startswith("#explorer=layer:3&player=step:1,")


@pytest.mark.browser
def test_the_page_follows_the_systems_theme(opened):
    inks = {}
    for scheme in ("light", "dark"):
        page = opened(390, scheme=scheme)
        inks[scheme] = page.evaluate("getComputedStyle(document.querySelector('.ak-widget')).color")
    assert inks == {"light": "rgb(0, 0, 0)", "dark": "rgb(255, 255, 255)"}


@pytest.mark.browser
def test_the_page_can_be_read_without_seeing_it(opened):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(1440, "#player=step:130,cell:tile%2B132")
    page.wait_for_selector(".ak-inputs button")
    found = axe.run(page).response["violations"]
    assert not found, [(one["id"], [node["target"] for node in one["nodes"]]) for one in found]
    page.focus(".ak-grid")
    page.keyboard.press("ArrowDown")
    said = page.locator(".ak-grid").get_attribute("aria-label")
    assert "tile, shared memory, float32 [32, 32]" in said and "Chosen: tile[2][1] = " in said


def test_nothing_in_the_page_asks_a_server(file_page):
    text = file_page.read_text(encoding="utf-8")
    assert text.count("</script>") == 3 and not re.search(r"""(src|href)=["']?(https?:)?//""", text)


# ---- in a chapter: short


def in_short(packed, step=0, **look):
    meta, data = packed
    return Player(meta={**meta, "start": {"short": True, **look}}, data=data, step=step)


@pytest.mark.browser
def test_in_a_chapter_what_a_reader_may_want_is_folded(open_widget):
    page = open_widget(in_short(swap()))
    folds = page.locator(".ak-widget summary:visible")
    assert folds.all_inner_texts() == [
        "More",
        "In flight, and waiting: nothing, and nobody.",
        "The lanes of a warp",
        "Keys",
    ]
    assert not page.locator(".ak-lanes").is_visible() and not page.get_by_label("figures").is_visible()
    for fold in folds.all():
        fold.click()
    assert page.locator(".ak-lanes").is_visible() and page.get_by_label("figures").is_visible()
    follows = page.get_by_label("follow the step")
    assert follows.count() == 2 and not page.locator(".ak-player-memory").get_by_label("follow the step").is_visible()
    page.get_by_role("button", name="out", exact=True).click()
    page.locator(".ak-player-memory").get_by_label("follow the step").click()
    assert page.locator(".ak-arrays > [aria-pressed=true]").inner_text() == "in"


@pytest.mark.browser
def test_a_box_that_would_do_nothing_is_away_once_the_keys_are_elsewhere(open_widget):
    code = 'extern "C" __global__ void k(const float* wide, float* narrow) { narrow[0] = wide[0]; }'
    kernel = RawModule(code=code).get_function("k")
    recording = record(lambda: kernel((1,), (1,), (torch.ones(2, 32), torch.zeros(8, 2))))
    page = open_widget(in_short(recording.packed(), step=0))
    figures, more = page.get_by_label("figures"), page.locator(".ak-player-memory summary")
    page.get_by_text("More", exact=True).click()
    figures.focus()
    page.evaluate("model.set('step', 1)")
    assert page.locator(".ak-array-words").inner_text() == "global, float32 [8, 2]"
    assert figures.is_visible() and page.evaluate("document.activeElement.type") == "checkbox"
    page.keyboard.press("Shift+Tab")
    assert more.is_visible() and not figures.is_visible()
    page.keyboard.press("Shift+Tab")
    assert not more.is_visible()


@pytest.mark.browser
def test_what_is_in_flight_and_who_waits_is_a_line_that_unfolds(open_widget):
    page = open_widget(in_short(fetched(), step=4))
    line = page.locator(".ak-player-flights summary")
    assert line.inner_text() == "In flight, and waiting: 1 copy to row; warp 1 waits at an mbarrier; warp 0 has ended."
    button = page.get_by_role("button", name="step 2", exact=True)
    assert not button.is_visible()
    line.click()
    button.click()
    assert page.evaluate("model.get('step')") == 2


# What of a player is smaller than a finger: what is pressed and can be seen, with its size.
TOO_SMALL_TO_PRESS = """[...document.querySelectorAll(".ak-widget :is(button, select, summary, input)")]
    .filter((one) => one.checkVisibility() && !one.closest("details:not([open]) > :not(summary)"))
    .map((one) => (one.type === "checkbox" ? one.closest("label") : one))
    .map((one) => [one.className || one.localName, one.getBoundingClientRect()])
    .filter(([, { width, height }]) => width < 24 || height < 24).map(([name, box]) => [name, box.width, box.height])"""


# How far down a scene reaches, with what sticks out of it.
REACHES = """(root) => Math.max(...[root, ...root.querySelectorAll("*")]
    .filter((one) => one.checkVisibility() && !one.parentElement.closest(".ak-source, .ak-player-trace, details"))
    .map((one) => one.getBoundingClientRect().bottom - root.getBoundingClientRect().top))"""
HEAD = 72  # pixels of a page of the site that are in front of it


@pytest.mark.browser
@pytest.mark.parametrize(("width", "height"), [(390, 844), (916, 900)])  # 916: the text of a page of 1440
def test_a_scene_is_one_screen_below_the_pages_head_and_has_room_for_fingers(open_widget, transpose, width, height):
    chosen = {"cell": {"array": 1, "offset": 0}}
    scenes = {
        "a copied number": in_short(transpose.without_variables().packed(), step=64, **chosen),
        "a copy in flight": in_short(fetched(), step=4, colour="writer", **chosen),
        "a hazard": in_short(swap(has_barrier=False), step=READ_ROW, **chosen),
    }
    for name, one in scenes.items():
        page = open_widget(one, width=width)
        page.set_viewport_size({"width": width, "height": height})
        root = page.locator(".ak-widget")
        assert root.evaluate(REACHES) <= height - HEAD, name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        for part in (".ak-status", ".ak-grid", ".ak-line-now", ".ak-player-trace"):
            assert root.locator(part).is_visible(), (name, part)
        assert page.evaluate(TOO_SMALL_TO_PRESS) == [], name


@pytest.mark.browser
def test_on_a_phone_arrays_with_long_names_are_a_choice(open_widget):
    meta, data = swap()
    meta["arrays"][1]["name"] = "a long name of an array here"
    page = open_widget(in_short((meta, data)), width=390)
    assert not page.locator(".ak-arrays").is_visible()
    choice = page.locator(".ak-player-memory").get_by_role("combobox", name="array")
    assert choice.evaluate("(one) => one.selectedOptions[0].text") == "in •"
    choice.select_option(label="row")
    assert page.locator(".ak-grid").get_attribute("aria-label").startswith("row, shared, float32 [64].")
    title = page.locator(".ak-player-title > .ak-note")
    assert title.inner_text() == "2 warps, 11 steps"
    page.get_by_text("Launch and colours").click()
    assert (
        page.locator(".ak-launch")
        .inner_text()
        .startswith("Block (0, 0, 0) of a grid of 1 × 1 × 1, 64 × 1 × 1 threads.")
    )


@pytest.mark.browser
def test_the_line_in_front_is_in_view_far_down_in_a_file(open_widget):
    meta, data = swap()
    lines = meta["sources"]["swap.cu"].splitlines()
    meta["sources"]["swap.cu"] = "\n".join([*[""] * 600, *lines, *[""] * 20])
    meta["places"] = [(file, line + 600, caller) for file, line, caller in meta["places"]]
    page = open_widget(in_short((meta, data), step=READ_ROW), width=390)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    box, line = (page.locator(one).bounding_box() for one in (".ak-source", ".ak-line-now"))
    assert box["y"] <= line["y"] and line["y"] + line["height"] <= box["y"] + box["height"]


@pytest.mark.browser
def test_the_lines_of_both_parties_of_a_finding_are_in_view(open_widget):
    meta, data = swap(has_barrier=False)
    lines = meta["sources"]["swap.cu"].splitlines()
    meta["sources"]["swap.cu"] = "\n".join([*lines[:6], *[""] * 6, *lines[6:], *[""] * 20])  # line 7 is line 13
    meta["places"] = [(file, line + 6 if line > 6 else line, caller) for file, line, caller in meta["places"]]
    meta["findings"][0]["line"] = 13
    page = open_widget(player(meta, data, at=SimpleNamespace(**{**RACE, "line": 13})))
    box = page.locator(".ak-source").bounding_box()
    for name, number in (("now", "13"), ("other", "5")):
        line = page.locator(f".ak-line-{name}")
        assert line.locator(".ak-line-number").inner_text().split()[-1] == number
        place = line.bounding_box()
        assert box["y"] <= place["y"] and place["y"] + place["height"] <= box["y"] + box["height"], name
