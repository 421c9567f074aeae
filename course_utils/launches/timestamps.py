"""When the steps of a kernel of chapter 07 begin and end, as one block sees them: what the pipeline viewer draws.

Calls of a kernel's verbs are wrapped in readings of the clock (kernels/include/timestamps.cuh), in a copy of its text.
On a GPU the times are cycles of one multiprocessor; on the emulator, steps of its scheduler, which say in which order
things happen and not how long they take.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.cuda import Kernel, KernelSource, RawModule, read_kernel
from course_utils.launches.hopper import Step, ready
from course_utils.toolchain.source import statement_calls

LEADERS, MOMENTS = 4, 1024  # as in timestamps.cuh
READ = """
extern "C" __global__ void read_moments(int* out, int* count) { hand_over(out, count); }
"""
VERBS = (
    *("wait_for_copies", "wait_for", "wait_until_full", "take_turn", "__syncthreads", "start_scores", "start_output"),
    *("wait_for_product", "load_tile_async", "load_box", "fill", "write", "store_output"),
)


class Site(NamedTuple):
    """A call in a kernel's text: the verb, its first argument, and its line in the file."""

    verb: str
    argument: str
    line: int


class Moment(NamedTuple):
    """A call that ran: its site, its leader (warpgroup) and when it began and ended."""

    site: Site
    leader: int
    begin: int
    end: int


def with_clocks(source: KernelSource) -> tuple[KernelSource, list[Site]]:
    """The kernel's text with each call of a verb wrapped in readings of the clock, and the wrapped calls by number."""
    text, sites, insertions = str(source), [], {}
    for call, end in statement_calls(text, VERBS):
        insertions[_body_around(text, call.start())] = " int next_note = first_note();"
        insertions[call.start()] = "{ const int before = clock(); "
        insertions[end + 1] = f" note(next_note, before, {len(sites)}); }}"
        argument = re.match(r"[^,()]*", text[call.end() :])[0].strip()
        sites.append(Site(call[1], argument, text.count("\n", 0, call.start()) + 1))
    header = [*re.finditer(r'^#include "[^"]*"\n', text, re.MULTILINE)][-1].end()
    insertions[header] = '#include "timestamps.cuh"\n'
    for place in sorted(insertions, reverse=True):
        text = text[:place] + insertions[place] + text[place:]
    return KernelSource(text + READ, source.path, source.name), sites


def _body_around(text: str, place: int) -> int:
    """Where the body of the function around `place` begins. Functions begin at the left edge."""
    start = [*re.finditer(r"^[A-Za-z_]", text[:place], re.MULTILINE)][-1].start()
    return text.index("{", start) + 1


def build(step: Step, head_dim: int, dtype: torch.dtype) -> tuple[Kernel, list[Site]]:
    """The kernel of a step with clocks in it, and the sites of its notes."""
    source, sites = with_clocks(read_kernel(step.file))
    return RawModule(code=source, options=step.options(head_dim, dtype)).get_function(step.kernel), sites


def record(step: Step, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool = False) -> list[Moment]:
    """Launches a step and returns what its block 0 noted, by the clock. Arguments as for `hopper.launch`.

    The clock has 32 bits: times are counted from the first note of leader 0, and hold for a second.
    """
    kernel, sites = build(step, query.shape[-1], query.dtype)
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3], dtype=torch.float32)
    run = ready(step, query, key, value, out, lse, is_causal=is_causal, kernel=kernel)
    notes = torch.zeros(LEADERS, MOMENTS, 3, dtype=torch.int32, device=query.device)
    counts = torch.zeros(LEADERS, dtype=torch.int32, device=query.device)
    read = kernel.module.get_function("read_moments")
    for _ in range(2 if query.is_cuda else 1):  # the first launch finds cold caches
        run()
        read((1,), (LEADERS,), (notes, counts))
    found = [(leader, *note) for leader in range(LEADERS) for note in notes[leader, : counts[leader]].tolist()]
    origin = found[0][1] if found else 0
    moments = [
        Moment(sites[site], leader, _since(begin, origin), _since(end, origin)) for leader, begin, end, site in found
    ]
    return sorted(moments, key=lambda moment: moment.begin)


def _since(clock: int, origin: int) -> int:
    return (clock - origin + 2**31) % 2**32 - 2**31


def to_text(moments: list[Moment]) -> dict[str, str]:
    """The columns `sites` and `moments` of a record: entries are parted by ";", their parts by spaces; times are
    counted from the first moment on."""
    sites = list(dict.fromkeys(moment.site for moment in moments))
    first = min((moment.begin for moment in moments), default=0)
    return {
        "sites": ";".join(f"{site.verb} {site.line} {site.argument}" for site in sites),
        "moments": ";".join(f"{sites.index(m.site)} {m.leader} {m.begin - first} {m.end - first}" for m in moments),
    }


def from_text(sites: str, moments: str) -> list[Moment]:
    """The moments of a record's columns, as `to_text` wrote them. Times are counted from the first moment."""
    there = []
    for entry in sites.split(";"):
        verb, line, argument = entry.split(" ", 2)
        there.append(Site(verb, argument, int(line)))
    numbers = (map(int, entry.split()) for entry in moments.split(";"))
    return [Moment(there[site], leader, begin, end) for site, leader, begin, end in numbers]
