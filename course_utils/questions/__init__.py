"""Questions of the chapters: kinds, sources and judging. `course_utils.widgets.ask` shows them in a notebook."""
