"""Where the variables of a kernel are while it runs: what a library that is built to be recorded says of its functions.

Without optimisation each local variable lies at one place in the frame of its function. DWARF gives that place from the
frame's canonical address, and the call frame table gives that from the register by which the frame is known at run
time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile

from course_utils.emulator import debug_types, struct_members
from course_utils.emulator.debug_types import (
    NAMES_OF_STRUCTS,
    SIZES,
    STRUCTS,
    attribute,
    bounds,
    name_of,
    size_of,
    type_of,
)
from course_utils.emulator.library_tables import Symbol, cached_table, full_names, symbols
from course_utils.emulator.struct_members import Member, layout, member_of, pointed_at

READERS = tuple(Path(file) for file in (__file__, debug_types.__file__, struct_members.__file__))

FRAME_REGISTERS = {"EM_X86_64": 6, "EM_AARCH64": 29}  # rbp and x29, as DWARF numbers them
ARM_STACK_POINTER = 31
FRAME_OFFSET, REGISTER_OFFSET = 0x91, 0x70  # DWARF's DW_OP_fbreg and DW_OP_breg0
POINTER_BYTES = 8
MOST_BYTES = 4096  # of a variable that is recorded
TENSOR_MAP = "TensorMap"  # a struct whose words say nothing to a reader


class Variable(NamedTuple):
    """A local variable, or a member of one, of `count` elements of `bytes` each, at `offset` from the frame's
    register. target: what it refers to or points at, if that has members; of such a variable only where it points into
    shared memory is recorded."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    count: int
    is_parameter: bool
    target: Member | None = None

    @property
    def words(self) -> int:
        """The number of 32-bit words as which an element is recorded."""
        return max(1, self.bytes // 4)


class Function(NamedTuple):
    """The code of a function, from `start` to `end` in the library, and its variables; `returns`: the bytes of the
    struct that it returns, 0 if it returns none."""

    name: str
    start: int
    end: int
    variables: list[Variable]
    returns: int = 0


def functions(library: Path) -> list[Function]:
    """The functions that have variables of the learner's files, or return a struct, by ascending addresses."""
    found = [
        Function(name, start, end, [_variable(*one) for one in variables], returns)
        for name, start, end, variables, returns in cached_table(library, _read, *READERS)[0]
    ]
    return [function for function in found if function.variables or function.returns]


def _variable(name: str, kind: str, shape: list[int], *rest: Any) -> Variable:
    *rest, target = rest
    return Variable(name, kind, tuple(shape), *rest, target and member_of(target))


def shared_variables(library: Path) -> dict[int, Member]:
    """The members of each __shared__ variable, or its elements, by its offset in shared memory."""
    return {offset: member_of(member) for offset, member in cached_table(library, _read, *READERS)[1]}


def _read(library: Path) -> tuple[list[Any], list[Any]]:
    with library.open("rb") as handle:
        elf = ELFFile(handle)
        register = FRAME_REGISTERS.get(elf["e_machine"], -1)
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        frames = dict(_frame_addresses(dwarf, register))
        # g++ on ARM does not say where thread-local variables are; their symbols do.
        unplaced = _thread_local(library) if elf["e_machine"] == "EM_AARCH64" else {}
        found: list[Any] = []
        shared: dict[int, Any] = {}
        for unit in dwarf.iter_CUs():
            reader = _Reader(dwarf, unit, register, unplaced)
            for entry in unit.iter_DIEs():
                if entry.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in entry.attributes:
                    found.append(reader.function(entry, frames))
                elif entry.tag == "DW_TAG_variable":
                    shared.update(reader.shared(entry))
        return sorted(found, key=lambda function: function[1]), list(shared.items())


def _thread_local(library: Path) -> dict[str, Symbol]:
    return {name: symbol for name, symbol in symbols(library).items() if symbol.kind == "STT_TLS"}


def _frame_addresses(dwarf: Any, register: int) -> Iterator[tuple[int, int]]:
    """(start of a function, its frame's canonical address - the register's value). On ARM g++ counts the address from
    the stack's end; the register then points to where its own value before the call is kept."""
    entries = dwarf.EH_CFI_entries() if dwarf.has_EH_CFI() else dwarf.CFI_entries() if dwarf.has_CFI() else []
    for entry in entries:
        if type(entry).__name__ != "FDE":
            continue
        for row in entry.get_decoded().table:
            if row["cfa"].reg == register:
                yield entry["initial_location"], row["cfa"].offset
                break
            if row["cfa"].reg == ARM_STACK_POINTER and register in row:
                yield entry["initial_location"], -row[register].arg
                break


class _Reader:
    """Reads the functions and variables of one compilation unit."""

    def __init__(self, dwarf: Any, unit: Any, register: int, unplaced: dict[str, Symbol]) -> None:
        self._register = register
        self._unplaced = unplaced
        self._of_symbol: Counter[str] = Counter()
        self._files = full_names(dwarf, unit)

    def function(self, entry: Any, frames: dict[int, int]) -> tuple[str, int, int, list[Any], int]:
        start, high = entry.attributes["DW_AT_low_pc"].value, entry.attributes["DW_AT_high_pc"]
        end = high.value if high.form == "DW_FORM_addr" else start + high.value
        returned = type_of(entry)
        returns = size_of(returned) if returned is not None and returned.tag in STRUCTS else 0
        return _short(name_of(entry)), start, end, list(self._variables(entry, frames.get(start))), returns

    def _variables(self, entry: Any, canonical: int | None) -> Iterator[tuple[Any, ...]]:
        for child in entry.iter_children():
            if child.tag in ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"):
                yield from self._variables(child, canonical)
            elif child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                offset = self._offset(child, canonical)
                if offset is not None and self._is_own(child):
                    parameter = child.tag == "DW_TAG_formal_parameter" and entry.tag == "DW_TAG_subprogram"
                    for name, kind, shape, at, size, count in _leaves(name_of(child), type_of(child), 0):
                        yield name, kind, shape, offset + at, size, count, parameter, None
                    target = pointed_at(name_of(child), type_of(child))
                    if target is not None and "DW_AT_artificial" not in child.attributes:
                        yield name_of(child), "", (), offset, POINTER_BYTES, 1, parameter, target

    def _offset(self, entry: Any, canonical: int | None) -> int | None:
        """From the frame's register; None for what is not in the frame."""
        location = entry.attributes.get("DW_AT_location")
        if location is None or location.form != "DW_FORM_exprloc":
            return None
        operation, value = location.value[0], _signed(location.value[1:])
        if operation == FRAME_OFFSET and canonical is not None and value is not None:
            return value + canonical
        return value if operation == REGISTER_OFFSET + self._register else None

    def _is_own(self, entry: Any) -> bool:
        """Whether it stands in one of the learner's files: those of the emulator have absolute names."""
        declared = attribute(entry, "DW_AT_decl_file")
        file = self._files.get(declared.value, "/") if declared is not None else "/"
        return not file.startswith("/") and not file.startswith("<")

    def shared(self, entry: Any) -> Iterator[tuple[int, Member]]:
        """A variable in thread-local storage: DW_OP_const4u or 8u of its offset, then DW_OP_(GNU_)push_tls_address."""
        location, kind = entry.attributes.get("DW_AT_location"), type_of(entry)
        if location is None and kind is not None:
            symbol, member = self._unplaced.get(self._symbol(entry)), layout(name_of(entry), kind)
            if symbol is not None and symbol.size == member.size:
                yield symbol.offset, member
        if location is None or location.form != "DW_FORM_exprloc" or location.value[-1] not in (0xE0, 0x9B):
            return
        if kind is not None:
            yield int.from_bytes(bytes(location.value[1:-1]), "little"), layout(name_of(entry), kind)

    def _symbol(self, entry: Any) -> str:
        """The name that a static variable of a function has as a symbol: the Itanium ABI numbers those of one name."""
        function = entry.get_parent()
        while function is not None and function.tag == "DW_TAG_lexical_block":
            function = function.get_parent()
        if function is None or function.tag != "DW_TAG_subprogram":
            return ""
        linkage, own = attribute(function, "DW_AT_linkage_name"), name_of(function)
        mangled = linkage.value.decode().removeprefix("_Z") if linkage is not None else f"{len(own)}{own}"
        symbol = f"_ZZ{mangled}E{len(name_of(entry))}{name_of(entry)}"
        self._of_symbol[symbol] += 1
        return symbol if self._of_symbol[symbol] == 1 else f"{symbol}_{self._of_symbol[symbol] - 2}"


def _signed(expression: list[int]) -> int | None:
    """The number that an expression consists of, as SLEB128; None if it is something else, too."""
    value = 0
    for i, byte in enumerate(expression):
        value |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return (value - (1 << 7 * (i + 1)) if byte & 0x40 else value) if i == len(expression) - 1 else None
    return None


def _short(function: str) -> str:
    """Its name without what a lambda makes of it."""
    if function == "operator()":
        return "lambda"
    return function.split("<")[0] if "(" in function else function


Leaf = tuple[str, str, tuple[int, ...], int, int, int]


def _leaves(name: str, entry: Any, at: int) -> Iterator[Leaf]:
    """The numbers of which a variable consists: name, type, shape, offset, bytes of an element, elements."""
    if entry is None or not name and entry.tag == "DW_TAG_pointer_type":
        return
    if entry.tag == "DW_TAG_array_type":
        shape = tuple(bounds(entry))
        inner = list(_leaves(name, type_of(entry), at))
        if len(inner) == 1 and 0 not in shape:
            _, kind, inner_shape, _, size, count = inner[0]
            for length in shape:
                count *= length
            if size * count <= MOST_BYTES or not name:
                yield name, kind, (*shape, *inner_shape), at, size, count
    elif entry.tag in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
        if size_of(entry) in SIZES:
            stored = entry if entry.tag == "DW_TAG_base_type" else type_of(entry)  # an enum is an integer
            kind = name_of(stored) if stored is not None else "int"
            yield name, kind or "int", (), at, size_of(entry), 1
    elif entry.tag in STRUCTS[:2] and name_of(entry) != TENSOR_MAP:
        yield from _members(name, entry, at)


def _members(name: str, entry: Any, at: int) -> Iterator[Leaf]:
    """The members of a struct: one vector if they are alike and side by side, as in a float4; else each by itself."""
    of_struct = name_of(entry)
    if of_struct in NAMES_OF_STRUCTS:
        yield name, NAMES_OF_STRUCTS[of_struct], (), at, size_of(entry), 1
        return
    members = [child for child in entry.iter_children() if child.tag == "DW_TAG_member"]
    places = [
        (m, at + m.attributes["DW_AT_data_member_location"].value)
        for m in members
        if "DW_AT_data_member_location" in m.attributes
    ]
    leaves = [
        leaf
        for m, place in places
        if not name_of(m).startswith("__")  # what a lambda has caught
        for leaf in _leaves(f"{name}.{name_of(m)}" if name else name_of(m), type_of(m), place)
    ]
    alike = len({leaf[1] for leaf in leaves}) == 1 and all(not leaf[2] for leaf in leaves)
    side_by_side = alike and sum(leaf[4] for leaf in leaves) == size_of(entry)
    if side_by_side and (len(leaves) > 1 or not name):
        yield name, leaves[0][1], (len(leaves),) if len(leaves) > 1 else (), at, leaves[0][4], len(leaves)
    elif name:
        yield from leaves
