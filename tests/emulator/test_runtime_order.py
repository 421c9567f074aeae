"""The runtime's C++ files include and call downwards only; the scheduler's calls to the tracer are the one arrow up."""

import graphlib
import re

from course_utils.emulator.compiler import HERE, RUNTIME_FILES

RUNTIME = {path.name: path.read_text(encoding="utf-8") for path in (HERE / "runtime").iterdir()}
HOOKS = "trace_hooks.h"  # declares what block.cpp calls and trace.cpp defines


def part(file: str) -> str:
    """A .cpp file and the headers that declare what it defines are one part."""
    return "trace" if file == HOOKS else file.removesuffix(".cpp").removesuffix(".h")


def includes(file: str) -> set[str]:
    return set(re.findall(r'^#include "(\w+\.h)"', RUNTIME[file], re.MULTILINE))


def test_the_scheduler_alone_calls_up_and_only_through_one_header():
    graph: dict[str, set[str]] = {part(file): set() for file in RUNTIME}
    for file in RUNTIME:
        graph[part(file)] |= {part(header) for header in includes(file) if (file, header) != ("block.cpp", HOOKS)}
    for name, below in graph.items():
        below.discard(name)
    order = list(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError, which names the circle
    assert HOOKS in includes("block.cpp") and order.index("trace") > order.index("block")


def test_the_files_are_listed_from_low_to_high():
    assert set(RUNTIME_FILES) == {file for file in RUNTIME if file.endswith(".cpp")}
    known: set[str] = set()
    for file in RUNTIME_FILES:
        known.add(part(file))
        above = {header for header in includes(file) if f"{part(header)}.cpp" in RUNTIME and part(header) not in known}
        assert above == ({HOOKS} if file == "block.cpp" else set()), file


def test_a_function_is_defined_beside_the_header_that_declares_it():
    """So that the includes are the calls. What kernels call (abi.h) is spread over the parts."""
    for header in RUNTIME:
        file = f"{part(header)}.cpp"
        if not header.endswith(".h") or file not in RUNTIME:
            continue
        declared = set(
            re.findall(r"^[^/\n]*?\b(emu_\w+)\((?=[^\n]*(?:;|\n +__attribute__))", RUNTIME[header], re.MULTILINE)
        )
        defined = set(re.findall(r"^(?:[^\s/#][^;\n]*?\b)?(emu_\w+)(?:\([^;\n]*\{|:$)", RUNTIME[file], re.MULTILINE))
        assert declared and declared <= defined, (header, declared - defined)
