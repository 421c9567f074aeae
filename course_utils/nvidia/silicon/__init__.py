"""Small kernels of sm_90a that ran on a Hopper GPU, and the same on the emulator: do they leave the same bytes?

`python -m course_utils bench silicon --record` runs them on the GPU and keeps what they left: a hash of the bytes where
all sums are exact, the bytes themselves where they are rounded. A test, and the same command without a GPU, runs them
on the emulator and compares.
"""

from course_utils.nvidia.silicon.cases import cases
from course_utils.nvidia.silicon.compare import compare, summary
from course_utils.nvidia.silicon.record import measure_silicon

__all__ = ["cases", "compare", "measure_silicon", "summary"]
