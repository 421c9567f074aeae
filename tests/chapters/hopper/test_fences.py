"""Chapter 07's kernels with a line taken out: the first finding names the mistake, and NVIDIA's column is recorded."""

import pytest

from course_utils import measured
from course_utils.chapters.hopper import fences
from course_utils.cuda import read_kernel
from course_utils.emulator.sanitizer import TOOLS
from course_utils.toolchain.source import with_headers

SCORES = "multiply_transposed(flat(S)"
SAYS = {  # the finding, its line and the other party's, what happened first, and what then
    "A": ("reads what the copy in line", SCORES, "load_box(tile", "starts a copy", "starts a wgmma"),
    "B": ("reads an accumulator of the wgmma", "high = fmaxf(high", SCORES, "starts a wgmma", "reads"),
    "C": ("with no fence.proxy.async in between", "store_box(", "pack(O[n]", "writes", "starts a bulk store"),
    "D": ("overwrites what the bulk store", "pack(O[n]", "store_box(", "starts a bulk store", "writes"),
    "E": ("with no wgmma.fence in between", "multiply(flat(O)", "*= factor", "writes", "starts a wgmma"),
}
OTHER = pytest.mark.exhaustive("`make test` has one that leaves the numbers right, and one whose launch breaks off")


def recorded(name):
    (row,) = measured.load("asynchronous").select(
        kernel="forward", mistake=f"removal of `{fences.MISSING[name].record}`"
    )
    return row


def test_a_source_lacks_one_line_and_keeps_the_numbers_of_the_others():
    whole = with_headers(read_kernel(fences.STEP.file)).splitlines()
    for name, missing in fences.MISSING.items():
        lines = str(fences.source(name)).splitlines()
        (place,) = [n for n, (line, other) in enumerate(zip(lines, whole, strict=True)) if line != other]
        assert whole[place].strip() == missing.line and lines[place].strip() == ";"
    assert whole[place - 1].lstrip().startswith("const unsigned long long v")  # E: the fence of O += P V, not of S
    with pytest.raises(KeyError):
        fences.source("F")


@pytest.mark.parametrize("name", ["A", *(pytest.param(name, marks=OTHER) for name in "BDE"), "C"])
def test_the_first_finding_is_in_the_line_that_the_missing_one_was_for(name):
    finding = fences.first_finding(name)
    message, line, other, first, then = SAYS[name]
    assert finding.tool == "asynccheck" == recorded(name)["ours"].split()[0] and message in finding.message
    assert line in finding.source and other in finding.other_source
    assert [event.what for event in finding.events] == [first, then]
    assert fences.found(name)[1] == (name in "CE")  # nothing but the finding says so


def test_what_is_printed_is_the_finding_and_the_line(capsys):
    fences.show_missing("C")
    said = capsys.readouterr().out
    assert said.startswith("C: the numbers are right on the emulator. Its finding:\n\nasynccheck: ")
    assert "no fence.proxy.async" in said and "Taken out: publish_tile();  Threads write O;" in said


def test_the_table_has_nvidias_verdicts_from_the_record(monkeypatch, capsys):
    shown = []
    monkeypatch.setattr(fences.show, "table", lambda rows, caption, **_: shown.extend([caption, *rows]))
    finding = fences.first_finding("C")
    monkeypatch.setattr(fences, "first_finding", lambda name: finding)
    told = fences.verdicts()
    caption, whole, *rows = shown
    assert caption == f"compute-sanitizer: {measured.caption(measured.load('asynchronous'))}"
    assert [row[""] for row in rows] == [*"ABCDE"]
    assert rows[0]["the emulator"] == f"asynccheck, line {finding.line}"
    (sound,) = measured.load("asynchronous").select(kernel="forward", mistake="none")
    for row, kept in [(whole, sound), *((row, recorded(row[""])) for row in rows)]:
        assert [row[tool] == "silent" for tool in TOOLS] == [kept[tool] == "-" for tool in TOOLS]
    assert told == sum(recorded(name)[tool] != sound[tool] for name in "ABCDE" for tool in TOOLS)
    assert f"on 5 kernels: {told} of 20 runs tell them from the whole" in capsys.readouterr().out
