"""How outcomes become points, with a child process that is made up: no kernel runs here."""

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from course_utils.emulator.sanitizer import Finding
from course_utils.grading import children, grader
from course_utils.grading.answers import wrong_answer
from course_utils.grading.children import GraderError
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part, Question
from course_utils.grading.grader import grade_submission
from course_utils.grading.job import NOT_SENT, Job
from course_utils.grading.result import Result
from course_utils.grading.sandbox.parent import Ended, Message
from course_utils.grading.submission import Submission

RIGHT = np.arange(4, dtype=np.float32).tobytes()
READY = Message({"kind": "ready"})


def made_cases(generator: torch.Generator, _: object) -> list[Case]:
    launch = Launch("k", (1,), (32,), ("out",))
    made = [
        Case(part, name, (launch,), {}, {"out": Output(torch.arange(4.0, dtype=torch.float64))})
        for part, name in (("plain", "first"), ("plain", "second"), ("ragged", "third"))
    ]
    return [*made, Case("speed", "fast", (launch,), {}, made[0].outputs, reference=(("x.cu", launch),), ratio=1.5)]


EXERCISE = Exercise(
    "02_flash_attention_minimal/online_softmax",
    "made up",
    (Part("plain", 3, "Plain"), Part("ragged", 2, "Ragged"), Part("speed", 1, "Speed", bonus=True)),
    kernels=("k",),
    cases=made_cases,
    questions=(Question("flops", 2, "How many?", 100.0, "FLOP", misconceptions=((50.0, "a multiply-add is two"),)),),
    cells=("answers",),
)
SUBMISSION = Submission(EXERCISE.id, "code", {"answers": "..."}, {}, {"x.cu": "ok", "x.ipynb": "ok"})


def answered(value: object) -> Message:
    return Message({"kind": "python", "answers": {"flops": value}, "tensors": []})


def case_frame(index: int, blob: bytes = RIGHT, **header: object) -> Message:
    return Message({"kind": "case", "index": index, **header}, blob)


@pytest.fixture
def graded(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Grades a submission with children that answer as given, one after the other."""
    monkeypatch.setattr(grader, "exercise", lambda exercise_id: EXERCISE)

    def run(
        *ends: Ended, submission: Submission = SUBMISSION, asked: list[Job] | None = None, **options: object
    ) -> Result:
        """asked: takes the jobs of the children."""
        waiting, jobs = list(ends), [] if asked is None else asked

        def run_child(job: bytes, **_: object) -> Ended:
            jobs.append(pickle.loads(job))
            return waiting.pop(0)

        monkeypatch.setattr(children, "run_child", run_child)
        return grade_submission(submission, seed=1, **options)

    return run


def finished(*messages: Message) -> Ended:
    return Ended("finished", 0, [READY, *messages])


def killed(*messages: Message) -> Ended:
    return Ended("memory limit", 137, [READY, *messages], detail="it took more than 4 GiB of memory")


ALL = [case_frame(i) for i in range(4)]


def test_what_is_odd_about_the_files_is_told(graded) -> None:
    noted = replace(SUBMISSION, notes=("x (1).cu was taken as x.cu",))
    assert graded(finished(answered(100), *ALL), submission=noted).notes == noted.notes


def test_a_child_that_cannot_be_started_is_no_grade(graded, monkeypatch) -> None:
    def refuse(job: bytes, **_: object) -> Ended:
        raise RuntimeError("bubblewrap does not run here")

    monkeypatch.setattr(children, "run_child", refuse)
    with pytest.raises(GraderError, match="bubblewrap does not run"):
        grade_submission(SUBMISSION, seed=1)


def test_full_marks(graded) -> None:
    result = graded(finished(answered(100), *ALL))
    assert (result.earned, result.points, result.full, result.diagnosis) == (7, 7, True, None)
    assert Result.from_json(result.to_json()) == result
    assert json.loads(result.to_json())["seed"] == 1


def test_a_part_needs_all_its_cases(graded) -> None:
    result = graded(finished(answered(100), case_frame(0), case_frame(1, bytes(16)), *ALL[2:]))
    assert [part.earned for part in result.parts] == [0, 2, 0, 2]
    assert result.diagnosis.name == "out is all zeros"


def test_what_is_right_but_for_a_barrier_earns_half(graded) -> None:
    """Of the points of all such parts together, rounded down."""
    racing = {"findings": [FINDING | HAZARD], "in_step": True}
    first, third = case_frame(0, bytes(16) + RIGHT, **racing), case_frame(2, bytes(16) + RIGHT, **racing)
    one = graded(finished(answered(100), first, *ALL[1:]))
    assert [part.earned for part in one.parts] == [1, 2, 0, 2]
    both = graded(finished(answered(100), first, ALL[1], third, ALL[3]))
    assert [part.earned for part in both.parts] == [1, 1, 0, 2] and not both.full
    assert {part.diagnosis.name for part in both.parts[:2]} == {"missing barrier between line 3 and line 5"}
    crashed = case_frame(0, RIGHT, error="boom", error_kind="crash", **racing)
    assert graded(finished(answered(100), crashed, *ALL[1:])).parts[0].earned == 1
    other_mistake = case_frame(1, bytes(16))
    assert graded(finished(answered(100), first, other_mistake, *ALL[2:])).parts[0].earned == 0
    still_wrong = case_frame(0, bytes(16) + bytes(16), **racing)
    assert graded(finished(answered(100), still_wrong, *ALL[1:])).parts[0].earned == 0


def test_a_result_that_depends_on_the_order_of_threads_is_wrong(graded) -> None:
    first = case_frame(0, RIGHT + bytes(16), in_reverse=True)
    result = graded(finished(answered(100), first, *ALL[1:]))
    assert [part.earned for part in result.parts] == [0, 2, 0, 2]
    assert result.diagnosis.name == "the result depends on the order in which threads run"
    assert "where the last one does: out is all zeros" in result.diagnosis.detail
    the_same = case_frame(0, RIGHT + (np.arange(4, dtype=np.float32) * (1 + 1e-7)).tobytes(), in_reverse=True)
    assert graded(finished(answered(100), the_same, *ALL[1:])).full  # the last bits of a sum by atomics


@pytest.mark.parametrize("unit", ["MB", "MiB", "bytes", "GFLOP", ""])
def test_powers_are_mixed_only_where_bytes_are_asked_for(unit: str) -> None:
    question = Question("size", 1, "How much?", 100.0, unit)
    mixed = wrong_answer(question, 104.858).name == "powers of 1,000 and of 1,024 are mixed"
    assert mixed == (unit in ("MB", "MiB", "bytes"))


@pytest.mark.parametrize(
    ("answer", "diagnosis"),
    [
        (50.0, "a multiply-add is two"),
        (99.5, None),
        (98.0, "the figure is wrong"),
        (200.0, "the answer is off by a factor of 2"),
        (25.0, "the answer is off by a factor of 4"),
        (104.858, "the figure is wrong"),
        (0.1, "the unit is another one than was asked for"),
        (1.0, "the unit is another one than was asked for"),
        (300.0, "the figure is wrong"),
        (None, "not answered yet"),
        ("'many'", "the answer is not a number"),
        (float("nan"), "the answer is not a number"),
    ],
)
def test_answers(graded, answer: object, diagnosis: str | None) -> None:
    part = graded(finished(answered(answer), *ALL)).parts[-1]
    assert (part.diagnosis and part.diagnosis.name, part.earned) == (diagnosis, 0 if diagnosis else 2)


def test_a_case_that_kills_the_child_costs_only_its_part(graded) -> None:
    first = killed(answered(100), case_frame(0), Message({"kind": "begin", "index": 1}))
    result = graded(first, finished(*ALL[2:]))
    assert [part.earned for part in result.parts] == [0, 2, 0, 2]
    assert result.diagnosis.name == "the kernel took its process down: memory limit"


def test_python_that_kills_the_child_costs_only_the_answers(graded) -> None:
    result = graded(killed(), finished(*ALL))
    assert [part.earned for part in result.parts] == [3, 2, 0, 0]
    assert "took their process down: it took more than" in result.parts[-1].diagnosis.detail


def test_a_child_that_dies_again_and_again_ends(graded) -> None:
    result = graded(*[killed(Message({"kind": "begin", "index": i})) for i in range(children.MOST_CHILDREN)])
    assert result.earned == 0 and len(result.parts) == 4


def test_a_child_that_does_not_start_is_nobodys_grade(graded) -> None:
    with pytest.raises(GraderError, match="did not start"):
        graded(Ended("died", 1, [], stderr="ModuleNotFoundError: torch"))


def test_frames_that_make_no_sense_are_wrong_answers(graded) -> None:
    odd = [
        case_frame(0, b"short"),
        case_frame(1, findings=[{"tool": "x"}]),
        case_frame(2, findings=7),
        case_frame(99),
        Message({"kind": "case", "index": "0"}),
        Message({"kind": "python", "answers": 5, "tensors": [["t", "float99", [2]]]}),
    ]
    result = graded(finished(*odd, case_frame(3)))
    assert [part.earned for part in result.parts] == [0, 0, 0, 0]


def test_a_gpu_that_is_not_there_is_said(graded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="finds no GPU"):
        graded(finished(*ALL), device="cuda")


FINDING = asdict(Finding("memcheck", "boom", "k", "k.cu", 3, "x", block=[0, 0, 0], thread=[0, 0, 0], numbers=[4]))
FINDING = {name: value for name, value in FINDING.items() if name not in NOT_SENT}
HAZARD = {"tool": "racecheck", "kind": "write after read", "space": "shared", "other_line": 5}
COUNTER = {"kernel": "k", "file": "k.cu", "line": 3, "source": "x", "space": "shared", "operation": "load"}
COUNTER |= dict.fromkeys(("requests", "sectors", "ideal_sectors", "bank_conflicts", "bytes", "wavefronts"), 1)
COUNTER |= {"ideal_wavefronts": 1}
TOUCHED = {"kernel": "k", "argument": "K", "bytes": 8, "bytes_read": 4, "bytes_written": 0, "bytes_loaded": 4}


@pytest.mark.parametrize(
    "header",
    [
        {"findings": [FINDING | {"message": 5}]},
        {"findings": [FINDING | {"line": "a"}]},
        {"findings": [FINDING | {"count": -1}]},
        {"findings": [FINDING | {"numbers": ["K"]}]},
        {"findings": [FINDING | {"is_write": 1}]},
        {"counters": [COUNTER | {"ideal_wavefronts": 0}]},
        {"counters": [COUNTER | {"bytes": 2**80}]},
        {"footprint": [TOUCHED | {"bytes_read": "all"}]},
        {"footprint": [TOUCHED | {"bytes_loaded": -1}]},
        {"seconds": 10**400},
        {"reference_seconds": 0},
    ],
)
def test_forged_results_are_wrong_and_stop_nothing(graded, header: dict[str, object]) -> None:
    seen = {"findings": [FINDING], "counters": [COUNTER], "footprint": [TOUCHED]}
    assert graded(finished(answered(100), case_frame(0, **seen), *ALL[1:])).full
    result = graded(finished(answered(10**400), case_frame(0, **header), *ALL[1:]))
    assert [part.earned for part in result.parts] == [0, 2, 0, 0]
    assert "cannot be read" in result.parts[0].diagnosis.detail


def test_text_from_the_child_is_cleaned(graded) -> None:
    error = "\ud800 \x1b[31mred, at 0x7f12345678 \u202e"
    detail = graded(finished(case_frame(0, error=error, error_kind="crash"), *ALL[1:])).parts[0].diagnosis.detail
    assert "? [31mred, at 0x… " in detail and "\x1b" not in detail and "\u202e" not in detail


def test_a_bonus_is_measured_on_a_gpu_only(graded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fast, slow = ({"seconds": s, "reference_seconds": 1.0} for s in (1.4, 1.6))
    assert graded(finished(answered(1), *ALL[:3])).parts[2].status == "not measured"
    quick = graded(finished(answered(100), *ALL[:3], case_frame(3, **fast)), device="cuda")
    assert (quick.earned, quick.points) == (8, 7)
    wrong = graded(finished(answered(100), case_frame(0, bytes(16)), *ALL[1:3], case_frame(3, **fast)), device="cuda")
    assert wrong.parts[2].earned == 0 and "once all parts are right" in wrong.parts[2].diagnosis.name
    tardy = graded(finished(answered(100), *ALL[:3], case_frame(3, **slow)), device="cuda")
    assert (tardy.earned, tardy.full, tardy.parts[2].status) == (7, True, "wrong")


def test_what_faults_on_a_gpu_have_left_out_is_lost_and_named_by_the_emulator(graded, monkeypatch) -> None:
    """Each fault ends a child, and there are only so many."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(children, "MOST_CHILDREN", 2)
    unwritten = FINDING | {"tool": "initcheck", "kind": "uninitialised", "space": "shared"}
    fault = {"error": "illegal address", "error_kind": "gpu"}
    name = "shared memory is read before it is written (line 3)"

    def on_gpu(index: int, **header: object) -> Ended:
        return replace(killed(case_frame(index, **header, **fault)), reason="died", detail="it ended with status 1")

    asked = []
    faults = on_gpu(0, findings=[unwritten]), on_gpu(1, findings=[unwritten])
    result = graded(*faults, finished(case_frame(2, findings=[unwritten])), device="cuda", asked=asked)
    assert [job.device for job in asked] == ["cuda", "cuda", "cpu"] and [run.index for run in asked[2].runs] == [2]
    assert [part.diagnosis.name for part in result.parts[:2]] == [name, name] and result.diagnosis.name == name
    right = graded(*faults, finished(ALL[2]), device="cuda")
    lost = right.parts[1]
    assert lost.earned == 0 and "not run on the GPU" in lost.diagnosis.detail and lost.diagnosis.name == name


def test_experiments_are_run_where_a_mistake_has_no_name_yet(graded, monkeypatch: pytest.MonkeyPatch) -> None:
    """They earn nothing, and lose nothing."""
    read = [replace(made_cases(torch.Generator(), {})[0], part="", explain=lambda *_: Diagnosis("it is all zeros", ""))]
    monkeypatch.setattr(grader, "exercise", lambda _: replace(EXERCISE, experiments=lambda generator: read))
    first = [answered(100), case_frame(0, bytes(16)), *ALL[1:3]]
    of_experiment = case_frame(3, bytes(16))  # after the three that run without a GPU
    result = graded(finished(*first), finished(of_experiment))
    assert [part.earned for part in result.parts] == [0, 2, 0, 2]
    assert result.diagnosis == Diagnosis("first: it is all zeros", "first: ")  # of the case that showed it
    assert graded(finished(answered(100), *ALL)).full

    given = []

    def run(job: bytes, *, more: Callable[[list[Message]], bytes | None], **_: object) -> Ended:
        """A child that asks, twice too early and then when it is done, and gets the experiment only then."""
        given.extend(more([READY, *first[:n]]) for n in (0, 2, len(first), len(first)))
        return finished(*first, of_experiment)

    monkeypatch.setattr(children, "run_child", run)
    again = grade_submission(SUBMISSION, seed=1)
    assert again == result
    assert [given[0], given[1], given[3]] == [None] * 3
    assert [run.index for run in pickle.loads(given[2])] == [3]


def test_cases_that_need_the_cells_follow_in_the_same_child(monkeypatch: pytest.MonkeyPatch) -> None:
    task = replace(EXERCISE, collect=lambda names: {})
    monkeypatch.setattr(grader, "exercise", lambda _: task)
    jobs, given = [], []

    def run(job: bytes, *, more: Callable[[list[Message]], bytes | None], **_: object) -> Ended:
        """A child that asks before it has run the cells, after them, and when it is done with the cases."""
        jobs.append(pickle.loads(job))
        first = [READY, answered(100)]
        given.extend([more([READY]), more(first), more([*first, *ALL[:2]]), more([*first, *ALL])])
        return finished(answered(100), *ALL)

    monkeypatch.setattr(children, "run_child", run)
    assert grade_submission(SUBMISSION, seed=1).full
    assert [(job.runs, job.cells) for job in jobs] == [((), (("answers", "..."),))]
    assert [given[0], *given[2:]] == [None] * 3 and [one.index for one in pickle.loads(given[1])] == [0, 1, 2]


def test_a_missing_kernel_leaves_the_answers(graded, tmp_path) -> None:
    missing = Diagnosis("online_softmax.cu is missing")
    submission = Submission(
        EXERCISE.id, None, {"answers": "..."}, {"online_softmax.cu": missing}, {"online_softmax.cu": "missing"}
    )
    result = graded(finished(answered(100)), submission=submission)
    assert result.earned == 2 and result.diagnosis.name == "online_softmax.cu is missing"


def test_the_job_holds_no_right_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grader, "exercise", lambda exercise_id: EXERCISE)
    jobs: list[Job] = []

    def run(job: bytes, **_: object) -> Ended:
        jobs.append(pickle.loads(job))
        return finished(answered(1), *ALL)

    monkeypatch.setattr(children, "run_child", run)
    grade_submission(SUBMISSION, seed=3)
    assert all(torch.isnan(run.tensors["out"]).all() for run in jobs[0].runs)
    assert jobs[0].questions == ("flops",)


@pytest.mark.parametrize("options", [{"device": "tpu"}, {"seed": -1}, {"seed": 1.5}])
def test_bad_arguments_are_named(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        grade_submission(SUBMISSION, **options)
