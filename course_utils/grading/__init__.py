"""Grades one submission of an exercise (`grader.grade_submission`).

In a notebook `course_utils.widgets.check` does so and shows the grade.
"""
