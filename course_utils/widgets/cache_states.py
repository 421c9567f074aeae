"""The states of the cache explorer: a `PagedCache` step by step, and what happened in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from course_utils.serving import CacheFull, PagedCache, Usage

ROWS = 96  # of the pool: room for so many tokens
PAGE_SIZES = (2, 4, 8)
RESERVED = 32  # rows that a cache without pages keeps for each sequence: none may become longer


class Action(NamedTuple):
    """One step. kind: "arrive" (one sequence, with a prompt of `tokens`), "say" (each of `who` says a token), "fork"
    (one, with the first `tokens` of `other`) or "end" (each of `who`)."""

    kind: str
    who: str
    tokens: int = 0
    other: str = ""


STORY = (
    Action("arrive", "A", 10),
    Action("arrive", "B", 7),
    Action("say", "AB"),
    Action("say", "AB"),
    Action("arrive", "C", 17),
    Action("say", "ABC"),
    Action("fork", "D", 13, "A"),
    Action("say", "D"),
    Action("say", "A"),
    Action("say", "ABCD"),
    Action("fork", "E", 16, "C"),
    Action("say", "E"),
    Action("say", "ABCDE"),
    Action("end", "B"),
    Action("end", "C"),
    Action("arrive", "F", 30),
    Action("say", "ADEF"),
    Action("arrive", "G", 30),
    Action("end", "AD"),
    Action("arrive", "G", 30),
    Action("say", "EFG"),
    Action("end", "EFG"),
)


class Page(NamedTuple):
    """A page of the pool. owners: its sequences; filled: rows that hold a token; first: the number of its first token
    in its sequence."""

    owners: str
    filled: int
    first: int


class CacheState(NamedTuple):
    """The cache after a step.

    said: what happened. pages: all pages of the pool. tables: the block table of each sequence; lengths: its tokens.
    taken, freed: pages that were taken or freed in this step. copies: (from, to), pages that a write copied. written:
    slots of new tokens. waiting: sequences without room. usage: of the pages. placed: the sequences that would have a
    place in a cache of the same size without pages, which reserves `RESERVED` rows for each; reserved: the usage of
    that cache.
    """

    said: str
    pages: tuple[Page, ...]
    tables: dict[str, list[int]]
    lengths: dict[str, int]
    taken: tuple[int, ...]
    freed: tuple[int, ...]
    copies: tuple[tuple[int, int], ...]
    written: tuple[int, ...]
    waiting: str
    usage: Usage
    placed: str
    reserved: Usage


def cache_states(page_size: int) -> list[CacheState]:
    """The state of a `PagedCache` of `ROWS` rows before the story and after each of its actions.

    page_size: 2, 4 or 8. Raises ValueError naming it.
    """
    check_choice("page_size", page_size, PAGE_SIZES)
    books = _Books(PagedCache(ROWS // page_size, page_size))
    return [books.after(action) for action in (None, *STORY)]


class _Books:
    """A cache, and the letter of each of its sequences."""

    def __init__(self, cache: PagedCache) -> None:
        self.cache = cache
        self.numbers: dict[str, int] = {}
        self.copies: list[tuple[int, int]] = []  # these three are of one action
        self.written: list[int] = []
        self.waiting = ""

    def after(self, action: Action | None) -> CacheState:
        """The state after an action; None: without one."""
        self.copies, self.written, self.waiting = [], [], ""
        before = self.users()
        said = self.act(action)
        pairs = list(enumerate(zip(before, self.users(), strict=True)))
        placed, reserved = self.without_pages()
        return CacheState(
            said=said,
            pages=self.pages(),
            tables=self.tables(),
            lengths=self.lengths(),
            taken=tuple(page for page, (was, now) in pairs if now and not was),
            freed=tuple(page for page, (was, now) in pairs if was and not now),
            copies=tuple(self.copies),
            written=tuple(self.written),
            waiting=self.waiting,
            usage=self.cache.usage(),
            placed=placed,
            reserved=reserved,
        )

    # ------------------------------------------------------------------------------------------ what there is

    def tables(self) -> dict[str, list[int]]:
        return {name: self.cache.pages_of(number) for name, number in self.numbers.items()}

    def lengths(self) -> dict[str, int]:
        return {name: self.cache.length(number) for name, number in self.numbers.items()}

    def users(self) -> list[int]:
        return [self.cache.users(page) for page in range(self.cache.pages)]

    def pages(self) -> tuple[Page, ...]:
        size, found = self.cache.page_size, [Page("", 0, 0)] * self.cache.pages
        for name, table in self.tables().items():
            for n, page in enumerate(table):
                filled = min(self.lengths()[name] - n * size, size)
                found[page] = Page(found[page].owners + name, max(found[page].filled, filled), n * size)
        return tuple(found)

    def without_pages(self) -> tuple[str, Usage]:
        """The sequences that would have a place, the oldest first, if each got `RESERVED` rows of its own."""
        cache, placed = PagedCache(self.cache.pages, self.cache.page_size), ""
        for name, tokens in self.lengths().items():
            try:
                number = cache.allocate(RESERVED)
            except CacheFull:
                break
            cache.extend(number, tokens)
            placed += name
        return placed, cache.usage()

    # ------------------------------------------------------------------------------------------ actions

    def act(self, action: Action | None) -> str:
        """Performs an action, and says what happened."""
        match action:
            case Action("arrive", who, tokens):
                return self.arrive(who, tokens)
            case Action("fork", who, tokens, other):
                return self.fork(who, tokens, other)
            case Action("say", who):
                return self.say(who)
            case Action("end", who):
                return self.end(who)
        pages, size = self.cache.pages, self.cache.page_size
        return f"All {pages} pages are free. A page has {size} rows, each for the key and value of a token."

    def arrive(self, name: str, tokens: int) -> str:
        cache = self.cache
        number, comes = cache.allocate(), f"{name} comes with a prompt of {tokens} tokens"
        try:
            cache.extend(number, tokens)
        except CacheFull:
            needed, free = cache.needed(number, tokens), cache.free_pages
            cache.free(number)
            self.waiting = f"{name} waits for {count(needed, 'page')}"
            return (
                f"{comes}. That takes {count(needed, 'page')}, and {free} {_is(free)} free: the cache raises "
                f"CacheFull, nothing in it changes, and {name} waits."
            )
        self.numbers[name] = number
        self.written = cache.slots(number, 0, tokens)
        table = cache.pages_of(number)
        empty = len(table) * cache.page_size - tokens
        left = f"{count(empty, 'row')} of the last one stay{'s' * (empty == 1)} empty" if empty else "all are full"
        return f"{comes} and takes {count(len(table), 'page')}; {left}."

    def fork(self, name: str, tokens: int, other: str) -> str:
        cache = self.cache
        self.numbers[name] = cache.fork(self.numbers[other], tokens)
        table = cache.pages_of(self.numbers[name])
        begins = f"{'all' if tokens == cache.length(self.numbers[other]) else 'the first'} {tokens} tokens"
        last = (
            f"Page {table[-1]} is not full: the first of them to write there must copy it."
            if tokens % cache.page_size
            else "They are full, so nobody writes there and nobody copies them."
        )
        shared = f"{name} is a fork of {other} and shares {begins}: no page is taken, {_listed(table)} have two users."
        return f"{shared} {last}"

    def say(self, names: str) -> str:
        sentences, grown, inside = [], {}, []
        for name in names:
            number = self.numbers[name]
            before, length = self.cache.pages_of(number), self.cache.length(number)
            self.cache.extend(number, 1)
            self.written += self.cache.slots(number, length, length + 1)
            table = self.cache.pages_of(number)
            if len(table) > len(before):
                grown[name] = table[-1]
            elif table != before:
                self.copies.append((before[-1], table[-1]))
                others = [other for other, its in self.tables().items() if before[-1] in its]
                sentences.append(
                    f"{name} may not write into page {before[-1]}, which {_and(others)} has, too: it copies it to page "
                    f"{table[-1]} and writes there."
                )
            else:
                inside.append(name)
        if grown:
            took = [f"{name} takes page {page}" for name, page in grown.items()]
            sentences.append(f"{_and(took)}: {'its' if len(took) == 1 else 'their'} last one was full.")
        if len(inside) == 1:
            sentences.append(f"{inside[0]} writes into its last page, which nobody else has.")
        elif inside:
            sentences.append(f"{_and(inside)} write into their last pages.")
        return f"{_and(names)} {'says a token' if len(names) == 1 else 'say a token each'}. {' '.join(sentences)}"

    def end(self, names: str) -> str:
        held = sorted({page for name in names for page in self.tables()[name]})
        for name in names:
            self.cache.free(self.numbers.pop(name))
        stay = [page for page in held if self.cache.users(page)]
        owners = [name for name, table in self.tables().items() if set(table) & set(stay)]
        freed = len(held) - len(stay)
        ends = f"{_and(names)} end{'s' * (len(names) == 1)}: {count(freed, 'page')} {_is(freed)} free again."
        return f"{ends} {_and(owners)} keeps {_listed(stay)}." if stay else ends


def _and(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def count(number: int, what: str) -> str:
    """A number of things in words: "1 page", "2 pages"."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _listed(pages: Sequence[int]) -> str:
    return f"page{'' if len(pages) == 1 else 's'} {_and([str(page) for page in pages])}"


def check_choice(name: str, got: object, takes: Sequence) -> None:
    """Raises ValueError unless `got` is one of `takes`."""
    if got not in takes:
        raise ValueError(f"{name}: got {got!r}, takes {' or '.join(map(repr, takes))}")
