"""python -m tests.mutants.solutions: changes the solutions in one place each, and says which ones still get full marks.

Each operator, constant, name of a constant, index, function, barrier and statement of a solution's regions is changed;
the emulator grades the result. A kernel that is changed and still right is listed in equivalent/solutions.toml, with
the reason why no input that the exercise promises to take can tell it from the solution. Any other with full marks is
a hole in the grader.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from course_utils.grading import children
from course_utils.grading.catalog import EXERCISE_IDS, exercise
from course_utils.grading.grader import grade_submission
from course_utils.grading.release import SOLUTIONS, solution_lines
from course_utils.grading.submission import read_submission
from course_utils.toolchain.source import blank_comments
from tests.helpers.forked_child import run_fork

WITH_A_KERNEL = tuple(one for one in EXERCISE_IDS if exercise(one).kernels)
EQUIVALENT = Path(__file__).parent / "equivalent" / "solutions.toml"

NO_STATEMENT = "const |int |float |bool |unsigned |long |for |if |while |else|return|__shared__|#"
# What stands there, and what is put in its place. Operators stand between blanks in the solutions.
CHANGES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"(?<= )\+(?= )", ("-",)),
    (r"(?<= )-(?= )", ("+",)),
    (r"(?<= )\*(?= )", ("+",)),
    (r"(?<= )/(?= )", ("*",)),
    (r"(?<= )%(?= )", ("/",)),
    (r"(?<= )<(?= )", ("<=",)),
    (r"(?<= )<=(?= )", ("<",)),
    (r"(?<= )>(?= )", (">=",)),
    (r"(?<= )>=(?= )", (">",)),
    (r"(?<= )==(?= )", ("!=",)),
    (r"(?<= )!=(?= )", ("==",)),
    (r"(?<= )&&(?= )", ("||",)),
    (r"(?<= )\|\|(?= )", ("&&",)),
    (r"(?<= )\+=(?= )", ("-=", "=")),
    (r"(?<= )\*=(?= )", ("=",)),
    (r"(?<= )\^(?= )", ("|",)),
    (r"(?<= )&(?= )", ("|",)),
    (r"(?<= )<<(?= )", (">>",)),
    (r"(?<= )>>(?= )", ("<<",)),
    (r"(?<![\w.])\d+(?![\w.])", ("+1", "-1")),
    (r"(?<![\w.])\d+\.\d*f?", ("0.5f",)),
    (r"\bNEG_INF\b", ("0", "-1e30f")),
    (r"\b(?!NEG_INF|ALL)[A-Z][A-Z_0-9]+\b(?! *=)", ("({} - 1)",)),
    (r"\bthreadIdx\.x\b", ("threadIdx.y",)),
    (r"\bthreadIdx\.y\b", ("threadIdx.x",)),
    (r"\bblockIdx\.x\b", ("blockIdx.y",)),
    (r"\bblockIdx\.y\b", ("blockIdx.x",)),
    (r"\bfmaxf\b", ("fminf",)),
    (r"\bmax\b", ("min",)),
    (r"\bmin\b", ("max",)),
    (r"\bexpf\b", ("exp2f",)),
    (r"\blogf\b", ("log2f",)),
    (r"\b__shfl_xor_sync\b", ("__shfl_down_sync",)),
    (r"(?<=\w)\[[^\[\]=]+\]", ("[{inside} + 1]",)),
    (r"__sync(threads|warp)\(\);", (";",)),
    (rf"^ +(?!{NO_STATEMENT})[^\s{{}}][^{{}}\n]*;$", (";",)),
    (r"^ +if \([^{}\n]*\) (return|continue|break);$", (";",)),
)


@dataclass(frozen=True)
class Change:
    """One place of a solution: line (from 1) and column, what stands there and what is put in its place."""

    exercise: str
    line: int
    column: int
    text: str
    old: str
    new: str

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """As in the list of equivalent ones: the text of the line stays when lines above it come and go."""
        return self.exercise, self.text, self.old, self.new, self.column

    def apply(self, kernel: str) -> str:
        lines = kernel.split("\n")
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.column] + self.new + line[self.column + len(self.old) :]
        return "\n".join(lines)

    def __str__(self) -> str:
        return f"{self.exercise}.cu:{self.line}:{self.column + 1}: {self.old.strip()} -> {self.new}  | {self.text}"


def changes(exercise: str, kernel: str) -> Iterator[Change]:
    """Every change of the kernel's solution regions, line by line; one that two patterns make comes once."""
    seen = set()
    for change in _matches(exercise, kernel):
        changed = change.apply(kernel)
        if changed not in seen:
            yield change
        seen.add(changed)


def _matches(exercise: str, kernel: str) -> Iterator[Change]:
    lines, code = kernel.split("\n"), blank_comments(kernel).split("\n")
    for begin, end in solution_lines(kernel):
        for number in range(begin + 1, end):
            for pattern, replacements in CHANGES:
                for match in re.finditer(pattern, code[number].rstrip()):
                    for to in replacements:
                        new = _replacement(match.group(), to)
                        yield Change(exercise, number + 1, match.start(), lines[number].strip(), match.group(), new)


def _replacement(old: str, to: str) -> str:
    if to in ("+1", "-1"):
        return str(int(old) + int(to))
    if "{inside}" in to:
        return to.replace("{inside}", old[1:-1])
    return to.replace("{}", old)


def equivalent(path: Path = EQUIVALENT) -> dict[tuple[str, str, str, str, int], str]:
    """The reason for each change that leaves a kernel right, by `Change.key`."""
    rows = tomllib.loads(path.read_text(encoding="utf-8"))["change"]
    return {(row["exercise"], row["text"], row["old"], row["new"], row["column"]): row["why"] for row in rows}


def solution(exercise: str) -> str:
    return (SOLUTIONS / f"{exercise}.cu").read_text(encoding="utf-8")


def survives(change: Change, seeds: tuple[int, ...]) -> bool:
    """Whether the changed solution gets full marks on all these seeds."""
    submission = read_submission((SOLUTIONS / change.exercise).parent, change.exercise)
    changed = replace(submission, kernel=change.apply(submission.kernel or ""))
    return all(grade_submission(changed, seed=seed).full for seed in seeds)


def main(arguments: list[str] | None = None) -> int:
    """Prints each survivor that is not listed; 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.solutions", description=__doc__.partition(": ")[2])
    parser.add_argument("exercises", nargs="*", metavar="EXERCISE", help="names of exercises; all if none is named")
    parser.add_argument("--sample", type=int, metavar="N", help="only N changes, drawn by chance")
    parser.add_argument("--seed", type=int, default=0, help="what --sample draws with (default: 0)")
    options = parser.parse_args(arguments)
    chosen = [e for e in WITH_A_KERNEL if not options.exercises or e.split("/")[1] in options.exercises]
    table = [change for one in chosen for change in changes(one, solution(one))]
    if options.sample is not None:
        table = random.Random(options.seed).sample(table, options.sample)
    children.run_child = run_fork  # these kernels are ours
    listed, survivors = equivalent(), []
    for change in tqdm(table, desc="changed solutions", file=sys.stderr):
        if change.key not in listed and survives(change, (0,)) and survives(change, (1, 2)):
            survivors.append(change)
            print(change, flush=True)
    known = sum(change.key in listed for change in table)
    lose = len(table) - known - len(survivors)
    print(f"{len(table)} changes: {lose} lose points, {known} are listed, {len(survivors)} others get full marks.")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
