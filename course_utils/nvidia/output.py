"""Reads what compute-sanitizer, ncu and a replay print as data."""

from __future__ import annotations

import csv
import re

from course_utils.cuda import read_kernel
from course_utils.emulator.sanitizer import Finding
from course_utils.launches import Launch
from course_utils.toolchain.errors import Index3
from course_utils.toolchain.source import line_text

# ---- compute-sanitizer

_PLACE = re.compile(
    r"\b(?P<kernel>[^\s].*?)\+0x[0-9a-f]+(?: in (?P<file>.+?):(?P<line>\d+))?(?: \[(?P<hazards>\d+) hazards?\])?$"
)
_THREAD = re.compile(r"by thread \((\d+),\s*(\d+),\s*(\d+)\) in block \((\d+),\s*(\d+),\s*(\d+)\)")
_RACE = re.compile(r"Race reported between (\w+) access at (.*)")


def parse_sanitizer(output: str, tool: str, launch: Launch | None = None) -> list[Finding]:
    """The findings in compute-sanitizer's output, one per kind and line, in the order of their first appearance.

    CuPy compiles a kernel from a temporary copy; `launch` gives it its own name and the text of its lines back.
    """
    code = read_kernel(launch.source) if launch else ""
    found: dict[tuple[str, str | None, int | None, int | None], Finding] = {}
    for entry in _entries(output):
        finding = _finding(entry, tool, launch, code)
        if finding:
            key = (finding.message, finding.file, finding.line, finding.other_line)
            count = found[key].count + finding.count if key in found else finding.count
            found[key] = Finding(**{**vars(found.get(key, finding)), "count": count})
    return list(found.values())


def _entries(output: str) -> list[list[str]]:
    """The messages of the tool: a line behind "========= " with the lines that are indented below it."""
    entries: list[list[str]] = []
    for line in output.splitlines():
        match = re.match(r"=========(?: |$)(\s*)(.*)", line)
        if not match:
            continue
        if match[1] and entries:
            entries[-1].append(match[2].strip())
        elif match[2]:
            entries.append([match[2].strip()])
    return entries


def _finding(entry: list[str], tool: str, launch: Launch | None, code: str) -> Finding | None:
    """One message as a finding; None for one that is not about a place in a kernel, such as the summary."""
    message, *details = entry
    places = [(detail, match) for detail in details if (match := _place(detail))]
    race = _RACE.search(message)
    if race:
        first = _place(race[2])
        seconds = [match for detail, match in places if detail.startswith("and ")]
        kinds = sorted({detail.split()[1].lower() for detail, _ in places if detail.startswith("and ")})
        message = f"Race between {race[1].lower()} access and {' or '.join(kinds)} access"
        count = sum(int(match["hazards"] or 1) for match in seconds)
        second = seconds[0] if seconds else None
    else:
        first = next((match for detail, match in places if detail.startswith("at ")), None)
        second, count = None, 1
    thread = next((match for detail in details if (match := _THREAD.search(detail))), None)
    if first is None and thread is None:
        return None
    frames = [match for detail, match in places if detail.startswith("Device Frame")]  # the kernel comes last
    kernel = frames[-1] if frames else first
    numbers = [int(n) for n in thread.groups()] if thread else []
    line, other_line = _line(first), _line(second)
    return Finding(
        tool=tool,
        message=message,
        kernel=_function(kernel["kernel"]) if kernel else (launch.kernel if launch else ""),
        file=_file(first, launch),
        line=line,
        source=line_text(code, line),
        block=_index(numbers[3:]),
        thread=_index(numbers[:3]),
        other_line=other_line,
        other_source=line_text(code, other_line),
        count=count,
    )


def _index(numbers: list[int]) -> Index3 | None:
    return (numbers[0], numbers[1], numbers[2]) if numbers else None


def _place(text: str) -> re.Match[str] | None:
    return _PLACE.search(re.sub(r"^(?:at|and \w+ access at|Device Frame:)\s+", "", text))


def _line(place: re.Match[str] | None) -> int | None:
    return int(place["line"]) if place and place["line"] else None


def _file(place: re.Match[str] | None, launch: Launch | None) -> str | None:
    if place is None or place["file"] is None:
        return None
    own = launch is not None and place["file"].endswith(".cu")  # a header keeps its name
    return launch.source if own else place["file"]


def _function(signature: str) -> str:
    """The bare name of "void scale<4>(float *, int)"."""
    return re.split(r"[<(]", signature.strip())[0].split()[-1]


# ---- ncu


def parse_ncu(text: str) -> list[tuple[str, dict[str, float]]]:
    """ncu's `--csv --page raw` output: per launch the kernel's name and its metrics. A total (".sum") is a whole
    number, under the name without it; averages and shares have their full name."""
    table = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    kernels = []
    for row in table:
        if not row["ID"]:
            continue  # the row of units
        counters: dict[str, float] = {}
        for name, value in row.items():
            if "__" not in (name or "") or not re.fullmatch(r"[\d.,]+(?:e[+-]\d+)?", value or ""):
                continue
            number = float(value.replace(",", ""))
            if name.endswith(".sum"):
                counters[name.removesuffix(".sum")] = round(number)
            elif "." in name:
                counters[name] = number
        kernels.append((_function(row["Kernel Name"]), counters))
    return kernels


# ---- a replay


def begins(launch: Launch) -> str:
    """What a replay prints before a launch."""
    return f"launching {launch.kernel}()"


def ended(launch: Launch) -> str:
    """What a replay prints once a kernel has ended."""
    return f"launched {launch.kernel}()"


def crashed(why: str) -> str:
    """What a replay prints when a kernel fails."""
    return f"launch failed: CUDA error: {why}"


def hangs(seconds: float) -> str:
    """What a replay prints when a kernel takes longer than this."""
    return f"hangs: stopped after {seconds:.0f} s"


def parse_failure(output: str, launch: Launch, stopped_after: float | None) -> str:
    """Why a replayed kernel did not end, empty if it did. stopped_after: seconds after which the replay was stopped
    from outside; None if it was not."""
    match = re.search(r"^(launch failed: .*|hangs: .*)$", output, re.MULTILINE)
    if match:
        return match[1]
    stopped = stopped_after is not None and begins(launch) in output and ended(launch) not in output
    return hangs(stopped_after) if stopped else ""
