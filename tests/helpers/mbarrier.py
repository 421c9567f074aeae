"""What kernels in tests call an mbarrier by."""

from course_utils.nvidia.silicon.mbarrier import MBARRIER

__all__ = ["MBARRIER"]
