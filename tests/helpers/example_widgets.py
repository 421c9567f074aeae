"""One small example of each widget of the chapters and of each game, by the name that it has on a page."""

import torch

from course_utils.chapters.hopper.blocks import blocks
from course_utils.chapters.hopper.race import figures
from course_utils.chapters.missing_barrier import LEVELS, packed
from course_utils.widgets import (
    bank_places,
    bank_turns,
    cache_explorer,
    dsa_explorer,
    find_the_missing_barrier,
    launch_grid,
    load_sectors,
    mask_explorer,
    paint_a_mask,
    pipeline,
    planner,
    race_past_cudnn,
    score_heatmap,
    tile_stepper,
    two_pieces,
    warp_fragments,
)
from course_utils.widgets.player import player
from tests.helpers import recorded

TOKENS = "the animal did not cross the street because it was too tired".split()
SCORES = [1.0, 2.0, 0.5, 1.5, 2.5, 4.0, 1.0, 3.0, 3.5, 2.0, 6.0, 1.0]


def random(length, dim, seed):
    return 1.5 * torch.randn(length, dim, generator=torch.Generator().manual_seed(seed))


def heatmap(rows=64, cols=64, **options):
    return score_heatmap(random(rows, 16, 0), random(cols, 16, 1), **options)


def stepper(rows=64, cols=64, **options):
    return tile_stepper(random(rows, 16, 0), random(cols, 16, 1), random(cols, 16, 2), **options)


EXAMPLES = {
    "launch-grid": launch_grid,
    "load-sectors": load_sectors,
    "bank-turns": bank_turns,
    "score-heatmap": lambda: heatmap(12, 12, is_causal=True, tokens=TOKENS),
    "tile-stepper": lambda: stepper(is_causal=True),
    "two-pieces": lambda: two_pieces(SCORES),
    "fragments": warp_fragments,
    "bank-places": bank_places,
    "mask-explorer": mask_explorer,
    "dsa-explorer": dsa_explorer,
    "cache-explorer": cache_explorer,
    "pipeline": lambda: pipeline(blocks()),
    "planner": planner,
    "race": lambda: race_past_cudnn(figures()),
    "paint": paint_a_mask,
    "player": lambda: player(*recorded.swap()),
    "barrier": lambda: find_the_missing_barrier([packed(LEVELS[0])]),
}
