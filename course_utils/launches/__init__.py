"""Launches as data: of each chapter, the micro-kernels, the ladders of chapters 03 and 07, and the broken kernels."""

from course_utils.launches.launch import Launch

__all__ = ["Launch"]
