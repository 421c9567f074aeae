"""One palette, legible in light and dark, and the two forms in which a notebook shows a figure."""

import io
import itertools
import re
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from PIL import Image

from course_utils import plots
from course_utils.plots import look
from course_utils.show import _OnDark, _OnLight
from tests.helpers.contrast import contrast

ROOT = Path(__file__).resolve().parents[2]
DARK_GROUNDS = ("#111111", "#212121")  # JupyterLab's page, and its boxes
STEPS_BACK = {look.GROUND, look.PALE}


@pytest.fixture
def figure():
    figure, ax = plt.subplots()
    ax.plot([1, 2], [3, 1], color=look.BLUE, label="a line")
    ax.bar([1], [1], color=look.GROUND, hatch="//")
    yield figure
    plt.close(figure)


@pytest.mark.parametrize("colour", sorted(look.ON_DARK.keys() - STEPS_BACK))
def test_a_mark_can_be_told_from_the_ground_in_light_and_in_dark(colour):
    least = 4.5 if colour in look.TEXT else 3
    assert contrast(colour, look.GROUND) >= least
    assert all(contrast(look.ON_DARK[colour], ground) >= 4.5 for ground in DARK_GROUNDS)


@pytest.mark.parametrize("name", look.MATRICES)
def test_a_matrix_has_a_colour_for_both_grounds(name):
    assert all(contrast(look.MATRICES[name], ground) >= 3 for ground in (look.GROUND, *DARK_GROUNDS))


def least_contrast(ax, dark):
    """Of the texts of a picture that stand on a rectangle: the contrast with what lies below, where it is least."""

    def shown(colour):
        return look.ON_DARK.get(mpl.colors.to_hex(colour), mpl.colors.to_hex(colour)) if dark else colour

    found = []
    ground = mpl.colors.to_rgb(shown(look.GROUND))
    for text in filter(Text.get_text, ax.texts):
        below = ground
        for mark in (patch for patch in ax.patches if isinstance(patch, Rectangle)):
            if mark.get_extents().contains(*ax.transData.transform(text.get_position())):
                alpha = mark.get_facecolor()[3]
                colour = mpl.colors.to_rgb(shown(mark.get_facecolor()[:3]))
                below = [alpha * one + (1 - alpha) * other for one, other in zip(colour, below, strict=True)]
        if below != ground:
            found.append(contrast(mpl.colors.to_hex(shown(text.get_color())), mpl.colors.to_hex(below)))
    return min(found)


@pytest.mark.parametrize(
    "draw",
    [
        lambda: plots.under_way(500, 2e12),
        plots.race,
        plots.past_the_end,
        plots.products,
        plots.number_formats,
        plots.warp_shares,
        plots.who_owns_what,
        lambda: plots.loop_orders(2, 2),
        lambda: plots.backward_walks(2, 2, 0, 1),
        lambda: plots.packed_heads(4, 2),
    ],
    ids=range(10),
)
def test_text_on_a_mark_can_be_read_in_light_and_in_dark(draw):
    drawn = draw()
    for ax in drawn.axes if isinstance(drawn, Figure) else [drawn]:
        for dark in (False, True):
            assert least_contrast(ax, dark) >= 4.5, "dark" if dark else "light"
    plt.close("all")


def test_widgets_and_plots_have_the_same_colours():
    text = (ROOT / "course_utils" / "widgets" / "js" / "shared.js").read_text(encoding="utf-8")
    line = re.search(r"const COLOURS = \{(.*)\};", text)[1]
    assert dict(re.findall(r'(\w+): "(#\w+)"', line)) == look.MATRICES


@pytest.mark.parametrize("room", ["plots", "widgets", "patterns"])
def test_no_other_file_has_a_colour_of_its_own(room):
    files = [path for path in (ROOT / "course_utils" / room).rglob("*.py") if path.name != "look.py"]
    own = {path.name: re.findall(r'"#[0-9a-fA-F]{6}"', path.read_text(encoding="utf-8")) for path in files}
    copied = {"drawing.py": [f'"{look.BLUE}"', f'"{look.GREY}"']} if room == "patterns" else {}  # below the pictures
    assert {name: found for name, found in own.items() if found} == copied


def test_levels_roles_and_verdicts_have_colours_of_their_own():
    for colours in (
        (look.HBM, look.L2, look.SHARED, look.REGISTERS),
        (look.OURS, look.FLASH, look.CUDNN, look.NAIVE, look.INK),
        (look.PASS, look.FAIL),
    ):
        assert len(set(colours)) == len(colours)


def test_a_kernel_has_the_colour_of_whose_it_is():
    names = ["flash_attention_v2", "torch FLASH", "torch cuDNN", "naive torch", "torch memory-efficient"]
    expected = [look.OURS, look.FLASH, look.CUDNN, look.NAIVE]
    found = plots.look.colours_of(names)
    assert list(found.values())[:4] == expected and found[names[4]] not in expected
    twice = look.colours_of(["sparse_attention", "FLASH, varlen", "FLASH, packed"])
    assert len(set(twice.values())) == 3 and twice["sparse_attention"] == look.OURS


def test_the_last_bank_lies_beside_the_first():
    colours = [mpl.colormaps[look.CYCLIC](bank / 31) for bank in range(32)]
    apart = [sum(abs(a - b) for a, b in zip(*two, strict=True)) for two in itertools.pairwise([*colours, colours[0]])]
    assert apart[-1] < max(apart)


def test_svg_has_each_colour_for_both_themes(figure):
    text = look.svg(figure)
    assert f"var(--c{look.BLUE[1:]}, {look.BLUE})" in text
    assert f"--c{look.BLUE[1:]}:{look.ON_DARK[look.BLUE]}" in text
    drawn = re.sub(r"<style>.*?</style>|var\([^)]*\)", "", text, flags=re.DOTALL)
    assert not [colour for colour in look.ON_DARK if colour in drawn]


def test_png_is_twice_as_large_as_it_is_shown(figure):
    data, shown = look.png_and_size(figure)
    width, height = Image.open(io.BytesIO(data)).size
    assert (width, height) == (1500, 720) and shown == {"width": 750, "height": 360}
    assert len(data) < 60_000


@pytest.mark.parametrize("layout", ["constrained", "none"])
def test_both_forms_have_one_layout_and_a_saved_notebook_the_small_png(figure, layout):
    figure.set_layout_engine(layout)
    engine = figure.get_layout_engine()
    forms, metadata = look.both_forms(figure)
    assert figure.get_layout_engine() is engine
    assert len(look.small_png(forms["image/png"])) < len(forms["image/png"])
    assert (look.small_png(forms["image/png"]), metadata["image/png"]) == look.png_and_size(figure)
    figure.set_layout_engine("none")
    names = re.compile(r"\bp[0-9a-f]{10}\b")  # of where a drawing is cut off: they depend on the last bit of a number
    assert names.sub("", forms["image/svg+xml"]) == names.sub("", look.svg(figure))


def test_a_figure_is_laid_out_once_and_drawn_once_for_each_form(figure, monkeypatch):
    figure.set_layout_engine("constrained")
    done = []
    for one, name in ((figure, "draw"), (figure.get_layout_engine(), "execute")):
        real = getattr(one, name)
        monkeypatch.setattr(one, name, lambda argument, real=real, name=name: [done.append(name), real(argument)][1])
    look.both_forms(figure)
    assert sorted(done) == ["draw", "draw", "execute"]
    done.clear()
    monkeypatch.setenv(look.UNSEEN, "1")
    forms, _ = look.both_forms(figure)
    assert (list(forms), done) == (["image/svg+xml"], ["draw"]), "nobody sees it"


@pytest.mark.parametrize(("style", "grounds"), [(_OnLight, ("#fafafa", "#ffffff")), (_OnDark, DARK_GROUNDS)])
def test_code_has_contrast_in_both_themes_on_changed_lines_too(style, grounds):
    changed = [(220, 60, 40, 0.16), (40, 160, 70, 0.18)]
    for (_, token), ground in itertools.product(style, grounds):
        if not token["color"]:
            continue
        assert contrast(f"#{token['color']}", ground) >= 4.5
        for *over, share in changed:
            parts = [int(ground[i : i + 2], 16) for i in (1, 3, 5)]
            mixed = [round(share * a + (1 - share) * b) for a, b in zip(over, parts, strict=True)]
            assert contrast(f"#{token['color']}", "#" + "".join(f"{part:02x}" for part in mixed)) >= 4.5
