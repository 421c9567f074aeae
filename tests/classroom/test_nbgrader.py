"""A class in nbgrader: what is released, that hand-ins of every kind get their grade, and what feedback pages show.

Grading itself is stubbed here: test_classroom.py runs it.
"""

import getpass
import os
import re
import shutil
import zipfile

import nbformat
import pytest

pytest.importorskip("nbgrader")

from nbgrader.api import Gradebook
from nbgrader.apps import ExportApp, NbGraderAPI, ZipCollectApp
from nbgrader.auth import Authenticator
from nbgrader.exchange import ExchangeFactory

from course_utils.classroom import nbgrader_course
from course_utils.classroom.by_hand import read_by_hand
from course_utils.classroom.class_folder import ClassroomError, read_class
from course_utils.classroom.grading import rows_of
from course_utils.classroom.results_store import GRADER_FAILED, Key, Record, ResultsStore
from course_utils.grading import release
from course_utils.grading.catalog import exercise
from course_utils.grading.exercise import Diagnosis
from course_utils.grading.result import PartResult, Result
from tests.helpers.bad_hand_ins import BAD, words_of

CHAPTER, NAME = "02_flash_attention_minimal", "online_softmax"
ID = f"{CHAPTER}/{NAME}"
POINTS = exercise(ID).points
KERNEL = """extern "C" __global__ void online_softmax(const float* S, float* P, int rows, int columns) {
    // BEGIN SOLUTION
    P[0] = the_solution(S);
    // END SOLUTION
}
"""
WRITTEN = KERNEL.replace("    // BEGIN SOLUTION\n", "").replace("    // END SOLUTION\n", "")
GRADED = {"schema_version": 3, "grade": True, "solution": False, "locked": True, "task": False, "grade_id": "grade"}
ANSWERS = {"schema_version": 3, "grade": False, "solution": True, "locked": False, "task": False}


def solution(*, points=POINTS, test="check()"):
    """A notebook as the course's solutions are built: text, answers, self-check, explanation."""
    v4 = nbformat.v4
    answers = "answers = {}\n### BEGIN SOLUTION\nanswers = {'sectors': 32}\n### END SOLUTION"
    cells = [
        v4.new_markdown_cell(
            "# The story\n[Chapter 02](../../notebooks/02.ipynb#softmax), [before](x.ipynb), [paper](https://arxiv.org/x)",
            id="story",
        ),
        v4.new_code_cell(answers, id="answers", metadata={"nbgrader": {**ANSWERS, "grade_id": "answers"}}),
        v4.new_code_cell(test, id="grade", metadata={"nbgrader": {**GRADED, "points": points}}),
        v4.new_markdown_cell("the solution explained", id="why", metadata={"tags": ["solution"]}),
    ]
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return v4.new_notebook(cells=cells, metadata=metadata)


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """Solutions, and a class folder into which they are released."""
    place = tmp_path_factory.mktemp("released")
    folder, classroom = place / "solutions" / CHAPTER, place / "class (2026+)"
    folder.mkdir(parents=True)
    classroom.mkdir()
    (folder / f"{NAME}.cu").write_text(KERNEL)
    (folder / "notes.txt").write_text("the solution in words")
    test = "check()\n### BEGIN HIDDEN TESTS\nhidden()\n### END HIDDEN TESTS"
    nbformat.write(solution(test=test), folder / f"{NAME}.ipynb")
    (classroom / "students.csv").write_text("id,first_name,last_name,email\nada,Ada,Lovelace,ada@example.org\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(release, "SOLUTIONS", place / "solutions")
        assert nbgrader_course.release(classroom, [CHAPTER]) == 0
    return place


@pytest.fixture
def solutions(released, tmp_path, monkeypatch):
    """A copy of the solutions' chapter; `classroom` is beside it."""
    shutil.copytree(released, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.setattr(release, "SOLUTIONS", tmp_path / "solutions")
    return tmp_path / "solutions" / CHAPTER


@pytest.fixture
def classroom(solutions):
    return solutions.parent.parent / "class (2026+)"


def hand_in(folder, student, **files):
    """A hand-in that starts as the released files; a file given as None is not there."""
    target = folder / "submitted" / student / CHAPTER
    shutil.copytree(folder / "release" / CHAPTER, target)
    for suffix, content in files.items():
        path = target / f"{NAME}.{suffix}"
        path.unlink()
        if content is not None:
            path.write_text(content)
    return target


@pytest.fixture
def grades(monkeypatch):
    """A stand-in for `classroom grade`: points by student; notes whose hand-in was graded."""
    points, graded = {}, []

    def grade_and_read(folder, students, exercises):
        store = ResultsStore(folder.path)
        for student, exercise_id in ((student, one) for student in students for one in exercises):
            submission = folder.hand_in(student, exercise_id)
            graded.append((student, submission))
            key = Key(submission.digest, "", store.seed(), "cpu")
            problem = next(iter(submission.problems.values()), Diagnosis("mistake <b>n</b>", "line 3", "chapter 02"))
            part = PartResult("all", "all of it", POINTS, points.get(student, 0), "wrong", diagnosis=problem)
            result = Result(exercise_id, "Online softmax", submission.digest, 1, "cpu", submission.status, (part,))
            record = Record(student, exercise_id, submission.status.replace("ok", "graded"), key, result)
            if student == "crash":
                record = Record(student, exercise_id, GRADER_FAILED, key, message="the grader failed")
            store.write(record)
        return rows_of(folder, students, exercises)

    monkeypatch.setattr(nbgrader_course, "rows_of", grade_and_read)
    return points, graded


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def scores(folder):
    with Gradebook(f"sqlite:///{folder}/gradebook.db") as gradebook:
        return {
            submission.student.id: (submission.score, submission.needs_manual_grade)
            for submission in gradebook.assignment_submissions(CHAPTER)
        }


def pages(folder):
    return {path.parts[-3]: path.read_text() for path in (folder / "feedback").glob(f"*/{CHAPTER}/{NAME}.html")}


def test_what_is_released_is_the_exercise(classroom, solutions):
    released = classroom / "release" / CHAPTER
    assert sorted(path.name for path in released.iterdir()) == [f"{NAME}.cu", f"{NAME}.ipynb"]
    assert (released / f"{NAME}.cu").read_text() == release.strip_cuda(KERNEL)
    ours = release.strip_notebook(nbformat.read(solutions / f"{NAME}.ipynb", as_version=4))
    theirs = nbformat.read(released / f"{NAME}.ipynb", as_version=4)
    for our, their in zip(ours.cells, theirs.cells, strict=True):
        source = re.sub("\n### BEGIN HIDDEN.*", "", our.source, flags=re.DOTALL)
        assert (our.id, our.cell_type, source) == (their.id, their.cell_type, their.source)
    text = "".join(path.read_text() for path in released.iterdir())
    text += "".join(path.read_text() for path in (classroom / "source" / CHAPTER).glob("*.cu"))
    assert not any(secret in text for secret in ("the_solution", "SOLUTION", "explained", "'sectors': 32", "hidden()"))


def test_the_gradebook_knows_students_points_and_due_dates(classroom):
    (classroom / "assignments.csv").write_text(f"assignment,due\n{CHAPTER},2026-11-30 18:00 +0100\n")
    assert nbgrader_course.release(classroom) == 0
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        assert [(student.id, student.last_name) for student in gradebook.students] == [("ada", "Lovelace")]
        assignment = gradebook.find_assignment(CHAPTER)
        assert (assignment.max_score, assignment.duedate.isoformat()) == (POINTS, "2026-11-30T17:00:00")


@pytest.mark.parametrize(
    "break_it, says",
    [
        (lambda folder: (folder / f"{NAME}.cu").write_text(KERNEL.replace("// END", "// end")), "END SOLUTION"),
        (
            lambda folder: nbformat.write(solution(points=POINTS + 1), folder / f"{NAME}.ipynb"),
            "tests in notebooks are not run",
        ),
    ],
    ids=["a mark that is not written right", "points that the grader does not give"],
)
def test_a_bad_solution_is_not_released(classroom, solutions, break_it, says, capfd):
    break_it(solutions)
    before = contents(classroom / "release" / CHAPTER)
    assert nbgrader_course.release(classroom, [CHAPTER]) == 1
    said = "".join(capfd.readouterr())
    assert says in said and "Traceback" not in said
    assert contents(classroom / "release" / CHAPTER) == before, "what was released before is as it was"
    shutil.rmtree(classroom / "release")
    assert nbgrader_course.release(classroom, [CHAPTER]) == 1
    assert not (classroom / "release" / CHAPTER).exists()


def test_a_chapter_that_is_not_there_is_named(classroom):
    with pytest.raises(ValueError, match="chapters: got 02_flash; takes 02_flash_attention_minimal"):
        nbgrader_course.release(classroom, ["02_flash"])


NBGRADER_ALONE = {
    # nbgrader by itself leaves these out, or stops at them; a page takes a third of a second, so the others are read
    # alone in test_bad_hand_ins.py, and all together in the exhaustive test there.
    "no_json", "too_large", "other_exercise", "browsers_name", "no_notebook", "empty_folder", "link",
    "folder_is_a_file", "half_a_pair",
}  # fmt: skip


def broken_hand_ins(folder, tmp_path):
    """Hand-ins that nbgrader by itself leaves out, or stops at: the names of the students."""
    for kind in NBGRADER_ALONE:
        place = hand_in(folder, kind, cu=WRITTEN)
        BAD[kind][0](place, NAME)
    place = folder / "submitted" / "link" / CHAPTER
    (place / "elsewhere").symlink_to(tmp_path)
    os.mkfifo(place / "a_pipe")
    (place / "timestamp.txt").write_text("yesterday")
    (folder / "submitted" / "links_chapter").mkdir()
    (folder / "submitted" / "links_chapter" / CHAPTER).symlink_to(folder / "submitted" / "no_json" / CHAPTER)
    return {*NBGRADER_ALONE, "links_chapter"}


def test_every_hand_in_gets_a_grade_and_a_page(classroom, grades, tmp_path):
    """A right one, cheated cells, and all the broken ones; with a grader that fails for one student."""
    points, graded = grades
    notebook = nbformat.read(classroom / "release" / CHAPTER / f"{NAME}.ipynb", as_version=4)
    notebook.cells[1].source = "answers = {'sectors': 7}  # <script>alert(1)</script>"
    hand_in(classroom, "ada", cu=WRITTEN, ipynb=nbformat.writes(notebook))
    cheated = nbformat.from_dict(notebook)
    cheated.cells[2].source = "100"
    cheated.cells[2].outputs = [nbformat.v4.new_output("execute_result", {"text/plain": "100"})]
    cheated.cells[2].metadata.nbgrader.points = 1000
    hand_in(classroom, "cheater", ipynb=nbformat.writes(cheated))
    del cheated.cells[2]
    cheated.cells.append(nbformat.from_dict({**cheated.cells[1], "id": "copy"}))
    hand_in(classroom, "deleted", ipynb=nbformat.writes(cheated))
    endless = nbformat.from_dict(notebook)
    endless.cells[1].source = "### BEGIN HIDDEN TESTS\nwhile True: pass"
    hand_in(classroom, "endless", ipynb=nbformat.writes(endless))
    broken = broken_hand_ins(classroom, tmp_path)
    points.update(ada=POINTS, cheater=1, deleted=2, endless=3)

    assert nbgrader_course.feedback(classroom) == 0
    marks = scores(classroom)
    assert marks == {
        "ada": (POINTS, False),
        "cheater": (1, False),
        "deleted": (2, False),
        "endless": (3, False),
        **dict.fromkeys(broken, (0, False)),
    }
    shown = pages(classroom)
    assert shown.keys() == {"ada", "cheater", "deleted", "endless"} | broken
    for student, page in shown.items():
        assert f'<p class="points">{int(marks[student][0])} of {POINTS} points</p>' in page
        assert not any(
            secret in page for secret in ("hidden()", str(tmp_path), "explained", "<b>n</b>", "of the teacher")
        )
        assert "<script>alert" not in page
        assert "the_solution(S)" not in page or student in {"ada"} | NBGRADER_ALONE
        assert ".ipynb#" not in page and 'href="x.' not in page and "Chapter 02, before, <a href=" in page
    for kind in NBGRADER_ALONE - {"browsers_name"}:  # its note is in the stored grade, which is stubbed here
        assert words_of(kind, NAME) in shown[kind]
    assert "the_solution(S)" in shown["browsers_name"]
    assert "symbolic link" in shown["links_chapter"] and "Traceback" not in "".join(shown.values())


def test_a_failed_grader_is_no_zero(classroom, grades, capfd):
    """The student has no page, the run says so without a traceback, and the others have theirs."""
    grades[0].update(ada=4)
    for student in ("ada", "crash"):
        hand_in(classroom, student)
    assert nbgrader_course.feedback(classroom) == 1
    said = "".join(capfd.readouterr())
    assert f"crash, {CHAPTER}: no page. online_softmax: grader failed: run `classroom grade`" in said
    assert "Traceback" not in said
    assert scores(classroom)["ada"] == (4, False)
    assert pages(classroom).keys() == {"ada"}


def test_feedback_needs_a_class_with_hand_ins_and_a_release(classroom, tmp_path):
    with pytest.raises(ClassroomError, match="is not the folder of a class"):
        nbgrader_course.feedback(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
    with pytest.raises(ClassroomError, match="no hand-in of a chapter"):
        nbgrader_course.feedback(classroom)
    hand_in(classroom, "ada")
    shutil.rmtree(classroom / "release")
    with pytest.raises(ClassroomError, match="run `classroom release` first"):
        nbgrader_course.feedback(classroom)


def test_nbgraders_export_leaves_our_table_alone(classroom, monkeypatch):
    monkeypatch.chdir(classroom)
    app = ExportApp()
    app.initialize([])
    app.start()
    assert (classroom / "nbgrader_export.csv").exists() and not (classroom / "grades.csv").exists()


def test_nbgraders_own_api_grades_the_same_way(classroom, grades):
    """What formgrader's buttons call, and a student's second hand-in."""
    points, _ = grades
    points.update(ada=5)
    target = hand_in(classroom, "ada", cu=WRITTEN)
    (target / "timestamp.txt").write_text("2026-11-20 10:00:00.000000 UTC")
    app = nbgrader_course._open(classroom)
    api = NbGraderAPI(app.coursedir, parent=app)
    assert api.get_submitted_students(CHAPTER) == {"ada"}
    (classroom / "assignments.csv").write_text(f"assignment,due\n{CHAPTER},2026-11-30 18:00 UTC\n")
    (classroom / "students.csv").write_text("id,first_name\nada,Augusta Ada\n")
    assert api.autograde(CHAPTER, "ada")["success"]
    with Gradebook(f"sqlite:///{classroom}/gradebook.db") as gradebook:
        assert gradebook.find_student("ada").first_name == "Augusta Ada"
        assert gradebook.find_assignment(CHAPTER).duedate.isoformat() == "2026-11-30T18:00:00"
    assert (api.get_submission(CHAPTER, "ada")["score"], api.get_submission(CHAPTER, "ada")["autograded"]) == (5, True)
    assert (classroom / "autograded" / "ada" / CHAPTER / f"{NAME}.cu").read_text() == WRITTEN

    points.update(ada=POINTS)
    (target / "timestamp.txt").write_text("2026-11-21 10:00:00.000000 UTC")
    assert api.autograde(CHAPTER, "ada", force=False)["success"]
    assert api.get_submission(CHAPTER, "ada")["score"] == POINTS
    assert api.generate_feedback(CHAPTER, "ada")["success"]
    assert api.generate_assignment(CHAPTER)["success"]
    assert "the_solution" not in (classroom / "release" / CHAPTER / f"{NAME}.cu").read_text()


@pytest.fixture
def exchange(classroom, tmp_path, monkeypatch):
    """nbgrader's application for this class, and what carries out a step through its exchange, by the step's name."""
    (tmp_path / "exchange").mkdir(mode=0o777)
    (tmp_path / "exchange").chmod(0o777)
    config = classroom / "nbgrader_config.py"
    config.write_text(config.read_text() + f"c.Exchange.root = {str(tmp_path / 'exchange')!r}\n")
    app = nbgrader_course._open(classroom)
    app.exchange = ExchangeFactory(parent=app)
    app.authenticator = Authenticator(parent=app)
    app.coursedir.assignment_id = CHAPTER

    def step(name):
        getattr(app.exchange, name)(coursedir=app.coursedir, authenticator=app.authenticator, parent=app).start()

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return app, step


def test_the_way_through_the_exchange(classroom, grades, tmp_path, exchange):
    """Release, fetch and submit as a student, collect without links, and give the page back to its author alone."""
    app, step = exchange
    for name in ("ReleaseAssignment", "FetchAssignment", "Submit"):
        step(name)
    (inbound,) = (tmp_path / "exchange" / "attention-kernels" / "inbound").iterdir()
    (tmp_path / "secret.cu").write_text("a file of the teacher's")
    (inbound / f"{NAME}.cu").unlink()
    (inbound / f"{NAME}.cu").symlink_to(tmp_path / "secret.cu")
    os.mkfifo(inbound / "a_pipe")
    step("Collect")
    ((student, submission),) = [(path.name, path / CHAPTER) for path in (classroom / "submitted").iterdir()]
    assert {path.name for path in submission.iterdir()} == {f"{NAME}.ipynb", "timestamp.txt", "submission_secret.txt"}
    assert nbgrader_course.feedback(classroom) == 0
    assert "online_softmax.cu is missing" in pages(classroom)[student]
    app.coursedir.student_id = student
    step("ReleaseFeedback")
    assert len(list((tmp_path / "exchange" / "attention-kernels" / "feedback").iterdir())) == 1


def test_a_hand_in_in_anothers_name_is_its_owners(classroom, exchange):
    app, step = exchange
    for name in ("ReleaseAssignment", "FetchAssignment"):
        step(name)
    app.coursedir.student_id = "ada"
    step("Submit")
    app.coursedir.student_id = "*"
    step("Collect")
    assert [path.name for path in (classroom / "submitted").iterdir()] == [getpass.getuser()]


def test_a_download_of_archives_is_collected(classroom, monkeypatch):
    """STUDENT.zip for each student, the files at any depth, and what else a platform puts in."""
    archives = classroom / "downloaded" / CHAPTER / "archive"
    archives.mkdir(parents=True)
    with zipfile.ZipFile(archives / "ada.zip", "w") as archive:
        archive.write(classroom / "release" / CHAPTER / f"{NAME}.ipynb", f"hand in/{CHAPTER}/{NAME}.ipynb")
        archive.writestr(f"hand in/{CHAPTER}/{NAME}.cu", WRITTEN)
        archive.writestr("hand in/.DS_Store", "")
        archive.writestr("hand in/timestamp.txt", "2020-01-01 00:00:00 UTC")
    monkeypatch.chdir(classroom)
    app = ZipCollectApp()
    app.initialize([CHAPTER])
    app.start()
    there = classroom / "submitted" / "ada" / CHAPTER
    assert sorted(path.name for path in there.iterdir()) == [f"{NAME}.cu", f"{NAME}.ipynb"]
    assert (there / f"{NAME}.cu").read_text() == WRITTEN


def test_a_bonus_does_not_exceed_the_cell(classroom, grades):
    """nbgrader refuses more points than a cell has; the course's own table has them all."""
    grades[0].update(ada=POINTS + 2)
    hand_in(classroom, "ada")
    assert nbgrader_course.feedback(classroom) == 0
    assert scores(classroom) == {"ada": (POINTS, False)}


def test_the_teachers_settings_are_kept(classroom):
    config = classroom / "nbgrader_config.py"
    config.write_text(config.read_text().replace("attention-kernels", "cs-500"))
    assert nbgrader_course.release(classroom, [CHAPTER]) == 0
    assert nbgrader_course._open(classroom).coursedir.course_id == "cs-500"


# ---- what a page says first


@pytest.fixture
def late(classroom):
    """Ada is 25 hours late, at 10 % a day, with 5 points; the pages are written."""
    (classroom / "assignments.csv").write_text(
        f"assignment;due;late_percent_per_day\n{CHAPTER};2025-11-30 18:00 UTC;10\n"
    )
    place = hand_in(classroom, "ada", cu=WRITTEN)
    (place / "timestamp.txt").write_text("2025-12-01 19:00:00 UTC")
    words = "a word_that_is_one_name and 1,234,567,890.123 at line 4: " + "no_break_within_this_name " * 3
    parts = (
        PartResult("a", "O for L = 4096", 1, 0, "wrong", diagnosis=Diagnosis("does not compile", words)),
        PartResult("b", "A part <with> a longer title than the others have", POINTS - 1, 5, "right"),
    )
    notes = ("online_softmax (1).cu was taken as it",)
    digest = read_class(classroom).hand_in("ada", ID).digest
    result = Result(ID, "Online softmax", digest, 1, "cpu", "ok", parts, notes=notes)
    store = ResultsStore(classroom)
    store.write(Record("ada", ID, "graded", Key(digest, "", store.seed(), "cpu"), result))
    assert nbgrader_course.feedback(classroom) == 0
    return classroom


def test_points_by_hand_and_late_penalties_reach_page_and_tables(late):
    words = "<p>Handed in 1 d 1 h after the due time, 2025-11-30 18:00 UTC. It costs 1 points.</p>"
    assert words in pages(late)["ada"]
    with Gradebook(f"sqlite:///{late}/gradebook.db") as gradebook:
        assert gradebook.find_submission_notebook(NAME, CHAPTER, "ada").late_submission_penalty == 1.0
        (grade,) = gradebook.find_submission_notebook(NAME, CHAPTER, "ada").grades
        grade.manual_score = 8.0
        gradebook.db.commit()
    assert nbgrader_course.feedback(late) == 0
    page = pages(late)["ada"]
    told = ["Ada Lovelace", f"6.4 of {POINTS} points", "1 d 1 h after", "It costs 1.6 points", "the grader gave 5"]
    told += ["Note: online_softmax (1).cu was taken as it", "does not compile", "The story"]
    assert [word for word in told if word not in page] == []
    places = [page.index(word) for word in (*told[:4], told[-2], told[-1])]
    assert places == sorted(places), "name, points and lateness first"
    assert page.index("<summary>The exercise</summary>") < page.index("The story"), "the specification is folded"
    (given,) = read_by_hand(read_class(late))["ada", ID]
    (row,) = rows_of(read_class(late), ["ada"], [ID])
    assert (given.points, given.hand_in) == (8, row.hand_in) and row.by_hand == given
    assert (row.points, row.points_by_grader, row.penalty) == (6.4, 5, 1.6)
    assert row.notes.endswith("points given by hand"), "and not that it was graded again"


@pytest.mark.browser
def test_a_page_can_be_read_on_a_telephone(late, browser):
    """At 390 px nothing is cut off, no name or number is broken, and columns stay apart, also as text."""
    page = browser.new_page(viewport={"width": 390, "height": 800})
    try:
        page.route(re.compile("^http"), lambda route: route.abort())
        path = late / "feedback" / "ada" / CHAPTER / f"{NAME}.html"
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        assert "The story" not in page.inner_text("main")
        assert "O for L = 4096\nwrong\n0 / 1" in page.inner_text("main")
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        broken = """(word) => {
            const text = document.querySelector('.ak-grade pre').firstChild, at = text.data.indexOf(word)
            const range = document.createRange()
            range.setStart(text, at); range.setEnd(text, at + word.length)
            return range.getClientRects().length }"""
        for word in ("word_that_is_one_name", "1,234,567,890.123", "no_break_within_this_name"):
            assert page.evaluate(broken, word) == 1, word
    finally:
        page.close()
