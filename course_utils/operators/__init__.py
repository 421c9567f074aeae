"""The course's attention operators: torch tensors in and out, on the GPU or on the CPU emulator."""

from course_utils.operators.minimal import flash_attention_minimal
from course_utils.operators.naive import naive_attention

__all__ = ["flash_attention_minimal", "naive_attention"]
