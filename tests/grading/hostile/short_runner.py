"""The runner with short limits for one launch and for the Python cells, so that endless loops end soon."""

from course_utils.grading import runner

runner.LAUNCH_SECONDS = 1.0
runner.PYTHON_SECONDS = 2.0
runner.main()
