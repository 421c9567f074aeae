"""Recordings for pages that show no local variables, which take most of the room."""

from __future__ import annotations

from dataclasses import replace

from course_utils.emulator import Recording


def without_variables(recording: Recording) -> Recording:
    """The same recording without the local variables of its lanes."""
    empty = {name: values[:0] for name, values in recording.columns.items() if name.startswith("changes.")}
    return replace(recording, variables=(), columns={**recording.columns, **empty})
