"""Submissions whose grade is known: they test the grader, and tell a teacher what it can name.

`tests/grading/submissions/NN_slug/name.toml` holds those of an exercise. Each says how it differs from the solution:

    [[right]]
    name = "one warp per row"
    file = "mini_flash_warp.cu"                     # beside the toml

    [[wrong]]
    name = "no rescale of O"
    diagnosis = "O is not rescaled when the maximum changes"    # Diagnosis.name; * stands for anything; or a list
    fails = ["peaks"]                               # optional: these parts lose points, and no others
    earned = 7                                      # optional: exactly these points, of a half-done submission
    judged = "true"                                 # optional: what a reader who knows the kernel says of the name
    replace = [["old text, once in the solution", "new text"]]
    cells = { answers = "answers = {}" }            # optional: other source for a cell, by grade_id
    gate = true                                     # optional: `make test` grades it, too, not only `make test-all`

    [[wrong]]
    name = "the merge without a maximum"
    diagnosis = "the weights exp(L_i) are taken without the maximum"
    regions.3 = '''                                 # in the place of the solution's third region
        ...
    '''

The solution itself and the skeleton are examples of every exercise.
"""

from __future__ import annotations

import json
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from course_utils.grading.catalog import EXERCISE_IDS
from course_utils.grading.release import SOLUTIONS, release, solution_lines
from course_utils.grading.result import UNANSWERED, WRONG, Result
from course_utils.grading.submission import Submission, read_submission
from course_utils.measured import Measurement, caption

KINDS = ("right", "wrong")
KERNELS = {"file", "regions", "replace"}  # the three ways to say what the kernel is; an example takes one at most
JUDGED = ("true", "seen", "none")  # the mistake itself; what is seen of it; no name that says anything
FIELDS = {"name", "diagnosis", "fails", "earned", "judged", "cells", "gate"} | KERNELS


class ExampleError(ValueError):
    """An example that cannot be built; the message names it."""


@dataclass(frozen=True)
class Example:
    """One submission: what the student's files hold, and the grade it must get.

    kind: "solution", "right", "wrong" or "skeleton". kernel, notebook: texts of the files, None where the exercise has
    none. diagnosis: patterns for the name of the main one, any of which will do. fails: the names of exactly the parts
    that lose their points, None where that is open. earned: the points that are left, likewise. gate: whether
    `make test` grades it. judged: one of JUDGED, or empty.
    """

    exercise: str
    name: str
    kind: str
    kernel: str | None = None
    notebook: str | None = None
    diagnosis: tuple[str, ...] = ()
    fails: tuple[str, ...] | None = None
    earned: int | None = None
    gate: bool = True
    judged: str = ""

    @property
    def right(self) -> bool:
        return self.kind in ("solution", "right")

    def write(self, folder: Path) -> None:
        """Put the student's files into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        name = self.exercise.split("/")[1]
        for suffix, text in ((".cu", self.kernel), (".ipynb", self.notebook)):
            if text is not None:
                (folder / f"{name}{suffix}").write_text(text, encoding="utf-8")

    def submission(self) -> Submission:
        """The example as the grader reads it."""
        with tempfile.TemporaryDirectory() as folder:
            self.write(Path(folder))
            return read_submission(folder, self.exercise)

    def surprise(self, result: Result) -> str:
        """What about the grade is not as expected; empty if all is."""
        lost = tuple(part.name for part in result.parts if part.status in (WRONG, UNANSWERED) and not part.bonus)
        named = result.diagnosis.name if result.diagnosis else "none"
        if self.right:
            return "" if result.full else f"lost {', '.join(lost)}: {named}"
        if result.full:
            return "got full marks"
        if self.kind == "skeleton" and result.earned:
            return f"got {result.earned} points"
        if silent := [part.name for part in result.parts if part.status == WRONG and part.diagnosis is None]:
            return f"no diagnosis for {', '.join(silent)}"
        if self.diagnosis and not any(_matches(named, pattern) for pattern in self.diagnosis):
            return f"the diagnosis must be {' or '.join(map(repr, self.diagnosis))}, not {named!r}"
        if self.fails is not None and set(lost) != set(self.fails):
            return f"must lose {', '.join(self.fails)}, not {', '.join(lost)}"
        if self.earned is not None and result.earned != self.earned:
            return f"must get {self.earned} points, not {result.earned}"
        return ""


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern.replace("[", "[[]"))  # only * and ? are special


def examples_of(exercise_id: str, folder: Path, solutions: Path = SOLUTIONS) -> list[Example]:
    """The examples of one exercise: the solution, the right ones, the wrong ones, the skeleton.

    folder: holds NN_slug/name.toml. Raises ExampleError, FileNotFoundError.
    """
    texts = {suffix: _text(solutions / f"{exercise_id}{suffix}") for suffix in (".cu", ".ipynb")}
    if texts[".cu"] is None and texts[".ipynb"] is None:
        raise FileNotFoundError(f"there is no solution of {exercise_id} below {solutions}")
    toml = folder / f"{exercise_id}.toml"
    try:
        tables = tomllib.loads(toml.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ExampleError(f"{toml}: {error}") from error
    if unknown := set(tables) - set(KINDS):
        raise ExampleError(f"{toml}: got [[{min(unknown)}]], takes [[right]] and [[wrong]]")
    examples = [Example(exercise_id, "the solution", "solution", texts[".cu"], texts[".ipynb"])]
    for kind in KINDS:
        examples += [_example(exercise_id, kind, entry, toml, texts) for entry in tables.get(kind, ())]
    stripped = {suffix: release(solutions / f"{exercise_id}{suffix}").decode() for suffix in texts if texts[suffix]}
    examples.append(Example(exercise_id, "the skeleton", "skeleton", stripped.get(".cu"), stripped.get(".ipynb")))
    return examples


def all_examples(path: Path, solutions: Path = SOLUTIONS) -> list[Example]:
    """The examples of each exercise that has a file in the folder `path`, in the order of the course; or of one file.

    Raises ExampleError, FileNotFoundError.
    """
    files = [path] if path.is_file() else sorted(path.glob("*/*.toml"))
    ids = {f"{file.parent.name}/{file.stem}": file.parent.parent for file in files}
    if not ids or set(ids) - set(EXERCISE_IDS):
        wrong = ", ".join(sorted(set(ids) - set(EXERCISE_IDS)))
        raise ExampleError(f"{path}: got {wrong or 'nothing'}, takes NN_slug/name.toml for exercises of the course")
    chosen = [exercise_id for exercise_id in EXERCISE_IDS if exercise_id in ids]
    return [example for exercise_id in chosen for example in examples_of(exercise_id, ids[exercise_id], solutions)]


def _text(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


def _example(exercise_id: str, kind: str, entry: dict, toml: Path, texts: dict[str, str | None]) -> Example:
    where = f"{toml.name}, {entry.get('name', 'an example without a name')!r}"
    if unknown := set(entry) - FIELDS:
        raise ExampleError(f"{where}: got the field {min(unknown)!r}, takes {', '.join(sorted(FIELDS))}")
    if "name" not in entry or (kind == "wrong") != ("diagnosis" in entry):
        raise ExampleError(f"{where}: a right one has a name and no diagnosis, a wrong one has both")
    if not (KERNELS | {"cells"}) & set(entry) or len(KERNELS & set(entry)) > 1:
        raise ExampleError(f"{where}: takes one of file, regions and replace, or cells, or both")
    if entry.get("gate", True) is not True:
        raise ExampleError(f"{where}: gate takes true, got {entry['gate']!r}")
    if (judged := entry.get("judged", "")) and (judged not in JUDGED or kind == "right"):
        raise ExampleError(f"{where}: judged takes {', '.join(JUDGED)} for a wrong one, got {judged!r}")
    kernel, notebook = texts[".cu"], texts[".ipynb"]
    if "file" in entry:
        kernel = (toml.parent / entry["file"]).read_text(encoding="utf-8")
    if "regions" in entry:
        kernel = _with_regions(kernel or "", entry["regions"], where)
    for old, new in entry.get("replace", ()):
        times = (kernel or "").count(old)
        if times != 1:
            raise ExampleError(f"{where}: the text to replace must be in the solution once, not {times} times: {old}")
        kernel = kernel.replace(old, new)
    if "cells" in entry:
        notebook = _with_cells(notebook, entry["cells"], where)
    fails = tuple(entry["fails"]) if "fails" in entry else None
    names = entry.get("diagnosis", ())
    names = (names,) if isinstance(names, str) else tuple(names)
    rest = (fails, entry.get("earned"), "gate" in entry, judged)
    return Example(exercise_id, entry["name"], kind, kernel, notebook, names, *rest)


def _with_regions(kernel: str, texts: dict[str, str], where: str) -> str:
    """The solution's kernel with these texts between the marks of its regions, by their numbers from "1"."""
    lines, regions = kernel.split("\n"), solution_lines(kernel)
    numbers = [str(number) for number in range(1, len(regions) + 1)]
    if unknown := set(texts) - set(numbers):
        raise ExampleError(f"{where}: got region {min(unknown)!r}, the solution has {', '.join(numbers) or 'none'}")
    for number, (begin, end) in reversed(list(zip(numbers, regions, strict=True))):
        if number in texts:
            lines[begin + 1 : end] = texts[number].rstrip("\n").split("\n")
    return "\n".join(lines)


def _with_cells(notebook: str | None, sources: dict[str, str], where: str) -> str:
    content = json.loads(notebook or '{"cells": []}')
    left = dict(sources)
    for cell in content["cells"]:
        grade_id = cell["metadata"].get("nbgrader", {}).get("grade_id")
        if grade_id in left:
            cell["source"] = left.pop(grade_id)
    if left:
        raise ExampleError(f"{where}: the solution's notebook has no cell {min(left)!r}")
    return json.dumps(content, ensure_ascii=False)


# ---- what came of them


HEADINGS = ("exercise", "submission", "points", "diagnosis", "judged", "as expected")


def rows(graded: Sequence[tuple[Example, Result]]) -> list[tuple[str, ...]]:
    """A row under HEADINGS for each example."""
    return [
        (
            example.exercise,
            example.name if example.kind != "right" else f"{example.name} (right)",
            f"{result.earned} of {result.points}",
            result.diagnosis.name if result.diagnosis else "",
            example.judged,
            surprise if (surprise := example.surprise(result)) else "yes",
        )
        for example, result in graded
    ]


def record(graded: Sequence[tuple[Example, Result]]) -> list[dict[str, object]]:
    """Rows to keep as a measurement: grades on a GPU, and the ratio of times where one was measured."""
    return [
        {
            "exercise": example.exercise,
            "submission": example.name,
            "kind": example.kind,
            "points": result.earned,
            "of": result.points,
            "diagnosis": result.diagnosis.name if result.diagnosis else "",
            "as_expected": not example.surprise(result),
            "time_over_reference": next((part.ratio for part in result.parts if part.ratio is not None), None),
        }
        for example, result in graded
    ]


def markdown(
    graded: Sequence[tuple[Example, Result]],
    *,
    seed: int,
    device: str,
    command: str,
    on_gpu: Measurement | None = None,
) -> str:
    """docs/grading.md: one table per exercise; the same for the same grades. on_gpu: what `--record` has kept."""
    surprises = sum(bool(example.surprise(result)) for example, result in graded)
    wrong = sum(example.kind == "wrong" for example, _ in graded)
    exercises = list(dict.fromkeys(example.exercise for example, _ in graded))
    lines = [
        "# What the grader says about submissions whose grade is known",
        "",
        "Each exercise has its solution, other right kernels, and kernels with a mistake that students make. The right",
        "ones must get full marks; the others must lose points, under the name of their mistake; the skeleton must get",
        f"none. These are {len(graded)} submissions for {len(exercises)} exercises, {wrong} of them wrong. The grader",
        f"gave these points and names on {'the emulator' if device == 'cpu' else 'a GPU'}, with the seed {seed}; "
        f"{surprises or 'none'} {'is' if surprises == 1 else 'are'} not as expected.",
        *_judged([example.judged for example, _ in graded if example.judged]),
        *(["", *_on_gpu(on_gpu)] if on_gpu else []),
        "",
        "Besides, `make mutants-of-solutions` changes each place of the solutions between BEGIN and END SOLUTION, and",
        "each change must cost points, too. The lines of the given kernel around these, which students may change as",
        "well, it leaves as they are: some changes of them are among the submissions below.",
        "",
        "What such a submission can read, write, start, keep and reach while it is graded, and what it cannot, is in",
        "[What a submission can reach](sandbox.md).",
        "",
        "```",
        command,
        "```",
    ]
    for exercise_id in exercises:
        own = [pair for pair in graded if pair[0].exercise == exercise_id]
        lines += ["", f"## {own[0][1].title}", "", f"`{exercise_id}`", ""]
        lines += [f"| {' | '.join(HEADINGS[1:])} |", "|---|---|---|---|---|"]
        escaped = [[cell.replace("|", r"\|") for cell in row[1:]] for row in rows(own)]
        lines += [f"| {' | '.join(cells)} |" for cells in escaped]
    return "\n".join(lines) + "\n"


def _judged(words: Sequence[str]) -> list[str]:
    """A sentence about the names that a reader judged, if there are any."""
    if not words:
        return []
    count = {word: words.count(word) for word in JUDGED}
    return [
        "",
        f"A reader who knows the kernels judged {len(words)} names: {count['true']} say what the mistake is (“true”),",
        f"{count['seen']} what is seen of it (“seen”), {count['none']} neither (“none”).",
    ]


def _on_gpu(recorded: Measurement) -> list[str]:
    expected = sum(bool(row["as_expected"]) for row in recorded.rows)
    full = [row for row in recorded.rows if row["kind"] == "solution" and row["points"] >= row["of"]]
    solutions = sum(row["kind"] == "solution" for row in recorded.rows)
    lines = [
        f"On a GPU ({caption(recorded)}; `course_utils/measured/exercises.json`)",
        f"{expected} of {len(recorded.rows)} submissions for {solutions} of the exercises were as expected, and "
        f"{len(full)} of {solutions} solutions got full marks.",
    ]
    for row in full:
        if row["time_over_reference"] is not None:
            lines[-1] += f" `{row['exercise']}` took {row['time_over_reference']:.2f} times the reference's time."
    return lines
