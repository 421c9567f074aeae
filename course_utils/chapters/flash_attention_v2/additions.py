"""What models add to attention, seen in outputs of chapter 03's operator: a softcap's scores, a sink's weight; and what
that costs, as it was measured."""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import measured, plots, show
from course_utils.chapters.tensors import normal
from course_utils.measured import Row, sparse_patterns
from course_utils.measured.best_peers import FLASH_4, PACKAGES, pairs
from course_utils.measured.model_softmax import BACKWARD, FORWARD, RECORD, WITHOUT
from course_utils.operators import flash_attention_v2

CAP, LARGEST = 50.0, 200  # of the scores
HEADS, KEYS, D = 33, 64, 64
FARTHEST = 8.0  # of a sink from the log-sum-exp of the scores


def capped_scores(scores: Tensor, cap: float) -> Tensor:
    """What a softcap makes of scores `[n]`: a row that sees a single key has its score as log-sum-exp."""
    key = torch.zeros(1, 1, 1, D, dtype=torch.float16, device=scores.device)
    key[..., 0] = 1
    query = key * scores[:, None].half()  # [1, 1, n, D]
    _, lse = flash_attention_v2(query, key, key, softcap=cap, scale=1.0, return_lse=True)
    return lse.flatten()


def weight_of_keys(distances: Tensor) -> Tensor:
    """Which share of a row's weight its keys get, for sinks at these distances `[n]` above the log-sum-exp of their
    scores: of values that are all 1 it is the output. A head for each sink, the same row in each."""
    query, key = normal(1, 1, 1, D), normal(1, 1, KEYS, D, seed=1)
    value = torch.ones_like(key)
    _, lse = flash_attention_v2(query, key, value, return_lse=True)
    heads = query.expand(1, len(distances), 1, D).contiguous()
    return flash_attention_v2(heads, key, value, sinks=lse.flatten() + distances, enable_gqa=True)[..., 0].flatten()


def show_softcap_and_sinks() -> None:
    """Draws both."""
    device = normal(1).device
    scores = torch.linspace(-LARGEST, LARGEST, 81, device=device)
    distances = torch.linspace(-FARTHEST, FARTHEST, HEADS, device=device)
    plots.softcap_and_sinks(
        (scores.cpu(), capped_scores(scores, CAP).cpu(), CAP), (distances.cpu(), weight_of_keys(distances).cpu())
    )
    plt.show()


def show_costs() -> None:
    """Shows how long attention with sinks or a softcap takes, how many times as long as without, and flash-attn-4."""
    record = measured.load(RECORD)
    rows: dict[str, Row] = {}
    for part in (FORWARD, BACKWARD):
        for pair in sorted(pairs(record, (part,)), key=lambda pair: pair.peer != WITHOUT):
            row = rows.setdefault(pair.work, {"added": pair.work})
            row[f"{part}, ms"] = pair.our_ms
            if pair.peer == WITHOUT:
                row[f"{part} ÷ without"] = 1 / pair.speed
            else:
                row[f"{pair.peer}, {part}, ms"] = pair.peer_ms
    lengths = ", ".join(
        f"{length:,} {part}" for part, length in {row["part"]: row["length"] for row in record.rows}.items()
    )
    shape = f"B = 1, H = {sparse_patterns.HEADS}, d = {sparse_patterns.HEAD_DIM}, L = {lengths}"
    where = f"{measured.caption(record)}, {FLASH_4} {record.versions[PACKAGES[FLASH_4]]}"
    decimals = {name: 3 if "ms" in name else 2 for row in rows.values() for name in row if name != "added"}
    show.table(list(rows.values()), f"{shape}; {where}", decimals=decimals)
