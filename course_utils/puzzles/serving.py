"""The puzzles of chapter 06: pieces of a ragged batch, keys in pages, and a tree of queries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle

D, THREADS = 16, 32
RAGGED = "06 Serving, section 4, 'Sequences of every length'"
PAGES = "06 Serving, section 5, 'Pages'"
TREES = "06 Serving, section 8, 'Several queries a step'"
Simulated = Callable[[Case], Mapping[str, Tensor]]


def _scale(generator: torch.Generator) -> np.float32:
    return np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())


# ---------------------------------------------------------------------------------------------- pieces

Place = tuple[int, int]  # of a piece: its sequence, and which part of that it is
MORE = 2  # blocks that have no piece


def _places(lengths: Sequence[int], size: int) -> list[Place]:
    return [(b, part) for b, keys in enumerate(lengths) for part in range(ceil_div(keys, size))]


def _ragged(generator: torch.Generator, part: str, lengths: Sequence[int], size: int) -> Case:
    B, L, d, scale = len(lengths), max(lengths), 4 * drawn(generator, 2, 4), _scale(generator)
    q = torch.randn(B, d, generator=generator)
    K, V = (torch.randn(B, L, d, generator=generator) for _ in "KV")
    places = _places(lengths, size)
    facts = {"lengths": lengths, "size": size, "scale": float(scale), "blocks": len(places) + MORE}
    inputs = {"q": q, "K": K, "V": V, "seq_lens": torch.tensor(lengths, dtype=torch.int32)}
    right, plain = (
        _of_places(*(x.to(dtype) for x in (q, K, V)), facts, places) for dtype in (torch.float64, torch.float32)
    )
    axes = {"O": ("piece", "column"), "LSE": ("piece",)}
    outputs = {name: Output(right[name], same_dtype=plain[name], axes=axes[name]) for name in axes}
    arguments = ("q", "K", "V", "seq_lens", "O", "LSE", *map(np.int32, (B, L, d, size)), scale)
    launch = Launch("pieces", (facts["blocks"],), (d,), arguments)
    name = f"seq_lens = {list(lengths)}, size = {size}"
    return Case(part, name, (launch,), inputs, outputs, facts, must_be_clean=True)


def _of_places(q: Tensor, K: Tensor, V: Tensor, facts: Mapping, places: Sequence[Place]) -> dict[str, Tensor]:
    """O [blocks, d] and LSE [blocks] of pieces; blocks without a piece have no key."""
    blocks, size = facts["blocks"], facts["size"]
    out, lse = q.new_zeros(blocks, q.shape[1]), q.new_full((blocks,), -torch.inf)
    for n, (b, part) in enumerate(places[:blocks]):
        keys = slice(part * size, min(part * size + size, facts["lengths"][b]))
        if keys.start < keys.stop:
            out[n] = attention(q[b : b + 1], K[b, keys], V[b, keys], facts["scale"])[0]
            lse[n] = torch.logsumexp(facts["scale"] * K[b, keys] @ q[b], dim=0)
    return {"O": out, "LSE": lse}


def _placed(places: Callable[[Sequence[int], int, int], list[Place]]) -> Simulated:
    """The mistake of other pieces; places: takes lengths, size and the number of blocks."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        q, K, V = (case.inputs[name].double() for name in ("q", "K", "V"))
        found = places(case.facts["lengths"], case.facts["size"], case.facts["blocks"])
        return _of_places(q, K, V, case.facts, found)

    return simulate


def _equal_parts(lengths: Sequence[int], size: int, blocks: int) -> list[Place]:
    each = ceil_div(max(lengths), size)
    return [divmod(n, each) for n in range(min(blocks, each * len(lengths)))]


def _batches(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    size = drawn(generator, 4, 7)
    whole = [size * drawn(generator, 3, 4), size, size * 2]
    return [
        _ragged(generator, "whole", whole, size),
        _ragged(generator, "ragged", [drawn(generator, 2, 3), 3 * size + 1, size, 2 * size - 1], size),
        _ragged(generator, "ragged", [size + 2, 0, 3 * size, 0], size),
    ]


# ---------------------------------------------------------------------------------------------- pages


def _paged(generator: torch.Generator, part: str, lengths: Sequence[int], page_size: int, order: str) -> Case:
    d, scale, B = 4 * drawn(generator, 2, 4), _scale(generator), len(lengths)
    most = max(ceil_div(keys, page_size) for keys in lengths)
    pages = B * most + 1
    numbers = torch.randperm(pages, generator=generator) if order == "random" else torch.arange(pages)
    table = numbers[: B * most].int().view(B, most)
    q = torch.randn(B, d, generator=generator)
    K, V = (torch.randn(pages, page_size, d, generator=generator) for _ in "KV")
    facts = {"lengths": lengths, "page_size": page_size, "scale": float(scale), "table": table.long()}
    inputs = {"q": q, "K": K, "V": V, "block_table": table, "seq_lens": torch.tensor(lengths, dtype=torch.int32)}
    right, plain = (
        _of_rows(*(x.to(dtype) for x in (q, K, V)), facts, _row) for dtype in (torch.float64, torch.float32)
    )
    output = Output(right, same_dtype=plain, axes=("sequence", "column"))
    sizes = map(np.int32, (most, page_size, d))
    launch = Launch("page_row", (B,), (d,), ("q", "K", "V", "block_table", "seq_lens", "O", *sizes, scale))
    name = f"seq_lens = {list(lengths)}, pages of {page_size}, {order}"
    return Case(part, name, (launch,), inputs, {"O": output}, facts, must_be_clean=True)


def _row(table: Tensor, b: int, j: Tensor, page_size: int) -> Tensor:
    return table[b, j // page_size] * page_size + j % page_size


def _of_rows(q: Tensor, K: Tensor, V: Tensor, facts: Mapping, row: Callable[..., Tensor]) -> Tensor:
    """O [B, d]; row: the row of the pages for a key, from the table, the sequence, its keys and the page size."""
    K, V = K.flatten(0, 1), V.flatten(0, 1)
    out = []
    for b, keys in enumerate(facts["lengths"]):
        rows = row(facts["table"], b, torch.arange(keys), facts["page_size"])
        out.append(attention(q[b : b + 1], K[rows], V[rows], facts["scale"])[0])
    return torch.stack(out)


def _reading(row: Callable[..., Tensor]) -> Simulated:
    """The mistake of reading keys in other rows of the pages."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        q, K, V = (case.inputs[name].double() for name in ("q", "K", "V"))
        return {"O": _of_rows(q, K, V, case.facts, row)}

    return simulate


def _tables(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Cases with pages in random order, some with a last page that is not full, and with pages of one key."""
    page_size = drawn(generator, 4, 7)
    lengths = [3 * page_size, 2 * page_size + 1, page_size - 1]
    return [
        _paged(generator, "random", lengths, page_size, "random"),
        _paged(generator, "small", [drawn(generator, 9, 12), 5], 1, "random"),
    ]


# ---------------------------------------------------------------------------------------------- trees


def _tree(generator: torch.Generator, part: str, parents: Sequence[int], context: int) -> Case:
    L_q, scale = len(parents), _scale(generator)
    Q = torch.randn(L_q, D, generator=generator)
    K, V = (torch.randn(context + L_q, D, generator=generator) for _ in "KV")
    facts = {"parents": parents, "context": context, "scale": float(scale)}
    visible = _behind(context, _ancestors(parents))
    right = attention(Q.double(), K.double(), V.double(), float(scale), visible)
    output = Output(right, same_dtype=attention(Q, K, V, float(scale), visible), axes=("query", "column"))
    inputs = {"Q": Q, "K": K, "V": V, "parents": torch.tensor(parents, dtype=torch.int32)}
    arguments = ("Q", "K", "V", "parents", "O", *map(np.int32, (L_q, context)), scale)
    launch = Launch("ancestors", (ceil_div(L_q, THREADS),), (THREADS,), arguments, (f"-DD={D}",))
    name = f"parents = {list(parents)}, context = {context}"
    return Case(part, name, (launch,), inputs, {"O": output}, facts, must_be_clean=True)


def _ancestors(parents: Sequence[int]) -> Tensor:
    """bool [L_q, L_q]: which query is an ancestor of which, itself included."""
    visible = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            visible[i] |= visible[parent]
    return visible


def _behind(context: int, visible: Tensor) -> Tensor:
    """A mask with a context before it that every query sees."""
    return torch.cat((torch.ones(len(visible), context, dtype=torch.bool), visible), dim=1)


def _seeing(mask: Callable[[Case], Tensor]) -> Simulated:
    """The mistake of another mask [L_q, context + L_q]."""

    def simulate(case: Case) -> Mapping[str, Tensor]:
        Q, K, V = (case.inputs[name].double() for name in "QKV")
        return {"O": attention(Q, K, V, case.facts["scale"], mask(case))}

    return simulate


def _chain(case: Case) -> Tensor:
    return _behind(case.facts["context"], torch.ones(2 * (len(case.facts["parents"]),), dtype=torch.bool).tril())


def _without_own(case: Case) -> Tensor:
    visible = _ancestors(case.facts["parents"])
    return _behind(case.facts["context"], visible & ~torch.eye(len(visible), dtype=torch.bool))


def _parent_alone(case: Case) -> Tensor:
    visible = torch.eye(len(case.facts["parents"]), dtype=torch.bool)
    for i, parent in enumerate(case.facts["parents"]):
        if parent >= 0:
            visible[i, parent] = True
    return _behind(case.facts["context"], visible)


def _keys_of_the_context(case: Case) -> Mapping[str, Tensor]:
    """The result if key t of the context takes the place of query t's own key."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    context, L_q = case.facts["context"], len(Q)
    rows = torch.cat((torch.arange(context), torch.arange(L_q)))
    visible = _behind(context, _ancestors(case.facts["parents"]))
    return {"O": attention(Q, K[rows], V[rows], case.facts["scale"], visible)}


def _trees(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    binary = [(i - 1) // 2 if i else -1 for i in range(drawn(generator, 9, 14))]
    return [
        _tree(generator, "tree", binary, drawn(generator, 20, 40)),
        _tree(generator, "roots", [-1, -1, 0, 1, 2, -1, 4], drawn(generator, 8, 16)),
    ]


PUZZLES = {
    "pieces": Puzzle(
        Exercise(
            id="06_serving/pieces",
            title="Whose piece is mine?",
            kernels=("pieces",),
            parts=(
                Part("whole", 1, "lengths that are multiples of the size"),
                Part("ragged", 1, "any lengths, 0 among them"),
            ),
            cases=_batches,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "every block takes its piece from the first sequence",
                        "Go on to the next sequence once the pieces of this one are used up.",
                        RAGGED,
                    ),
                    _placed(lambda lengths, size, blocks: [(0, n) for n in range(blocks)]),
                ),
                Mistake(
                    Diagnosis(
                        "a short last piece is lost",
                        "A sequence of 9 keys in pieces of 4 has three pieces: round up.",
                        RAGGED,
                    ),
                    _placed(
                        lambda lengths, size, _: [(b, n) for b, keys in enumerate(lengths) for n in range(keys // size)]
                    ),
                ),
                Mistake(
                    Diagnosis(
                        "a sequence has a piece without keys",
                        "keys / size + 1 is one too many where the size divides the keys, 0 among them: round up.",
                        RAGGED,
                    ),
                    _placed(
                        lambda lengths, size, _: [
                            (b, n) for b, keys in enumerate(lengths) for n in range(keys // size + 1)
                        ]
                    ),
                ),
                Mistake(
                    Diagnosis(
                        "all sequences get as many pieces as the longest",
                        "A short sequence has fewer pieces: count those of each one.",
                        RAGGED,
                    ),
                    _placed(_equal_parts),
                ),
                Mistake(
                    Diagnosis(
                        "the sequences take turns",
                        "All pieces of sequence 0 come first, then those of sequence 1.",
                        RAGGED,
                    ),
                    _placed(lambda lengths, size, blocks: [divmod(n, len(lengths))[::-1] for n in range(blocks)]),
                ),
            ),
            findings={"memcheck": Diagnosis("a length is read that seq_lens does not have", read_again=RAGGED)},
        ),
        lesson="The block found its sequence from the lengths in device memory. So one launch serves any lengths, "
        "and a CUDA graph of it can be replayed with other lengths.",
        hint="Walk through the sequences. How many pieces of `size` keys does sequence b have? If `part` is "
        "less, your piece is there. If not, subtract them from `part`, and go on to the next sequence. Stop at B.",
    ),
    "page_row": Puzzle(
        Exercise(
            id="06_serving/page_row",
            title="In which row is key j?",
            kernels=("page_row",),
            parts=(Part("random", 1, "pages in random order"), Part("small", 1, "pages of one key")),
            cases=_tables,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "the keys are read as if they lay one behind another",
                        "Key j of a sequence is in the page that its row of the table names.",
                        PAGES,
                    ),
                    _reading(lambda table, b, j, page_size: j),
                ),
                Mistake(
                    Diagnosis(
                        "every sequence reads the table's first row",
                        "Each sequence has a row of max_pages entries of its own.",
                        PAGES,
                    ),
                    _reading(lambda table, b, j, page_size: _row(table, 0, j, page_size)),
                ),
                Mistake(
                    Diagnosis(
                        "the number of the page is taken for its first row",
                        "Page p begins at row p · page_size.",
                        PAGES,
                    ),
                    _reading(lambda table, b, j, page_size: table[b, j // page_size] + j % page_size),
                ),
                Mistake(
                    Diagnosis(
                        "all keys of a page are its first one", "Add the place in the page, j % page_size.", PAGES
                    ),
                    _reading(lambda table, b, j, page_size: table[b, j // page_size] * page_size),
                ),
            ),
            findings={"memcheck": Diagnosis("an entry or a row is read that there is not", read_again=PAGES)},
        ),
        lesson="One look-up in the table, and a key may lie in any page. So memory can be handed out a page at a time.",
        hint="Key j lies in page number j / page_size of its sequence, at place j % page_size. The table says which "
        "page of the cache this is: its row for sequence b begins at entry b * max_pages. A page has page_size rows.",
    ),
    "ancestors": Puzzle(
        Exercise(
            id="06_serving/ancestors",
            title="A token and its ancestors",
            kernels=("ancestors",),
            parts=(Part("tree", 1, "a tree with one root"), Part("roots", 1, "several roots")),
            cases=_trees,
            mistakes=(
                Mistake(
                    Diagnosis(
                        "the tree is taken for a chain",
                        "A query sees its ancestors, and not all that stand before it.",
                        TREES,
                    ),
                    _seeing(_chain),
                ),
                Mistake(
                    Diagnosis("a query does not see its own key", "Begin with t = i, not with its parent.", TREES),
                    _seeing(_without_own),
                ),
                Mistake(
                    Diagnosis("a query sees its parent, but no older ancestor", "Go on from parent to parent.", TREES),
                    _seeing(_parent_alone),
                ),
                Mistake(
                    Diagnosis(
                        "keys of the context are read in place of the tree's",
                        "The key of query t is number context + t.",
                        TREES,
                    ),
                    _keys_of_the_context,
                ),
                Mistake(
                    Diagnosis("the queries see the context alone", "Each sees itself and its ancestors, too.", TREES),
                    _seeing(lambda case: _behind(case.facts["context"], _ancestors(case.facts["parents"]) & False)),
                ),
            ),
            findings={"memcheck": Diagnosis("a key before the first one is read", read_again=TREES)},
        ),
        lesson="Each token saw the context and its path to the root. So several guesses of the next tokens are "
        "checked in one pass over the cache.",
        hint="Begin at t = i, and go to `parents[t]` until t is −1. The key of query t is number context + t of K.",
    ),
}
