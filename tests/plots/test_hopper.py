"""Pictures of chapter 07 hold what they are drawn for."""

from course_utils import plots


def words(ax):
    return [text.get_text() for text in ax.texts]


def test_mma_sync_takes_a_factor_through_the_registers_of_each_warp():
    by_warp, at_once = plots.two_ways_of_a_factor().axes
    assert words(by_warp).count("registers") == 4 and "registers" not in words(at_once)


def test_a_tile_in_panels_has_each_chunk_of_each_row_once_in_the_swizzle():
    numbers = [int(word) for word in words(plots.tile_in_panels()) if word.isdigit()]
    panels = numbers[:64], numbers[64:]
    for row in range(8):
        first, second = (panel[8 * row : 8 * row + 8] for panel in panels)
        assert first == [place ^ row for place in range(8)]
        assert second == [8 + (place ^ row) for place in range(8)]


def test_tiles_go_around_the_ring_with_the_parity_of_their_phase():
    ax = plots.ring_of_tiles(tiles=7, buffers=3)
    tiles = [f"tile {tile}\nparity {tile // 3 % 2}" for tile in range(7)]
    assert [word for word in words(ax) if "tile" in word] == tiles
    ends = {
        word: [text.get_position()[0] for text in ax.texts if text.get_text() == word] for word in ("full", "empty")
    }
    for tile in range(7):  # it is full at its beginning, and empty before the next tile of its buffer
        assert tile < ends["full"][tile] < ends["empty"][tile] < tile + 3
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["buffer 0", "buffer 1", "buffer 2"]


def test_step_4_finds_the_maximum_beside_the_product_of_the_tile_before():
    figure = plots.softmax_overlap()
    begins = {text.get_text(): patch for text, patch in zip(figure.axes[1].texts, figure.axes[1].patches, strict=True)}
    maximum, product = begins["max 1"], begins["P V 0"]
    assert product.get_x() <= maximum.get_x() and maximum.get_x() < product.get_x() + product.get_width()
    exponentials, others = begins["exp 1"], begins["P V"]
    assert exponentials.get_x() >= product.get_x() + product.get_width()
    assert exponentials.get_width() == product.get_width()  # 512 cycles each at d = 128
    assert others.get_x() + others.get_width() <= begins["Q Kᵀ 2"].get_x()  # then the tensor cores are free again


def test_ratios_are_marked_beside_one_and_what_has_none_has_a_dash():
    panels = {"a": {"short": [0.9, None, 1.1], "long": [0.8, None, None]}, "b": {"short": [1, 1, 1], "long": [1, 1, 1]}}
    figure = plots.ratios_around_one(["x", "y", "z"], panels, "times as fast")
    first, second = figure.axes
    marks = {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in first.lines[1:]}
    assert marks == {"short": [(0.9, 0), (1.1, 2)], "long": [(0.8, 0)]}
    assert [(text.get_text(), text.get_position()) for text in first.texts] == [("–", (1, 1))] and not second.texts
    assert [tick.get_text() for tick in first.get_yticklabels()] == ["x", "y", "z"]
    assert [ax.get_title(loc="left") for ax in figure.axes] == ["a", "b"]


def test_only_dq_goes_through_shared_memory():
    assert "by shared\nmemory" in words(plots.backward_on_chip())
