"""The pages of findings and counters: every figure is on them, foreign text is escaped, colours keep their contrast."""

import html
import re

import pytest
from IPython.core.formatters import DisplayFormatter

from course_utils.emulator.pages import cost, counters_page, findings_page, heat_listing
from course_utils.emulator.profiler import CounterRow, Counters, Footprint
from course_utils.emulator.sanitizer import TOOLS, Finding, SanitizerReport
from tests.helpers.contrast import contrast, luminance
from tests.helpers.fresh_process import run_without_the_course

SOURCE = """// copy.cu: a header
// of two lines
__global__ void copy(const float* in, float* out) {
    __shared__ float tile[32][33];   /* a comment
       of two lines */
    tile[0][threadIdx.x] = in[threadIdx.x * 8];
    if (a < b && c > d) out[threadIdx.x] = tile[threadIdx.x][0];
}
"""
LINES = SOURCE.splitlines()


def counter(line: int, space: str, operation: str, requests: int, touched: int, ideal: int, **changes) -> CounterRow:
    """A row of copy.cu; `touched` and `ideal` count sectors in global memory, wavefronts in shared memory."""
    nothing = dict.fromkeys(("sectors", "ideal_sectors", "wavefronts", "ideal_wavefronts", "bank_conflicts"), 0)
    if space == "global":
        figures = {**nothing, "sectors": touched, "ideal_sectors": ideal}
    else:
        figures = {**nothing, "wavefronts": touched, "ideal_wavefronts": ideal, "bank_conflicts": touched - ideal}
    place = {"kernel": "copy", "file": "copy.cu", "line": line, "source": LINES[line - 1]}
    fields = {"space": space, "operation": operation, "requests": requests, "bytes": 128 * requests}
    return CounterRow(**{**place, **fields, **figures, **changes})


def counters(**changes) -> Counters:
    rows = [
        counter(6, "global", "load", 1000, 8000, 4000),
        counter(6, "shared", "store", 1000, 1000, 1000),
        counter(7, "shared", "load", 1000, 32000, 1000),
        counter(7, "global", "store", 1000, 4000, 4000),
    ]
    footprint = [Footprint("copy", "in", 4096, 2000, 0), Footprint("copy", "out", 8192, 0, 128000)]
    given = {"rows": rows, "footprint": footprint, "launches": 1, "blocks": 500, "blocks_traced": 500}
    return Counters(**{**given, "sources": {"copy.cu": SOURCE}, **changes})


def finding(tool: str = "memcheck", message: str = "reads past the end", **changes) -> Finding:
    place = {"kernel": "copy", "file": "copy.cu", "line": 6, "source": LINES[5]}
    return Finding(tool, message, **{**place, "block": (1, 2, 3), "thread": (4, 5, 6), **changes})


def read(page: str) -> str:
    """The words of a page, one space apart."""
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", page)).split())


def squeezed(page: str) -> str:
    """The characters of a page: syntax colours split its words."""
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u00a0", " ")


def cells(page: str, first: str) -> list[str]:
    """The texts of the first table row that begins with `first`."""
    rows = [re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", row) for row in re.findall(r"<tr[^>]*>(.*?)</tr>", page)]
    return next(texts for texts in ([squeezed(cell) for cell in row] for row in rows) if texts[0] == first)


def colours(page: str, name: str) -> set[str]:
    return set(re.findall(rf"(?<![\w-]){name}: (#[0-9a-fA-F]{{6}})", page))


def test_no_finding_says_what_silence_does_not_prove():
    page = read(findings_page(SanitizerReport([], launches=3)))
    assert "no finding in 3 launches" in page
    assert "silence proves nothing about others" in page


def test_a_finding_shows_tool_message_place_source_and_who():
    page = findings_page(SanitizerReport([finding(count=1234)], launches=1))
    for text in ("1 finding in 1 launch", "memcheck", "reads past the end", "kernel copy", "copy.cu:6", "1,234 times"):
        assert text in read(page)
    assert "block (1, 2, 3), thread (4, 5, 6)" in read(page)
    assert LINES[5].strip() in squeezed(page)
    assert "other party" not in page


def test_a_race_shows_both_parties_with_their_lines():
    race = finding("racecheck", other_line=7, other_source=LINES[6], other_block=(9, 0, 0), other_thread=(8, 0, 0))
    page = findings_page(SanitizerReport([race], launches=1))
    assert cells(page, "one party")[1] == "6"
    assert cells(page, "other party")[1] == "7"
    assert LINES[5].strip() in squeezed(page)
    assert LINES[6].strip() in squeezed(page)
    assert "block (9, 0, 0), thread (8, 0, 0)" in read(page)


def test_a_race_within_one_block_names_that_block_for_both():
    page = read(findings_page(SanitizerReport([finding("racecheck", other_thread=(8, 0, 0))], launches=1)))
    assert "block (1, 2, 3), thread (8, 0, 0)" in page


def test_a_finding_of_an_unknown_place_is_still_shown():
    bare = finding("synccheck", "a deadlock", file=None, line=None, source=None, block=None, thread=None)
    page = read(findings_page(SanitizerReport([bare], launches=1)))
    assert "a deadlock" in page
    assert "None" not in page


def test_findings_without_room_are_counted():
    assert "12 more" in read(findings_page(SanitizerReport([finding()], launches=1, dropped=12)))


EVIL = "<script>alert('&')</script>"


def test_foreign_text_is_escaped_everywhere():
    report = SanitizerReport(
        [finding(EVIL, EVIL, kernel=EVIL, file=EVIL, source=EVIL, other_line=7, other_source=EVIL)]
    )
    row = counter(6, "global", EVIL, 1, 1, 1, kernel=EVIL, file=EVIL, source=EVIL)
    filled = counters(rows=[row], footprint=[Footprint(EVIL, EVIL, 1, 1, 1)], sources={"other.cu": EVIL})
    for page in (findings_page(report), counters_page(filled), heat_listing(filled).html):
        assert "<script" not in page
        assert EVIL in squeezed(page)


def test_the_counter_table_holds_every_figure():
    page = counters_page(counters())
    load, store = cells(page, "6"), cells(page.split("shared memory")[1], "6")
    assert load[2:] == ["load", "1,000", "8,000", "4,000", "8", "128,000"]
    assert store[2:] == ["store", "1,000", "1,000", "1,000", "0", "128,000"]
    assert cells(page.split("shared memory")[1], "7")[2:] == ["load", "1,000", "32,000", "1,000", "31,000", "128,000"]
    assert load[1] == LINES[5].strip()


def test_only_what_exceeds_the_ideal_is_marked():
    marked = re.findall(r"background: #ffd9a8[^>]*>([^<]*)<", counters_page(counters()))
    assert marked == ["8,000", "8", "32,000", "31,000"]


def test_the_footprint_is_set_against_the_bytes_requested():
    page = counters_page(counters())
    assert cells(page, "in") == ["in", "4,096", "2,000", "0"]
    assert cells(page, "footprint") == ["footprint", "", "2,000", "128,000"]
    assert cells(page, "requested") == ["requested", "", "128,000", "128,000"]
    assert cells(page, "times each byte is requested, on average")[2:] == ["64", "1"]


def test_an_atomic_is_requested_for_reading_and_for_writing():
    filled = counters(rows=[counter(7, "global", "atomic", 10, 10, 10)])
    assert cells(counters_page(filled), "requested") == ["requested", "", "1,280", "1,280"]


def test_no_ratio_to_an_empty_footprint():
    filled = counters(footprint=[Footprint("copy", "in", 4096, 0, 0)])
    assert cells(counters_page(filled), "times each byte is requested, on average")[2:] == ["", ""]


def test_the_head_denies_hbm_traffic_and_tells_of_blocks_left_out():
    assert "Neither is HBM traffic" in read(counters_page(counters()))
    assert "blocks;" not in read(counters_page(counters()))
    for page in (counters_page(counters(blocks_traced=2)), heat_listing(counters(blocks_traced=2)).html):
        assert "2 of 500 blocks" in read(page)


def test_empty_counters_say_so():
    empty = Counters(launches=2, blocks=4, blocks_traced=4)
    assert "no memory access was counted in 2 launches, 4 blocks" in read(counters_page(empty))
    assert "2 launches" in repr(heat_listing(empty))


def test_each_kernel_has_its_own_section_and_footprint():
    rows = [*counters().rows, counter(3, "global", "load", 5, 5, 5, kernel="scale", file="scale.cu")]
    filled = counters(rows=rows, footprint=[*counters().footprint, Footprint("scale", "x", 77, 640, 0)])
    first, second = counters_page(filled).split("kernel scale")
    assert "kernel copy · copy.cu" in first
    assert cells(second, "x") == ["x", "77", "640", "0"]
    assert cells(second, "requested")[2] == "640"


def test_a_kernel_of_several_files_names_the_file_of_each_line():
    filled = counters(rows=[*counters().rows, counter(3, "global", "load", 5, 5, 5, file="include/tile.cuh")])
    assert cells(counters_page(filled), "include/tile.cuh:3")[2] == "load"


def test_the_listing_shows_the_whole_source_with_its_key_figures():
    listing = heat_listing(counters())
    for line in LINES:
        assert line in squeezed(listing.html)
        assert line in repr(listing)
    for text in ("load: 8 sectors/request, ideal 4", "shared store: no conflict", "shared load: 32-way conflict"):
        assert text in squeezed(listing.html)
        assert text in repr(listing)
    assert "the comment at the head, 2 lines" in listing.html


def test_the_cost_is_bytes_through_l1():
    rows = counters().rows
    assert [cost(row) for row in rows] == [8000 * 32, 1000 * 128, 32000 * 128, 4000 * 32]
    page = heat_listing(counters()).html
    assert cells(page, "6")[2] == "8 %"  # 384,000 of 4,608,000
    assert cells(page, "7")[2] == "92 %"


def test_a_conflict_of_some_requests_only_is_a_mean():
    filled = counters(rows=[counter(7, "shared", "load", 1000, 2500, 1000)])
    assert "2.5-way conflict on average" in repr(heat_listing(filled))


def test_the_hottest_line_is_the_darkest_over_all_files():
    rows = [*counters().rows, counter(3, "global", "load", 10, 10, 10, file="tile.cuh")]
    page = heat_listing(counters(rows=rows)).html
    shades = re.findall(r'<tr style="background: rgba\([^)"]*, ([\d.]+)\)"><td[^>]*>(\d+)<', page)
    shades = {number: float(shade) for shade, number in shades}
    assert shades["7"] > shades["6"] > shades["3"]


def test_a_line_that_two_kernels_ran_is_one_line():
    twice = [counter(6, "global", "load", 10, 80, 40), counter(6, "global", "load", 10, 40, 40, kernel="other")]
    assert repr(heat_listing(counters(rows=twice))).count("load: 6 sectors/request, ideal 4") == 1


def test_an_included_file_is_listed_by_its_lines_with_counters():
    rows = [counter(line, "global", "load", 1, 4, 4, file="tile.cuh") for line in (7, 6)]
    listing = heat_listing(counters(rows=rows, sources={}))
    assert [line.split()[2] for line in repr(listing).splitlines() if "<-" in line] == ["6", "7"]
    assert cells(listing.html, "6")[1] == LINES[5]


@pytest.mark.parametrize("source", ["", "\n\n", "\ta\n", "one\r\ntwo", "a /* b\n c */ d\n\n", "a\n// no end"])
def test_any_text_keeps_its_line_numbers(source):
    page = heat_listing(counters(rows=[], sources={"odd.cu": source})).html
    numbered = re.findall(r"<tr[^>]*><td[^>]*>(\d+)</td><td[^>]*>(.*?)</td>", page)
    assert [(int(n), squeezed(code)) for n, code in numbered] == list(enumerate(source.expandtabs(4).splitlines(), 1))


def test_text_keeps_its_contrast_on_every_background():
    tools = (*TOOLS, "asynccheck")
    pages = [findings_page(SanitizerReport([finding(tool) for tool in tools])), findings_page(SanitizerReport())]
    listing = heat_listing(counters()).html
    for page in (*pages, counters_page(counters()), listing):  # what has no --jp-* is light; the themes: tests/browser
        light = re.sub(r"var\(--jp-[\w-]+, (#\w{6})\)", r"\1", page)
        texts = colours(light, "color") - {"#ffffff"}
        grounds = {ground for ground in colours(light, "background") if luminance(ground) > 0.4}
        assert texts and grounds
        assert min(contrast(text, ground) for text in texts for ground in grounds) >= 4.5
    pills = {ground for ground in colours(pages[0], "background") if luminance(ground) <= 0.4}
    assert len(pills) == len(tools)
    assert min(contrast("#ffffff", pill) for pill in pills) >= 4.5


@pytest.mark.parametrize(
    ("shown", "page"),
    [
        (SanitizerReport([finding()]), findings_page(SanitizerReport([finding()]))),
        (counters(), counters_page(counters())),
        (counters().listing(), heat_listing(counters()).html),
    ],
    ids=["findings", "counters", "listing"],
)
def test_a_notebook_shows_the_page_and_a_terminal_the_text(shown, page):
    formats, _ = DisplayFormatter().format(shown)
    assert formats["text/html"] == page
    assert formats["text/plain"] == str(shown)


@pytest.mark.parametrize(
    "imported",
    [
        "from course_utils.emulator.sanitizer import SanitizerReport as Shown",
        "from course_utils.emulator.profiler import Counters as Shown",
    ],
)
def test_the_page_is_there_whichever_module_is_imported_first(imported):
    """The data do not know their pages: the package brings the two together."""
    program = f"{imported}\nprint(Shown()._repr_html_())"
    assert run_without_the_course(program).startswith("<div")


def test_the_indentation_is_of_spaces_that_do_not_collapse():
    assert "&nbsp;" * 4 + "tile[0]" in heat_listing(counters()).html
