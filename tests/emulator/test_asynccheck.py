"""asynccheck: silent about correct kernels for sm_90a, and each mistake in one of them is found at its line."""

from __future__ import annotations

import functools

import pytest

from course_utils.emulator import configure, findings_page
from course_utils.emulator.sanitizer import Finding, SanitizerReport
from tests.helpers.one_change import Change
from tests.helpers.planted import GEMM_WAIT, KERNELS, PLANTED, REMOVAL

# What a change does not break, and why; " #2" as in Planted. Everything else is found.
REGISTERS = "who asks for no more registers waits for none: the compiler has fewer, and no rule is broken"
NOT_MADE = "nothing asynchronous is left undone: numbers that are wrong or not written"
A_STEP_LATE = (
    "the last arrival of a phase counts for the next, and who waits for a product waits for its warpgroup's: too early \
by a step only after as many steps as there are arrivals"
)
TURNS = "the consumers take turns for speed alone"
HARMLESS = {
    ("gemm", "multiply_transposed", "removal"): NOT_MADE,
    ("gemm", "store(", "removal"): NOT_MADE,
    ("forward", "store_box(", "removal"): NOT_MADE,
    ("indexer", "multiply_e4m3", "removal"): NOT_MADE,
    ("gemm", "init(&shared.empty", "one arrival less"): A_STEP_LATE,
    ("sparse_mla", "initialize(&shared.empty", "one arrival less"): A_STEP_LATE,
    ("gemm", "setmaxnreg.inc", "removal"): REGISTERS,
    ("forward", "raise_register_limit", "removal"): REGISTERS,
    ("forward", "take_turn(w)", "removal"): TURNS,
    ("forward", "sync_threads(1 + CONSUMERS + w, 256)", "removal"): TURNS,
    (
        "sparse_mla",
        "publish_tile #2",
        "removal",
    ): "the producers publish their keys later, on the way to "
    "every product: their fence is behind the copies of Q, too",
}


@functools.cache
def found(kernel: str, number: int) -> list[Finding]:
    return KERNELS[kernel]().findings(number)


def harmless(kernel: str) -> set[int]:
    """The numbers of those changes."""
    changes = KERNELS[kernel]()
    return {changes.change(statement, what).number for of, statement, what in HARMLESS if of == kernel}


ORDERS = {"order": "late"}, {"order": "early"}, {"order": "random", "seed": 7}
IN_TURN = pytest.mark.exhaustive(
    "`make test` has the product in each order, larger kernels in one, and the forward pass in test_hopper_ladder.py"
)


@pytest.mark.parametrize(
    ("kernel", "order"),
    [
        pytest.param(kernel, order, marks=() if kernel == "gemm" or n == m != 1 else IN_TURN, id=f"{kernel}-{order}")
        for n, kernel in enumerate(KERNELS)
        for m, order in enumerate(ORDERS)
    ],
)
def test_a_correct_kernel_has_no_finding(kernel, order):
    with configure(**order):
        assert not KERNELS[kernel]().findings()


def test_each_kind_of_mistake_is_planted_at_least_twice():
    kinds = [planted.kind for planted in PLANTED]
    assert len(PLANTED) >= 40 and all(kinds.count(kind) >= 2 for kind in range(1, 15))


# The larger kernels run longest with these.
LARGER = pytest.mark.exhaustive("`make test` has this kind of mistake in another kernel")
PLANTED_ELSEWHERE = (("forward", 2), ("forward", 3), ("forward", 5), ("sparse_mla", 4))


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(
            p,
            marks=LARGER if (p.kernel, p.kind) in PLANTED_ELSEWHERE else (),
            id=f"{p.kind}: {p.what} of {p.statement} in {p.kernel}",
        )
        for p in PLANTED
    ],
)
def test_a_planted_mistake_is_found_at_its_line(planted):
    kernel = KERNELS[planted.kernel]()
    line = kernel.line(planted.line)
    others = {None: None, "": [None]}.get(planted.other) or [planted.other and kernel.line(planted.other)]
    findings = found(planted.kernel, kernel.change(planted.statement, planted.what).number)
    hits = [f for f in findings if (f.tool, f.line) == (planted.tool, line) and planted.message in f.message]
    assert hits, [str(finding) for finding in findings]
    assert planted.other is None or any(hit.other_line in others for hit in hits), [str(hit) for hit in hits]


TIMELINES = [  # kernel, statement that is taken away; what happened, what was wanted, what happened then
    ("gemm", GEMM_WAIT, "starts a copy", "a wait for the phase of its mbarrier", "starts a wgmma"),
    ("gemm", "fence.proxy.async", "writes", "fence.proxy.async", "starts a bulk store"),
    ("gemm", "wait_group.sync.aligned 0", "starts a wgmma", "wgmma.wait_group", "reads"),
    ("gemm", "cp.async.bulk.wait", "starts a bulk store", "a wait for it", "the block ends"),
    ("gemm", "wgmma.fence", "the kernel begins", "wgmma.fence", "starts a wgmma"),
    ("cluster_softmax", "together() #3", "the kernel begins", "barrier.cluster", "reads"),
]


@pytest.mark.parametrize(("kernel", "statement", "first", "wanted", "then"), TIMELINES)
def test_a_finding_has_both_events_and_what_was_wanted_in_between(kernel, statement, first, wanted, then):
    findings = found(kernel, KERNELS[kernel]().change(statement, REMOVAL).number)
    (finding,) = [f for f in findings if [event.what for event in f.events] == [first, then] and f.wants == wanted][:1]
    before, after = finding.events
    assert before.step <= after.step and finding.line in {before.line, after.line}
    assert f"\n  first    {before}\n  wanted   {wanted}\n  then     {after}" in str(finding)
    assert before.goes_on == ("starts" in first)
    page = findings_page(SanitizerReport([finding], 1))
    assert f"wanted: {wanted}</text>" in page and f"{then}</text>" in page
    assert ("may still be at work" in page) == before.goes_on


def test_a_deadlock_has_no_timeline():
    findings = found("gemm", KERNELS["gemm"]().change("arrive(&shared.empty", REMOVAL).number)
    assert findings and not any(finding.events for finding in findings)
    assert "<svg" not in findings_page(SanitizerReport(findings, 1))


def unexpected(kernel: str, changes: list[Change]) -> list[str]:
    return [
        str(change) for change in changes if bool(found(kernel, change.number)) == (change.number in harmless(kernel))
    ]


@pytest.mark.parametrize("kernel", ["gemm", "cluster_gemm"])
def test_each_change_of_a_small_kernel_is_found_or_harmless(kernel):
    assert not unexpected(kernel, KERNELS[kernel]().changes)


@pytest.mark.exhaustive("the changes of two small kernels are all run, and of the others those that are planted")
@pytest.mark.parametrize("kernel", ["indexer", "cluster_softmax", "forward", "sparse_mla"])
def test_each_change_of_a_kernel_is_found_or_harmless(kernel):
    assert not unexpected(kernel, KERNELS[kernel]().changes)
