"""A cache of keys and values in pages of a fixed size, which sequences take as they grow and may share.

PagedAttention (arXiv 2309.06180, §4): each sequence lists the pages that hold its tokens, in order. A page counts
the sequences that use it. A fork shares all pages; a sequence that writes into a shared page gets a copy of it first.
If too few pages are free, `CacheFull` is raised, and nothing has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.arguments import check_tensor, integer
from course_utils.costs import ceil_div
from course_utils.operators.serving_checks import MAX_PAGE_SIZE
from course_utils.operators.serving_choice import E4M3

FLOATS = torch.float16, torch.bfloat16, torch.float32, torch.float64
E4M3_MAX = torch.finfo(E4M3).max


class CacheFull(RuntimeError):
    """Fewer pages are free than needed. The cache is unchanged."""


class Usage(NamedTuple):
    """What the pages are used for.

    taken: pages that some sequence has, of all `pages`. shared: pages that several sequences have. tokens: of all
    sequences together. filled: rows of the taken pages that hold a token; less than `tokens` if pages are shared.
    """

    pages: int
    page_size: int
    taken: int
    shared: int
    tokens: int
    filled: int

    @property
    def waste(self) -> float:
        """Share of the taken rows that hold no token; 0 where none are taken."""
        return 1 - self.filled / (self.taken * self.page_size) if self.taken else 0.0


class PagedCache:
    """Keys and values of many sequences, of every layer.

    Args:
        pages: how many there are.
        page_size: tokens of a page, from 1 to 256.
        layers: of the model. 0: the cache only counts pages, and has no memory for keys and values.
        kv_heads, head_dim: of a layer.
        dtype: float16 or bfloat16; with scales it is float8_e4m3fn, whatever this says.
        device: where keys, values and tables are.
        k_scale, v_scale: float32 `[layers, kv_heads]`, positive: keys and values are kept in E4M3, divided by these.

    `key_pages` and `value_pages` are `[layers, pages, page_size, kv_heads, head_dim]`; a layer of them is what
    `paged_attention` takes.
    """

    def __init__(
        self,
        pages: int,
        page_size: int = 16,
        *,
        layers: int = 0,
        kv_heads: int = 1,
        head_dim: int = 64,
        dtype: torch.dtype = torch.float16,
        device: str | torch.device = "cpu",
        k_scale: Tensor | None = None,
        v_scale: Tensor | None = None,
    ) -> None:
        self.pages, self.page_size = integer("pages", pages, 1), integer("page_size", page_size, 1, MAX_PAGE_SIZE)
        self.layers, self.device = integer("layers", layers, 0), torch.device(device)
        if dtype not in (torch.float16, torch.bfloat16):
            raise TypeError(f"dtype is {dtype}; it must be torch.float16 or torch.bfloat16, also with scales")
        if (k_scale is None) != (v_scale is None):
            missing = "k_scale" if k_scale is None else "v_scale"
            raise ValueError(f"{missing} is None; with the other it must be float32 [layers, kv_heads]")
        shape = layers, pages, page_size, kv_heads, head_dim
        kept = dtype if k_scale is None else E4M3
        self.key_pages, self.value_pages = (torch.empty(shape, dtype=kept, device=device) for _ in range(2))
        self._scales = () if k_scale is None else (k_scale, v_scale)
        for name, scale in zip(("k_scale", "v_scale"), self._scales, strict=False):
            check_tensor(name, scale, (layers, kv_heads), (torch.float32,), like=("the cache", self.key_pages))
            if not (scale > 0).all():
                raise ValueError(f"{name} goes down to {scale.min().item()}; it must be positive")
        self._free = list(range(pages))[::-1]  # the last one is taken first
        self._users = [0] * pages
        self._held: dict[int, list[int]] = {}  # pages of each sequence, in order
        self._lengths: dict[int, int] = {}
        self._next = 0

    # ------------------------------------------------------------------------------------------ what there is

    @property
    def free_pages(self) -> int:
        """Pages that no sequence has."""
        return len(self._free)

    @property
    def sequences(self) -> list[int]:
        """The numbers of all sequences, the oldest first."""
        return list(self._held)

    def length(self, sequence: int) -> int:
        """Tokens of a sequence."""
        self._known(sequence)
        return self._lengths[sequence]

    def pages_of(self, sequence: int) -> list[int]:
        """The pages of a sequence, in order."""
        return list(self._known(sequence))

    def users(self, page: int) -> int:
        """How many sequences have a page."""
        return self._users[page]

    def usage(self) -> Usage:
        """What the pages are used for, at this moment."""
        filled: dict[int, int] = {}  # rows with a token, of each page
        for sequence, held in self._held.items():
            whole, rest = divmod(self._lengths[sequence], self.page_size)
            filled.update(dict.fromkeys(held[:whole], self.page_size))
            if rest:  # another sequence may have more of this page
                filled[held[whole]] = max(filled.get(held[whole], 0), rest)
        taken = self.pages - len(self._free)
        shared = taken - self._users.count(1)
        return Usage(self.pages, self.page_size, taken, shared, sum(self._lengths.values()), sum(filled.values()))

    # ------------------------------------------------------------------------------------------ sequences

    def allocate(self, reserve: int = 0) -> int:
        """A new sequence without tokens; its number. reserve: tokens for which it takes the pages now, as a contiguous
        cache must. Raises CacheFull."""
        held = self._take(ceil_div(integer("reserve", reserve, 0), self.page_size), "a new sequence")
        return self._new(held, 0)

    def fork(self, sequence: int, tokens: int | None = None) -> int:
        """A new sequence that begins with the first `tokens` of another one, or with all of them; its number. They
        share the pages, so this takes none."""
        length = self.length(sequence)
        tokens = length if tokens is None else integer("tokens", tokens, 0, length)
        held = self._held[sequence][: ceil_div(tokens, self.page_size)]
        for page in held:
            self._users[page] += 1
        return self._new(held, tokens)

    def free(self, sequence: int) -> None:
        """Ends a sequence. Its pages are free again, except those that other sequences have, too."""
        for page in reversed(self._known(sequence)):
            self._give_back(page)
        del self._held[sequence], self._lengths[sequence]

    def needed(self, sequence: int, tokens: int) -> int:
        """Free pages that it takes to `extend` a sequence by so many tokens."""
        held, length = self._known(sequence), self._lengths[sequence]
        more = max(ceil_div(length + tokens, self.page_size) - len(held), 0)
        return more + self._must_copy(sequence, tokens)

    def extend(self, sequence: int, tokens: int) -> None:
        """Makes room for the next tokens of a sequence, in pages that no other one has; the sequence is longer now, and
        `write` fills the room. Raises CacheFull."""
        tokens = integer("tokens", tokens, 0)
        taken = self._take(self.needed(sequence, tokens), f"sequence {sequence}")
        held = self._held[sequence]
        if self._must_copy(sequence, tokens):
            n, copy = self._lengths[sequence] // self.page_size, taken.pop()
            for cache in (self.key_pages, self.value_pages):
                self._bytes(cache)[:, copy] = self._bytes(cache)[:, held[n]]
            self._give_back(held[n])
            held[n] = copy
        held += taken
        self._lengths[sequence] += tokens

    def append(self, sequence: int, key: Tensor, value: Tensor) -> None:
        """The next tokens of a sequence with their keys and values, `[layers, tokens, kv_heads, head_dim]`: `extend`
        and `write`. Raises CacheFull."""
        layers, _, _, *sizes = self.key_pages.shape
        shape, like = (layers, "tokens", *sizes), ("the cache", self.key_pages)
        check_tensor("key", key, shape, FLOATS, like=like, may_be_empty=True)
        check_tensor("value", value, tuple(key.shape), FLOATS, like=like)
        first = self.length(sequence)
        self.extend(sequence, key.shape[1])
        slots = torch.tensor(self.slots(sequence, first, self.length(sequence)), dtype=torch.int64, device=self.device)
        for layer in range(layers):
            self.write(layer, slots, key[layer], value[layer])

    # ------------------------------------------------------------------------------------------ numbers

    def slots(self, sequence: int, first: int, end: int) -> list[int]:
        """Where tokens `first` to `end` of a sequence are: row `slot % page_size` of page `slot // page_size`."""
        held, size = self._known(sequence), self.page_size
        return [held[j // size] * size + j % size for j in range(first, end)]

    def write(self, layer: int, slots: Tensor, key: Tensor, value: Tensor) -> None:
        """Writes keys and values `[tokens, kv_heads, head_dim]`, any floating dtype, into the slots, int64 `[tokens]`.
        With scales they are divided by these and rounded to E4M3; what is too large becomes the largest number."""
        scales = [scale[layer] for scale in self._scales] or [None, None]
        for cache, numbers, scale in zip((self.key_pages, self.value_pages), (key, value), scales, strict=True):
            if scale is not None:
                numbers = (numbers.float() / scale[:, None]).clamp(-E4M3_MAX, E4M3_MAX)
            rows = self._bytes(cache)[layer].flatten(0, 1)
            rows[slots] = self._bytes(numbers.to(cache.dtype))

    def layer(self, layer: int) -> tuple[Tensor, Tensor]:
        """Key and value pages of a layer, `[pages, page_size, kv_heads, head_dim]`."""
        return self.key_pages[layer], self.value_pages[layer]

    def scales(self, layer: int, batch: int) -> dict[str, Tensor]:
        """k_scale and v_scale of a layer as `paged_attention` takes them, `[batch, kv_heads]`; none in 16 bits."""
        return {
            name: scale[layer].expand(batch, -1)
            for name, scale in zip(("k_scale", "v_scale"), self._scales, strict=False)
        }

    def block_table(self, sequences: Sequence[int]) -> Tensor:
        """int32 `[B, max_pages]`, as many columns as the longest needs; -1 past a sequence's end."""
        held = [self._known(sequence) for sequence in sequences]
        columns = max(1, *map(len, held)) if held else 1
        rows = [[*pages, *[-1] * (columns - len(pages))] for pages in held]
        return torch.tensor(rows, dtype=torch.int32, device=self.device).view(len(held), columns)

    def seq_lens(self, sequences: Sequence[int]) -> Tensor:
        """int32 `[B]`."""
        return torch.tensor([self.length(s) for s in sequences], dtype=torch.int32, device=self.device)

    # ------------------------------------------------------------------------------------------ inside

    def _known(self, sequence: int) -> list[int]:
        if sequence not in self._held:
            raise KeyError(f"sequence {sequence} is not in the cache; it has {self.sequences}")
        return self._held[sequence]

    def _new(self, held: list[int], length: int) -> int:
        number, self._next = self._next, self._next + 1
        self._held[number], self._lengths[number] = held, length
        return number

    def _take(self, count: int, who: str) -> list[int]:
        """Takes `count` free pages; if there are fewer, raises CacheFull and takes none."""
        if count > len(self._free):
            raise CacheFull(f"{who} needs {count} pages, and {len(self._free)} of {self.pages} are free")
        taken = [self._free.pop() for _ in range(count)]
        for page in taken:
            self._users[page] = 1
        return taken

    def _give_back(self, page: int) -> None:
        self._users[page] -= 1
        if not self._users[page]:
            self._free.append(page)

    def _must_copy(self, sequence: int, tokens: int) -> bool:
        """Whether the next tokens of a sequence begin in a page that another sequence has, too."""
        held, n = self._held[sequence], self._lengths[sequence] // self.page_size
        return tokens > 0 and n < len(held) and self._users[held[n]] > 1

    @staticmethod
    def _bytes(numbers: Tensor) -> Tensor:
        """E4M3 as bytes: torch cannot index it on every device."""
        return numbers.view(torch.uint8) if numbers.dtype == E4M3 else numbers
