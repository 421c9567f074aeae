"""Grading of "06_serving/paged_gather": a query for each sequence, and keys that a block table finds in pages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading import names
from course_utils.grading.draws import between
from course_utils.grading.exercise import (
    Case,
    Diagnosis,
    Exercise,
    Launch,
    Mistake,
    Outcome,
    Output,
    Part,
    Question,
    judging,
)
from course_utils.grading.seen import one_hot_values, weights_in, wrong_weights

HEAD_DIMS = (64, 128), (32, 96)  # one of each pair is drawn
STALE = 40.0  # added to the values that no sequence has: one of them is seen at once
INT = 2**31  # numbers that an int counts
LOOKUPS = 4  # how many times as often as once for a page the table may be read

SPEC = "this exercise, 'What to write'"
ONE_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
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
    run = _attend(inputs, scale, RIGHT, torch.float32)[0]
    axes = ("sequence", "head", "column")
    kind = "values" if part in ("", "empty") else "scratch"
    return Case(
        part=part,
        name=f"D = {head_dim}, pages of {page_size}, {name}",
        launches=(Launch("paged_gather", (heads, len(query)), (32,), arguments, (f"-DD={head_dim}",)),),
        inputs=inputs,
        outputs={
            "O": Output(out[:, :, 0], same_dtype=run, axes=axes),
            "LSE": Output(lse[:, :, 0], kind=kind, axes=axes[:2]),
        },
        facts={"scale": scale},
        must_be_clean=True,
        **options,
    )


def _places_case(part: str, name: str, pages: Tensor, generator: torch.Generator, page_size: int) -> Case:
    """A launch of key_places: where keys lie in pools of any size. No page is touched."""
    heads, head_dim = between(generator, 3, 9), HEAD_DIMS[0][between(generator, 0, 1)]
    slots = torch.randint(page_size, pages.shape, generator=generator)
    facts = {"page_size": page_size, "heads": heads, "head_dim": head_dim}
    inputs = {"pages": pages.to(torch.int32), "slots": slots.to(torch.int32)}
    return Case(
        part=part,
        name=f"D = {head_dim}, {heads} heads, pages of {page_size}, {name}",
        launches=(
            Launch("key_places", (len(pages),), (heads,), ("pages", "slots", "places", np.int32(page_size)),
                   (f"-DD={head_dim}",)),
        ),
        inputs=inputs,
        outputs={"places": Output(_places(inputs, facts, RIGHT), torch.int64, kind="exact", axes=("key", "head"))},
        facts=facts,
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
    one_by_one = _case("", "one column for each key", _key_by_key(generator, draw(18, 24), other), 0.05, explain=_seen)
    return [
        _places_case("place", "few pages", torch.randint(40, (12,), generator=generator), generator, few),
        _places_case("far", "numbers beyond 2³¹", torch.randint(300_000, 600_000, (8,), generator=generator),
                     generator, draw(48, 64)),
        _places_case("far", "rows beyond 2³¹", torch.randint(2**24, INT - 1, (8,), generator=generator),
                     generator, many),
        *judging(of_16, gather="O", lse="LSE"),
        *judging(one_by_one, gather="O", lse="LSE"),
        gather("sizes", "as many pages as keys", (draw(20, 30), draw(5, 9)), 1, other),
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


def _seen(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """Where each slot of the sequence's pages has a column: which keys were left out, and what else has a weight."""
    slots = 5 * case.inputs["K_pages"].shape[1]
    got, expected = (weights_in(x[:, :, None], slots) for x in (outputs["O"], case.outputs["O"].expected))
    said = wrong_weights(got, expected, ("sequence", "key"))
    return said and replace(said, read_again=SPEC)


# ---------------------------------------------------------------------------------------------- known mistakes

Walk = Callable[[int, int], list[tuple[int, int]]]  # (L, page_size) -> page and slot of each key, the page by its place


def walk(length: int, page_size: int) -> list[tuple[int, int]]:
    """Page and slot of each key of a sequence; the page by its place in the table."""
    return [divmod(j, page_size) for j in range(length)]


def place(page: Tensor, slot: Tensor, head: int, page_size: int, heads: int, head_dim: int) -> Tensor:
    """Where column 0 of a head lies, in numbers."""
    return ((page * page_size + slot) * heads + head) * head_dim


def look_up(table: Tensor, b: int, p: Tensor) -> Tensor:
    """The numbers of a sequence's pages."""
    return table[b, p].long()


@dataclass(frozen=True)
class Way:
    """How a kernel works; as it stands, the right one. divides: O = sum / l also where l is 0."""

    walk: Walk = walk
    place: Callable[..., Tensor] = place
    look_up: Callable[[Tensor, int, Tensor], Tensor] = look_up
    divides: bool = False


RIGHT = Way()


def _places(inputs: Mapping[str, Tensor], facts: Mapping[str, Any], way: Way) -> Tensor:
    """What key_places gives, int64 [keys, heads]."""
    sizes = [facts[name] for name in ("page_size", "heads", "head_dim")]
    of_head = partial(way.place, inputs["pages"].long(), inputs["slots"].long())
    return torch.stack([of_head(head, *sizes) for head in range(facts["heads"])], dim=1)


def _attend(
    inputs: Mapping[str, Tensor], scale: float, way: Way, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """O [B, heads, D] and LSE [B, heads]. Raises IndexError where a kernel would read past the table or the pages."""
    query, table = inputs["Q"].to(dtype), inputs["block_table"]
    page_size, heads, head_dim = inputs["K_pages"].shape[1:]
    key, value = (inputs[name].to(dtype).flatten() for name in ("K_pages", "V_pages"))
    out = torch.full_like(query, math.nan if way.divides else 0.0)
    lse = query.new_full(query.shape[:2], -math.inf)
    for b, length in enumerate(inputs["seq_lens"].tolist()):
        if not (pairs := way.walk(length, page_size)):
            continue
        p, slot = torch.tensor(pairs).T
        pages = way.look_up(table, b, p)
        for head in range(heads):
            first = way.place(pages, slot, head, page_size, heads, head_dim)
            if first.min() < 0 or first.max() + head_dim > len(key):
                raise IndexError("past the pages")
            at = first[:, None] + torch.arange(head_dim)
            scores = scale * (key[at] @ query[b, head])
            out[b, head], lse[b, head] = torch.softmax(scores, 0) @ value[at], torch.logsumexp(scores, 0)
    return out, lse


def _simulate(case: Case, *, way: Way) -> Mapping[str, Tensor] | None:
    """The outputs of kernels that work this way, where they do not leave the arrays: that memcheck reports."""
    if "places" in case.outputs:
        return {"places": _places(case.inputs, case.facts, way)}
    try:
        return dict(zip(("O", "LSE"), _attend(case.inputs, case.facts["scale"], way), strict=True))
    except IndexError:
        return None


def _mistakes(name: str, detail: str, *ways: Mapping[str, Any], read_again: str = SPEC) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which kernels make it."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_simulate, way=Way(**way))) for way in ways)


def _whole_pages(length: int, page_size: int) -> list[tuple[int, int]]:
    return walk(costs.ceil_div(length, page_size) * page_size, page_size)


def _full_pages(length: int, page_size: int) -> list[tuple[int, int]]:
    return walk(length // page_size * page_size, page_size)


def _in_32_bits(x: Tensor) -> Tensor:
    return (x + INT) % (2 * INT) - INT


def _wrapped(page: Tensor, slot: Tensor, head: int, *sizes: int) -> Tensor:
    return _in_32_bits(place(page, slot, head, *sizes))


def _row_wrapped(page: Tensor, slot: Tensor, head: int, page_size: int, heads: int, head_dim: int) -> Tensor:
    return (_in_32_bits(page * page_size + slot) * heads + head) * head_dim


MISTAKES = (
    *_mistakes("the block table is left out",
               "Page p of a sequence is page block_table[b, p] of the pool. Only in a pool that nobody has used before "
               "are the two the same.",
               {"look_up": lambda table, b, p: p}, {"look_up": lambda table, b, p: b * table.shape[1] + p},
               read_again=PAGES),
    *_mistakes("every sequence looks its pages up in the row of sequence 0",
               "Row b of the block table begins b · max_pages further on.",
               {"look_up": lambda table, b, p: table[0, p].long()}, read_again=PAGES),
    *_mistakes("the slots behind the last key count",
               "The last page of a sequence is not full: its other slots hold what was there before.",
               {"walk": _whole_pages}, read_again=PAGES),
    *_mistakes("the last, ragged page is left out", "L keys take ceil(L / page_size) pages.", {"walk": _full_pages}),
    *_mistakes("the page size is taken to be 16", "page_size is an argument: any number from 1 on.",
               {"walk": lambda length, page_size: walk(length, 16)}),
    *_mistakes("the place of a key is computed in 32 bits",
               "An int ends at 2³¹ − 1. The product must be one of long long from its first factor on: "
               "(long long)page * page_size * …", {"place": _wrapped}, {"place": _row_wrapped}, read_again=PAGES),
    *_mistakes("the pages are read as [pages, heads, page_size, D]",
               "They are [pages, page_size, heads, D]: the heads of a key stand side by side.",
               {"place": lambda page, slot, head, page_size, heads, head_dim:
                ((page * heads + head) * page_size + slot) * head_dim}),
    *_mistakes("the number of a page is taken for its first row", "Page n begins at row n · page_size of the pool.",
               {"place": lambda page, slot, head, page_size, heads, head_dim:
                ((page + slot) * heads + head) * head_dim}, read_again=PAGES),
    *_mistakes(names.EMPTY_ROW_IS_NAN, "Without a key, l is 0, and 0 / 0 is NaN. O is 0 there.", {"divides": True},
               read_again=ONE_TRAP),
)  # fmt: skip


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
    mistakes=MISTAKES,
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
