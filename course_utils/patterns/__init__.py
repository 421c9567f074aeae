"""Sparse attention patterns: each function returns a `Pattern`, to be combined with & and |.

causal: causal, sliding_window, dilated, power_of_two, strided, fixed, streaming, tree
not causal: full, local, local_2d, block_diagonal, document, global_tokens, random_blocks, bigbird
from elsewhere: from_mask_mod, from_csr

A pattern's mask is its definition. Which blocks can hold a pair, which keys a row has and how many pairs there are
(`definition.Definition`) are short cuts to the same, needed only where evaluating all pairs at 128 K tokens would take
too long. To add a pattern: say in its docstring which end of an interval belongs to it; compare its mask with a slow
loop written from the paper's words (tests/patterns/test_definitions.py); `test_properties.py` beside it compares lists
and CSR rows with the mask. A slider for its argument is an entry in widgets/js/masks.js, which a test compares with the
mask here; its timing one of `PATTERNS` in bench/one_pattern.py.
"""

from course_utils.patterns.causal import (
    causal,
    dilated,
    fixed,
    power_of_two,
    sliding_window,
    streaming,
    strided,
    tree,
)
from course_utils.patterns.definition import RowRanges
from course_utils.patterns.given import from_csr, from_mask_mod
from course_utils.patterns.lists import BlockLists
from course_utils.patterns.pattern import Pattern
from course_utils.patterns.random import bigbird, random_block_hash, random_blocks
from course_utils.patterns.ranges import UNBOUNDED, Ranges
from course_utils.patterns.two_sided import block_diagonal, document, full, global_tokens, local, local_2d

__all__ = [
    "UNBOUNDED",
    "BlockLists",
    "Pattern",
    "Ranges",
    "RowRanges",
    "bigbird",
    "block_diagonal",
    "causal",
    "dilated",
    "document",
    "fixed",
    "from_csr",
    "from_mask_mod",
    "full",
    "global_tokens",
    "local",
    "local_2d",
    "power_of_two",
    "random_block_hash",
    "random_blocks",
    "sliding_window",
    "streaming",
    "strided",
    "tree",
]
