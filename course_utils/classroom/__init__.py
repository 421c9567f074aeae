"""Grades a class: hand-ins and grades on disk, nbgrader, Dask, the gradebook."""
