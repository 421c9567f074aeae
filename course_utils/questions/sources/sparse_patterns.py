"""Questions of chapter 04: what a pattern keeps, what its tiles cost, what its lists hold, and what it cannot see."""

from __future__ import annotations

import re
from functools import cache
from random import Random

import torch

from course_utils import costs, measured, patterns
from course_utils.patterns import Pattern
from course_utils.questions.question import (
    Aggregate,
    Choice,
    Figure,
    Grid,
    Mistake,
    Number,
    Option,
    TradeOff,
    TrueFalse,
    Votes,
    shuffled,
)

TILE = 64
STUDY_LENGTH = 64  # tokens of the recall study


@cache  # a pattern keeps its lists, and a few sizes are drawn again and again
def _pattern(kind: str, *arguments: int) -> Pattern:
    """`patterns.kind(*arguments)`."""
    return getattr(patterns, kind)(*arguments)


def _named(name: str) -> Pattern:
    """The pattern whose name is "strided(stride=8)", say."""
    kind, _, arguments = name.partition("(")
    return _pattern(kind, *map(int, re.findall(r"\d+", arguments)))


@cache
def _local_and_global(radius: int, position: int) -> Pattern:
    return patterns.local(radius) | patterns.global_tokens([position])


def _visited(pattern: Pattern, length: int) -> tuple[int, int]:
    """Tiles of 64 × 64 that hold a pair, and how many of them are full."""
    lists = pattern.block_lists(length)
    return len(lists.indices), int((lists.bits_index < 0).sum())


# ---------------------------------------------------------------------------------------------- 1 why


def what_a_mask_saves(draw: Random) -> Choice:
    """What a mask saves"""
    length, window = draw.choice([4096, 8192, 16384]), draw.choice([128, 256, 512])
    hidden = 1 - patterns.sliding_window(window).density(length)
    return Choice(
        f"A colleague hands `scaled_dot_product_attention` a dense mask for a causal window of {window} keys, "
        f"L = {length:,}: {hidden:.1%} of the scores become −∞. It takes no less time than without a mask. Why?",
        shuffled(
            draw,
            Option(
                "All tiles of K and V are loaded and multiplied, whatever the mask says.",
                "Only a tile that is never loaded saves time, and the kernel must know that before it loads.",
                right=True,
            ),
            Option(
                f"{hidden:.1%} is not sparse enough for tensor cores.",
                "Tensor cores do not look at the values. At 99.9 % this call would take as long.",
            ),
            Option(
                "The exponential of −∞ is slow.",
                "It is 0, by the same instruction as any other.",
            ),
            Option(
                "The mask is read from memory, and that alone takes all the time that was saved.",
                "Reading it adds time, but is not the cause: section 1 masks without a mask in memory, and that takes "
                "nearly as long.",
            ),
        ),
        read_again="1 Why: a mask saves nothing",
    )


# ---------------------------------------------------------------------------------------------- 3 to 5 tiles and lists


def tiles_of_three_patterns(draw: Random) -> Grid:
    """Tiles of three patterns"""
    length, blocks = draw.choice([512, 768, 1024]), draw.choice([2, 3, 4])
    window, side = blocks * TILE, draw.choice([16, 32, 128, 256])
    rows = length // TILE
    chosen = (_pattern("causal"), _pattern("sliding_window", window), _pattern("block_diagonal", side))
    (all_causal, full_causal), (in_window, full_window), (in_blocks, full_blocks) = (
        _visited(pattern, length) for pattern in chosen
    )
    wide = costs.ceil_div(side, TILE)
    of_blocks = f"A row of tiles visits {wide}; {rows} rows of tiles."
    if side > TILE:
        mistakes = (Mistake(length // side, f"That is the number of blocks; each holds {wide} × {wide} tiles."),)
        all_full = "Each block is made of whole tiles."
    else:
        mistakes = (Mistake(length // side, f"That is the number of blocks. Several lie in one tile of {TILE}."),)
        all_full = f"Each tile holds {TILE // side} blocks and hidden pairs between them."
    return Grid(
        f"L = {length}, tiles of {TILE} × {TILE}. How many tiles hold a visible pair, and how many of these are full? "
        "`block_diagonal` sees both ways inside a block, the others only back.",
        tuple(f"`{pattern.name}`" for pattern in chosen),
        ("tiles visited", "of these full"),
        (
            (
                Figure(
                    all_causal,
                    "",
                    f"Row r of tiles visits r + 1 of them, r from 0 to {rows - 1}.",
                    mistakes=(Mistake(rows**2, "Tiles above the diagonal hold no visible pair."),),
                ),
                Figure(
                    full_causal,
                    "",
                    "All but the one on the diagonal, in each row of tiles.",
                    mistakes=(
                        Mistake(all_causal, "The tiles on the diagonal are partial."),
                        Mistake(rows, "That counts the partial ones."),
                    ),
                ),
            ),
            (
                Figure(
                    in_window,
                    "",
                    f"Row r of tiles reaches from tile r − {blocks} to tile r, {blocks + 1} in all, fewer for the "
                    f"first {blocks} rows.",
                    mistakes=(
                        Mistake(rows * (blocks + 1), f"The first {blocks} rows of tiles have fewer than {blocks + 1}."),
                        Mistake(
                            in_window - (rows - blocks),
                            f"A window of {window} keys touches {blocks + 1} tiles, not {blocks}: the queries of "
                            "a row of tiles start at different keys.",
                        ),
                    ),
                ),
                Figure(
                    full_window,
                    "",
                    "The tiles on the diagonal and at the start of the window are partial. Those between are full: "
                    f"in row r of tiles r of them, at most {blocks - 1}.",
                    mistakes=(
                        Mistake(in_window, "Tiles at the window's start or on the diagonal are partial."),
                        Mistake(in_window - rows, "The tiles at the window's start are partial, too."),
                    ),
                ),
            ),
            (
                Figure(in_blocks, "", of_blocks, mistakes=mistakes),
                Figure(full_blocks, "", all_full),
            ),
        ),
        read_again="3 Ranges: tiles from arithmetic",
    )


def tiles_not_pairs(draw: Random) -> TrueFalse:
    """Work is counted in tiles"""
    side, length = draw.choice([8, 16]), 1024
    small, wide = _pattern("block_diagonal", side), _pattern("sliding_window", TILE)
    tiles, pairs = _visited(small, length)[0] / _visited(wide, length)[0], side / TILE
    claimed, in_words = draw.choice([(1 / 2, "half"), (pairs, {8: "an eighth", 16: "a quarter"}[side])])
    return TrueFalse(
        f"`block_diagonal({side})` keeps {side} keys a query, `sliding_window({TILE})` keeps {TILE}. On a long "
        f"sequence a kernel with tiles of {TILE} × {TILE} visits about {in_words} as many tiles for the first as for "
        "the second.",
        abs(claimed - tiles) < 0.1 * claimed,
        f"Pairs: {pairs:.3g} times as many. Tiles: a row of tiles visits one for the blocks and two for the window, "
        f"so {tiles:.2f} times as many at L = {length}. The tile is the unit of work, the pair the unit of use.",
        read_again="3 Ranges: tiles from arithmetic",
    )


def sorted_by_residue(draw: Random) -> Number:
    """What sorting by residue saves"""
    dilation, window, classes_rows = draw.choice([4, 8]), draw.choice([32, 64]), draw.choice([2, 3, 4])
    length = dilation * classes_rows * TILE
    pattern = _pattern("dilated", window, dilation)
    unsorted = _visited(pattern, length)[0]
    by_class = _visited(_pattern("sliding_window", window), length // dilation)[0]
    return Number(
        f"`{pattern.name}`, L = {length}, tiles of {TILE} × {TILE}. A kernel that keeps the order of the positions "
        f"visits {unsorted} tiles. How many are visited once the positions are sorted by i mod {dilation}?",
        Figure(
            dilation * by_class,
            "tiles",
            f"{dilation} classes of {length // dilation} positions; in each of them the pattern is "
            f"`sliding_window({window})`, which visits {by_class} tiles: {dilation} · {by_class}.",
            mistakes=(
                Mistake(by_class, f"That is one residue class. There are {dilation} of them."),
                Mistake(
                    (length // TILE) * 2 - 1,
                    "That is one window over the whole sequence. After sorting, each class is a sequence of its own, "
                    "and its first row of tiles has nothing before it.",
                ),
            ),
        ),
        read_again="4 Dilated: sort, then window",
    )


def bytes_of_block_lists(draw: Random) -> Aggregate:
    """Bytes of block lists"""
    length, radius = draw.choice([1024, 1536, 2048]), draw.choice([64, 96, 128])
    pattern = _local_and_global(radius, draw.choice([7, 70, 300]))
    lists = pattern.block_lists(length)
    visited, partial = len(lists.indices), len(lists.bits)
    return Aggregate(
        f"`{pattern.name}` at L = {length:,}: {lists.rows} rows of blocks of {TILE} × {TILE}; {visited} blocks are "
        f"visited, {partial} of them partial. `indptr`, `indices` and `bits_index` are int32. How many "
        "bytes do they take?",
        (
            (
                "indptr",
                Figure(
                    lists.indptr.nbytes,
                    "bytes",
                    f"One entry for each row of blocks, and the end of the last: ({lists.rows} + 1) · 4.",
                    mistakes=(Mistake(4 * lists.rows, "The end of the last row needs an entry, too."),),
                ),
            ),
            (
                "indices and bits_index",
                Figure(
                    lists.indices.nbytes + lists.bits_index.nbytes,
                    "bytes",
                    f"Two numbers for each visited block, in `bits_index` −1 for a full one: 2 · {visited} · 4.",
                    mistakes=(
                        Mistake(4 * visited, "These are two lists."),
                        Mistake(
                            4 * (visited + partial),
                            "Full blocks have an entry in `bits_index`, too: −1 says that they are full.",
                        ),
                    ),
                ),
            ),
            (
                "bits",
                Figure(
                    lists.bits.nbytes,
                    "bytes",
                    f"A bit for each pair of a partial block: {partial} · {TILE} · {TILE} / 8.",
                    mistakes=(
                        Mistake(partial * TILE**2, "That is a byte for each pair. A pair takes one bit."),
                        Mistake(visited * TILE**2 / 8, "Full blocks need no bits."),
                    ),
                ),
            ),
        ),
        read_again="5 Block lists",
    )


# ---------------------------------------------------------------------------------------------- 10 choosing


def what_can_be_reached(draw: Random) -> Votes:
    """What can be reached"""
    length, many, window, layers = 160, 16, draw.choice([9, 17, 33]), draw.choice([2, 3, 4])
    reach = layers * (window - 1)
    asked = draw.choice([reach, layers * window])
    stride = draw.choice([8, 16])
    dilation = draw.choice([2, 4])

    def reached(pattern: Pattern, n: int) -> torch.Tensor:
        """The keys from which something can have reached the last query after n layers."""
        return torch.linalg.matrix_power(pattern.mask(length).float(), n)[-1] > 0

    globals_first = (patterns.sliding_window(window) | patterns.global_tokens(range(4))) & patterns.causal()
    sinks = patterns.streaming(4, window)
    same = bool((globals_first.mask(length) == sinks.mask(length)).all())
    statements = (
        Option(
            f"With `sliding_window({window})` and {layers} layers something can come from {asked} tokens back.",
            f"A layer hands on by {window} − 1 tokens: {layers} layers by {reach}.",
            right=bool(reached(patterns.sliding_window(window), layers)[length - 1 - asked]),
        ),
        Option(
            f"With `dilated(16, {dilation})` enough layers reach every earlier token.",
            f"Each layer stays among tokens with the same remainder modulo {dilation}.",
            right=bool(reached(patterns.dilated(16, dilation), many).all()),
        ),
        Option(
            f"With `strided({stride})` two layers reach every earlier token.",
            f"One step among the last {stride} keys finds the right remainder, one along the stride the token.",
            right=bool(reached(patterns.strided(stride), 2).all()),
        ),
        Option(
            "In a causal model, tokens 0 to 3 as global tokens see everything, and hand it on.",
            "Causal global tokens see only what lies before them: these four are nothing but sinks.",
            right=not same,
        ),
        Option(
            f"With `block_diagonal({stride})` no number of layers leads out of a block.",
            "All tokens that a token sees are in the same block.",
            right=int(reached(patterns.block_diagonal(stride), many).sum()) <= stride,
        ),
    )
    return Votes(
        f"Information over several layers, all with the same pattern, L = {length}. Which statements hold?",
        shuffled(draw, *statements),
        read_again="Reach",
    )


def pattern_for_a_recall(draw: Random) -> TradeOff:
    """The cheapest pattern that recalls enough"""
    needed = draw.choice([50, 55, 80, 85, 95])
    asked = [("strided 8", 2), ("window 32", 1), ("window 48", 1), ("window 32", 2), ("dense", 1)]
    rows = {(row["name"], row["layers"]): row for row in measured.load("04_recall_study").rows}
    chosen = [rows[name] for name in asked]
    pairs = [_named(row["pattern"]).pairs(STUDY_LENGTH) for row in chosen]
    cost = [row["layers"] * count for row, count in zip(chosen, pairs, strict=True)]
    enough = [100 * row["accuracy"] >= needed for row in chosen]
    least = min(price for price, good in zip(cost, enough, strict=True) if good)

    def option(row: dict, count: int, price: int, good: bool) -> Option:
        layers = f"{row['layers']} layer{'s' if row['layers'] > 1 else ''}"
        total = f"{row['layers']} · {count:,} = {price:,} pairs"
        if not good:
            why = f"It computes {total}, but answers only {row['accuracy']:.1%} rightly."
        elif price == least:
            why = f"It computes {total}, the fewest of those that answer at least {needed} %."
        else:
            why = f"It answers enough, but computes {total}: another one does so with fewer."
        figures = f"{count:,}", f"{row['visible_facts']:.0%}", f"{row['accuracy']:.1%}"
        return Option(f"{row['name']}, {layers}", why, right=good and price == least, figures=figures)

    return TradeOff(
        "The models of the study of facts and questions. The cost of attention is the number of pairs that a head "
        f"computes for all {STUDY_LENGTH} tokens, in all layers together. At least {needed} % of the answers must be "
        "right. Which model's attention costs least?",
        ("pairs per layer", "facts seen directly", "answers right"),
        shuffled(draw, *(option(*found) for found in zip(chosen, pairs, cost, enough, strict=True))),
        read_again="Reach is not recall",
    )


def pattern_for_the_data(draw: Random) -> Choice:
    """A pattern for the data"""
    side, radius = draw.choice([(32, 2), (32, 3), (64, 3)])
    keys = int(patterns.local_2d(16, 16, radius).mask(256)[8 * 16 + 8].sum())
    cases = {
        "stream": (
            "A chat model that was trained with dense attention must answer on a stream without end, from a cache of "
            "fixed size. What was said long ago may be forgotten.",
            "`streaming(4, W)`",
            "The window holds the recent text, and the sinks hold the attention that such a model puts on the first "
            "tokens.",
            "It keeps a window and the first four tokens, whatever these say. Nothing here needs just those.",
        ),
        "code": (
            "A code model continues a file. It needs the lines just before, and signatures from all over the file, "
            "whose places a parser has found.",
            "`sliding_window(W) | global_tokens(declarations)`, causal",
            "What is far and needed is known beforehand here, and a few chosen tokens cost little.",
            "It spends keys on tokens that were chosen beforehand. This case names no such tokens.",
        ),
        "image": (
            f"An encoder takes {side} × {side} patches of an image, row by row. A patch needs those around it.",
            f"`local_2d({side}, {side}, {radius})`",
            f"A neighbour above lies {side} positions away. A patch inside sees {keys} patches, itself among them.",
            "It takes the sequence for rows of an image: a token would see positions a whole row away.",
        ),
        "packed": (
            "An encoder is trained on short texts that were cut to one length and packed into one sequence. A token "
            "sees all of its own text, and nothing of another.",
            "`block_diagonal(length of a text)`",
            "Each text is a block. With equal lengths it is the same as a batch of short sequences under dense "
            "attention.",
            "It cuts the sequence at fixed places, and nothing ever passes from one block to the next.",
        ),
    }
    name = draw.choice(list(cases))
    options = [
        Option(text, why_right if case == name else why_wrong, right=case == name)
        for case, (_, text, why_right, why_wrong) in cases.items()
    ]
    return Choice(
        f"{cases[name][0]} Which pattern suits it?",
        shuffled(draw, *options),
        read_again="Which pattern for what",
        kind="scenario",
    )


QUESTIONS = (
    what_a_mask_saves,
    tiles_of_three_patterns,
    tiles_not_pairs,
    sorted_by_residue,
    bytes_of_block_lists,
    what_can_be_reached,
    pattern_for_a_recall,
    pattern_for_the_data,
)
