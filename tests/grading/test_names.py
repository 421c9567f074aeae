"""A mistake that students make in several exercises has one name, from `names.py`."""

from collections import defaultdict

from course_utils.grading import names
from course_utils.grading.catalog import EXERCISE_IDS, exercise

SHARED = {value: constant for constant, value in vars(names).items() if constant.isupper()}


def test_a_name_of_several_exercises_is_a_shared_one_and_each_shared_one_is_in_use():
    exercises = defaultdict(set)
    for exercise_id in EXERCISE_IDS:
        task = exercise(exercise_id)
        for diagnosis in (*(mistake.diagnosis for mistake in task.mistakes), *task.findings.values()):
            exercises[diagnosis.name].add(exercise_id)
    assert [name for name, used in exercises.items() if len(used) > 1 and name not in SHARED] == []
    assert [constant for name, constant in SHARED.items() if name not in exercises] == []
