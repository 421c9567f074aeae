"""Interactive pictures: drawn by JavaScript in the browser, with a still picture where no widget can run."""

from course_utils.widgets.bank_places import bank_places
from course_utils.widgets.bank_turns import bank_turns
from course_utils.widgets.cache_explorer import cache_explorer
from course_utils.widgets.dsa_explorer import DsaState, dsa_explorer, dsa_state, example_scores
from course_utils.widgets.explorer import mask_explorer
from course_utils.widgets.findings import findings
from course_utils.widgets.fragments import warp_fragments
from course_utils.widgets.grade_panel import check
from course_utils.widgets.guesses import guess
from course_utils.widgets.heatmap import score_heatmap
from course_utils.widgets.launch_grid import launch_grid
from course_utils.widgets.load_sectors import load_sectors
from course_utils.widgets.missing_barrier import find_the_missing_barrier
from course_utils.widgets.paint import paint_a_mask
from course_utils.widgets.pieces import two_pieces
from course_utils.widgets.pipeline import pipeline
from course_utils.widgets.planner import Planner, planner
from course_utils.widgets.player import play
from course_utils.widgets.progress_card import finish_chapter, show_progress
from course_utils.widgets.questions import ask
from course_utils.widgets.race import race_past_cudnn
from course_utils.widgets.scene import scene
from course_utils.widgets.stepper import tile_stepper
from course_utils.widgets.tiles import TileStep, tile_steps

__all__ = [
    "DsaState",
    "Planner",
    "TileStep",
    "ask",
    "bank_places",
    "bank_turns",
    "cache_explorer",
    "check",
    "dsa_explorer",
    "dsa_state",
    "example_scores",
    "find_the_missing_barrier",
    "findings",
    "finish_chapter",
    "guess",
    "launch_grid",
    "load_sectors",
    "mask_explorer",
    "paint_a_mask",
    "pipeline",
    "planner",
    "play",
    "race_past_cudnn",
    "scene",
    "score_heatmap",
    "show_progress",
    "tile_stepper",
    "tile_steps",
    "two_pieces",
    "warp_fragments",
]
