"""Helpers of the course "Attention kernels in raw CUDA".

Data flows one way: kernel source → loader (`cuda`, `emulator`) → `operators` → `checks`, `timing`, drawing → notebook.
No part of the course is imported here, so that `import course_utils.costs` does not load PyTorch's GPU libraries or a
compiler.
"""

__version__ = "1.0.0"
