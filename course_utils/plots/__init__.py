"""Pictures, a module or a folder for each chapter, and the one look that they share.

A picture is a function that returns a matplotlib figure, with colours and sizes from `look`. tests/plots/ draws it. The
cell that shows it has a description in its metadata: `"alt": "..."`.
"""

# ruff: noqa: F401 — what is imported here is what notebooks and chapters use

from course_utils.plots.attention_basics import (
    added_by_shuffles,
    corner_turning,
    dot_products,
    growing_bytes,
    masks,
    safe_exponents,
    saturation,
    score_squares,
    three_counts,
    three_passes,
    two_losses,
    verdicts,
    warp_addresses,
    warp_of_scores,
    weight_maps,
)
from course_utils.plots.choosing import three_choices, ways_to_decode
from course_utils.plots.deepseek_sparse import (
    chosen_by_fp8,
    dsa_layer,
    facts_of_a_question,
    gathered_tile,
    index_scores,
    kernel_colours,
    latent_attention,
    mass_kept,
    numbers_on_a_line,
    producer_and_consumers,
    radix_digits,
    scores_by_distance,
    shared_list,
    sizes,
    token_costs,
    warm_up,
)
from course_utils.plots.flash_attention_minimal.backward import (
    backward_walks,
    gradient_errors,
    products,
    score_gradients,
    stored_for_backward,
)
from course_utils.plots.flash_attention_minimal.forward import (
    PEERS_FP32,
    blocks_at_work,
    causal_tiles,
    errors,
    fa1_savings,
    fed_by_shared_memory,
    loop_orders,
    missing_barrier,
    plain_block,
    reaching_hbm,
    register_piece,
    relative_speeds,
    requested_bytes,
    room_on_a_multiprocessor,
    rows_of_a_query_tile,
    speed_and_bounds,
    standard_and_least,
    tile_choice,
    tiled_attention,
    traffic_bars,
    training,
    what_shows_it,
)
from course_utils.plots.flash_attention_v2 import (
    climb,
    copy_and_compute,
    different_sums,
    ladder,
    magnitudes,
    number_formats,
    operations,
    packed_heads,
    reading_rates,
    short_calls,
    softcap_and_sinks,
    speed_by_length,
    warp_shares,
    who_owns_what,
)
from course_utils.plots.hopper import (
    backward_on_chip,
    ratios_around_one,
    ring_of_tiles,
    softmax_overlap,
    tile_in_panels,
    two_ways_of_a_factor,
)
from course_utils.plots.look import BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, YELLOW
from course_utils.plots.panels import answers, bars, by_length, grouped_bars, stacked_bars
from course_utils.plots.rates import roofline, time_and_memory
from course_utils.plots.serving import (
    lines_by_length,
    over_steps,
    pieces_of_sequences,
    room_of_sequences,
    sweeps,
    table_and_pages,
    tree_and_mask,
)
from course_utils.plots.sparse_patterns import (
    break_even,
    dots,
    first_wins,
    mask_and_blocks,
    mask_gallery,
    multiprocessors_at_work,
    pieces_of_work,
    reach,
    recall,
    scaling,
    short_sequences,
    tile_states,
    tree_times,
)
from course_utils.plots.start_here.first_kernels import (
    grid_to_thread,
    one_query,
    past_the_end,
    two_barriers,
    where_kernels_run,
)
from course_utils.plots.start_here.memory_and_tools import (
    against_size,
    gpu_memories,
    matmul_tiles,
    memory_levels,
    path_taken,
    product_piece,
    race,
    score_bytes,
    two_lines,
    under_way,
    way_of_a_transpose,
    way_through_the_caches,
    ways_of_a_warp,
)
