"""The sentences of findings: one for each kind that the runtime has, made of a finding's data, and never read back."""

import re
from pathlib import Path

import course_utils
from course_utils.emulator import words
from course_utils.emulator.compiler import HERE
from course_utils.emulator.defects import defect_of
from course_utils.emulator.sanitizer import TOOLS, Finding, Wait
from course_utils.emulator.trace_results import RawFinding
from tests.helpers.all_of import all_of

RUNTIME = HERE / "runtime"
READ_BACK = re.compile(r"\bin \w+\.message\b|\b(f|one|finding)\.message\.(?!value)\w+\(|\bre\.\w+\([^)]*\.message\b")


def enumerators(file: str, name: str) -> list[str]:
    """Those of an enum of the runtime, in Python's spelling."""
    body = re.search(rf"enum {name} : uint32_t {{(.*?)}};", (RUNTIME / file).read_text(encoding="utf-8"), re.DOTALL)[1]
    return re.findall(r"\bEMU_(\w+)", re.sub(r"//.*", "", body))


def finding(kind: str, **data) -> Finding:
    return Finding("tool", "", "k", "k.cu", 7, "code", (1, 0, 0), (2, 0, 0), kind=kind, **data)


def test_each_kind_of_the_runtime_has_a_sentence():
    spelled = [one.lower().replace("_", " ") for one in enumerators("defects.h", "emu_kind")]
    assert spelled == ["nothing", *words.KINDS[1:]]
    assert len(enumerators("trace_results.h", "emu_by")) == len(words.BY)
    assert len(enumerators("trace_results.h", "emu_deed")) == len(words.DEEDS)
    assert [one.lower() for one in enumerators("trace_results.h", "emu_tool")] == [*TOOLS, "asynccheck"]


@all_of("kind", [kind for kind in words.KINDS[1:] if kind != "deadlock"])  # which is no finding, but a failure
def test_a_sentence_is_made_of_the_data(kind):
    raw = RawFinding()
    raw.defect.kind = words.KINDS.index(kind)
    numbers = {"out of bounds": (0, 1, 64), "past dynamic shared": (1024,)}.get(kind, defect_of(raw.defect).numbers)
    data = {"numbers": numbers, "name": "__shfl_sync()", "other_name": "__syncwarp()", "deed": "starts a copy"}
    data |= {"other_deed": "starts a wgmma", "space": "global", "side": "past", "array": "x", "threads": 2, "bytes": 4}
    said = words.message(finding(kind, **data))
    assert said and not re.search(r"[{}]|None|  ", said), said


CASES = (
    (
        finding("out of bounds", space="global", bytes=4, array="x", side="past", numbers=(8, 0, 4096)),
        "out of bounds: reads x[1,026], and x has 1,024 elements of 4 bytes (argument 0 of k())",
    ),
    (
        finding("out of bounds", space="global", bytes=2, is_write=True, array="x", side="before", numbers=(6, 0, 2)),
        "out of bounds: writes x[-3], and x has 1 element of 2 bytes (argument 0 of k())",
    ),
    (  # between two elements
        finding("out of bounds", space="global", bytes=4, array="x", side="past", numbers=(2, 0, 4096)),
        "read of 4 bytes out of bounds, 2 bytes past the end of argument 0 ('x') of k() (4,096 bytes)",
    ),
    (
        finding("out of bounds", space="global", bytes=16, array="x", side="over", numbers=(8, 0, 128)),
        "read of 16 bytes out of bounds, 8 bytes before the end of argument 0 ('x') of k() (128 bytes)",
    ),
    (
        finding("out of bounds", space="global", is_write=True, bytes=1, by="a bulk copy", numbers=(0x1000,)),
        "write of 1 byte by a bulk copy out of bounds, at address 0x1000, near no argument of the kernel",
    ),
    (
        finding("write after write", space="global", other_line=9, other_block=(0, 0, 0), by_flags=True),
        "writes global memory that another block writes, too, in line 9: blocks run in any order; atomics, or one "
        "block per element, would be safe (a fence makes nobody wait: what was before it is there for who has seen a "
        "flag written behind it)",
    ),
    (
        finding("read after write", space="shared", other_block=(1, 0, 0), same_warp=True),
        "read-after-write hazard in shared memory: reads what another thread writes elsewhere, with no __syncwarp() in "
        "between",
    ),
    (
        finding("misaligned", by="a cp.async", alignment=16, numbers=(0,)),
        "misaligned: cp.async of 16 bytes between addresses that are no multiples of 16",
    ),
    (
        finding(
            "stuck at mbarrier",
            threads=1,
            numbers=(0, 0, 1, 1, -16),
            waits=(
                Wait("stuck at mbarrier", 1, 7, (0, 0, 1, 1, -16), ""),
                Wait("stuck at named barrier", 32, 9, (1, 32, 64), ""),
            ),
        ),
        "deadlock: 1 thread waits here in a wait for parity 0 of an mbarrier in phase 0 (1 of 1 arrivals and -16 bytes "
        "are to come: more came than were expected); no thread of the block can go on: 1 thread in a wait for parity 0 "
        "of an mbarrier in phase 0 (1 of 1 arrivals and -16 bytes are to come: more came than were expected) at line "
        "7, 32 threads in barrier 1 (32 of 64 threads have arrived) at line 9",
    ),
)


@all_of("one", CASES)
def test_what_is_said(one):
    found, said = one
    assert words.message(found) == said


def test_nothing_reads_a_sentence_back_and_the_runtime_writes_none():
    package = Path(course_utils.__file__).parent
    readers = [
        f"{file.relative_to(package)}: {line.strip()}"
        for file in sorted(package.rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if READ_BACK.search(line)
    ]
    assert not readers
    assert all(READ_BACK.search(line) for line in ("if words in finding.message:", "re.search(x, finding.message)"))
    for file in [*RUNTIME.iterdir(), *(HERE / "include").glob("*.h")]:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r'\bemu_(misuse|defect_of)\([^;\n]*"[^"\n]* [^"\n]*"', text), file.name
