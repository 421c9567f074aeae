"""The names of what lies in shared memory: `tile.K` instead of a byte of it, where the kernel has a struct there.

DWARF has the structs: of a __shared__ variable, and of the variables that refer to one or point at it. Where these
point to is seen when the kernel runs. A struct is taken apart as far as each request of a warp stays in one part.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from course_utils.emulator.debug_types import NAMES_OF_STRUCTS, SIZES, STRUCTS, bounds, name_of, size_of, type_of

MOST_STRUCTS = 16  # of an array of structs: a longer one stays in one piece
COMPONENTS = ("x", "y", "z", "w")  # of a vector such as float4
REFERENCES = ("DW_TAG_reference_type", "DW_TAG_rvalue_reference_type")


class Member(NamedTuple):
    """A piece of shared memory with a name, from `offset` on. It has `members`, or it is an array of the form `shape`
    with elements of `bytes` each; then `type` is that of an element, "" if these are just bytes. is_vector: the last
    index is a component of a vector, .x for 0."""

    name: str
    offset: int
    size: int
    type: str = ""
    bytes: int = 1
    shape: tuple[int, ...] = ()
    is_vector: bool = False
    members: tuple[Member, ...] = ()

    def moved(self, by: int) -> Member:
        """The same so many bytes further on."""
        return self._replace(offset=self.offset + by, members=tuple(one.moved(by) for one in self.members))

    def has(self, other: Member) -> bool:
        """Whether another one is this one or a member of it, whatever its name is."""
        here = (self.offset, self.size, self.type) == (other.offset, other.size, other.type)
        return here or any(one.has(other) for one in self.members)


def member_of(values: Sequence[Any]) -> Member:
    """A Member from what JSON has made of it."""
    *values, shape, is_vector, members = values
    return Member(*values, tuple(shape), is_vector, tuple(member_of(one) for one in members))


def pointed_at(name: str, entry: Any) -> Member | None:
    """What a variable refers to, or points at, if that is a struct or, by a reference, an array. entry: its type."""
    if entry is None or entry.tag not in ("DW_TAG_pointer_type", *REFERENCES):
        return None
    target = type_of(entry)
    is_reference = entry.tag in REFERENCES
    if target is None or not (target.tag in STRUCTS or (is_reference and target.tag == "DW_TAG_array_type")):
        return None
    found = layout(name, target, joint="." if is_reference else "->")
    return found if found.members or found.shape and not found.is_vector else None


def layout(name: str, entry: Any, offset: int = 0, joint: str = ".") -> Member:
    """What a type has at an offset. joint: what the source writes between the name and that of a member."""
    kind = name_of(entry)
    if entry.tag in ("DW_TAG_base_type", "DW_TAG_enumeration_type") and size_of(entry) in SIZES:
        stored = entry if entry.tag == "DW_TAG_base_type" else type_of(entry)  # an enum is an integer
        return Member(name, offset, size_of(entry), name_of(stored) if stored is not None else "int", size_of(entry))
    if kind in NAMES_OF_STRUCTS:
        return Member(name, offset, size_of(entry), NAMES_OF_STRUCTS[kind], size_of(entry))
    if entry.tag == "DW_TAG_array_type":
        return _array(name, entry, offset)
    if entry.tag in STRUCTS[:2]:
        return _struct(name, entry, offset, joint)
    return Member(name, offset, size_of(entry))


def _array(name: str, entry: Any, offset: int) -> Member:
    shape, element = tuple(bounds(entry)), type_of(entry)
    one = layout(name, element, offset) if element is not None else Member(name, offset, 0)
    count = int(np.prod(shape, dtype=np.int64))
    if one.type:
        return one._replace(size=count * one.size, shape=(*shape, *one.shape))
    whole = Member(name, offset, count * one.size)
    if not one.members or count > MOST_STRUCTS:
        return whole
    indices = itertools.product(*map(range, shape))
    names = [name + "".join(f"[{n}]" for n in index) for index in indices]
    return whole._replace(members=tuple(layout(of, element, offset + n * one.size) for n, of in enumerate(names)))


def _struct(name: str, entry: Any, offset: int, joint: str) -> Member:
    found: list[Member] = []
    for child in entry.iter_children():
        place = child.attributes.get("DW_AT_data_member_location")
        if child.tag == "DW_TAG_inheritance" and place is not None:
            found += layout(name, type_of(child), offset + place.value, joint).members
        elif child.tag == "DW_TAG_member" and "DW_AT_bit_size" in child.attributes:
            return Member(name, offset, size_of(entry))
        elif child.tag == "DW_TAG_member" and place is not None:
            found += _members(name, child, offset + place.value, joint)
    found = [one for one in found if one.size]
    whole = Member(name, offset, size_of(entry), members=tuple(found))
    if not found:
        return whole
    first = found[0]
    are_alike = all(one.type == first.type != "" and not one.shape for one in found)
    if are_alike and sum(one.size for one in found) == whole.size:
        if len(found) == 1:  # a number in a struct of its own
            return first._replace(name=name)
        if tuple(one.name for one in found) == tuple(f"{name}{joint}{of}" for of in COMPONENTS[: len(found)]):
            return Member(name, offset, whole.size, first.type, first.bytes, (len(found),), is_vector=True)
    return whole


def _members(name: str, child: Any, offset: int, joint: str) -> Iterable[Member]:
    """What one member of a struct adds. One without a name is a union, whose members lie over each other, or a struct,
    whose members are those of the struct around it."""
    kind, own = type_of(child), name_of(child)
    if kind is None:
        return []
    if own:
        return [layout(f"{name}{joint}{own}", kind, offset)]
    if kind.tag == "DW_TAG_union_type":
        names = [name_of(one) for one in kind.iter_children() if one.tag == "DW_TAG_member"]
        return [Member(f"{name}{joint}{'|'.join(filter(None, names))}", offset, size_of(kind))]
    return layout(name, kind, offset, joint).members


def known_members(found: Iterable[Member], size: int) -> list[Member]:
    """The outermost of the members found in an array of `size` bytes, by ascending offsets. Two members that overlap,
    neither being a part of the other, are both left out: nobody knows which of them is meant."""
    outer: list[Member] = []
    for one in sorted(dict.fromkeys(found), key=lambda one: -one.size):
        if 0 <= one.offset <= size - one.size and not any(other.has(one) for other in outer):
            outer.append(one)
    return [one for one in sorted(outer, key=lambda one: one.offset) if not any(_meet(one, other) for other in outer)]


def _meet(one: Member, other: Member) -> bool:
    return one is not other and one.offset < other.offset + other.size and other.offset < one.offset + one.size


def with_gaps(name: str, size: int, members: Sequence[Member]) -> Member:
    """An array of `size` bytes with these members. The bytes between them get the array's name."""
    parts: list[Member] = []
    at = 0
    for one in (*members, Member("", size, 0)):
        if at < one.offset:
            parts.append(Member(f"{name} from byte {at:,}" if at else name, at, one.offset - at))
        if one.size:
            parts.append(one)
        at = one.offset + one.size
    return Member(name, 0, size, members=tuple(parts))


def parts(whole: Member, spans: np.ndarray) -> list[Member]:
    """The smallest pieces such that each span lies in one of them. spans: int64 [n, 2], the first byte that a request
    of a warp touches and the byte behind its last."""
    if not whole.members:
        return [whole]
    begins = np.array([one.offset for one in whole.members])
    ends = begins + [one.size for one in whole.members]
    of = np.searchsorted(begins, spans[:, 0], side="right") - 1
    if ((of < 0) | (spans[:, 1] > ends[of])).any():
        return [whole._replace(members=())]
    return [part for n, one in enumerate(whole.members) for part in parts(one, spans[of == n])]
