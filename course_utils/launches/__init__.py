"""Launches as data: those of the chapters, the micro-kernels, the ladder of chapter 03, and the broken kernels."""

from course_utils.launches.launch import Launch

__all__ = ["Launch"]
