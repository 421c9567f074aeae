"""Questions of the chapters: kinds, sources and judging. `course_utils.widgets.ask` shows them in a notebook.

To add a question, write a function in sources/<chapter>.py (the chapter's slug without its number) and put its name
into `QUESTIONS` there. Its docstring is the title. It draws its sizes from `draw`, takes every figure from a module of
the course, and returns one of the kinds of question.py; `read_again` is the exact heading of a section. Draw no sizes
whose answer the chapter prints.

Each wrong option, statement and `Mistake` says why it is wrong without giving the right one away. For a wrong number
without a `Mistake` the learner hears by which factor it is off; powers of 2, 1000 in place of 1024, and MB in place of
MiB are recognised.

The id of a question that is taken out goes into tests/progress/ids_of_november_2026.txt: learners have answered it, so
no other question may have it.

tests/questions/test_sources.py finds the question and draws it for ten seeds (`make test-all`: 50). A numeric one has a
row in `COUNTS` of test_keys.py, where its figures are counted in another way from its text; a trade-off has one in
`COSTS` of test_choices.py, with what an option costs. To see a question:

    .venv/bin/python -c "from course_utils.widgets import ask; ask('NN_slug', 'name', seed=1)"

A new kind needs a case in judging.py and sheet.py, a form in widgets/js/questions.js, a page in pages.py, and an
example in tests/questions/demo_questions.py, which tests/browser/test_questions.py answers by mouse and keyboard.
"""
