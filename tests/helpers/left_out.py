"""Experiments on a kernel itself: one thread leaves out one execution of a statement, or says what a cell of shared
memory holds just before one.

The statements are found in the text of the kernel and its headers, and rewritten there. Variables say which thread of
which block does what, and at which of its times, so that one build serves all experiments. The kernel runs on the plain
emulator: nothing here knows of recordings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch

from course_utils.cuda import RawModule, TensorMap, read_kernel
from course_utils.launches.launch import Launch
from course_utils.operators.hopper_launch import tile_map
from course_utils.toolchain.source import INCLUDE, blank_comments, closing, included_files

NEVER = -1
IT, ALL_ELSE, NOTHING = range(3)  # what is left out
DYNAMIC, NOWHERE = "lab_dynamic()", "nullptr"
VARIABLES = """
// statement, block, thread, time; who leaves it out; a word of shared memory, and what is written there
__constant__ int lab_out[7];
__constant__ int lab_look[5];   // statement, block, thread, time; a word of shared memory
__device__ int lab_times[2];
__device__ int lab_seen;
__device__ inline bool lab_concerns(const int* who, int statement) {
    return statement == who[0] && (int)(blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z)) == who[1];
}
__device__ inline bool lab_is_now(const int* who, int& times) {
    const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
    return thread == who[2] && times++ == who[3];
}
__device__ inline bool lab_leaves_out(int statement, const void* memory) {
    if (!lab_concerns(lab_out, statement)) return false;
    const bool now = lab_is_now(lab_out, lab_times[0]);
    if (now && lab_out[5] >= 0) ((int*)memory)[lab_out[5]] = lab_out[6];
    return lab_out[4] == 0 ? now : lab_out[4] == 1 && !now;
}
__device__ inline const char* lab_dynamic() {
    extern __shared__ uint4 lab_memory[];
    return reinterpret_cast<const char*>(lab_memory);
}
__device__ inline void lab_looks(int statement, const void* memory) {
    if (!lab_concerns(lab_look, statement) || !lab_is_now(lab_look, lab_times[1])) return;
    lab_seen = reinterpret_cast<const int*>(memory)[lab_look[4]];
}
"""


class Line(NamedTuple):
    """A line of a kernel or a header, by the end of its file's path."""

    file: str
    line: int


class Moment(NamedTuple):
    """A thread of a block comes to the statement of a line, the `time`-th time, counted from 0. `block` and `thread`
    are counted through all dimensions, x first."""

    line: Line
    block: int
    thread: int
    time: int


@dataclass(frozen=True)
class Subject:
    """A launch to experiment with. outputs: the names of the parameters that the kernel writes; maps: of those that it
    takes as tensor maps, the rows of a box; others: for integer inputs, other values that a kernel may also get."""

    launch: Launch
    outputs: tuple[str, ...]
    maps: Mapping[str, int] = field(default_factory=dict)
    others: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def call(self, module: RawModule, args: Sequence[object]) -> None:
        """Launches the kernel of a module with other arguments."""
        kernel = module.get_function(self.launch.kernel)
        names = [parameter.name for parameter in kernel.parameters]
        given: list[object | TensorMap] = [
            tile_map(arg, self.maps[name]) if name in self.maps else arg for name, arg in zip(names, args, strict=True)
        ]
        kernel(self.launch.grid, self.launch.block, given, shared_mem=self.launch.shared_mem)

    @property
    def module(self) -> RawModule:
        """As the course has it."""
        return RawModule(code=read_kernel(self.launch.source), options=self.launch.options)


class Seen(NamedTuple):
    """After a launch: the tensors by the names of their parameters; how often the thread of `leave_out`, and that of
    `look`, came to its statement; and the word that was seen."""

    tensors: dict[str, torch.Tensor]
    times: int
    look_times: int
    word: int


class Lab:
    """A kernel in which the statements of some lines can be left out, and others looked at.

    leave_out, looks: of each line an expression for where the shared array begins that it writes or reads: `DYNAMIC`,
    its name, or `NOWHERE`.
    """

    def __init__(
        self, subject: Subject, folder: Path, leave_out: Iterable[tuple[Line, str]], looks: Iterable[tuple[Line, str]]
    ) -> None:
        self.subject = subject
        code = read_kernel(subject.launch.source)
        texts = {path.name: text for path, text in included_files(code, [INCLUDE]).items()}
        name = Path(subject.launch.source).name
        texts[name] = str(code)
        self._number: dict[tuple[str, int, int], int] = {}
        self._looks: dict[tuple[tuple[str, int, int], str], int] = {}
        inserts: dict[str, list[tuple[int, str]]] = {file: [] for file in texts}
        self._texts, self._statements = texts, {file: simple_statements(text) for file, text in texts.items()}
        for line, memory in looks:
            file, start, end = statement = self.statement(line)
            if (statement, memory) not in self._looks:
                number = self._looks[statement, memory] = len(self._looks)
                alone = texts[file][:start].rstrip()[-1:] in (";", "{", "}")  # it may be a declaration
                inserts[file].append((start, f"{'' if alone else '{ '}lab_looks({number}, {memory}); "))
                inserts[file].append((end, "" if alone else " }"))
        memory_of = {
            self.statement(line): memory for line, memory in sorted(leave_out, key=lambda one: one[1] != NOWHERE)
        }
        for number, (statement, memory) in enumerate(memory_of.items()):
            file, start, end = statement
            self._number[statement] = number
            inserts[file] += [(start, f"{{ if (!lab_leaves_out({number}, {memory})) "), (end, " }")]
        for file, text in texts.items():
            changed = _with_inserts(text, inserts[file])
            if file == name:
                first = re.search(r"^(?!//)", changed, flags=re.MULTILINE)
                changed = changed[: first.start()] + VARIABLES + changed[first.start() :]
            (folder / file).write_text(changed)
        self._module = RawModule(code=read_kernel(folder / name), options=subject.launch.options)
        self._globals = {
            name: self._module.get_global(name, (size,), torch.int32)
            for name, size in [("lab_out", 7), ("lab_look", 5), ("lab_times", 2), ("lab_seen", 1)]
        }
        self.names = [one.name for one in self._module.get_function(subject.launch.kernel).parameters]
        self.truth: dict[str, torch.Tensor] = {}
        tensors = self.run().tensors
        self.truth = {name: tensors[name] for name in subject.outputs}

    def statement(self, line: Line) -> tuple[str, int, int]:
        """What tells statements apart: the file, and from where to where it goes there."""
        file = Path(line.file).name
        return file, *statement_at(self._texts[file], self._statements[file], line.line)

    def covers(self, statement: tuple[str, int, int], line: int) -> bool:
        """Whether a line of the statement's file is part of it."""
        file, start, end = statement
        first, last = (self._texts[file].count("\n", 0, at) + 1 for at in (start, end))
        return first <= line <= last

    def run(
        self,
        leave_out: Moment | None = None,
        *,
        what: int = IT,
        look: tuple[Moment, str, int] | None = None,
        scribble: tuple[int, int] = (NEVER, 0),
        **given: torch.Tensor,
    ) -> Seen:
        """Runs the kernel. Outputs hold before it, byte by byte, what they do not hold after a right launch.

        leave_out: a moment; what: whether the statement is left out then (`IT`), by all others of the block and at all
        other times (`ALL_ELSE`), or not at all (`NOTHING`). look: a moment, the memory, and which of its words of 32
        bits. scribble: a word of the memory of `leave_out` and what it is set to at that moment, in front of the
        statement. given: other values of parameters.
        """
        out = [NEVER] * 4 if leave_out is None else [self._number[self.statement(leave_out.line)], *leave_out[1:]]
        self._globals["lab_out"].copy_(torch.tensor([*out, what, *scribble]))
        seen = [NEVER] * 5
        if look is not None:
            seen = [self._looks[self.statement(look[0].line), look[1]], *look[0][1:], look[2]]
        self._globals["lab_look"].copy_(torch.tensor(seen))
        self._globals["lab_times"].zero_()
        args = []
        for name, arg in zip(self.names, self.subject.launch.args, strict=True):
            if name in given:
                arg = given[name]
            elif isinstance(arg, torch.Tensor):
                arg = arg.clone()
                if name in self.truth:
                    arg.view(torch.uint8).copy_(~self.truth[name].view(torch.uint8))
            args.append(arg)
        self.subject.call(self._module, args)
        tensors = {name: arg for name, arg in zip(self.names, args, strict=True) if isinstance(arg, torch.Tensor)}
        return Seen(tensors, *self._globals["lab_times"].tolist(), self._globals["lab_seen"].item())


def simple_statements(code: str) -> list[tuple[int, int]]:
    """Where each statement lies that ends with a semicolon, without what stands before it: if, else, for, while."""
    plain = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.)*", lambda m: " " * len(m[0]), blank_comments(code), flags=re.M | re.S)
    found: list[tuple[int, int]] = []
    around: list[tuple[int, int]] = []
    start, depth = 0, 0
    for match in re.finditer(r"[(){};]", plain):
        mark, at = match[0], match.start()
        if mark in "()":
            depth += 1 if mark == "(" else -1
        elif mark == "{":
            around.append((start, depth))
            start, depth = at + 1, 0
        elif mark == "}":
            start, depth = around.pop()
            goes_on = depth > 0 or plain[at + 1 :].lstrip()[:1] in (";", ",", ")")
            start = start if goes_on else at + 1
        elif depth == 0:
            found.append((_without_heads(plain, start), at + 1))
            start = at + 1
    return found


def _without_heads(plain: str, start: int) -> int:
    while match := re.compile(r"\s+|else\b|do\b|(?:for|if|while)(?:\s+constexpr)?\s*(?=\()").match(plain, start):
        start = match.end()
        if plain[start] == "(" and match[0].strip() not in ("", "else", "do"):
            start = closing(plain, start) + 1
    return start


def statement_at(code: str, statements: Sequence[tuple[int, int]], line: int) -> tuple[int, int]:
    """The innermost of the statements that a line is part of. Raises ValueError where there is none, or several."""
    first = [0, *(match.end() for match in re.finditer("\n", code))][line - 1]
    last = code.find("\n", first)
    here = [(start, end) for start, end in statements if start < last and end > first]
    inner = [
        one for one in here if not any(one != other and one[0] <= other[0] and other[1] <= one[1] for other in here)
    ]
    if len(inner) != 1:
        raise ValueError(f"line {line} has {len(inner)} statements: {code[first:last].strip()}")
    return inner[0]


def _with_inserts(text: str, inserts: Sequence[tuple[int, str]]) -> str:
    pieces, position = [], 0
    for at, what in sorted(inserts, key=lambda one: one[0]):
        pieces += [text[position:at], what]
        position = at
    return "".join(pieces) + text[position:]
