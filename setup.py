"""Puts the course's files into the wheel, as course_utils/_course; pyproject.toml says all else.

In a clone they lie beside the package. An editable install leaves them there.
"""

import runpy
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# Run as a file and not imported: while it is built, the package is on no path.
COURSE = runpy.run_path("course_utils/course.py")
SUBMISSIONS = "tests/grading/submissions"  # what the demo of a class hands in
NOT_SHIPPED = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints", "*.my-work-*")


class BuildWithCourse(build_py):
    """Builds the package as usual, and copies the course's files into it."""

    def run(self) -> None:
        if self.editable_mode:
            return super().run()
        shutil.rmtree(self.build_lib, ignore_errors=True)  # of an earlier build
        super().run()
        target = Path(self.build_lib, "course_utils", COURSE["SOURCE_IN_WHEEL"].name)
        for name in (*COURSE["FOLDERS"], SUBMISSIONS):
            shutil.copytree(name, target / name, ignore=NOT_SHIPPED)
        for name in COURSE["FILES"]:
            shutil.copy2(name, target)


setup(cmdclass={"build_py": BuildWithCourse})
