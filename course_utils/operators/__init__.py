"""The course's attention operators: torch tensors in and out, on the GPU or on the CPU emulator."""

from course_utils.operators.flash_v2 import flash_attention_v2
from course_utils.operators.minimal import flash_attention_minimal
from course_utils.operators.naive import naive_attention
from course_utils.operators.sparse import (
    block_sparse_attention,
    choose_kernel,
    csr_attention,
    range_attention,
    sparse_attention,
)

__all__ = [
    "block_sparse_attention",
    "choose_kernel",
    "csr_attention",
    "flash_attention_minimal",
    "flash_attention_v2",
    "naive_attention",
    "range_attention",
    "sparse_attention",
]
