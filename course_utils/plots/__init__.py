"""Pictures, one module for each chapter, and the one look that they share."""

from course_utils.plots.attention_basics import masks, three_passes, warp_addresses
from course_utils.plots.choosing import three_choices
from course_utils.plots.deepseek_sparse import dsa_layer, gathered_tile, kept_by_fp8, radix_digits, token_costs
from course_utils.plots.first_kernels import one_query, past_the_end, two_barriers, where_kernels_run
from course_utils.plots.flash_attention_minimal import (
    loop_orders,
    online_weights,
    tile_choice,
    tiled_attention,
    traffic_bars,
    training,
)
from course_utils.plots.flash_attention_v2 import (
    chunk_banks,
    copy_and_compute,
    ladder,
    magnitudes,
    packed_heads,
    speed_by_length,
    warp_shares,
)
from course_utils.plots.look import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from course_utils.plots.rates import roofline, time_and_memory
from course_utils.plots.sparse_patterns import break_even, scaling, short_sequences
from course_utils.plots.start_here import (
    against_size,
    bars,
    gpu_memories,
    matmul_tiles,
    memory_levels,
    paired_bars,
    race,
    score_bytes,
    two_lines,
    under_way,
    way_of_a_transpose,
    ways_of_a_warp,
)

__all__ = [
    "BLUE",
    "GREEN",
    "GREY",
    "ORANGE",
    "PURPLE",
    "SKY",
    "VERMILION",
    "YELLOW",
    "against_size",
    "bars",
    "break_even",
    "chunk_banks",
    "copy_and_compute",
    "dsa_layer",
    "gathered_tile",
    "gpu_memories",
    "kept_by_fp8",
    "ladder",
    "loop_orders",
    "magnitudes",
    "masks",
    "matmul_tiles",
    "memory_levels",
    "one_query",
    "online_weights",
    "packed_heads",
    "paired_bars",
    "past_the_end",
    "race",
    "radix_digits",
    "roofline",
    "scaling",
    "score_bytes",
    "short_sequences",
    "speed_by_length",
    "three_choices",
    "three_passes",
    "tile_choice",
    "tiled_attention",
    "time_and_memory",
    "token_costs",
    "traffic_bars",
    "training",
    "two_barriers",
    "two_lines",
    "under_way",
    "warp_addresses",
    "warp_shares",
    "way_of_a_transpose",
    "ways_of_a_warp",
    "where_kernels_run",
]
