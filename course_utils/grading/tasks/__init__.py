"""One module per exercise: how it is graded. See course_utils/grading/exercise.py."""
