"""A right kernel beside the course's own: one launch of both, counted by the emulator, and what to try next.

What the course's solutions count is recorded beside this file (`python -m course_utils exercises` writes it), because a
learner's machine may have no solutions, and a check should not run them.
"""

from __future__ import annotations

import functools
import html
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from course_utils.emulator.pages import heat_listing
from course_utils.emulator.profiler import Counters
from course_utils.grading.catalog import EXERCISE_IDS, exercise
from course_utils.grading.exercise import Case, Exercise, Outcome
from course_utils.grading.grader import outcome_of
from course_utils.grading.submission import Submission

SEED = 0  # of the inputs: the same for everybody, so that the figures can be compared
RECORD = Path(__file__).with_name("solutions_counted.json")

HARDER = {
    "00_start_here/conflict_free_tile": "Do without the padding: swizzle the column by the row, so that the tile has "
    "32 × 32 floats and still no conflict. Chapter 03, step 3, shows how for fp16.",
    "01_attention_basics/coalesced_scores": "Let each thread keep 4 × 4 scores in registers, and count the "
    "wavefronts of shared memory again. That is exercise 02.4.",
    "02_flash_attention_minimal/online_softmax": "Read each score once: keep a thread's scores in registers between "
    "the two passes, for rows that fit.",
    "02_flash_attention_minimal/mini_flash": "Give each thread a tile of S in registers, as in forward_tiled.cu, and "
    "beat it. Or write the backward pass: exercise 03.3.",
    "02_flash_attention_minimal/mend_the_race": "Take one barrier more out, and show by the order of reads and writes "
    "that it was not needed, or by a finding that it was.",
    "02_flash_attention_minimal/register_tile": "Read four floats in one instruction (float4): a quarter of the "
    "instructions, and as many wavefronts. Then make P V of it, too.",
    "03_flash_attention_v2/causal_skip": "Start the blocks with the longest rows first, and say from the number of "
    "blocks and SMs how much time that can save.",
    "03_flash_attention_v2/split_kv": "Cut the work into pieces of equal length when the sequences are not equally "
    "long.",
    "03_flash_attention_v2/backward_tiles": "Add dQ: by atomics from this kernel, or by a second walk over the tiles. "
    "Say which bytes each of them moves.",
    "03_flash_attention_v2/tensor_core_tile": "Take K's fragments by ldmatrix from a swizzled tile, as chapter 03's "
    "step 3 does, and count the wavefronts.",
    "04_sparse_patterns/custom_mask": "Reach the same recall with half of the budget, or give rows of very different "
    "lengths to blocks so that none waits for the longest.",
    "05_deepseek_sparse/topk_gather": "Select by radix passes over the bits of the scores, without sorting, as "
    "radix_topk.cu does.",
    "06_serving/merge_parts": "Give each lane four neighbouring columns and read them in one instruction (float4), for "
    "any D that is a multiple of 4.",
    "06_serving/paged_gather": "Let one warp serve all query heads that share a key head, so that a page is read once "
    "for the group.",
    "07_hopper/barrier_ring": "Give the two copies of a tile an mbarrier each, so that a warp can begin with the keys "
    "before the scales are there. Which waits become two?",
    "07_hopper/softmax_overlap": "Add a second warpgroup of consumers on the same tiles, and let the two take turns at "
    "the tensor cores by named barriers, as step 5 of the ladder does.",
}


@dataclass(frozen=True)
class Figure:
    """One thing that was counted: in the learner's kernel, in the course's solution, and the least that is possible
    (None where there is no such floor)."""

    name: str
    yours: int
    ours: int
    least: int | None = None


@dataclass(frozen=True)
class Comparison:
    """The figures of one launch. case: which inputs. findings: what the sanitizer found in it. listing: the kernel as
    HTML, each line shaded by what it costs."""

    title: str
    case: str
    figures: tuple[Figure, ...]
    findings: int
    harder: str
    listing: str = ""

    @property
    def line(self) -> str:
        """To share."""
        loads = self.figures[0]
        found = "no finding" if not self.findings else f"findings: {self.findings}"
        return (
            f"{self.title}: all points. My kernel loads {shown_bytes(loads.yours)} where the course's loads "
            f"{shown_bytes(loads.ours)}; {found} of the sanitizer."
        )

    def to_html(self) -> str:
        """Bars for each figure, the line to share, and the harder thing."""
        bars = "".join(_bars(figure) for figure in self.figures)
        about = f"One launch ({html.escape(self.case)}), counted by the emulator. The dashed mark: the least."
        return (
            f'<div class="ak-beside"><h4>Your kernel beside the course\'s</h4><p>{about}</p>{bars}'
            f'<p>To share: <q class="ak-share">{html.escape(self.line)}</q> '
            f'<button type="button" class="ak-copy">Copy</button></p>'
            f"<p><strong>Harder:</strong> {html.escape(self.harder)}</p>"
            f"<details open><summary>Your kernel, shaded by what each line moves</summary>{self.listing}</details>"
            "</div>"
        )

    def __str__(self) -> str:
        rows = [f"  {f.name}: yours {_shown(f, f.yours)}, the course's {_shown(f, f.ours)}" for f in self.figures]
        return "\n".join(
            ["Your kernel beside the course's:", *rows, f"To share: {self.line}", f"Harder: {self.harder}"]
        )


def compare_with_solution(submission: Submission) -> Comparison | None:
    """Runs one launch of a right submission on the emulator and puts what it counts beside the course's solution.

    None for an exercise without a kernel, for a teacher's own, and where the launch does not end.
    """
    task = exercise(submission.exercise)
    if task.id not in solutions_counted():
        return None
    case = counted_case(task)
    outcome = outcome_of(task, submission, case)
    if outcome.error:
        return None
    recorded, least = solutions_counted()[task.id], _least(outcome)
    figures = [Figure(name, yours, recorded[name], least.get(name)) for name, yours in counts(outcome).items()]
    shown = tuple(figure for figure in figures if figure.yours or figure.ours)
    blocks = sum(math.prod(launch.grid) for launch in case.launches)
    counted = Counters(list(outcome.counters), launches=len(case.launches), blocks=blocks, blocks_traced=blocks)
    counted.sources[f"{task.name}.cu"] = submission.kernel or ""
    about = (case.name or case.part, shown, len(outcome.findings), HARDER[task.id])
    return Comparison(task.title, *about, heat_listing(counted).html)


def counted_case(task: Exercise) -> Case:
    """The launch that is counted: of those whose counters earn points, else of all, the one with most work."""
    cases = task.cases(torch.Generator().manual_seed(SEED), {})
    reviewed = [case for case in cases if case.review is not None and not case.reference]
    return max(reviewed or [case for case in cases if not case.reference], key=_work)


def counts(outcome: Outcome) -> dict[str, int]:
    """What a launch asked for, by the name of the figure."""
    rows = Counters(rows=list(outcome.counters))
    return {
        "bytes loaded": sum(argument.bytes_loaded for argument in outcome.footprint),  # by the copy engine, too
        "bytes stored": rows.total("bytes", "global", "store"),
        "sectors of global memory": rows.total("sectors", "global"),
        "wavefronts of shared memory": rows.total("wavefronts", "shared"),
        "bank conflicts": rows.total("bank_conflicts", "shared"),
    }


def _least(outcome: Outcome) -> dict[str, int]:
    """What no kernel can avoid on these inputs: each byte that is used, once."""
    return {
        "bytes loaded": sum(argument.bytes_read for argument in outcome.footprint),
        "bytes stored": sum(argument.bytes_written for argument in outcome.footprint),
    }


@functools.cache
def solutions_counted() -> Mapping[str, Mapping[str, int]]:
    """What the course's solutions count, by exercise."""
    return json.loads(RECORD.read_text(encoding="utf-8"))


def count_solutions(solutions: Path) -> str:
    """The text of the record: the solution of each exercise with a kernel, run on its counted case."""
    found = {}
    for one in EXERCISE_IDS:
        task = exercise(one)
        if task.kernels:
            submission = Submission(one, kernel=(solutions / f"{one}.cu").read_text(encoding="utf-8"))
            outcome = outcome_of(task, submission, counted_case(task))
            if outcome.error:
                raise RuntimeError(f"the solution of {one} did not run: {outcome.error}")
            found[one] = counts(outcome)
    return json.dumps(found, indent=1) + "\n"


def _work(case: Case) -> int:
    """Grows with what is read and with what is written: neither one long row nor many empty ones."""
    read = sum(tensor.numel() for tensor in case.inputs.values())
    return read * sum(output.expected.numel() for output in case.outputs.values())


def _bars(figure: Figure) -> str:
    longest = max(figure.yours, figure.ours, figure.least or 0)
    rows = (("yours", figure.yours, "ak-yours"), ("the course's", figure.ours, "ak-ours"))
    mark = _mark(figure, longest)
    bars = "".join(
        f'<div class="ak-bar-row"><span class="ak-bar-name">{name}</span><span class="ak-bar-space">'
        f'<span class="ak-length {look}" style="width: {100 * value / longest:.1f}%"></span>{mark}</span>'
        f'<span class="ak-bar-value">{_shown(figure, value)}</span></div>'
        for name, value, look in rows
    )
    return f'<div class="ak-figure"><div>{figure.name}</div>{bars}</div>'


def _mark(figure: Figure, longest: int) -> str:
    if figure.least is None:
        return ""
    least = f"the least: {_shown(figure, figure.least)}"
    return f'<span class="ak-least" style="left: {100 * figure.least / longest:.1f}%" title="{least}"></span>'


def _shown(figure: Figure, value: int) -> str:
    return shown_bytes(value) if figure.name.startswith("bytes") else f"{value:,}"


def shown_bytes(count: int) -> str:
    """ "1.3 MB", "82 kB", "12 bytes"."""
    for unit, size in (("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"
