"""NVIDIA's ncu and compute-sanitizer beside the emulator."""

from course_utils.nvidia.comparison import emulated_findings, side_by_side
from course_utils.nvidia.figures import FIGURES, emulated_figures, recorded_figures
from course_utils.nvidia.tools import compute_sanitizer_command, ncu_command

__all__ = [
    "FIGURES",
    "compute_sanitizer_command",
    "emulated_figures",
    "emulated_findings",
    "ncu_command",
    "recorded_figures",
    "side_by_side",
]
