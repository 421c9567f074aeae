"""What the batch around a sequence does to its logits, and what prevents it."""

import torch

from course_utils.serving import TIED, alone_and_batched, as_text, nearly_tied, plain_logits
from course_utils.serving.model import load_weights


def test_another_token_is_said_where_the_batch_cuts_the_keys():
    """Exact sums and a split size together give the same bits. Without the split size the kernel cuts the prompt's keys
    elsewhere than alone, and the order of the sums makes the difference; without exact sums torch does."""
    rows = {(row["attention"], row["sums"]): row for row in alone_and_batched(TIED[0], TIED[1:])}
    assert list(rows) == [(a, s) for a in ("split_size", "by the batch") for s in ("exact", "torch's")]
    safe = rows["split_size", "exact"]
    assert safe["differing"] == 0 and safe["largest"] == 0 and safe["alone"] == safe["among"]
    cut = rows["by the batch", "exact"]
    assert cut["differing"] > 200 and 1e-4 < cut["largest"] < 0.05
    assert as_text([cut["alone"], cut["among"]]) == " ,"
    assert 0 < rows["split_size", "torch's"]["largest"] < cut["largest"]


def test_a_batch_that_leaves_the_pieces_as_they_are_changes_nothing():
    """Of two sequences of one length, each is a piece by itself, as the one is alone."""
    for one in (TIED[0][:40], TIED[0][:1]):
        rows = alone_and_batched(one, [one[::-1]])
        assert [row["differing"] for row in rows if row["sums"] == "exact"] == [0, 0]


def test_the_nearest_ties_come_first():
    tokens = TIED[0][:70]
    found = nearly_tied(tokens)
    gaps = [gap for _, gap in found]
    assert gaps == sorted(gaps) and sorted(length for length, _ in found) == list(range(1, 70))
    with torch.no_grad():
        floats = {name: matrix.floats() for name, matrix in load_weights().items()}
        best = plain_logits(floats, torch.tensor([tokens]))[0].topk(2).values
    for length, gap in found:
        assert abs(gap - (best[length - 1, 0] - best[length - 1, 1]).item()) < 0.1
