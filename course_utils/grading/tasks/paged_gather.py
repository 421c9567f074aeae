"""Grading of "06_serving/paged_gather": a query for each sequence, and keys that a block table finds in pages."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading.draws import between
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Outcome,
    Output,
    Part,
    Question,
    judging,
)
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, weights_in, wrong_weights

HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn
STALE = 40.0  # added to the values that no sequence has: one of them is seen at once
INT = 2**31  # numbers that an int counts
LOOKUPS = 4  # how many times as often as once for a page the table may be read

SPEC = "this exercise, 'What to write'"
PAGES = "06 Serving, section 5, 'Pages'"


# ---------------------------------------------------------------------------------------------- the cases


def _pool(
    generator: torch.Generator,
    lengths: Sequence[int],
    page_size: int,
    heads: int,
    head_dim: int,
    *,
    behind: float = STALE,
) -> dict[str, Tensor]:
    """Sequences in a pool of pages, a few of which are nobody's.

    behind: what is added to the values of slots that no sequence has. NaN: their keys are NaN, too; past a sequence's
    end the table has no pages, but junk, and it ends with the pages of the longest sequence.
    """
    used = [costs.ceil_div(length, page_size) for length in lengths]
    pages = sum(used) + between(generator, 2, 4)
    order = torch.randperm(pages, generator=generator).split([*used, pages - sum(used)])
    if math.isnan(behind):
        table = torch.tensor([-1, INT - 1], dtype=torch.int32).repeat(len(lengths), max(used))[:, : max(used)]
    else:
        table = torch.randint(pages, (len(lengths), max(used) + 2), generator=generator, dtype=torch.int32)
    taken = torch.zeros(pages, page_size, dtype=torch.bool)
    for b, (length, own) in enumerate(zip(lengths, order, strict=False)):
        table[b, : len(own)] = own
        taken[own] = (torch.arange(len(own) * page_size) < length).view(-1, page_size)
    shape = pages, page_size, heads, head_dim
    key, value = (torch.randn(shape, generator=generator) for _ in "KV")
    nobodys = torch.where(taken, 0.0, behind)[..., None, None]
    return {
        "Q": 2.0 * torch.randn(len(lengths), heads, head_dim, generator=generator),
        "K_pages": key + (nobodys if math.isnan(behind) else 0.0),
        "V_pages": value + nobodys,
        "block_table": table,
        "seq_lens": torch.tensor(lengths, dtype=torch.int32),
    }


def _key_by_key(generator: torch.Generator, page_size: int, head_dim: int) -> dict[str, Tensor]:
    """One sequence, and as many heads that differ in V only as it takes for each slot of its pages to have a column."""
    length = 4 * page_size + between(generator, 2, page_size - 2)
    room = 5 * page_size
    values = one_hot_values(room, head_dim)[0]  # [heads, room, D]
    inputs = _pool(generator, (length,), page_size, len(values), head_dim)
    own = inputs["block_table"][0, :5].long()
    inputs["V_pages"][own] = values.movedim(0, 1).unflatten(0, (5, page_size))
    for name, axis in (("Q", 1), ("K_pages", 2)):
        inputs[name] = inputs[name].narrow(axis, 0, 1).expand_as(inputs[name]).contiguous()
    return inputs


def _case(part: str, name: str, inputs: dict[str, Tensor], scale: float, **options: Any) -> Case:
    """A launch of paged_gather. LSE is judged where `judging` says so, or there is an empty sequence."""
    page_size, heads, head_dim = inputs["K_pages"].shape[1:]
    sizes = np.int32(inputs["block_table"].shape[1]), np.int32(page_size), np.float32(scale)
    arguments = ("Q", "K_pages", "V_pages", "block_table", "seq_lens", "O", "LSE", *sizes)
    query, *cache = inputs.values()
    out, lse = reference.paged_attention(query[:, :, None], *cache, scale=scale, return_lse=True)
    axes = ("sequence", "head", "column")
    kind = "values" if part in ("", "empty") else "scratch"
    return Case(
        part=part,
        name=f"D = {head_dim}, pages of {page_size}, {name}",
        launches=(Launch("paged_gather", (heads, len(query)), (32,), arguments, (f"-DD={head_dim}",)),),
        inputs=inputs,
        outputs={
            "O": Output(out[:, :, 0], axes=axes),
            "LSE": Output(lse[:, :, 0], kind=kind, axes=axes[:2]),
        },
        must_be_clean=True,
        **options,
    )


def _places_case(part: str, name: str, pages: Tensor, generator: torch.Generator, page_size: int) -> Case:
    """A launch of key_places: where keys lie in pools of any size. No page is touched."""
    heads, head_dim = between(generator, 3, 9), HEAD_DIMS[0][between(generator, 0, 1)]
    slots = torch.randint(page_size, pages.shape, generator=generator)
    places = ((pages * page_size + slots)[:, None] * heads + torch.arange(heads)) * head_dim
    return Case(
        part=part,
        name=f"D = {head_dim}, {heads} heads, pages of {page_size}, {name}",
        launches=(
            Launch("key_places", (len(pages),), (heads,), ("pages", "slots", "places", np.int32(page_size)),
                   (f"-DD={head_dim}",)),
        ),
        inputs={"pages": pages.to(torch.int32), "slots": slots.to(torch.int32)},
        outputs={"places": Output(places, torch.int64, kind="exact", axes=("key", "head"))},
        must_be_clean=True,
    )  # fmt: skip


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Sizes are drawn: no number that is written into a kernel fits all of them."""
    draw = partial(between, generator)
    D, other = (pair[draw(0, 1)] for pair in HEAD_DIMS)

    def scale(head_dim: int) -> float:
        return head_dim**-0.5 * (0.5 + torch.rand((), generator=generator).item())

    def gather(part: str, name: str, lengths: Sequence[int], page_size: int, head_dim: int, **options: Any) -> Case:
        review = options.pop("review", None)
        made = _pool(generator, lengths, page_size, draw(2, 3), head_dim, **options)
        return _case(part, name, made, scale(head_dim), review=review)

    few, many = draw(6, 12), draw(200, 256)
    of_16 = gather("", "the first sequence is the longest", (draw(60, 90), 48, draw(17, 31)), 16, D)
    one_by_one = _case(
        "", "one column for each key", _key_by_key(generator, draw(18, 24), other), 0.05, explain=_wrong_slots
    )
    return [
        _places_case("place", "few pages", torch.randint(40, (12,), generator=generator), generator, few),
        _places_case("far", "numbers beyond 2³¹", torch.randint(300_000, 600_000, (8,), generator=generator),
                     generator, draw(48, 64)),
        _places_case("far", "rows beyond 2³¹", torch.randint(2**24, INT - 1, (8,), generator=generator),
                     generator, many),
        _places_case("far", "slots beyond 2³¹", torch.randint(40, (12,), generator=generator), generator,
                     draw(2**25, 2**26)),
        *judging(of_16, gather="O", lse="LSE"),
        *judging(one_by_one, gather="O", lse="LSE"),
        gather("sizes", "as many pages as keys", (draw(530, 700), draw(5, 9)), 1, other),
        gather("sizes", "ragged lengths", (draw(8, 30), 5, draw(33, 60)), draw(5, 7), D),
        gather("sizes", "pages longer than sequences", (draw(90, 120), 3), many, D),
        gather("tail", "NaN wherever no key is", (3 * few + draw(1, 4), draw(2, 5), 5 * few), few, D, behind=math.nan),
        gather("empty", "sequences without a key", (0, draw(9, 20), 0, 1), 8, other),
        gather("once", "the lookups are counted", (draw(150, 180),), draw(24, 31), D, review=_looked_up_once),
    ]  # fmt: skip


def _looked_up_once(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Each page once: by all lanes of a warp, or by a lane for each key."""
    page_size, heads = case.inputs["K_pages"].shape[1:3]
    pages = sum(costs.ceil_div(length, page_size) for length in case.inputs["seq_lens"].tolist())
    loaded, once = outcome.footprint[3].bytes_loaded, heads * pages * 32 * 4
    if loaded <= LOOKUPS * once:
        return None
    words = f"{case.name}: {loaded:,} bytes of the table were asked for; each page once, by all lanes, is {once:,}"
    return Diagnosis("a page is looked up again for each key", words, SPEC)


def _wrong_slots(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where each slot of the sequence's pages has a column: which keys were left out, and what else has a weight."""
    slots = 5 * case.inputs["K_pages"].shape[1]
    got, expected = (weights_in(x[:, :, None], slots) for x in (outputs["O"], case.outputs["O"].expected))
    said = wrong_weights(got, expected, ("sequence", "key"))
    return said and replace(said, read_again=SPEC)


# ---------------------------------------------------------------------------------------------- the exercise

KEYS, PAGE_SIZE = 600, 64  # of a sequence; of a page
_PAGES = costs.ceil_div(KEYS, PAGE_SIZE)
_WASTE = 100 * (1 - KEYS / (_PAGES * PAGE_SIZE))
SLOTS, HEADS, HEAD_DIM = 16, 8, 128  # of Llama 3 8B, in pages of 16
_FAR_PAGE = INT // (SLOTS * HEADS * HEAD_DIM)

EXERCISE = Exercise(
    id="06_serving/paged_gather",
    title="Keys in pages",
    difficulty=2,
    importance=4,
    parts=(
        Part("place", 2, "Where a page has a key"),
        Part("far", 2, "Places beyond 2³¹"),
        Part("gather", 2, "Attention over the keys that the table finds"),
        Part("lse", 1, "The log-sum-exp of each row"),
        Part("sizes", 2, "Pages of any size"),
        Part("tail", 2, "What no sequence has is never seen"),
        Part("empty", 1, "Sequences without a key"),
        Part("once", 1, "A page is looked up once"),
    ),
    kernels=("key_places", "paged_gather"),
    cases=cases,
    mistakes=read_mistakes("06_serving/paged_gather"),
    questions=(
        Question(
            "waste", 1, "Room without a key, 600 keys in pages of 64", _WASTE, "%", 0.01,
            misconceptions=(
                (100 * (1 - _WASTE / 100), "that is the room that has a key"),
                (100 * (_PAGES * PAGE_SIZE / KEYS - 1), "that is relative to the keys; a share of the room is asked"),
                (50.0, "half of the last page would be the mean over many lengths; here it is one length"),
                (_WASTE / 100, "this is the ratio; the question asks for percent"),
            ),
            read_again=PAGES,
        ),
        Question(
            "far_page", 1, "First page that begins past what an int holds", _FAR_PAGE, "", 0.0001,
            misconceptions=(
                (2 * _FAR_PAGE, "an int has a sign: it ends at 2³¹ − 1"),
                (_FAR_PAGE / 2, "places count numbers, not bytes"),
                (_FAR_PAGE * HEADS, "a page has its slots for each of the 8 heads"),
                (_FAR_PAGE * SLOTS, "a page has 16 slots"),
            ),
            read_again=PAGES,
        ),
    ),
    cells=("answers",),
)  # fmt: skip
