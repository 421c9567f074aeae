"""Small kernels of sm_90a that ran on a Hopper GPU, and the same on the emulator: do they leave the same bytes?

`python -m tests.nvidia.silicon` runs them on the GPU and keeps what they left in course_utils/measured/silicon.json: a
hash of the bytes where all sums are exact, the bytes themselves where they are rounded. Without a GPU it runs them on
the emulator and prints how many leave the same; tests/nvidia/test_silicon.py asks the same.
"""

from tests.nvidia.silicon.cases import cases
from tests.nvidia.silicon.compare import compare, summary

__all__ = ["cases", "compare", "summary"]
