"""The arithmetic of CUDA C++: each operator, cast and function of its types, on the emulator and on a GPU.

`python -m course_utils bench arithmetic --record` computes the table on a GPU and keeps it; a test computes it on the
emulator and compares all bits.
"""

from course_utils.nvidia.arithmetic.compare import counts, summary
from course_utils.nvidia.arithmetic.record import measure_arithmetic

__all__ = ["counts", "measure_arithmetic", "summary"]
