"""The questions, one module a chapter: `QUESTIONS` is a tuple of source functions, in the order of the chapter."""
