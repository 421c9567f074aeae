"""How what a launch left becomes findings: a program counter a line, an address an array, figures a sentence."""

from __future__ import annotations

from dataclasses import replace

from course_utils.emulator import trace_results as raw
from course_utils.emulator import words
from course_utils.emulator.defects import defect_of
from course_utils.emulator.memory import DeviceMemory
from course_utils.emulator.sanitizer import TOOLS, Event, Finding, SanitizerReport
from course_utils.emulator.watching import LaunchTrace
from course_utils.toolchain.errors import Index3


def add_findings(report: SanitizerReport, trace: LaunchTrace) -> None:
    """Adds what one launch left to a report."""
    results = trace.results
    report.dropped += results.findings_dropped
    found = [_finding(f, trace) for f in results.findings[: results.finding_count]]
    for finding in sorted(found, key=lambda one: _order(one, trace.watch.preferred)):
        _add(report, replace(finding, launch=report.launches))
    report.launches += 1


def _finding(f: raw.RawFinding, trace: LaunchTrace) -> Finding:
    # Where the runtime knows no line, it knows a program counter.
    place = (f.file.decode(errors="replace"), f.line) if f.line else trace.place(f.place)
    other = None
    if f.has_other:
        known = f.other_file.decode(errors="replace"), f.other_line
        other = known if f.other_line else trace.place(f.other_place)
    defect = defect_of(f.defect)
    deed, other_deed = words.DEEDS[f.deed], words.DEEDS[f.other_deed]
    finding = Finding(
        tool=(*TOOLS, "asynccheck")[f.tool],
        message="",
        kernel=trace.kernel,
        file=place[0] if place else None,
        line=place[1] if place else None,
        source=trace.text(place),
        block=f.block.as_tuple(),
        thread=f.thread.as_tuple(),
        other_line=other[1] if other else None,
        other_source=trace.text(other),
        other_block=f.other_block.as_tuple() if f.has_other else None,
        other_thread=f.other_thread.as_tuple() if f.has_other else None,
        count=f.count,
        wants=words.wants(defect.kind, deed, other_deed),
        kind=defect.kind,
        space=("shared" if f.is_shared else "global") if defect.kind in words.OF_MEMORY else "",
        is_write=defect.kind != "read after write" if defect.kind in words.HAZARDS else bool(f.is_write),
        bytes=f.bytes,
        by=words.BY[f.by],
        name=defect.name,
        other_name=defect.other_name,
        numbers=defect.numbers,
        threads=defect.threads,
        same_warp=bool(f.same_warp),
        by_flags=bool(f.by_flags),
        deed=deed,
        other_deed=other_deed,
        waits=defect.waits,
    )
    finding = replace(finding, **_of_memory(f, trace.memory), events=_events(f, finding))
    return replace(finding, message=words.message(finding))


def _of_memory(f: raw.RawFinding, memory: DeviceMemory) -> dict[str, object]:
    """What memcheck's findings have besides: the nearest array, or the alignment."""
    kind = words.KINDS[f.defect.kind]
    if kind == "misaligned":
        return {"alignment": f.defect.figures.of[1]}
    if kind == "past dynamic shared":
        return {"numbers": (f.address,), "space": "shared"}
    if kind != "out of bounds" or f.is_shared:
        return {}
    nearest = memory.nearest(f.address)
    if nearest is None:
        return {"numbers": (f.address,)}
    array = nearest.array
    return {"array": array.name, "side": nearest.side, "numbers": (nearest.distance, array.index, array.size)}


def _events(f: raw.RawFinding, finding: Finding) -> tuple[Event, ...]:
    """Both events of a finding, the first first; none where there is nothing to want between them."""
    if not finding.wants:
        return ()
    started = words.STARTED
    mine = Event(f.step, finding.deed, finding.deed in started, finding.line, finding.block, finding.thread)
    other = finding.other_line, finding.other_block, finding.other_thread
    its = Event(f.other_step, finding.other_deed, finding.other_deed in started, *other)
    return (its, mine) if its.step <= mine.step else (mine, its)


def _add(report: SanitizerReport, new: Finding) -> None:
    """The same mistake at the same place is one finding, however often the compiler has copied the line."""
    for i, old in enumerate(report.findings):
        if _same(old, new):
            report.findings[i] = replace(old, count=old.count + new.count)
            return
    report.findings.append(new)


def _order(f: Finding, preferred: Index3 | None) -> tuple[object, ...]:
    """By line; for one line the preferred block, or the first, and the first thread, z before y before x."""
    place = f.line or 0, f.other_line or 0, f.tool, f.block != preferred
    return *place, (f.block or ())[::-1], (f.thread or ())[::-1], f.message


def _same(a: Finding, b: Finding) -> bool:
    places = [(f.tool, f.kernel, f.file, f.line, f.source, f.other_line, f.other_source) for f in (a, b)]
    if places[0] != places[1]:
        return False
    if a.is_between_blocks and b.is_between_blocks:  # `+=` reads and writes: one mistake
        return True
    accesses = [(f.kind, f.space, f.is_write, f.bytes, f.by, f.name) for f in (a, b)]
    # An array may be overrun by any number of bytes, and an atomic races as a read and as a write.
    details = [
        ("" if f.kind in words.HAZARDS else f.deed, () if f.kind == "out of bounds" else f.numbers) for f in (a, b)
    ]
    return (accesses[0], details[0]) == (accesses[1], details[1])
