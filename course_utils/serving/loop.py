"""Continuous batching: each step serves the requests that are there, and none waits for the slowest of a batch.

A step is one call of the model. A request in decoding brings one token; a new one brings a chunk of its prompt, as far
as the step's budget of prompt tokens goes. When the pages run out, the request that came last gives its own back and
waits in front again (`preempted`); later its prompt and what it has said are computed anew. That is simpler than to
keep the pages on the CPU, and gives the same bits, since the model's do not depend on the chunks (`serving.model`).

First come, first served: a request is admitted only when every earlier one is, and gives way only to earlier ones. So
the oldest unfinished request is never preempted, and every step computes at least one token of it: it ends, and then
the next one is the oldest. No request starves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from course_utils.arguments import integer
from course_utils.costs import ceil_div
from course_utils.serving.pages import CacheFull, PagedCache, Usage

NextTokens = Callable[[PagedCache, Sequence[tuple[int, Sequence[int]]]], list[int]]


@dataclass(eq=False)
class Request:
    """What a user asks for: so many tokens after a prompt. The other fields are the loop's.

    number: who came first has the lowest. said: the new tokens so far. sequence: its number in the cache; None while it
    waits, and once it has left. preemptions: how often it gave its pages back.
    """

    prompt: Sequence[int]
    new_tokens: int
    number: int
    said: list[int] = field(default_factory=list)
    sequence: int | None = None
    preemptions: int = 0

    @property
    def tokens(self) -> list[int]:
        """Prompt and answer."""
        return [*self.prompt, *self.said]

    @property
    def length(self) -> int:
        """The number of tokens in prompt and answer."""
        return len(self.prompt) + len(self.said)

    @property
    def finished(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.said) == self.new_tokens


class Step(NamedTuple):
    """What a step has done. batch: the number of each request, and how many of its tokens were computed; admitted,
    preempted, finished: numbers of requests; waiting: how many requests wait; usage: of the cache while the step
    ran."""

    batch: list[tuple[int, int]]
    admitted: list[int]
    preempted: list[int]
    finished: list[int]
    waiting: int
    usage: Usage


class Loop:
    """Serves requests from one cache.

    Args:
        next_tokens: the model, as `Model.next_tokens`: it gets the cache and, of each sequence, its number and new
            tokens, and returns the tokens that follow.
        cache: all of its free pages are the loop's.
        most: requests at a time, None for as many as have pages.
        chunk: tokens of prompts in a step.
        reserve: tokens for which a request takes its pages when it is admitted, as a contiguous cache must; None: pages
            are taken as they are needed.
    """

    def __init__(
        self,
        next_tokens: NextTokens,
        cache: PagedCache,
        *,
        most: int | None = None,
        chunk: int = 64,
        reserve: int | None = None,
    ) -> None:
        self.next_tokens, self.cache = next_tokens, cache
        self.most = None if most is None else integer("most", most, 1)
        self.chunk = integer("chunk", chunk, 1)
        self.capacity = cache.free_pages * cache.page_size  # tokens of one request, if it is alone
        self.reserve = None if reserve is None else integer("reserve", reserve, 1, self.capacity)
        self.requests: list[Request] = []  # all that ever came; waiting and running have them in the same order
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.history: list[Step] = []

    # ------------------------------------------------------------------------------------------ from outside

    def submit(self, prompt: Sequence[int], new_tokens: int) -> Request:
        """A new request, which waits for its turn. Raises ValueError for one that could never be served, and TypeError
        for a prompt that is text."""
        integer("new_tokens", new_tokens, 1)
        if isinstance(prompt, str):
            raise TypeError("prompt is a str; it must be the numbers of tokens, as from as_tokens")
        if not len(prompt):
            raise ValueError("prompt is empty; it must have at least one token")
        total, limit = len(prompt) + new_tokens, min(self.capacity, self.reserve or self.capacity)
        if total > limit:
            raise ValueError(f"prompt and new_tokens are {total} tokens together; a request may have {limit} here")
        request = Request(list(prompt), new_tokens, len(self.requests))
        self.requests.append(request)
        self.waiting.append(request)
        return request

    def run(self) -> None:
        """Steps until no request is left."""
        while self.waiting or self.running:
            self.step()

    # ------------------------------------------------------------------------------------------ a step

    def step(self) -> Step:
        """One call of the model for all requests that are served now; returns what it did. After an error or an
        interrupt of the model all unfinished requests wait again, in their order, without pages."""
        try:
            return self._step()
        except BaseException:  # which keys are written is unknown
            for request in self.running:
                self._leave(request)
                request.preemptions += 1
            self.waiting = [request for request in (*self.running, *self.waiting) if not request.finished]
            self.running = []
            raise

    def _step(self) -> Step:
        admitted = self._admit()
        preempted: list[int] = []
        batch: list[tuple[Request, list[int]]] = []
        budget = self.chunk
        for request in list(self.running):  # the oldest first
            if request not in self.running:
                continue  # it has just been preempted
            done = self.cache.length(request.sequence)
            missing = request.length - done
            count = 1 if missing == 1 else min(missing, budget)
            if count and self._make_room(request, count, preempted):
                batch.append((request, request.tokens[done : done + count]))
                budget -= count if missing > 1 else 0
        usage = self.cache.usage()
        finished = self._compute(batch)
        counts = [(request.number, len(tokens)) for request, tokens in batch]
        step = Step(counts, admitted, preempted, finished, len(self.waiting), usage)
        self.history.append(step)
        return step

    def _admit(self) -> list[int]:
        """Admits waiting requests in order, as long as there is room for the tokens of all requests that are served and
        one page more for each: else the last would soon be preempted."""
        admitted = []
        while self.waiting and (self.most is None or len(self.running) < self.most):
            request = self.waiting[0]
            if self.running and sum(map(self._missing_pages, [*self.running, request])) > self.cache.free_pages:
                break
            request.sequence = self.cache.allocate(self.reserve or 0)
            self.running.append(self.waiting.pop(0))
            admitted.append(request.number)
        return admitted

    def _missing_pages(self, request: Request) -> int:
        """The pages that a request will still take."""
        held = 0 if request.sequence is None else len(self.cache.pages_of(request.sequence))
        tokens = self.reserve or request.length + self.cache.page_size
        return max(ceil_div(tokens, self.cache.page_size) - held, 0)

    def _make_room(self, request: Request, count: int, preempted: list[int]) -> bool:
        """Extends a request's sequence. Requests that came later are preempted for it, the last first. False if it was
        preempted itself."""
        while True:
            try:
                self.cache.extend(request.sequence, count)
                return True
            except CacheFull:
                if self.running == [request]:
                    raise  # pages were taken outside of the loop
                preempted.append(self._preempt())
                if request not in self.running:
                    return False

    def _preempt(self) -> int:
        """Sends the last request that is served back to the head of the queue; returns its number."""
        last = self.running.pop()
        self._leave(last)
        last.preemptions += 1
        self.waiting.insert(0, last)
        return last.number

    def _compute(self, batch: list[tuple[Request, list[int]]]) -> list[int]:
        """Calls the model. A request at the end of its tokens gets the next one; a request with all its tokens
        leaves."""
        found = self.next_tokens(self.cache, [(r.sequence, tokens) for r, tokens in batch]) if batch else []
        finished = []
        for (request, _), token in zip(batch, found, strict=True):
            if self.cache.length(request.sequence) == request.length:
                request.said.append(token)
            if request.finished:
                self.running.remove(request)
                self._leave(request)
                finished.append(request.number)
        return finished

    def _leave(self, request: Request) -> None:
        if request.sequence is not None:
            self.cache.free(request.sequence)
            request.sequence = None
