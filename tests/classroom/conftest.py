"""A stand-in for the grader that does what the text of the "kernel" says, and a Dask worker that uses it."""

import functools
import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from course_utils.classroom import grading as class_grading
from course_utils.classroom.grading import Summary, grade_class
from course_utils.grading.release import ROOT
from tests.helpers.class_folder import AFTERWARDS, METHOD, NAME

STAND_IN = '''
"""Does what the text of the kernel says, and notes in the file LOG that it was asked."""
import os, signal, time
from pathlib import Path
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.result import PartResult, Result

def grade(submission, seed, device, isolation):
    words = (submission.kernel or "").split()
    with open(os.environ["STAND_IN_LOG"], "a") as log:
        log.write(" ".join(words[:1]) + "\\n")
    if words[:1] == ["raise"]:
        raise RuntimeError("a bug in the grader")
    if words[:1] == ["die"]:
        os.kill(os.getpid(), signal.SIGKILL)
    if words[:1] == ["wait"] and not Path(words[1]).exists():  # the first time, until it may go on
        Path(words[1]).write_text(str(os.getpid()))
        while not Path(words[1] + ".go").exists():
            time.sleep(0.05)
    said = Diagnosis(" ".join(words) or "no kernel", "".join(submission.cells.values()))
    right = words[:1] in (["right"], ["wait"])
    parts = (
        PartResult("values", "Values", 4, 4 if right else 0, "right" if right else "wrong",
                   diagnosis=None if right else said),
        PartResult("seed", f"seed {seed}", 1, seed % 2 if right else 0, "right"),
    )
    return Result(submission.exercise, "T", submission.digest, seed, device, submission.status, parts).to_json()
'''


@pytest.fixture(scope="package", autouse=True)
def asked_and_compiled_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For each new gradebook nbgrader starts alembic to ask for its own newest version, and for each page nbconvert
    compiles its templates: the same each time."""
    if not importlib.util.find_spec("nbgrader"):
        yield
        return
    import nbgrader.api
    from jinja2 import Environment, FileSystemBytecodeCache
    from nbconvert.exporters import templateexporter

    compiled = FileSystemBytecodeCache(str(tmp_path_factory.mktemp("templates")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(templateexporter, "Environment", functools.partial(Environment, bytecode_cache=compiled))
        patch.setattr(nbgrader.api, "get_alembic_version", functools.cache(nbgrader.api.get_alembic_version))
        yield


@pytest.fixture(scope="package")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """A module that workers can import too, and a folder for exercises of a teacher's own that they read."""
    folder = tmp_path_factory.mktemp("stand_in")
    os.environ["COURSE_OWN_EXERCISES"] = str(folder / "own")
    (folder / "classroom_stand_in.py").write_text(STAND_IN)
    os.environ["STAND_IN_LOG"] = str(folder / "log")
    (folder / "log").touch()
    sys.path.insert(0, str(folder))
    import classroom_stand_in

    yield classroom_stand_in
    sys.path.remove(str(folder))
    del os.environ["STAND_IN_LOG"], os.environ["COURSE_OWN_EXERCISES"]


@pytest.fixture(scope="package")
def scheduler(stand_in: object) -> Iterator[str]:
    """One worker, for all tests. It is used through its address, as other machines are.

    It and those that follow when it dies are forks of a process that has Dask and PyTorch already: to load them takes
    seconds. test_a_real_class starts a worker as a class does.
    """
    import dask
    from distributed.utils import get_mp_context

    with pytest.MonkeyPatch.context() as patch, dask.config.set({METHOD: "forkserver"}):
        get_mp_context().set_forkserver_preload(["distributed", f"course_utils.grading.tasks.{NAME}"])
        patch.setattr(class_grading, "DEATHS", 2)
        with class_grading._cluster(1, None) as client:
            yield client.scheduler.address


@pytest.fixture
def graded(stand_in: object, scheduler: str) -> Callable[..., Summary]:
    def run(folder: Path, **options: object) -> Summary:
        if "workers" not in options:
            options["scheduler"] = scheduler
        options.setdefault("now", AFTERWARDS)
        return grade_class(folder, isolation="limits", grade=stand_in.grade, **options)

    return run


@pytest.fixture
def own_exercise(stand_in: object) -> Iterator[str]:
    """The example of docs/own_exercises/ in a teacher's folder; its id."""
    folder = Path(os.environ["COURSE_OWN_EXERCISES"])
    shutil.copytree(ROOT / "docs" / "own_exercises", folder)
    yield "01_attention_basics/scale_rows"
    shutil.rmtree(folder)
