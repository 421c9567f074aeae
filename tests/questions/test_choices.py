"""That exactly one option can be defended where it follows from figures: the key against what the learner reads."""

import re

import numpy as np
import pytest

from course_utils.questions.judging import right_answer
from course_utils.questions.question import TradeOff
from tests.helpers.drawn_questions import drawn, ids_of

UNITS = {"kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
TRADE_OFFS = ids_of(TradeOff)


def number(text):
    """ "1,944", "0.27 GB", "88.6%" as a number, in bytes or seconds where it has such a unit."""
    value, unit = re.fullmatch(r"([\d.,]+) ?(\D*)", text).groups()
    return float(value.replace(",", "")) * UNITS.get(unit, 1.0)


def said(text, pattern):
    """The group of `pattern` in `text` as a number."""
    return number(re.search(pattern, text)[1])


# Of each trade-off: what an option costs by its figures, None if the prompt's terms rule it out.


def tile_of_a_product(asked, option):
    requested, sums, blocks = map(number, option.figures)
    fits = sums < said(asked, r"at most (\d+) registers") and blocks >= said(asked, r"GPU has (\d+) multi")
    return requested if fits else None


def less_memory_or_less_time(asked, option):
    memory, _, floor = map(number, option.figures)
    fits = memory <= said(asked, r"has ([\d.]+ GB) left") and not ("stay fp32" in asked and "fp16" in option.text)
    return floor if fits else None


def tiles_for_two_blocks(asked, option):
    shared, requested = map(number, option.figures)
    two_fit = 2 * (shared + said(asked, r"takes (\d+) KiB")) <= said(asked, r"has (\d+) KiB")
    return (requested, shared) if two_fit else None


def queries_per_warp(asked, option):
    registers, allowed = map(number, option.figures)
    return -allowed if registers + said(asked, r"needs (\d+) for") <= said(asked, r"a lane has (\d+)") else None


def pattern_for_a_recall(asked, option):
    pairs, _, accuracy = map(number, option.figures)
    name, layers = option.text.split(", ")
    i, j = np.arange(64)[:, None], np.arange(64)
    size = int(re.sub(r"\D", "", name) or 64)
    seen = (i - j < size) | ((i - j) % size == 0 if "strided" in name else False)
    assert pairs == ((j <= i) & seen).sum()
    return pairs * int(layers[0]) if accuracy >= said(asked, r"At least (\d+) %") else None


def way_to_attend(asked, option):
    flops, moved = map(number, option.figures)
    prefix = 1e9 if "is decoded" in asked else 1e12  # GFLOP and MB, or TFLOP and GB
    rate, bandwidth = said(asked, r"of ([\d,]+) TFLOP/s"), said(asked, r"and ([\d.]+ TB)/s")
    return max(flops * prefix / (rate * 1e12), moved * prefix / 1e3 / bandwidth)


def cache_for_a_server(asked, option):
    memory, same = option.figures
    return number(memory) if same == "yes" else None


def consumers_of_a_block(asked, option):
    shared, registers, read = map(number, option.figures)
    fits = shared <= said(asked, r"at most (\d+) KiB") and registers >= said(asked, r"needs (\d+) registers")
    return read if fits else None


def pick_for_a_target(asked, option):
    memory, floor = map(number, option.figures[:2])
    in_time = 3 * floor <= said(asked, r"target is (\d+ ms)")
    changes = {"yes": 0, "no": 1}[option.figures[2]]  # what is exact changes nothing
    return changes if in_time and memory <= said(asked, r"with (\d+ GB);") else None


COSTS = {
    "00_start_here/tile_of_a_product": tile_of_a_product,
    "01_attention_basics/less_memory_or_less_time": less_memory_or_less_time,
    "02_flash_attention_minimal/tiles_for_two_blocks": tiles_for_two_blocks,
    "03_flash_attention_v2/queries_per_warp": queries_per_warp,
    "04_sparse_patterns/pattern_for_a_recall": pattern_for_a_recall,
    "05_deepseek_sparse/way_to_attend": way_to_attend,
    "06_serving/cache_for_a_server": cache_for_a_server,
    "07_hopper/consumers_of_a_block": consumers_of_a_block,
    "08_choosing/pick_for_a_target": pick_for_a_target,
}


@pytest.mark.parametrize("question_id", TRADE_OFFS)
def test_one_option_of_a_trade_off_is_best_by_its_figures(question_id):
    for one in drawn(question_id):
        prices = [COSTS[question_id](one.prompt, option) for option in one.options]
        best = min(price for price in prices if price is not None)
        assert [n for n, price in enumerate(prices) if price == best] == [right_answer(one)], one.prompt


def test_one_line_of_a_counter_table_exceeds_its_ideal_by_most():
    for one in drawn("00_start_here/line_to_mend"):
        excess = [said(o.text, r"([\d,]+) sectors") - said(o.text, r"ideal ([\d,]+)") for o in one.options]
        assert [n for n, found in enumerate(excess) if found == max(excess)] == [right_answer(one)]


def test_an_overrun_that_is_said_to_hit_padding_stays_in_a_tensors_512_bytes():
    for one in drawn("00_start_here/unchecked_overrun"):
        blocks, threads = (said(one.prompt, pattern) for pattern in (r"(\d+) blocks of", r"blocks of (\d+) threads"))
        assert 4 * blocks * threads % 512 == 0 and said(one.prompt, r"([\d,]+) elements") < blocks * threads
