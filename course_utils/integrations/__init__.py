"""The operators inside other people's models: a module for each library, named after it, which alone imports it.

`transformers.register()` gives its models the course's attention. A module here reads what its library asks for, passes
it on as arguments of `course_utils.operators`, and refuses the rest by name.
"""
