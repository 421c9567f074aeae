"""Pictures, one module for each chapter, and the one look that they share."""

from course_utils.plots.attention_basics import masks, three_passes, warp_addresses
from course_utils.plots.choosing import three_choices
from course_utils.plots.deepseek_sparse import dsa_layer, gathered_tile, kept_by_fp8, radix_digits, token_costs
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
from course_utils.plots.sparse_patterns import break_even, first_wins, scaling, short_sequences, tree_times
from course_utils.plots.start_here import (
    bank_map,
    gpu_memories,
    launch_grid,
    matmul_tiles,
    memory_levels,
    score_bytes,
    warp_sectors,
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
    "bank_map",
    "break_even",
    "chunk_banks",
    "copy_and_compute",
    "dsa_layer",
    "first_wins",
    "gathered_tile",
    "gpu_memories",
    "kept_by_fp8",
    "ladder",
    "launch_grid",
    "loop_orders",
    "magnitudes",
    "masks",
    "matmul_tiles",
    "memory_levels",
    "online_weights",
    "packed_heads",
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
    "tree_times",
    "training",
    "warp_addresses",
    "warp_sectors",
    "warp_shares",
]
