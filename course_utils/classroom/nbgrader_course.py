"""A class folder as an nbgrader course: release, autograde and feedback with nbgrader's own commands and formgrader.

nbgrader grades by running a student's notebook. We never do that: where nbgrader would run it, the grade comes from
`classroom grade` (grading.py), and the verdict is written into the output of the notebook's cell "grade". Three of
nbgrader's classes are extended for this, see `configure`.

The class folder holds students.csv, assignments.csv, source/ (what is assigned, see source.py), release/,
submitted/STUDENT/NN_slug/ (what was handed in, never changed), checked/ (copies that are safe to read), autograded/,
feedback/, results/ (see results_store.py), by_hand.csv and gradebook.db.
"""

from __future__ import annotations

import contextlib
import html
import json
import logging
import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

import nbformat
from nbconvert.exporters import HTMLExporter
from nbconvert.preprocessors import CSSHTMLHeaderPreprocessor
from nbformat.notebooknode import NotebookNode
from nbgrader import preprocessors as nb
from nbgrader.api import Comment, Grade, Gradebook, MissingEntry, SubmittedNotebook
from nbgrader.apps import api as nbgrader_api
from nbgrader.apps import autogradeapp, generateassignmentapp, generatefeedbackapp
from nbgrader.apps.baseapp import NbGrader
from nbgrader.converters import Autograde, GenerateAssignment, GenerateFeedback
from nbgrader.converters.base import NbGraderException
from nbgrader.coursedir import CourseDirectory
from nbgrader.exchange.default import ExchangeCollect
from nbgrader.preprocessors.base import NbGraderPreprocessor
from nbgrader.utils import find_owner, is_grade, is_solution
from sqlalchemy.exc import SAWarning
from traitlets.config import Config

from course_utils.classroom.by_hand import RESULT, append, hand_in_code, in_formgrader
from course_utils.classroom.class_folder import ClassFolder, ClassroomError, Student, chapters, read_class, writing
from course_utils.classroom.gradebook import NOT_GRADED, UNKNOWN, Row
from course_utils.classroom.grading import rows_of
from course_utils.classroom.results_store import GRADER_FAILED
from course_utils.classroom.source import has_source, write_source
from course_utils.grading.catalog import all_ids, exercise
from course_utils.grading.result import Result
from course_utils.grading.submission import Submission

CONFIG_FILE = "nbgrader_config.py"
CONFIG_TEXT = '''\
"""nbgrader's settings of this class. Settings of your own go below."""

from pathlib import Path

from course_utils.classroom.nbgrader_course import configure

c = get_config()  # noqa: F821
configure(c, Path(__file__).parent)

c.CourseDirectory.course_id = "attention-kernels"
'''
NO_RESPONSE = "No response."  # nbgrader's own comment on a cell that is as it was handed out
CHECKED = "checked"
SECRET = "submission_secret.txt"
TEMPLATES = Path(__file__).parent / "templates"
STYLE = (
    "<style>.ak-grade td, .ak-grade th { text-align: left; vertical-align: top; padding: 4px 12px 4px 0; }"
    " .ak-grade pre, .ak-kernel { white-space: pre-wrap; font-size: 12px; word-break: normal; overflow-wrap: normal; }"
    " .ak-grade td:nth-child(2), .ak-grade td:nth-child(3) { white-space: nowrap; }"
    " summary { display: list-item; cursor: pointer; }"
    " .ak-right td:nth-child(2) { color: #1a7f37; } .ak-wrong td:nth-child(2) { color: #b3261e; }</style>"
)


def configure(c: Config, folder: Path) -> None:
    """nbgrader's settings for the class in `folder`; the folder's nbgrader_config.py calls it.

    nbgrader has no setting for the class of a converter, and its hooks come too late: it has by then left out
    submissions without a notebook and stumbled over broken ones. So the two places that name the classes (the command
    line and formgrader's buttons) get ours.
    """
    for module in (autogradeapp, nbgrader_api):
        module.Autograde = CourseAutograde
    for module in (generateassignmentapp, nbgrader_api):
        module.GenerateAssignment = CourseGenerateAssignment
    for module in (generatefeedbackapp, nbgrader_api):
        module.GenerateFeedback = CourseFeedback

    # nbgrader starts `alembic` by its bare name to make the gradebook, also where .venv was not activated.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"

    # nbgrader's own queries, under SQLAlchemy 2.1; three warnings for each hand-in would bury what matters.
    warnings.filterwarnings("ignore", category=SAWarning, module="nbgrader")

    c.CourseDirectory.root = str(folder.resolve())
    # nbgrader's list without InstantiateTests, which starts a kernel to write tests (we have none of its kind), and
    # without ClearSolutions: there is no solution in source/.
    c.GenerateAssignment.preprocessors = _named(
        nb.IncludeHeaderFooter,
        nb.LockCells,
        nb.ClearOutput,
        nb.CheckCellMetadata,
        nb.ComputeChecksums,
        nb.SaveCells,
        nb.ClearHiddenTests,
        nb.ClearMarkScheme,
        nb.ComputeChecksums,
        nb.CheckCellMetadata,
    )
    # WriteVerdict stands for Execute. IgnorePattern and ClearMetadataPreprocessor treat what Execute leaves behind.
    c.Autograde.autograde_preprocessors = _named(
        WriteVerdict, nb.LimitOutput, nb.SaveAutoGrades, LatePenalty, nb.CheckCellMetadata
    )
    # A link in a hand-in must not be followed with the teacher's rights.
    c.ExchangeFactory.collect = _named(CourseCollect)[0]
    # zip_collect: one archive per student, STUDENT.zip, with the files of a chapter at any depth.
    c.FileNameCollectorPlugin.valid_ext = [".cu", ".ipynb", ".txt", ".json"]  # as some browsers name them
    # No other .txt: a timestamp.txt of the student's own is no time of hand-in.
    c.FileNameCollectorPlugin.named_regexp = (
        r".*/extracted/(?P<student_id>[^/]+)/(?:.*/)?(?P<file_id>[^/]+\.(?:cu|ipynb)(?:\.(?:txt|json))?)$"
    )
    c.GenerateFeedback.preprocessors = _named(nb.GetGrades, PlainLinks, PageHead, CSSHTMLHeaderPreprocessor)
    # nbgrader's own name would be grades.csv, that of the table of `classroom grade`.
    c.ExportPlugin.to = "nbgrader_export.csv"


def _named(*classes: type) -> list[str]:
    """The classes' names: formgrader shows the settings as JSON, which takes no classes."""
    return [f"{cls.__module__}.{cls.__name__}" for cls in classes]


class CourseGenerateAssignment(GenerateAssignment):
    """nbgrader's command for the exercises assigned now, also if students have handed in others of the chapter.

    If a release fails, what was released before is put back.
    """

    def start(self) -> None:
        """Raises NbGraderException, ValueError or ClassroomError, and leaves release/ as it was."""
        classroom, chapter = read_class(self.coursedir.root), self.coursedir.assignment_id
        write_source(classroom, chapter)
        names = {path.stem for path in (classroom.path / "source" / chapter).glob("*.ipynb")}
        released = classroom.path / "release" / chapter
        with tempfile.TemporaryDirectory() as place:
            if released.exists():
                shutil.copytree(released, Path(place, chapter))
            try:
                _fit_gradebook(self.coursedir, classroom, chapter, names)
                super().start()
            except BaseException:
                shutil.rmtree(released, ignore_errors=True)
                if Path(place, chapter).exists():
                    shutil.copytree(Path(place, chapter), released)
                raise


def _fit_gradebook(coursedir: CourseDirectory, classroom: ClassFolder, chapter: str, names: set[str]) -> None:
    """Sets the notebooks of a chapter in the gradebook: nbgrader refuses to add or remove one once there are hand-ins.

    If an exercise is no longer assigned, its points given in formgrader move to by_hand.csv.
    """
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        assignment = gradebook.update_or_create_assignment(chapter)
        if not assignment.submissions:
            return
        complete = {one.name for one in assignment.notebooks if one.grade_cells}  # else a release of it has failed
        gone = {f"{chapter}/{name}" for name in complete - names}
        append(classroom.path, [one for one in in_formgrader(classroom.path) if one.exercise in gone])
        for name in {one.name for one in assignment.notebooks} - (complete & names):
            gradebook.remove_notebook(name, chapter)
        for name in names - complete:
            gradebook.add_notebook(name, chapter)


def _take_back(coursedir: CourseDirectory, classroom: ClassFolder, chapter: str) -> None:
    """Removes a chapter whose exercises are no longer assigned: what was released, its pages, and its rows in
    nbgrader's tables. Hand-ins and stored grades stay, and points given in formgrader move to by_hand.csv.
    """
    append(classroom.path, [one for one in in_formgrader(classroom.path) if one.exercise.split("/")[0] == chapter])
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook, contextlib.suppress(MissingEntry):
        gradebook.remove_assignment(chapter)
    places = ("source", "release", *(f"{name}/*" for name in (CHECKED, "autograded", "feedback")))
    for path in [path for place in places for path in classroom.path.glob(f"{place}/{chapter}")]:
        if not path.parent.is_symlink():  # source/, as the course before 1.0 made it
            shutil.rmtree(path)
    print(f"{classroom.path / 'release' / chapter}: removed, it is not assigned any more")


class CourseCollect(ExchangeCollect):
    """nbgrader's command, with each hand-in under the name of the account that owns it, and without links and special
    files: nbgrader would copy a link's target, and stop at a pipe."""

    def _path_to_record(self, path: str) -> dict:
        """nbgrader takes the student from the folder's name, which a student can choose, and only warns: a hand-in in
        another student's name would replace that student's own."""
        record = super()._path_to_record(path)
        with contextlib.suppress(KeyError):  # the account is gone: nbgrader's warning says so
            owner = find_owner(path)
            if self.check_owner and owner != record["username"]:
                self.log.warning("%s is collected as %s's, who owns it", path, owner)
                record["username"] = owner
        return record

    def do_copy(self, src: str, dest: str, log: logging.Logger | None = None) -> None:
        if self.get_size(src) > 1000 * self.coursedir.max_dir_size:
            raise RuntimeError(f"{src} has more than {self.coursedir.max_dir_size:,} kB")
        with tempfile.TemporaryDirectory() as place:
            copy = os.path.join(place, "hand-in")
            shutil.copytree(src, copy, ignore=self._no_file)
            super().do_copy(copy, dest, log)

    def _no_file(self, folder: str, names: list[str]) -> list[str]:
        paths = [Path(folder, name) for name in names]
        left_out = [path for path in paths if path.is_symlink() or not (path.is_file() or path.is_dir())]
        for path in left_out:
            self.log.warning("%s is not collected: it is a link or no file", path)
        return [path.name for path in left_out]


class _RowsInResources:
    """Gives the preprocessors what the class's tables say of the exercise, as resources["nbgrader"]["row"]."""

    def read_rows(self, folder: ClassFolder) -> None:
        """Reads the rows of the students and chapters that the converter was asked for."""
        wanted = self.coursedir.student_id, self.coursedir.assignment_id
        students = [student.id for student in folder.students if fnmatchcase(student.id, wanted[0])]
        exercises = [one for one in all_ids() if fnmatchcase(one.split("/")[0], wanted[1])]
        self.rows = {(row.student.id, row.exercise): row for row in rows_of(folder, students, exercises)}

    def init_single_notebook_resources(self, notebook_filename: str) -> dict:
        resources = super().init_single_notebook_resources(notebook_filename)
        place = resources["nbgrader"]
        place["class_folder"] = self.coursedir.root
        place["row"] = self.rows[place["student"], f"{place['assignment']}/{place['notebook']}"]
        return resources


class CourseAutograde(_RowsInResources, Autograde):
    """nbgrader's command on copies in checked/ instead of the hand-ins, with the grades of `classroom grade`.

    A copy is the released notebook with the student's answers put in, and the student's kernel. So edited, deleted or
    doubled cells, bad JSON, links and missing files do not reach nbgrader.
    """

    @property
    def _input_directory(self) -> str:
        return CHECKED if self._sanitizing else self.coursedir.autograded_directory

    def start(self) -> None:
        """Raises NbGraderException, which names who has no grade, after the others have theirs."""
        folder = read_class(self.coursedir.root)
        self.read_rows(folder)
        known = {student.id: student for student in folder.students}
        pattern = f"{self.coursedir.student_id}/{self.coursedir.assignment_id}"
        found = [place for place in folder.hand_ins() if fnmatchcase("/".join(place), pattern)]
        students = [known[student] for student in dict.fromkeys(student for student, _ in found)]
        _register(self.coursedir, folder, students, sorted({chapter for _, chapter in found}))
        self._keep_points_of_earlier_hand_ins(folder)
        # Autograde puts the teacher's files over the student's, except for these.
        self.exclude_overwriting = {
            chapter: [f"{one.split('/')[1]}.cu" for one in all_ids() if one.split("/")[0] == chapter]
            for _, chapter in found
        }
        problems = []
        for student, chapter in found:
            rows = [self.rows[student, one] for one in released_exercises(folder, chapter)]
            if not rows:
                raise ClassroomError(f"{chapter} is not in {folder.path / 'release'}: run `classroom release` first")
            ungraded = [row for row in rows if row.status in (NOT_GRADED, GRADER_FAILED)]
            try:
                if ungraded:
                    names = ", ".join(row.exercise.split("/")[1] for row in ungraded)
                    raise ValueError(f"{names}: {ungraded[0].status}: run `classroom grade`")
                check_submission(folder, student, chapter)
            except (OSError, ValueError) as error:
                problems.append(f"{student}, {chapter}: no page. {error}")
                shutil.rmtree(folder.path / CHECKED / student / chapter, ignore_errors=True)
        if len(problems) < len(found) or not found:
            super().start()
        if problems:
            raise NbGraderException("\n".join(problems))

    def _keep_points_of_earlier_hand_ins(self, folder: ClassFolder) -> None:
        """Moves points given in formgrader for what has been replaced since to by_hand.csv."""
        moved = []
        for given in in_formgrader(folder.path):
            row = self.rows.get((given.student, given.exercise))
            if row is not None and row.record is not None and not given.counts_for(hand_in_code(row.record.key.digest)):
                moved.append(given)
        append(folder.path, moved)
        with Gradebook(self.coursedir.db_url, self.coursedir.course_id) as gradebook:
            for given in moved:
                chapter, name = given.exercise.split("/")
                for grade in gradebook.find_submission_notebook(name, chapter, given.student).grades:
                    grade.manual_score, grade.extra_credit = None, None
            gradebook.db.commit()


def released_exercises(folder: ClassFolder, chapter: str) -> list[str]:
    """The chapter's exercises that are assigned and in release/."""
    return [one for one in folder.assigned(chapter) if (folder.path / "release" / f"{one}.ipynb").exists()]


def check_submission(folder: ClassFolder, student: str, chapter: str) -> None:
    """Write checked/STUDENT/NN_slug/ from what the student handed in."""
    frames = [folder.path / "release" / f"{one}.ipynb" for one in released_exercises(folder, chapter)]
    target = folder.path / CHECKED / student / chapter
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    for frame in frames:
        submission = folder.hand_in(student, f"{chapter}/{frame.stem}")
        # A student's cell may hold half a surrogate pair, which is no text: JSON escapes it, and "?" takes its place.
        text = nbformat.writes(_fill(nbformat.read(frame, as_version=4), submission))
        (target / frame.name).write_bytes(text.encode("utf-8", "replace"))
        if submission.kernel is not None:
            (target / f"{frame.stem}.cu").write_text(submission.kernel, encoding="utf-8")
    with contextlib.suppress(ValueError):  # an unreadable time: the class's table of grades says so
        submitted_at = folder.submitted_at(student, chapter)
        if submitted_at is not None:
            (target / "timestamp.txt").write_text(f"{submitted_at:%Y-%m-%d %H:%M:%S.%f} UTC")
    with contextlib.suppress(ValueError):
        secret = folder.small_file(student, chapter, SECRET)  # by which its author alone can fetch the feedback
        if secret is not None:
            (target / SECRET).write_bytes(secret)


def _fill(frame: NotebookNode, submission: Submission) -> NotebookNode:
    """The released notebook with the student's cells."""
    for cell in frame.cells:
        if is_solution(cell):
            cell.source = submission.cells.get(cell.metadata.nbgrader.grade_id, cell.source)
    return frame


class WriteVerdict(NbGraderPreprocessor):
    """In place of running a notebook: writes the verdict of the stored grade as cell outputs."""

    def preprocess(self, notebook: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        row: Row = resources["nbgrader"]["row"]
        kernel = Path(resources["nbgrader"]["class_folder"], CHECKED, row.student.id, f"{row.exercise}.cu")
        for cell in notebook.cells:
            if is_grade(cell):
                cell.outputs = _outputs(row.record.result, kernel) if row.record is not None else [_points(0)]
        return notebook, resources


class LatePenalty(NbGraderPreprocessor):
    """Takes off what assignments.csv says that late work costs; and points by hand, which are for this hand-in, need no
    review.
    """

    def preprocess(self, notebook: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        place, row = resources["nbgrader"], resources["nbgrader"]["row"]
        late = row.late_seconds if row.is_late else 0
        with Gradebook(place["db_url"]) as gradebook:
            mine = gradebook.find_submission_notebook(place["notebook"], place["assignment"], place["student"])
            mine.late_submission_penalty = row.late_rule.penalty(mine.score, late) if row.late_rule else None
            for grade in mine.grades:
                grade.needs_manual_grade = False
            gradebook.db.commit()
        return notebook, resources


def _outputs(result: Result, kernel: Path) -> list[NotebookNode]:
    """What nbgrader reads points from (a number as the cell's result, at most its points), after what people read."""
    page = STYLE + result.to_html() + _listing(kernel)
    shown = nbformat.v4.new_output(
        "display_data",
        {"text/html": page, "text/plain": str(result)},
        metadata={RESULT: json.loads(result.to_json())},
    )
    return [shown, _points(min(result.earned, result.points))]


def _points(points: int) -> NotebookNode:
    return nbformat.v4.new_output("execute_result", {"text/plain": str(points)}, execution_count=1)


def _listing(kernel: Path) -> str:
    """The kernel with line numbers, folded."""
    if not kernel.exists():
        return ""
    lines = kernel.read_text(encoding="utf-8").split("\n")
    numbered = html.escape("\n".join(f"{at:4}  {line}" for at, line in enumerate(lines, 1)))
    return f'<details><summary>{kernel.name}, as handed in</summary><pre class="ak-kernel">{numbered}</pre></details>'


class PageExporter(HTMLExporter):
    """Makes a page from templates/course_feedback/, also where nbgrader names its own template."""


class CourseFeedback(_RowsInResources, GenerateFeedback):
    """nbgrader's command with the course's page, whose head shows the student and whether the hand-in was late."""

    def __init__(self, coursedir: CourseDirectory | None = None, **settings: object) -> None:
        super().__init__(coursedir=coursedir, **settings)
        template = {"template_name": "course_feedback", "extra_template_basedirs": [str(TEMPLATES)]}
        self.update_config(Config({"PageExporter": template}))
        self.exporter_class = PageExporter

    def start(self) -> None:
        self.read_rows(read_class(self.coursedir.root))
        super().start()


class PageHead(NbGraderPreprocessor):
    """Puts together what templates/course_feedback/ shows: the head of the page, the verdict, and what is folded."""

    def preprocess(self, notebook: NotebookNode, resources: dict) -> tuple[NotebookNode, dict]:
        row: Row = resources["nbgrader"]["row"]
        task = exercise(row.exercise)
        comments = [cell.metadata.nbgrader.get("comment") for cell in notebook.cells if is_solution(cell)]
        comments += [row.by_hand.comment] if row.by_hand is not None else []
        kernel = Path(resources["nbgrader"]["class_folder"], CHECKED, row.student.id, f"{row.exercise}.cu")
        resources["course"] = {
            "title": task.title,
            "name": row.student.name,
            "id": row.exercise,
            "points": row.points,
            "most": task.points,
            "remarks": _remarks(row),
            "comments": [comment for comment in comments if comment and comment != NO_RESPONSE],
            "verdict": "".join(_verdict(cell) for cell in notebook.cells if is_grade(cell)),
            "kernel": _listing(kernel),
            "answers": [cell for cell in notebook.cells if is_solution(cell)],
            "text": [cell for cell in notebook.cells if cell.cell_type == "markdown" and not _about_the_check(cell)],
        }
        return notebook, resources


def _verdict(cell: NotebookNode) -> str:
    """The table that WriteVerdict left in the cell's output; of an older course, the whole output."""
    shown = [output for output in cell.outputs if output.output_type == "display_data"]
    return "".join(
        Result.from_json(json.dumps(output.metadata[RESULT])).table_html()
        if RESULT in output.metadata
        else output.data.get("text/html", "")
        for output in shown
    )


def _about_the_check(cell: NotebookNode) -> bool:
    """Whether the cell is about the self-check or has hints, which a page with the grade leaves out."""
    return cell.source.startswith(("## Check", "## Hints"))


def _remarks(row: Row) -> list[str]:
    """What stands below the points: lateness, what the teacher changed, how the files were read."""
    remarks = []
    missing = row.record is not None and row.record.status == "missing"
    if missing:
        remarks.append(
            "Nothing was handed in for this exercise." if not row.is_open else f"Due {row.due:%Y-%m-%d %H:%M} UTC."
        )
    elif row.is_late:
        words = f"Handed in {_span(int(row.late_seconds))} after the due time, {row.due:%Y-%m-%d %H:%M} UTC."
        remarks.append(words + f" It costs {row.penalty} points." * bool(row.penalty))
    elif row.late_seconds == UNKNOWN:
        remarks.append(f"Due {row.due:%Y-%m-%d %H:%M} UTC; the time of this hand-in is not known.")
    elif row.due is not None:
        remarks.append(f"Handed in in time (due {row.due:%Y-%m-%d %H:%M} UTC).")
    if row.by_hand is not None and row.points_by_grader is not None:
        remarks.append(f"Your teacher changed the points; the grader gave {row.points_by_grader}.")
    notes = row.record.result.notes if row.record is not None and row.record.result is not None else ()
    return [*remarks, *(f"Note: {note}." for note in notes)]


def _span(seconds: int) -> str:
    """A time in its two largest units: "1 d 2 h"."""
    counts = {"d": seconds // 86_400, "h": seconds // 3600 % 24, "min": seconds // 60 % 60, "s": seconds % 60}
    units = [unit for unit, count in counts.items() if count]
    first = list(counts).index(units[0]) if units else 3
    return " ".join(f"{counts[unit]} {unit}" for unit in list(counts)[first : first + 2] if counts[unit]) or "0 s"


class PlainLinks(NbGraderPreprocessor):
    """Makes links to other notebooks and kernels plain text: they lead nowhere from the folder of a feedback page."""

    def preprocess_cell(self, cell: NotebookNode, resources: dict, cell_index: int) -> tuple[NotebookNode, dict]:
        if cell.cell_type == "markdown":
            cell.source = re.sub(
                r"(?<!!)\[([^\[\]]+)\]\((?!\w+:)[^()\s]+\.(?:ipynb|cu)(?:#[^()\s]*)?\)", r"\1", cell.source
            )
        return cell, resources


def _open(folder: Path) -> NbGrader:
    """nbgrader with the settings of the class folder, which is made if it is not there. Raises ClassroomError."""
    with writing(folder):
        (folder / "submitted").mkdir(parents=True, exist_ok=True)
        for name, text in ((CONFIG_FILE, CONFIG_TEXT), ("students.csv", "id,first_name,last_name,email\n")):
            if not (folder / name).exists():
                (folder / name).write_text(text)
    app = NbGrader(log_level=logging.ERROR)
    app.load_cwd_config = False  # another class may live where we were called
    app.initialize([], root=str(folder.resolve()))
    return app


def _register(
    coursedir: CourseDirectory, folder: ClassFolder, students: Iterable[Student], wanted: Iterable[str]
) -> None:
    """Put students' names, the due dates of chapters, and exercises that came after a hand-in into the gradebook."""
    with Gradebook(coursedir.db_url, coursedir.course_id) as gradebook:
        for student in students:
            names = {"first_name": student.first_name, "last_name": student.last_name, "email": student.email}
            gradebook.update_or_create_student(student.id, **names)
        for chapter in wanted:
            assignment = gradebook.update_or_create_assignment(chapter, duedate=folder.due_of_chapter(chapter))
            for submission in assignment.submissions:
                there_are = {mine.name for mine in submission.notebooks}
                for notebook in [one for one in assignment.notebooks if one.name not in there_are]:
                    mine = SubmittedNotebook(notebook_id=notebook.id, assignment_id=submission.id)
                    mine.grades = [Grade(cell_id=cell.id) for cell in notebook.grade_cells]
                    mine.comments = [Comment(cell_id=cell.id) for cell in notebook.solution_cells]
                    gradebook.db.add(mine)
        gradebook.db.commit()


def _wanted(asked: Sequence[str] | None, there_are: list[str]) -> list[str]:
    unknown = [chapter for chapter in asked or () if chapter not in there_are]
    if unknown:
        raise ValueError(f"chapters: got {', '.join(unknown)}; takes {', '.join(there_are)}")
    return list(asked or there_are)


def release(folder: Path, asked: Sequence[str] | None = None) -> int:
    """Make or renew the class folder, and release chapters. None: all that are assigned, and the others are taken back.
    Returns the exit status.
    """
    app = _open(folder)
    classroom = read_class(folder)
    assigned = [one for one in chapters() if any(map(has_source, classroom.assigned(one)))]
    wanted = _wanted(asked, assigned)
    for chapter in () if asked else chapters():
        if chapter not in assigned and (folder / "release" / chapter).exists():
            _take_back(app.coursedir, classroom, chapter)
    _register(app.coursedir, classroom, classroom.students, wanted)
    for chapter in wanted:
        app.coursedir.assignment_id = chapter
        converter = CourseGenerateAssignment(coursedir=app.coursedir, parent=app)
        converter.force = True
        try:
            converter.start()
        except (NbGraderException, ValueError) as error:
            print(f"{chapter}: not released, what was released before is as it was. {error}")
            return 1
        notebooks = sorted(path.stem for path in (folder / "release" / chapter).glob("*.ipynb"))
        print(f"{folder / 'release' / chapter}: {', '.join(notebooks)}")
    return 0


def feedback(folder: Path, asked: Sequence[str] | None = None) -> int:
    """Bring the grades into gradebook.db and write feedback/STUDENT/NN_slug/*.html. Returns the exit status: 1 if a
    hand-in has no page.

    Raises ClassroomError for a folder that is no class, has no hand-ins or nothing released.
    """
    classroom = read_class(folder)
    handed_in = {chapter for _, chapter in classroom.hand_ins()}
    if not handed_in:
        raise ClassroomError(f"no feedback to write in {folder}: no hand-in of a chapter")
    released = [one for one in chapters() if released_exercises(classroom, one)]
    if not released:
        raise ClassroomError(f"there is no {folder / 'release'}/NN_slug/*.ipynb: run `classroom release` first")
    wanted = _wanted(asked, released)
    app = _open(folder)
    _register(app.coursedir, classroom, classroom.students, wanted)
    _remove_pages_of_others(classroom)
    status = 0
    for exercise_id in classroom.released:
        chapter = exercise_id.split("/")[0]
        if chapter in (asked or handed_in) and exercise_id not in released_exercises(classroom, chapter):
            print(f"{exercise_id}: no feedback: it is not in {folder / 'release'}; run `classroom release {chapter}`")
            status = 1
    for chapter in wanted:
        if chapter not in handed_in:
            continue
        app.coursedir.assignment_id = chapter
        for kind in (CourseAutograde, CourseFeedback):
            converter = kind(coursedir=app.coursedir, parent=app)
            converter.force = True
            try:
                converter.start()
            except NbGraderException as error:
                print(f"{chapter}: {error}")
                status = 1
        pages = len(list((folder / "feedback").glob(f"*/{chapter}/*.html")))
        print(f"{folder / 'feedback'}/*/{chapter}: {pages} pages")
    return status


def _remove_pages_of_others(classroom: ClassFolder) -> None:
    """Removes the pages, and what they are made from, of students who are no longer in the class."""
    known = {student.id for student in classroom.students}
    for folder in (classroom.path / name for name in (CHECKED, "autograded", "feedback")):
        for path in folder.iterdir() if folder.is_dir() else ():
            if path.is_dir() and path.name not in known:
                shutil.rmtree(path)
                print(f"removed {path}: not in the class any more")
