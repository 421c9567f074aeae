"""The widgets that a chapter shows before its questions, in order, by the name that each has on a page."""

# It has no steps of its own, only a button at each finding: tests/widgets, tests/site and tests/browser press it.
WITHOUT_STEPS = "findings"
# The button in the verdict of a puzzle, in a notebook only; tests/browser/test_puzzles.py presses it.
IN_A_VERDICT = "watch-it-run"

WIDGETS = {
    "00_start_here": ["launch-grid"],
    "00_memory_and_tools": ["load-sectors", "bank-turns"],
    "01_attention_basics": ["score-heatmap", "player", "player", "score-heatmap"],
    "02_flash_attention_minimal": ["tile-stepper", "two-pieces", "tile-stepper", "player"],
    "02_flash_attention_backward": [],
    "03_flash_attention_v2": ["fragments", "bank-places", "player", "player", "player"],
    "03_flash_attention_training": [],
    "04_sparse_patterns": ["mask-explorer", "player", "mask-explorer"],
    "05_deepseek_sparse": ["dsa-explorer", "player", "dsa-explorer"],
    "06_serving": ["cache-explorer", "player"],
    "07_hopper": ["pipeline", "pipeline", "pipeline", "pipeline", "player", "pipeline"],
    "08_choosing": ["planner", "planner"],
}
