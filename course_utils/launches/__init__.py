"""Launches as data: those of each chapter, of the micro-kernels, of the ladder of chapter 03, of the broken kernels."""

from course_utils.launches.launch import Launch

__all__ = ["Launch"]
