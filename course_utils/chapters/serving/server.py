"""Chapter 06's cache and serving loop: pages, a day's requests, and the small model's answers."""

from __future__ import annotations

import functools

import matplotlib.pyplot as plt

from course_utils import plots, show
from course_utils.measured.serving import CHUNK
from course_utils.serving import (
    TIED,
    Loop,
    Model,
    PagedCache,
    alone_and_batched,
    as_text,
    as_tokens,
    lengths,
    simulate,
    summary,
)

PAGES, PAGE_SIZE, LONGEST = 256, 16, 512  # of the cache of a day; tokens of a prompt or an answer, at most
PROMPTS = ("A warp is ", "Shared memory ", "Each query ")


# ---- pages


def show_table() -> PagedCache:
    """Shows three sequences in pages, one of them forked from another. Returns the cache."""
    cache = PagedCache(14, 4)
    first, second = cache.allocate(), cache.allocate()
    for tokens in (5, 4, 2):  # they grow in turns
        cache.extend(first, tokens)
        cache.extend(second, tokens - 1)
    third = cache.fork(first, 8)
    cache.extend(third, 3)
    plots.table_and_pages([cache.pages_of(one) for one in (first, second, third)], cache.pages)
    plt.show()
    usage = cache.usage()
    print(f"{usage.tokens} tokens in {usage.filled} rows of {usage.taken} pages, {usage.shared} of them shared")
    return cache


def copy_on_write() -> None:
    """Shows a fork that writes into a page it shares."""
    cache = PagedCache(6, 4)
    first = cache.allocate()
    cache.extend(first, 6)
    second = cache.fork(first)
    print(f"after the fork:     the first has pages {cache.pages_of(first)}, its fork {cache.pages_of(second)}")
    cache.extend(second, 1)
    print(f"after it has grown: the first has pages {cache.pages_of(first)}, its fork {cache.pages_of(second)}")


def show_found_pages(prompt: int = 8) -> None:
    """Shows three requests that begin alike, in pages of 4: which tokens are computed without a prefix cache, and with
    one, where pages that are found are hatched."""
    cache = PagedCache(16, 4)
    first = cache.allocate()
    cache.extend(first, prompt + 5)
    second = cache.fork(first, prompt)
    cache.extend(second, 7)
    third = cache.fork(second, prompt + 4)
    cache.extend(third, 3)
    panels: dict[str, list[tuple[str, list[list[int]]]]] = {"no prefix cache: every token is computed": []}
    panels["prefix cache: hatched pages are found"] = []
    computed = [0, 0]
    for b, sequence in enumerate((first, second, third)):
        pages, length = cache.pages_of(sequence), cache.length(sequence)
        sizes = [min(cache.page_size, length - n * cache.page_size) for n in range(len(pages))]
        found = [b > 0 and page in cache.pages_of((first, second)[b - 1]) for page in pages]
        rows = [[b] * size for size in sizes], [[-1 if old else b] * n for old, n in zip(found, sizes, strict=True)]
        for lines, groups in zip(panels.values(), rows, strict=True):
            lines.append((f"request {b}", groups))
        computed = [computed[0] + length, computed[1] + length - cache.page_size * sum(found)]
    plots.room_of_sequences(panels)
    plt.show()
    print(f"tokens computed: {computed[0]} without, {computed[1]} with a prefix cache")


# ---- a day's requests


@functools.cache
def served(*, reserve: int | None = None) -> Loop:
    """The loop after it has served 200 requests without a model, the same requests that the model serves on a GPU."""
    return simulate(lengths(longest=LONGEST), pages=PAGES, page_size=PAGE_SIZE, reserve=reserve, chunk=CHUNK)


def both() -> dict[str, Loop]:
    """The loop with pages on demand, and with the pages of the longest request reserved."""
    return {"in pages": served(), "reserved": served(reserve=2 * LONGEST)}


def show_chunks(prompt: int = 18, steps: int = 5) -> None:
    """Draws the tokens of each step while three requests decode and a fourth comes with a long prompt: the prompt taken
    whole, and in chunks."""
    panels = {}
    for title, chunk in (("the prompt in one step", prompt), ("in chunks of 6 tokens", 6)):
        loop = Loop(lambda cache, batch: [0] * len(batch), PagedCache(64, 4), chunk=chunk)
        for _ in range(3):
            loop.submit([0], 2 * steps)
        loop.step()
        loop.submit([0] * prompt, steps)
        for _ in range(steps - 1):
            loop.step()
        panels[title] = [
            (f"step {n}", [[number] * tokens for number, tokens in step.batch]) for n, step in enumerate(loop.history)
        ]
    plots.room_of_sequences(panels)
    plt.show()


def show_day() -> float:
    """Draws how many requests are served at a time, and how full the cache is, step by step. Returns how many times as
    many are served on average if pages are taken on demand."""
    loops = both()
    at_once = {name: [len(step.batch) for step in loop.history] for name, loop in loops.items()}
    filled = {
        name: [100 * step.usage.filled / (PAGES * PAGE_SIZE) for step in loop.history] for name, loop in loops.items()
    }
    plots.over_steps({"requests in a step": at_once, "% of the cache's rows that hold a token": filled})
    plt.show()
    found = {name: summary(loop) for name, loop in loops.items()}
    names = {"steps": "steps", "at_once": "requests at once", "most_at_once": "at most"}
    names |= {"waste": "taken rows without a token, %", "preempted": "preempted"}
    names |= {"again": "computed again, %"}
    shares = "waste", "again"
    table = [
        {"": name} | {title: row[key] * (100 if key in shares else 1) for key, title in names.items()}
        for name, row in found.items()
    ]
    show.table(table, f"{PAGES} pages of {PAGE_SIZE} tokens; 200 requests, all there from the start", folded=True)
    return found["in pages"]["at_once"] / found["reserved"]["at_once"]


# ---- the small model


@functools.cache
def model() -> Model:
    """The course's small model on the CPU; its bits are the same on every machine."""
    return Model()


def say(prompt: str, tokens: int = 40) -> None:
    """Prints a prompt and the model's continuation."""
    loop = Loop(model().next_tokens, model().cache(16))
    request = loop.submit(as_tokens(prompt), tokens)
    loop.run()
    print(prompt + "|" + as_text(request.said))


def check_batches(tokens: int = 10) -> None:
    """Checks that the prompts get the same tokens one by one, together, and in so few pages that one has to give
    way."""
    said = []
    for name, pages, group in (("alone", 16, 1), ("together", 64, 3), ("in 9 pages", 9, 3)):
        answers, preempted = [], 0
        for first in range(0, len(PROMPTS), group):
            loop = Loop(model().next_tokens, model().cache(pages, 4), chunk=16)
            for prompt in PROMPTS[first : first + group]:
                loop.submit(as_tokens(prompt), tokens)
            loop.run()
            answers += [request.said for request in loop.requests]
            preempted += sum(request.preemptions for request in loop.requests)
            free = loop.cache.free_pages == loop.cache.pages
        said.append(answers)
        print(f"{name:11} the same tokens: {answers == said[0]}, preempted: {preempted}, all pages free again: {free}")


def show_batch_effect() -> str:
    """Shows how much the logits of one step depend on the rest of the batch. Returns the next token of the last row in
    the batch."""
    rows = alone_and_batched(TIED[0], TIED[1:])
    names = {f"{row['attention']}, sums {row['sums']}": row for row in rows}
    plots.bars(list(names), {"of 256 logits, so many differ": [row["differing"] for row in rows]})
    plt.show()
    table = [
        {
            "": name,
            "largest difference": row["largest"],
            "alone": repr(chr(row["alone"])),
            "among others": repr(chr(row["among"])),
        }
        for name, row in names.items()
    ]
    show.table(table, "the next token after one prompt, alone and beside another", folded=True)
    (row,) = (row for row in rows if row["attention"] == "by the batch" and row["sums"] == "exact")
    return repr(chr(row["among"]))


def eight_bits(prompt: str = "The kernel reads ", tokens: int = 40) -> int:
    """Prints the model's continuation with a 16-bit cache and with one in E4M3. Returns how many tokens are the
    same."""
    said = []
    for options in ({}, model().e4m3_scales(as_tokens(" ".join(PROMPTS)))):
        loop = Loop(model().next_tokens, model().cache(16, **options))
        request = loop.submit(as_tokens(prompt), tokens)
        loop.run()
        said.append(request.said)
        print(f"{'E4M3' if options else '16 bits':8}{prompt}|{as_text(request.said)}")
    same = [a == b for a, b in zip(*said, strict=True)]
    return same.index(False) if False in same else tokens
