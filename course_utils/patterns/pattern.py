"""A pattern: which keys a query sees, as a mask, as block lists, as CSR, and as a picture."""

from __future__ import annotations

import operator
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from course_utils.arguments import integer
from course_utils.patterns.arguments import lengths
from course_utils.patterns.cache import Cache, wait_until_read
from course_utils.patterns.definition import Definition, Mask, RowRanges, Shape, both, either, row_chunks
from course_utils.patterns.graphs import refuse_fake_tensors, refuse_tracing, register
from course_utils.patterns.lists import BLOCKS, BlockLists, build
from course_utils.patterns.ranges import Ranges, define_ranges

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Define = Callable[[Shape], Definition]
MAX_DRAWN = 4096
MaskMod = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
# Rows of blocks. Odd: samples a power of two apart would all fall on one phase of a stride that is a power of two.
SAMPLED_ROWS = 33


def refuse_in_graph(name: str) -> None:
    """Raises RuntimeError where a compiler traces the making of this pattern, or its tensors would be fake. Call it
    before anything that a compiler cannot trace, such as reading the numbers of a list; else torch's own error comes
    first."""
    refuse_tracing(
        f"{name} is made inside of what torch.compile compiles: make the pattern outside, and keep it, as a global, an "
        "argument or an attribute of the module"
    )
    refuse_fake_tensors(f"{name} is made")


class Pattern:
    """Which keys a query sees. Made by the functions of `course_utils.patterns`, combined with & and |; never changed.

    With L_q != L_k the last query stands at the last key: query row r has the position i = r + L_k - L_q. A position
    below 0 is before the first key: no pattern gives it a key, except where its definition does not ask for the
    query's place (`full`, `local`, a key of `global_tokens`, the window and the global keys of `bigbird`).

    Attributes:
        kind, parameters: the name of the function that made it, and its arguments; "and" or "or" with {"parts": (a, b)}
            for a combination.
        name: both as text, "sliding_window(window=64)".
        ranges: its keys as `Ranges`, or None if five numbers do not describe them.
        number: by which a compiled graph names it.
        cache: its lists, and the operators' launches, for the last lengths and devices.
    """

    def __init__(
        self,
        kind: str,
        parameters: dict[str, Any],
        define: Define,
        *,
        name: str | None = None,
        ranges: Ranges | None = None,
        mask: Mask | None = None,
    ) -> None:
        """define: the pattern at given lengths; mask: its mask if that is the same for all lengths, else None."""
        self.kind, self.parameters, self.ranges = kind, dict(parameters), ranges
        self.name = name or f"{kind}({', '.join(f'{key}={_short(value)}' for key, value in parameters.items())})"
        self._define, self._mask = define, mask
        refuse_in_graph(self.name)
        self.number = register(self)
        self.cache = Cache()

    def __copy__(self) -> Pattern:
        """The pattern itself, because it never changes: a copied module has the same pattern, number and lists."""
        return self

    def __deepcopy__(self, _: Any) -> Pattern:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles the call that made the pattern, which comes back without lists and with a new number. Pickle must
        find a function given to `from_mask_mod` by its name: no lambda, no inner function."""
        if "parts" in self.parameters:
            return operator.and_ if self.kind == "and" else operator.or_, self.parameters["parts"]
        return _made_again, (getattr(sys.modules[__package__], self.kind), self.parameters)

    def __repr__(self) -> str:
        return self.name

    # ---- as a mask

    @property
    def mask_mod(self) -> MaskMod:
        """mask_mod(b, h, i, j): bool, whether the query at POSITION i sees key j; b and h are not looked at.

        i and j are integer tensors that broadcast. torch.compile and vmap can trace it. If the mask depends on
        the lengths, j must be the whole axis 0 … L_k - 1, and there must be as many queries as keys; or take
        `flex_mask_mod(L_q, L_k)`.
        """
        mask = self._mask or self._mask_of_axis

        def mask_mod(b: Any, h: Any, i: Tensor, j: Tensor) -> Tensor:
            return mask(i, j)

        return mask_mod

    def _mask_of_axis(self, i: Tensor, j: Tensor) -> Tensor:
        length = j.numel()
        if (
            j.dim() == 0
            or length != max(j.shape)
            or not bool((j.flatten() == torch.arange(length, device="cpu").to(j)).all())
        ):
            raise ValueError(
                f"the mask of {self.name} depends on the lengths, which these indices do not tell; use "
                "flex_mask_mod(L_q, L_k)"
            )
        return wait_until_read(self._definition(lengths(length, length, j.device)).mask(i, j), j.device)

    def flex_mask_mod(self, L_q: int, L_k: int | None = None, device: torch.device | str = "cpu") -> MaskMod:
        """The mask for FlexAttention, whose q_idx counts queries from 0; what it looks up lies on `device`."""
        shape = self.shape(L_q, L_k, device)
        mask, shift = self._definition(shape).mask, shape.shift

        def mask_mod(b: Any, h: Any, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
            return mask(q_idx + shift if shift else q_idx, kv_idx)

        return mask_mod

    def mask(self, L_q: int, L_k: int | None = None, device: torch.device | str = "cpu") -> Tensor:
        """The dense mask, bool `[L_q, L_k]`: True where the query sees the key."""
        shape = self.shape(L_q, L_k, device)
        i = torch.arange(shape.shift, shape.L_k, dtype=torch.int32, device=shape.device)[:, None]
        j = torch.arange(shape.L_k, dtype=torch.int32, device=shape.device)[None, :]
        mask = self._definition(shape).mask(i, j).expand(shape.L_q, shape.L_k).contiguous()
        return wait_until_read(mask, shape.device)

    # ---- as lists

    def block_lists(
        self, L_q: int, L_k: int | None = None, *, block: int = 64, device: torch.device | str = "cpu"
    ) -> BlockLists:
        """The blocks of `block` (64 or 128) queries and keys that hold a pair. They are cached: do not change them."""
        shape = self.shape(L_q, L_k, device)
        if isinstance(block, bool) or block not in BLOCKS:
            raise ValueError(f"block is {block!r}; it must be 64 or 128")
        return self._cached(shape, block, lambda: build(self._definition(shape), shape, block))

    def row_ranges(self, L_q: int, L_k: int | None = None, *, device: torch.device | str = "cpu") -> RowRanges | None:
        """Where each query's keys start and end, int32 `[L_q]` each, as of documents; None if the keys of a query
        are not one range (sinks and a window, dilation), or not known to be. Cached: do not change them."""
        shape = self.shape(L_q, L_k, device)
        rows = self._definition(shape).rows
        return self._cached(shape, "rows", rows) if rows else None

    def csr(self, L_q: int, L_k: int | None = None, *, device: torch.device | str = "cpu") -> tuple[Tensor, Tensor]:
        """The keys of each query: indptr int64 `[L_q + 1]`, and indices int32 `[pairs]`, ascending in a row."""
        refuse_fake_tensors("the keys of each query are listed")
        shape = self.shape(L_q, L_k, device)
        definition = self._definition(shape)
        if not definition.keys:
            return self.block_lists(L_q, L_k, device=device).csr()
        counts = torch.zeros(shape.L_q, dtype=torch.int64, device=shape.device)
        found = []
        for rows, keys in row_chunks(definition, shape):
            counts += torch.bincount(rows, minlength=shape.L_q)
            found.append(keys.int())
        return wait_until_read((torch.cat([counts.new_zeros(1), counts.cumsum(0)]), torch.cat(found)), shape.device)

    def pairs(self, L_q: int, L_k: int | None = None, *, device: torch.device | str = "cpu") -> int:
        """The number of pairs (query, key) that are kept, per head; counted on `device`."""
        shape = self.shape(L_q, L_k, device)
        return self._cached(shape, "pairs", lambda: self._count(shape))

    def _count(self, shape: Shape) -> int:
        definition = self._definition(shape)
        if definition.pairs:
            return definition.pairs()
        if definition.keys:
            return sum(len(rows) for rows, _ in row_chunks(definition, shape))
        return self.block_lists(*shape[:2], device=shape.device).pairs()

    def density(self, L_q: int, L_k: int | None = None) -> float:
        """The kept share of all L_q · L_k pairs."""
        shape = self.shape(L_q, L_k, "cpu")
        return self.pairs(L_q, L_k) / (shape.L_q * shape.L_k)

    def work(
        self, L_q: int, L_k: int | None = None, *, block: int = 64, device: torch.device | str = "cpu"
    ) -> tuple[int, int]:
        """The numbers of pairs that are kept and of blocks that hold one.

        For a pattern that lists its keys, as `strided` does, both are estimated from 33 rows of blocks: its block lists
        can be much larger than its keys, and are not built for this.
        """
        shape = self.shape(L_q, L_k, device)
        definition = self._definition(shape)
        if definition.keys:
            pairs = visited = 0
            rows = shape.blocks(block)[0]
            samples = min(rows, SAMPLED_ROWS)
            sampled = [rows * (2 * n + 1) // (2 * samples) for n in range(samples)]
            for row in sampled:
                _, keys = definition.keys(row * block, min((row + 1) * block, shape.L_q))
                pairs, visited = pairs + len(keys), visited + len(torch.unique(keys // block))
            if visited:
                return round(pairs * rows / len(sampled)), round(visited * rows / len(sampled))
        lists = self.block_lists(L_q, L_k, block=block, device=device)
        return lists.pairs(), len(lists.indices)

    # ---- as a picture

    def draw(self, L: int = 256, L_k: int | None = None, *, tile: int = 64) -> Figure:
        """The mask of L queries and L_k keys (None: L), at most 4096, with a grid of tiles and the density."""
        for name, length in (("L", L), ("L_k", L if L_k is None else L_k)):
            integer(name, length, 1, MAX_DRAWN)
        tile = integer("tile", tile, 1)
        title = f"{textwrap.fill(self.name, 44)}\ndensity {self.density(L, L_k):.1%}"
        from course_utils.patterns.drawing import draw_mask

        return draw_mask(self.mask(L, L_k), tile, title)

    # ---- combinations

    def __and__(self, other: Pattern) -> Pattern:
        """Keys that both patterns give."""
        return NotImplemented if not isinstance(other, Pattern) else _combine("and", self, other)

    def __or__(self, other: Pattern) -> Pattern:
        """Keys that either pattern gives."""
        return NotImplemented if not isinstance(other, Pattern) else _combine("or", self, other)

    # ---- inside

    def shape(self, L_q: int, L_k: int | None = None, device: torch.device | str = "cpu") -> Shape:
        """The lengths, checked, and the device."""
        return lengths(L_q, L_k, device)

    def _definition(self, shape: Shape) -> Definition:
        return self._cached(shape, "definition", lambda: self._define(shape))

    def _cached(self, shape: Shape, what: Any, make: Callable[[], Any]) -> Any:
        return self.cache.get((shape, what), make, shape.device)


def _made_again(function: Callable[..., Pattern], parameters: dict[str, Any]) -> Pattern:
    return function(**parameters)


def range_pattern(
    kind: str,
    parameters: dict[str, Any],
    ranges: Ranges,
    *,
    name: str | None = None,
    define: Define | None = None,
) -> Pattern:
    """The pattern of some ranges. define: the same pattern with more short cuts."""
    mask = define_ranges(ranges, Shape(1, 1, torch.device("cpu"))).mask
    define = define or (lambda shape: define_ranges(ranges, shape))
    return Pattern(kind, parameters, define, name=name, ranges=ranges, mask=mask)


def _combine(kind: str, a: Pattern, b: Pattern) -> Pattern:
    name, parameters = f"({a.name} {'&' if kind == 'and' else '|'} {b.name})", {"parts": (a, b)}
    if kind == "and" and a.ranges and b.ranges and a.ranges[3:] == b.ranges[3:] and not (a.ranges[0] or b.ranges[0]):
        left, right = min(a.ranges.left, b.ranges.left), min(a.ranges.right, b.ranges.right)
        return range_pattern(kind, parameters, a.ranges._replace(left=left, right=right), name=name)
    join = both if kind == "and" else either
    first, second = a._mask or a._mask_of_axis, b._mask or b._mask_of_axis

    def mask(i: Tensor, j: Tensor) -> Tensor:
        return first(i, j) & second(i, j) if kind == "and" else first(i, j) | second(i, j)

    def define(shape: Shape) -> Definition:
        return join(a._define(shape), b._define(shape), shape)

    return Pattern(kind, parameters, define, name=name, mask=mask)


def _short(value: Any) -> str:
    if isinstance(value, Tensor) or (isinstance(value, tuple) and len(value) > 6):
        return f"[{len(value)} values]"
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"
    return getattr(value, "__name__", repr(value))
