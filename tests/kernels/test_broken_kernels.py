"""The broken kernels are broken in the way that they say, and their mended counterparts are not."""

import difflib

import pytest
import torch

from course_utils.emulator import profile, sanitize
from course_utils.launches.broken import BROKEN, attention_reports
from course_utils.toolchain.errors import KernelError
from course_utils.toolchain.source import INCLUDE, kernel_names, read_kernel
from course_utils.toolchain.unified_diff import changed_file
from tests.helpers.all_of import all_of
from tests.helpers.one_of_each import last_of_each_kernel

SANITIZED = [
    name for name, kernel in BROKEN.items() if kernel.tool in ("memcheck", "racecheck", "initcheck", "synccheck")
]
COUNTED = [name for name, kernel in BROKEN.items() if kernel.tool == "counters"]
CHECKED = [name for name, kernel in BROKEN.items() if kernel.tool == "check"]


def line_number(source, snippet):
    """Of the one line of the kernel file, else of a header, that holds the snippet; None for None."""
    if snippet is None:
        return None
    texts = [str(read_kernel(source)), *(header.read_text() for header in INCLUDE.glob("*.cuh"))]
    found = [[n for n, line in enumerate(text.splitlines(), start=1) if snippet in line] for text in texts]
    in_a_file = next(filter(None, found), [])
    assert len(in_a_file) == 1, f"{snippet!r} stands in lines {in_a_file} of {source}"
    return in_a_file[0]


def test_each_mistake_is_of_a_known_kind():
    assert sorted(SANITIZED + COUNTED + CHECKED) == sorted(BROKEN)
    assert {kernel.name for kernel in BROKEN.values()} == set(BROKEN)


def test_the_registry_holds_every_broken_file():
    files = {name for name in kernel_names() if "/broken/" in name}
    sources = {name: kernel.launch().source for name, kernel in BROKEN.items()}
    assert files == {source for source in sources.values() if "/broken/" in source}
    assert all(source.endswith(f"/{name}.cu") for name, source in sources.items() if "/broken/" in source)


@all_of("name", BROKEN)
def test_the_line_is_found_by_its_text(name):
    kernel, source = BROKEN[name], BROKEN[name].launch().source
    assert (line_number(source, kernel.line) is None) == (kernel.tool == "check")
    line_number(source, kernel.other_line)


@all_of("name", [name for name in BROKEN if "/broken/" in BROKEN[name].launch().source])
def test_broken_and_mended_differ_by_an_option_or_by_few_lines(name):
    broken, mended = BROKEN[name].launch(), BROKEN[name].mended()
    assert (broken.grid, broken.block, broken.shared_mem) == (mended.grid, mended.block, mended.shared_mem)
    source = read_kernel(broken.source)
    if broken.source == mended.source:
        assert broken.options != mended.options
        assert "broken on purpose" in source and f"Mended: {mended.options[0]}." in source
        return
    diff = source.path.read_text(encoding="utf-8")
    right = mended.source.split("/")[-1]
    assert diff.startswith(f"# {name}.cu — {right} broken on purpose: ".rstrip()), diff
    assert changed_file(diff, name) == f"kernels/{mended.source}"
    difference = list(difflib.ndiff(read_kernel(mended.source).splitlines(), source.splitlines()))
    changed = [line for line in difference if line[0] in "+-"]
    assert 1 <= len(changed) <= (9 if name == "half_accumulation" else 3), "\n".join(changed)


def reports(launch):
    return attention_reports(launch, launch.run())


@pytest.mark.parametrize("name", CHECKED)
def test_the_numbers_show_a_mistake_in_the_arithmetic_and_no_sanitizer_does(name):
    with sanitize() as findings:
        broken = reports(BROKEN[name].launch())
    assert not all(report.passed for report in broken), f"right in spite of the mistake: {broken}"
    assert findings.launches == 1 and not findings.findings, str(findings)


@pytest.mark.parametrize("name", last_of_each_kernel((name, name, BROKEN[name].mended()) for name in CHECKED))
def test_the_numbers_of_the_mended_kernel_are_right(name):
    mended = reports(BROKEN[name].mended())
    assert all(report.passed for report in mended), f"wrong: {[str(report) for report in mended]}"


@pytest.mark.parametrize("name", ["missing_sync_after_load", "missing_sync_before_overwrite", "missing_syncwarp"])
def test_watching_changes_the_order_in_which_a_race_runs(name):
    """Chapter 02 says so: a thread that nobody watches runs as far as the next barrier."""
    alone = reports(BROKEN[name].launch())
    with sanitize():
        watched = reports(BROKEN[name].launch())
    assert not alone[0].passed and all(report.passed for report in watched), f"{alone}, watched: {watched}"


# What the mended form of a small kernel returns last, from what it gets.
EXPECTED = {
    "too_few_warp_slots": lambda S, *_: S.amax(-1),
    "top_scores_overrun": lambda S, *_: S.topk(4).values,
    "misaligned_float4": lambda q, K, *_: K @ q,
    "cp_async_too_early": lambda q, K, *_: K @ q,
    "cp_async_two_buffers": lambda Q, K, *_: Q @ K.T,
    "dq_without_atomics": lambda dS, K, *_: dS @ K,
    "barrier_in_branch": lambda S, *_: S.softmax(-1),
    "shuffle_in_branch": lambda S, *_: S.amax(-1),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_mended_form_of_a_small_kernel_is_right(name):
    *inputs, out = BROKEN[name].mended().run()
    torch.testing.assert_close(out, EXPECTED[name](*inputs), rtol=1e-5, atol=1e-5)


def test_small_kernels_of_chapter_00_have_an_expected_result():
    names = {name.removeprefix("00_start_here/broken/") for name in kernel_names()}
    assert {f"{name}.cu" for name in EXPECTED} == {name for name in names if "/" not in name}


# ---------------------------------------------------------------------------------------------- what the tools say


@pytest.mark.parametrize("name", SANITIZED)
def test_the_sanitizer_names_the_line(name, compiler):
    kernel, launch = BROKEN[name], BROKEN[name].launch()
    with sanitize() as report:
        try:
            launch.run()
        except KernelError:  # a deadlock ends the launch; what was found is kept
            assert kernel.tool == "synccheck", str(report)
    line, other_line = (line_number(launch.source, snippet) for snippet in (kernel.line, kernel.other_line))
    found = [(f.line, f.other_line) for f in report.findings if f.tool == kernel.tool]
    assert (line, other_line) in found, str(report)


@pytest.mark.exhaustive("tests/nvidia/test_sanitizer_against_nvidia.py watches them too, by one compiler")
@pytest.mark.parametrize("name", SANITIZED)
def test_the_sanitizer_finds_nothing_in_the_mended_kernel(name, compiler):
    with sanitize() as report:
        BROKEN[name].mended().run()
    assert not report.findings, str(report)


def excess(counters, line=None):
    """Sectors and wavefronts beyond the ideal."""
    return sum(
        row.sectors - row.ideal_sectors + row.wavefronts - row.ideal_wavefronts
        for row in counters.rows
        if line in (None, row.line)
    )


@pytest.mark.parametrize("name", COUNTED)
def test_the_profiler_names_the_line(name, compiler):
    broken, mended = BROKEN[name].launch(), BROKEN[name].mended()
    with profile() as counters:
        broken.run()
    assert excess(counters, line_number(broken.source, BROKEN[name].line)) == excess(counters) > 0, str(counters)
    with profile() as counters:
        mended.run()
    assert excess(counters) == 0, str(counters)
