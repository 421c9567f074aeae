"""The charts of bars that all chapters share."""

import matplotlib.colors
import matplotlib.pyplot as plt
import pytest

from course_utils import plots


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def texts(ax):
    return [text.get_text().strip() for text in ax.texts]


def colours(ax):
    return [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in ax.patches]


def test_bars_write_their_figures_and_name_their_marks():
    (ax,) = plots.bars(["copy.cu", "vectors.cu"], {"ms": [0.2037, 0.13]}, marks={"floor": 0.126}).axes
    assert texts(ax) == ["0.204", "0.13", "floor"] and ax.get_title(loc="left") == "ms"
    assert [label.get_text() for label in ax.get_yticklabels()] == ["copy.cu", "vectors.cu"]


def test_bars_have_a_dash_where_there_is_no_figure():
    (ax,) = plots.bars(["a", "b"], {"x": [2.0, None]}).axes
    assert texts(ax) == ["2", "–"]
    assert [bar.get_width() for bar in ax.patches] == [2, 0]


def test_bars_that_waste_are_hatched_by_as_much():
    (ax,) = plots.bars(["a", "b"], {"wavefronts": [8, 16]}, wasted={"wavefronts": [0, 12]}).axes
    assert [bar.get_width() for bar in ax.patches if bar.get_hatch()] == [0, 12]
    assert [bar.get_x() for bar in ax.patches if bar.get_hatch()] == [8, 4]


def test_bars_below_their_base_go_left_and_are_orange():
    (ax,) = plots.bars(["slower", "faster"], {"times": [0.9, 1.2]}, base=1).axes
    assert [round(bar.get_width(), 9) for bar in ax.patches] == [-0.1, 0.2]
    assert colours(ax) == [plots.ORANGE, plots.BLUE]


def test_the_last_colour_holds_for_the_rest():
    (ax,) = plots.bars(["a", "b", "c"], {"x": [1, 2, 3]}, colours=(plots.GREY, plots.BLUE)).axes
    assert colours(ax) == [plots.GREY, plots.BLUE, plots.BLUE]


def test_only_panels_that_are_alike_have_one_scale():
    first, second, third = plots.bars(["a"], {"x": [1.0], "y": [10.0], "z": [5.0]}, alike=2).axes
    assert first.get_xlim() == second.get_xlim() != third.get_xlim()


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("panels", [1, 2, 3, 4])
def test_figures_of_bars_stay_in_their_panel(panels, log):
    figure = plots.bars(["a kernel", "another"], {f"{n} ms": [12_345, 1.234] for n in range(panels)}, log=log)
    figure.canvas.draw()
    for ax in figure.axes:
        assert all(text.get_window_extent().x1 <= ax.get_window_extent().x1 for text in ax.texts)


def test_a_title_too_long_for_its_panel_is_wrapped():
    figure = plots.bars(["a kernel"], {f"{n}: {'many words ' * 6}": [1.0] for n in range(2)})
    figure.canvas.draw()
    left, right = (ax._left_title.get_window_extent() for ax in figure.axes)
    assert left.x1 <= right.x0 and right.x1 <= figure.bbox.x1


def test_grouped_bars_leave_out_what_is_missing():
    ax = plots.grouped_bars({"one": {"a": 1.0, "b": None}, "two": {"a": 2.0, "b": 3.0}}, "ms", colours=("C0", "C1"))
    assert sorted(bar.get_height() for bar in ax.patches) == [1, 2, 3]


def test_grouped_bars_write_their_figures_beside_each_other():
    groups = {"naive": {"allow": 8.0, "reached": 5.9}, "tiled": {"allow": 16.0, "reached": 8.7}}
    ax = plots.grouped_bars(groups, "TFLOP/s", colours=("C0", "C1"))
    assert sorted(texts(ax)) == ["16", "5.9", "8", "8.7"]
    places = sorted((bar.get_x(), bar.get_width()) for bar in ax.patches)
    assert all(x + wide <= after + 1e-9 for (x, wide), (after, _) in zip(places, places[1:], strict=False))


def test_stacked_bars_end_at_their_sums_and_write_them():
    ax = plots.stacked_bars({"a path": {"00": 30, "01": 60}, "another": {"01": 20}}, "minutes")
    assert max(bar.get_x() + bar.get_width() for bar in ax.patches) == 90
    assert texts(ax) == ["90", "20"]
    assert len(set(colours(ax))) == 2


def test_stacked_bars_write_no_sums_where_all_are_the_same():
    ax = plots.stacked_bars({"a": {"zero": 30.1, "others": 69.9}, "b": {"zero": 20.2, "others": 79.8}}, "%")
    assert texts(ax) == []


def test_stacked_bars_have_a_look_for_each_of_many_parts_and_a_legend_that_fits():
    ax = plots.stacked_bars({"a path": {f"03 FlashAttention-2, part {part}": 10.0 for part in range(10)}}, "minutes")
    assert len({(patch.get_facecolor(), patch.get_hatch()) for patch in ax.patches}) == 10
    ax.figure.canvas.draw()
    (legend,) = ax.figure.legends
    assert legend.get_window_extent().x1 <= ax.figure.bbox.x1
