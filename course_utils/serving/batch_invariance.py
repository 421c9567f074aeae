"""Batch invariance: whether a sequence's logits depend on the other sequences of a step.

A server batches the sequences that it has. If the batch decides the order of a sum, it decides the last bits of a
sequence's logits, and where two tokens are nearly equally likely, which of them is next.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.measured import Row
from course_utils.serving.model import SPLIT_SIZE, Model, as_tokens
from course_utils.serving.pages import PagedCache

AT_ONCE = 64  # sequences in a step of `nearly_tied`
# A prompt after which "," and " " are tied but for 5e-5, found by `nearly_tied`, and another prompt: in a batch with it
# the other token is next, if the kernel cuts the keys by the batch.
TIED = tuple(
    as_tokens(text)
    for text in (
        "which a warp multiplies small matrices on tensor cores, 16 × 16 by 16 × 8 in 16 bits. → chapter 03",
        "The kernel reads ",
    )
)


def alone_and_batched(prompt: Sequence[int], others: Sequence[Sequence[int]], *, device: str = "cpu") -> list[Row]:
    """The logits after a prompt whose last token is computed alone, and together with the last tokens of others; the
    keys before that are the same ones. With and without each of the two things that make the logits equal.

    Returns four rows. attention: "split_size", or "by the batch" where the kernel cuts the keys by all of it. sums:
    "exact" or "torch's". differing: how many of the logits. largest: difference of two. alone, among: the next token.
    """
    model, prompts = Model(device=device), [prompt, *others]
    cache = model.cache(sum(ceil_div(len(one), 16) + 2 for one in prompts))
    sequences = _cached(model, cache, prompts)
    rows: list[Row] = []
    for split_size, exact in itertools.product((SPLIT_SIZE, None), (True, False)):
        model = Model(device=device, split_size=split_size, exact_sums=exact)
        alone = _last_step(model, cache, sequences[:1], prompts[:1])[0]
        among = _last_step(model, cache, sequences, prompts)[0]
        row: Row = {"attention": "by the batch" if split_size is None else "split_size"}
        row |= {"sums": "exact" if exact else "torch's", "differing": int((alone != among).sum())}
        row |= {"largest": (alone - among).abs().max().item()}
        rows.append(row | {"alone": int(alone.argmax()), "among": int(among.argmax())})
    return rows


def nearly_tied(tokens: Sequence[int], *, device: str = "cpu") -> list[tuple[int, float]]:
    """Places in a text where the next token hangs on the last bits: pairs of how many tokens stand before it, and how
    far the logits of the two most likely ones are from each other; the nearest first."""
    model = Model(device=device)
    cache = model.cache(ceil_div(len(tokens), 16) + AT_ONCE)
    whole = _cached(model, cache, [tokens])
    found: list[tuple[int, float]] = []
    for first in range(0, len(tokens) - 1, AT_ONCE):
        lengths = range(first + 1, min(first + AT_ONCE, len(tokens) - 1) + 1)
        prefixes = [cache.fork(whole[0], n - 1) for n in lengths]
        logits = _last_step(model, cache, prefixes, [tokens[:n] for n in lengths])
        for sequence in prefixes:
            cache.free(sequence)
        best = logits.topk(2).values
        found += zip(lengths, (best[:, 0] - best[:, 1]).tolist(), strict=True)
    return sorted(found, key=lambda pair: pair[1])


def _cached(model: Model, cache: PagedCache, prompts: Sequence[Sequence[int]]) -> list[int]:
    """Sequences with all tokens of some prompts but the last."""
    sequences = [cache.allocate() for _ in prompts]
    batch = [(sequence, prompt[:-1]) for sequence, prompt in zip(sequences, prompts, strict=True) if len(prompt) > 1]
    for sequence, tokens in batch:
        cache.extend(sequence, len(tokens))
    if batch:
        model.step(cache, batch)
    return sequences


def _last_step(model: Model, cache: PagedCache, sequences: Sequence[int], prompts: Sequence[Sequence[int]]) -> Tensor:
    """The logits after the last token of each prompt, computed by forks, which are freed again."""
    forks = [cache.fork(sequence) for sequence in sequences]
    for fork in forks:
        cache.extend(fork, 1)
    logits = model.step(cache, [(fork, prompt[-1:]) for fork, prompt in zip(forks, prompts, strict=True)])
    for fork in forks:
        cache.free(fork)
    return logits
