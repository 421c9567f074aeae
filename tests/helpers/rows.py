"""Rows of a benchmark."""

from course_utils.measured import Row


def named(rows: list[Row], name: str) -> Row:
    """The first row of this name."""
    return next(row for row in rows if row["name"] == name)
