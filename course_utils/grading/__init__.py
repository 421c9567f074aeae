"""Grades one submission of an exercise (`grader.grade_submission`).

A submission's way:

1. `course_utils.widgets.check` in a notebook, or `python -m course_utils grade`, asks for a grade and shows it.
2. submission.py reads what was handed in.
3. grader.py makes the cases: inputs, and right answers, which never leave this process.
4. children.py hands them to a child process, and reads what that sends back.
5. sandbox/ starts the child, and limits what it sees and takes.
6. runner.py, there, compiles the kernel and launches it.
7. diagnosis.py, here again, says what is wrong: the sanitizer's finding, a known mistake (mistakes.py), or where.
8. grader.py gives the points, as a `Result` (result.py). What is wrong with an answer's figure: answers.py.

To add an exercise:

1. `solutions/NN_slug/name.cu` and `name.ipynb` are its only source. What the student is to write lies between `// BEGIN
   SOLUTION` and `// END SOLUTION`, in Python cells between `### BEGIN SOLUTION` and `### END SOLUTION`, each mark on a
   line of its own. In the exercise one line, `// YOUR CODE HERE`, takes its place; nothing else differs, and the rest
   must compile and earn nothing. A Markdown cell tagged `solution`, the explanation at the end, is left out of the
   exercise. The notebook has a story with time and points, the specification with a table of what earns points, a
   picture or a worked example, the cell `answers`, three hints, and the self-check; copy nbgrader's metadata from
   another exercise. An exercise without a kernel, such as 08.1, has no `.cu` file, and no `kernels` in its task.
2. `tasks/name.py` says how it is graded: `EXERCISE = Exercise(...)`, as exercise.py describes; its id goes into
   `EXERCISE_IDS` of catalog.py. Inputs are small (an exercise takes about 3 s) and adversarial: ragged and tiny
   lengths, planted keys, large logits. A `Question` takes its right figure from `course_utils.costs`. Difficulty and
   importance, from 1 to 5, stand in the notebook's head and the README, too.
3. A known mistake is a hook in `name_mistakes.cuh`, the solution with hooks, and a row of `name_mistakes.toml`
   (mistakes.py). Neither is released.
4. `tests/grading/submissions/NN_slug/name.toml` has at least one right kernel that is written differently, and eight
   wrong ones with the diagnosis that each must get; examples.py describes the format. `gate = true` marks those that
   `make test` grades, on the first case of each part: the right one that differs most, and two or more whose mistakes
   are recognised in different ways. `make test-all` grades all of them on all cases.
5. `make exercises` writes exercises/, and counts what the solution loads (comparison.py). Then see the grades:

       .venv/bin/python -m course_utils grade --examples tests/grading/submissions/NN_slug/name.toml
       .venv/bin/python -m course_utils grade --examples tests/grading/submissions --markdown docs/grading.md

A student's code runs in a child process only (sandbox/); inputs, right answers and verdicts stay in the grader's
process.
"""
