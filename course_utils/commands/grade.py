"""`python -m course_utils grade`: points, what is wrong, what to read again."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tqdm import tqdm

from course_utils import measured, progress
from course_utils.grading import examples
from course_utils.grading.grader import default_device, grade, grade_submission
from course_utils.grading.result import Result
from course_utils.grading.sandbox.parent import isolation_available
from course_utils.grading.submission import exercises_in
from course_utils.tables import aligned

EXAMPLES_SEED = 0  # the page of known submissions is the same each time


# ---- grade


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `grade` to a command line."""
    parser.add_argument(
        "paths",
        nargs="*",
        type=Path,
        metavar="PATH",
        help="a folder of exercises, such as exercises/02_flash_attention_minimal, or one's .cu or .ipynb file",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        help="cpu: the emulator; default: the GPU if there is one (with --examples: cpu)",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="of the inputs; default: another one each time")
    parser.add_argument("--json", metavar="FILE", help="also write the results as JSON; - for the screen")
    parser.add_argument(
        "--isolation",
        choices=["auto", "bubblewrap", "limits"],
        default="auto",
        help="what holds the kernel back: auto takes bubblewrap where it works (default)",
    )
    parser.add_argument(
        "--examples",
        type=Path,
        metavar="FOLDER",
        help="grade the submissions whose grade is known, and compare; FOLDER holds NN_slug/name.toml",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="with --examples: so many at once; default: the CPUs")
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FILE",
        help="with --examples: each grade goes there as it comes; one that was stopped goes on from it",
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="with --examples: also write the table as a page")
    parser.add_argument(
        "--record", action="store_true", help="with --examples, on a GPU: keep the table for this course"
    )


def run(options: argparse.Namespace) -> int:
    """Carry out `grade`. Returns 0 once graded, whatever the points, 1 if an example is not as expected, 2 for
    arguments that cannot be used.
    """
    if bool(options.paths) == bool(options.examples):
        return _bad("takes the path of an exercise, or --examples FOLDER; for example: grade exercises/00_start_here")
    if options.seed is not None and options.seed < 0:
        return _bad(f"--seed: got {options.seed}, takes a number from 0")
    options.device = options.device or ("cpu" if options.examples else default_device())
    if (options.markdown or options.record or options.kept or options.jobs is not None) and not options.examples:
        return _bad("--markdown, --record, --kept and --jobs belong to --examples")
    if options.record and options.device != "cuda":
        return _bad("--record keeps what a GPU says: it needs one, and --device cuda")
    if options.jobs is not None and options.jobs < 1:
        return _bad(f"--jobs: got {options.jobs}, takes a number from 1")
    try:
        if options.json and options.json != "-":
            Path(options.json).touch()  # better now than after the grading
        if options.examples:
            return _grade_examples(options)
        return _grade_paths(options)
    except BrokenPipeError:  # `grade ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (ValueError, OSError, RuntimeError) as error:
        return _bad(str(error))


def _bad(message: str) -> int:
    print(f"grade: {message}", file=sys.stderr)
    return 2


def _grade_paths(options: argparse.Namespace) -> int:
    found = list(dict.fromkeys(place for path in options.paths for place in exercises_in(path)))
    results = []
    runs, why_not = isolation_available()
    if options.isolation == "auto" and not runs:
        print(
            f"warning: a submission runs with limits only, and can read and write what you can: {why_not}",
            file=sys.stderr,
        )
    for folder, exercise_id in tqdm(found, desc="grading", unit="exercise", disable=len(found) == 1):
        result = grade(folder, exercise_id, seed=options.seed, device=options.device, isolation=options.isolation)
        results.append(result)
        if options.json != "-":
            tqdm.write(f"{result}\n")
        record_or_say(result)
    if len(found) > 1 and options.json != "-":
        print(f"{sum(result.earned for result in results)} of {sum(result.points for result in results)} points in all")
    _write_json(results, options.json)
    return 0


def record_or_say(result: Result) -> None:
    """Keep the result; if that fails, say so and go on: the grade does not depend on it."""
    try:
        progress.record_exercise(result)
    except progress.ProgressError as error:
        print(f"Not kept: {error}", file=sys.stderr)


def _write_json(results: Sequence[Result], file: str | None) -> None:
    if not file:
        return
    text = json.dumps([json.loads(result.to_json()) for result in results], indent=1, ensure_ascii=False) + "\n"
    if file == "-":
        print(text, end="")
    else:
        Path(file).write_text(text, encoding="utf-8")


# ---- the submissions whose grade is known


def _grade_examples(options: argparse.Namespace) -> int:
    seed = EXAMPLES_SEED if options.seed is None else options.seed
    known = examples.all_examples(options.examples)
    kept = _read_kept(options.kept, seed, options.device) if options.kept else {}
    writing = threading.Lock()

    def graded_alone(example: examples.Example) -> Result:
        submission = example.submission()
        if found := kept.get((example.exercise, submission.digest)):
            return found
        result = grade_submission(submission, seed=seed, device=options.device, isolation=options.isolation)
        if options.kept:
            line = {"exercise": example.exercise, "digest": submission.digest, "seed": seed, "device": options.device}
            with writing, options.kept.open("a", encoding="utf-8") as file:
                file.write(
                    "\n" + json.dumps({**line, "result": json.loads(result.to_json())})
                )  # a new line, after any end
        return result

    # Threads: the work is done in child processes.
    with ThreadPoolExecutor(options.jobs or len(os.sched_getaffinity(0))) as pool:
        results = tqdm(pool.map(graded_alone, known), total=len(known), desc="grading", unit="submission")
        try:
            graded = list(zip(known, results, strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    table = examples.rows(graded)
    print(aligned([examples.HEADINGS, *table]))
    unexpected = [example for example, result in graded if example.surprise(result)]
    print(f"\n{len(graded) - len(unexpected)} of {len(graded)} as expected")
    _write_json([result for _, result in graded], options.json)
    if options.record:
        command = f"python -m course_utils grade --examples {shlex.quote(options.examples.as_posix())} --device cuda"
        measured.save("exercises", examples.record(graded), f"{command} --record")
    if options.markdown:
        command = f".venv/bin/python -m course_utils grade --examples {shlex.quote(options.examples.as_posix())}"
        command += f"{' --device cuda' if options.device == 'cuda' else ''} --markdown {options.markdown.as_posix()}"
        page = examples.markdown(graded, seed=seed, device=options.device, command=command, on_gpu=_recorded())
        options.markdown.write_text(page, encoding="utf-8")
    return 1 if unexpected else 0


def _read_kept(file: Path, seed: int, device: str) -> dict[tuple[str, str], Result]:
    """By exercise and digest of the submission, the results of this seed and device that `--kept` has written."""
    found: dict[tuple[str, str], Result] = {}
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):  # the line at which a run was stopped
            line = json.loads(text)
            if (line["seed"], line["device"]) == (seed, device):
                found[line["exercise"], line["digest"]] = Result.from_json(json.dumps(line["result"]))
    return found


def _recorded() -> measured.Measurement | None:
    """The grades that a GPU gave, if there are any."""
    return measured.load("exercises") if "exercises" in measured.recorded_names() else None
