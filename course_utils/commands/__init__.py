"""One module for each `python -m course_utils` command."""
