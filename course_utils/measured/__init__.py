"""Figures measured on a GPU, kept here as JSON with the device, the versions and the date."""

from course_utils.measured.measurement import (
    Measurement,
    Row,
    caption,
    collect,
    live_or_recorded,
    load,
    recorded_names,
    save,
    select,
    write,
)

__all__ = [
    "Measurement",
    "Row",
    "caption",
    "collect",
    "live_or_recorded",
    "load",
    "recorded_names",
    "save",
    "select",
    "write",
]
