"""The puzzles of chapter 06: pieces of a ragged batch, keys in pages, and a tree of queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from course_utils.costs import ceil_div
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part
from course_utils.puzzles.cases import attention, drawn
from course_utils.puzzles.puzzle import Puzzle, mistake

D, THREADS = 16, 32
RAGGED = "06 Serving, section 4, 'Sequences of every length'"
PAGES = "06 Serving, section 5, 'Pages'"
TREES = "06 Serving, section 8, 'Several queries a step'"
NEXT_SEQUENCE = "if (part < parts) break;\npart -= parts;\n}"
SEE_KEY = "see(row, Q + i * D, K + (context + t) * D, V + (context + t) * D, scale);"


def _scale(generator: torch.Generator) -> np.float32:
    return np.float32(0.1 + 0.2 * torch.rand((), generator=generator).item())


# ---------------------------------------------------------------------------------------------- pieces

MORE = 2  # blocks that have no piece


def _ragged(generator: torch.Generator, part: str, lengths: Sequence[int], size: int) -> Case:
    B, L, d, scale = len(lengths), max(lengths), 4 * drawn(generator, 2, 4), _scale(generator)
    q = torch.randn(B, d, generator=generator)
    K, V = (torch.randn(B, L, d, generator=generator) for _ in "KV")
    inputs = {"q": q, "K": K, "V": V, "seq_lens": torch.tensor(lengths, dtype=torch.int32)}
    right, plain = (
        _in_pieces(*(x.to(dtype) for x in (q, K, V)), lengths, size, float(scale))
        for dtype in (torch.float64, torch.float32)
    )
    axes = {"O": ("piece", "column"), "LSE": ("piece",)}
    outputs = {name: Output(right[name], same_dtype=plain[name], axes=axes[name]) for name in axes}
    arguments = ("q", "K", "V", "seq_lens", "O", "LSE", *map(np.int32, (B, L, d, size)), scale)
    launch = Launch("pieces", (len(right["LSE"]),), (d,), arguments)
    name = f"seq_lens = {list(lengths)}, size = {size}"
    return Case(part, name, (launch,), inputs, outputs, must_be_clean=True)


def _in_pieces(q: Tensor, K: Tensor, V: Tensor, lengths: Sequence[int], size: int, scale: float) -> dict[str, Tensor]:
    """O [blocks, d] and LSE [blocks] of the pieces of all sequences; `MORE` blocks have no key."""
    out, lse = [], []
    for b, end in enumerate(lengths):
        for first in range(0, end, size):
            keys = slice(first, min(first + size, end))
            out.append(attention(q[b : b + 1], K[b, keys], V[b, keys], scale)[0])
            lse.append(torch.logsumexp(scale * K[b, keys] @ q[b], dim=0))
    none = q.new_full((MORE,), -torch.inf)
    return {
        "O": torch.cat((torch.stack(out), q.new_zeros(MORE, q.shape[1]))),
        "LSE": torch.cat((torch.stack(lse), none)),
    }


def _batches(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    size = drawn(generator, 4, 7)
    whole = [size * drawn(generator, 3, 4), size, size * 2]
    return [
        _ragged(generator, "whole", whole, size),
        _ragged(generator, "ragged", [drawn(generator, 2, 3), 3 * size + 1, size, 2 * size - 1], size),
        _ragged(generator, "ragged", [size + 2, 0, 3 * size, 0], size),
    ]


# ---------------------------------------------------------------------------------------------- pages


def _paged(generator: torch.Generator, part: str, lengths: Sequence[int], page_size: int) -> Case:
    d, scale, B = 4 * drawn(generator, 2, 4), _scale(generator), len(lengths)
    most = max(ceil_div(keys, page_size) for keys in lengths)
    pages = B * most + 1
    table = torch.randperm(pages, generator=generator)[: B * most].int().view(B, most)
    q = torch.randn(B, d, generator=generator)
    K, V = (torch.randn(pages, page_size, d, generator=generator) for _ in "KV")
    inputs = {"q": q, "K": K, "V": V, "block_table": table, "seq_lens": torch.tensor(lengths, dtype=torch.int32)}
    right, plain = (
        _in_pages(*(x.to(dtype) for x in (q, K, V)), table.long(), lengths, float(scale))
        for dtype in (torch.float64, torch.float32)
    )
    output = Output(right, same_dtype=plain, axes=("sequence", "column"))
    sizes = map(np.int32, (most, page_size, d))
    launch = Launch("page_row", (B,), (d,), ("q", "K", "V", "block_table", "seq_lens", "O", *sizes, scale))
    name = f"seq_lens = {list(lengths)}, pages of {page_size}, random"
    return Case(part, name, (launch,), inputs, {"O": output}, must_be_clean=True)


def _in_pages(q: Tensor, K: Tensor, V: Tensor, table: Tensor, lengths: Sequence[int], scale: float) -> Tensor:
    """O [B, d]."""
    out = []
    for b, keys in enumerate(lengths):
        own_K, own_V = (pages[table[b]].flatten(0, 1)[:keys] for pages in (K, V))
        out.append(attention(q[b : b + 1], own_K, own_V, scale)[0])
    return torch.stack(out)


def _tables(generator: torch.Generator, _: Mapping[str, Tensor]) -> list[Case]:
    """Cases with pages in random order, some with a last page that is not full, and with pages of one key."""
    page_size = drawn(generator, 4, 7)
    lengths = [3 * page_size, 2 * page_size + 1, page_size - 1]
    return [
        _paged(generator, "random", lengths, page_size),
        _paged(generator, "small", [drawn(generator, 9, 12), 5], 1),
    ]


# ---------------------------------------------------------------------------------------------- trees


def _tree(generator: torch.Generator, part: str, parents: Sequence[int], context: int) -> Case:
    L_q, scale = len(parents), _scale(generator)
    Q = torch.randn(L_q, D, generator=generator)
    K, V = (torch.randn(context + L_q, D, generator=generator) for _ in "KV")
    visible = torch.cat((torch.ones(L_q, context, dtype=torch.bool), _ancestors(parents)), dim=1)
    right = attention(Q.double(), K.double(), V.double(), float(scale), visible)
    output = Output(right, same_dtype=attention(Q, K, V, float(scale), visible), axes=("query", "column"))
    inputs = {"Q": Q, "K": K, "V": V, "parents": torch.tensor(parents, dtype=torch.int32)}
    arguments = ("Q", "K", "V", "parents", "O", *map(np.int32, (L_q, context)), scale)
    launch = Launch("ancestors", (ceil_div(L_q, THREADS),), (THREADS,), arguments, (f"-DD={D}",))
    name = f"parents = {list(parents)}, context = {context}"
    return Case(part, name, (launch,), inputs, {"O": output}, must_be_clean=True)


def _ancestors(parents: Sequence[int]) -> Tensor:
    """bool [L_q, L_q]: which query is an ancestor of which, itself included."""
    visible = torch.eye(len(parents), dtype=torch.bool)
    for i, parent in enumerate(parents):
        if parent >= 0:
            visible[i] |= visible[parent]
    return visible


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
            findings={"memcheck": Diagnosis("a length is read that seq_lens does not have", read_again=RAGGED)},
        ),
        lesson="The block found its sequence from the lengths in device memory. So one launch serves any lengths, "
        "and a CUDA graph of it can be replayed with other lengths.",
        hint="Walk through the sequences. How many pieces of `size` keys does sequence b have? If `part` is "
        "less, your piece is there. If not, subtract them from `part`, and go on to the next sequence. Stop at B.",
        mistakes=(
            mistake(
                "every block takes its piece from the first sequence",
                "Go on to the next sequence once the pieces of this one are used up.",
                RAGGED,
                "b = 0;",
            ),
            mistake(
                "a short last piece is lost",
                "A sequence of 9 keys in pieces of 4 has three pieces: round up.",
                RAGGED,
                f"for (; b < B; b++) {{\nconst int parts = seq_lens[b] / size;\n{NEXT_SEQUENCE}",
            ),
            mistake(
                "a sequence has a piece without keys",
                "keys / size + 1 is one too many where the size divides the keys, 0 among them: round up.",
                RAGGED,
                f"for (; b < B; b++) {{\nconst int parts = seq_lens[b] / size + 1;\n{NEXT_SEQUENCE}",
            ),
            mistake(
                "all sequences get as many pieces as the longest",
                "A short sequence has fewer pieces: count those of each one.",
                RAGGED,
                "const int parts = (L + size - 1) / size;\nb = part / parts;\npart %= parts;",
            ),
            mistake(
                "the sequences take turns",
                "All pieces of sequence 0 come first, then those of sequence 1.",
                RAGGED,
                "b = part % B;\npart /= B;",
            ),
        ),
    ),
    "page_row": Puzzle(
        Exercise(
            id="06_serving/page_row",
            title="In which row is key j?",
            kernels=("page_row",),
            parts=(Part("random", 1, "pages in random order"), Part("small", 1, "pages of one key")),
            cases=_tables,
            findings={"memcheck": Diagnosis("an entry or a row is read that there is not", read_again=PAGES)},
        ),
        lesson="One look-up in the table, and a key may lie in any page. So memory can be handed out a page at a time.",
        hint="Key j lies in page number j / page_size of its sequence, at place j % page_size. The table says which "
        "page of the cache this is: its row for sequence b begins at entry b * max_pages. A page has page_size rows.",
        mistakes=(
            mistake(
                "the keys are read as if they lay one behind another",
                "Key j of a sequence is in the page that its row of the table names.",
                PAGES,
                "row = j;",
            ),
            mistake(
                "every sequence reads the table's first row",
                "Each sequence has a row of max_pages entries of its own.",
                PAGES,
                "row = block_table[j / page_size] * page_size + j % page_size;",
            ),
            mistake(
                "the number of the page is taken for its first row",
                "Page p begins at row p · page_size.",
                PAGES,
                "row = block_table[b * max_pages + j / page_size] + j % page_size;",
            ),
            mistake(
                "all keys of a page are its first one",
                "Add the place in the page, j % page_size.",
                PAGES,
                "row = block_table[b * max_pages + j / page_size] * page_size;",
            ),
        ),
    ),
    "ancestors": Puzzle(
        Exercise(
            id="06_serving/ancestors",
            title="A token and its ancestors",
            kernels=("ancestors",),
            parts=(Part("tree", 1, "a tree with one root"), Part("roots", 1, "several roots")),
            cases=_trees,
            findings={"memcheck": Diagnosis("a key before the first one is read", read_again=TREES)},
        ),
        lesson="Each token saw the context and its path to the root. So several guesses of the next tokens are "
        "checked in one pass over the cache.",
        hint="Begin at t = i, and go to `parents[t]` until t is −1. The key of query t is number context + t of K.",
        mistakes=(
            mistake(
                "the tree is taken for a chain",
                "A query sees its ancestors, and not all that stand before it.",
                TREES,
                f"for (int t = 0; t <= i; t++) {SEE_KEY}",
            ),
            mistake(
                "a query does not see its own key",
                "Begin with t = i, not with its parent.",
                TREES,
                f"for (int t = parents[i]; t >= 0; t = parents[t]) {SEE_KEY}",
            ),
            mistake(
                "a query sees its parent, but no older ancestor",
                "Go on from parent to parent.",
                TREES,
                f"int t = i;\n{SEE_KEY}\nt = parents[i];\nif (t >= 0) {SEE_KEY}",
            ),
            mistake(
                "keys of the context are read in place of the tree's",
                "The key of query t is number context + t.",
                TREES,
                "for (int t = i; t >= 0; t = parents[t]) see(row, Q + i * D, K + t * D, V + t * D, scale);",
            ),
            mistake("the queries see the context alone", "Each sees itself and its ancestors, too.", TREES, ""),
        ),
    ),
}
