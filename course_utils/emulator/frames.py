"""Where the variables of a kernel are while it runs: what a library that is built to be recorded says of its functions.

Without optimisation each local variable lies at one place in the frame of its function. DWARF gives that place from the
frame's canonical address, and the call frame table gives that from the register by which the frame is known at run
time.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from elftools.elf.elffile import ELFFile

from course_utils.emulator.library_tables import full_names, kept

FRAME_REGISTERS = {"EM_X86_64": 6, "EM_AARCH64": 29}  # rbp and x29, as DWARF numbers them
FRAME_OFFSET, REGISTER_OFFSET = 0x91, 0x70  # DWARF's DW_OP_fbreg and DW_OP_breg0
NAMES_OF_STRUCTS = {"__half": "half", "__nv_bfloat16": "bfloat16", "__nv_fp8_e4m3": "float8_e4m3"}
STRUCTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
MOST_BYTES = 4096  # of a variable that is recorded
SIZES = (1, 2, 4, 8)  # of numbers that are recorded
TENSOR_MAP = "TensorMap"  # a struct whose words say nothing to a reader


class Variable(NamedTuple):
    """A local variable, or a member of one, of `count` elements of `bytes` each, at `offset` from the frame's
    register."""

    name: str
    type: str
    shape: tuple[int, ...]
    offset: int
    bytes: int
    count: int
    is_parameter: bool

    @property
    def words(self) -> int:
        """Of 32 bits, as which an element is recorded."""
        return max(1, self.bytes // 4)


class Function(NamedTuple):
    """The code of a function, from `start` to `end` in the library, and its variables; `returns`: the bytes of the
    struct that it returns, 0 if it returns none."""

    name: str
    start: int
    end: int
    variables: list[Variable]
    returns: int = 0


class Shared(NamedTuple):
    """What an element of a __shared__ variable is, by the variable's offset in shared memory."""

    offset: int
    type: str
    bytes: int
    shape: tuple[int, ...]


def functions(library: Path) -> list[Function]:
    """Those that have variables of the learner's files, or return a struct, by ascending addresses."""
    found = [
        Function(name, start, end, [Variable(n, t, tuple(shape), *rest) for n, t, shape, *rest in variables], returns)
        for name, start, end, variables, returns in kept(library, _read, Path(__file__))[0]
    ]
    return [function for function in found if function.variables or function.returns]


def shared_variables(library: Path) -> list[Shared]:
    """The __shared__ variables whose elements are numbers of up to 4 bytes."""
    return [Shared(offset, t, size, tuple(shape)) for offset, t, size, shape in kept(library, _read, Path(__file__))[1]]


def _read(library: Path) -> tuple[list[Any], list[Any]]:
    with library.open("rb") as handle:
        elf = ELFFile(handle)
        register = FRAME_REGISTERS.get(elf["e_machine"], -1)
        dwarf = elf.get_dwarf_info(relocate_dwarf_sections=False)
        frames = dict(_frame_addresses(dwarf, register))
        found: list[Any] = []
        shared: dict[int, Any] = {}
        for unit in dwarf.iter_CUs():
            reader = _Reader(dwarf, unit, register)
            for entry in unit.iter_DIEs():
                if entry.tag == "DW_TAG_subprogram" and "DW_AT_low_pc" in entry.attributes:
                    found.append(reader.function(entry, frames))
                elif entry.tag == "DW_TAG_variable":
                    shared.update(reader.shared(entry))
        of_shared = [(offset, *rest) for offset, rest in shared.items()]
        return sorted(found, key=lambda function: function[1]), of_shared


def _frame_addresses(dwarf: Any, register: int) -> Iterator[tuple[int, int]]:
    """(start of a function, its frame's canonical address - the register's value)."""
    entries = dwarf.EH_CFI_entries() if dwarf.has_EH_CFI() else dwarf.CFI_entries() if dwarf.has_CFI() else []
    for entry in entries:
        if type(entry).__name__ != "FDE":
            continue
        for row in entry.get_decoded().table:
            if row["cfa"].reg == register:
                yield entry["initial_location"], row["cfa"].offset
                break


class _Reader:
    """Of one compilation unit."""

    def __init__(self, dwarf: Any, unit: Any, register: int) -> None:
        self._register = register
        self._files = full_names(dwarf, unit)

    def function(self, entry: Any, frames: dict[int, int]) -> tuple[str, int, int, list[Any], int]:
        start, high = entry.attributes["DW_AT_low_pc"].value, entry.attributes["DW_AT_high_pc"]
        end = high.value if high.form == "DW_FORM_addr" else start + high.value
        returned = _type(entry)
        returns = _size(returned) if returned is not None and returned.tag in STRUCTS else 0
        return _short(_name(entry)), start, end, list(self._variables(entry, frames.get(start))), returns

    def _variables(self, entry: Any, canonical: int | None) -> Iterator[tuple[Any, ...]]:
        for child in entry.iter_children():
            if child.tag in ("DW_TAG_lexical_block", "DW_TAG_inlined_subroutine"):
                yield from self._variables(child, canonical)
            elif child.tag in ("DW_TAG_variable", "DW_TAG_formal_parameter"):
                offset = self._offset(child, canonical)
                if offset is not None and self._is_own(child):
                    parameter = child.tag == "DW_TAG_formal_parameter" and entry.tag == "DW_TAG_subprogram"
                    for name, kind, shape, at, size, count in _leaves(_name(child), _type(child), 0):
                        yield name, kind, shape, offset + at, size, count, parameter

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
        declared = _attribute(entry, "DW_AT_decl_file")
        file = self._files.get(declared.value, "/") if declared is not None else "/"
        return not file.startswith("/") and not file.startswith("<")

    def shared(self, entry: Any) -> Iterator[tuple[int, tuple[Any, ...]]]:
        """A variable in thread-local storage: DW_OP_const4u or 8u of its offset, then DW_OP_(GNU_)push_tls_address."""
        location = entry.attributes.get("DW_AT_location")
        if location is None or location.form != "DW_FORM_exprloc" or location.value[-1] not in (0xE0, 0x9B):
            return
        offset = int.from_bytes(bytes(location.value[1:-1]), "little")
        leaves = list(_leaves("", _type(entry), 0))
        if len(leaves) == 1 and leaves[0][4] <= 4:
            _, kind, shape, _, size, _ = leaves[0]
            yield offset, (kind, size, shape)


def _signed(expression: list[int]) -> int | None:
    """The number that an expression consists of, as SLEB128; None if it is something else, too."""
    value = 0
    for i, byte in enumerate(expression):
        value |= (byte & 0x7F) << 7 * i
        if not byte & 0x80:
            return (value - (1 << 7 * (i + 1)) if byte & 0x40 else value) if i == len(expression) - 1 else None
    return None


def _attribute(entry: Any, name: str) -> Any:
    """An attribute of an entry, or of the one that it is an instance of."""
    for link in ("", "DW_AT_abstract_origin", "DW_AT_specification"):
        if link and link not in entry.attributes:
            continue
        origin = entry.get_DIE_from_attribute(link) if link else entry
        if name in origin.attributes:
            return origin.attributes[name]
        if link and (found := _attribute(origin, name)) is not None:
            return found
    return None


def _name(entry: Any) -> str:
    found = _attribute(entry, "DW_AT_name")
    return found.value.decode(errors="replace") if found is not None else ""


def _short(function: str) -> str:
    """Its name without what a lambda makes of it."""
    if function == "operator()":
        return "lambda"
    return function.split("<")[0] if "(" in function else function


def _type(entry: Any) -> Any:
    """The entry of a type, without its names and qualifiers; None for void."""
    for link in ("", "DW_AT_abstract_origin", "DW_AT_specification"):
        if link and link in entry.attributes:
            entry = entry.get_DIE_from_attribute(link)
        if "DW_AT_type" in entry.attributes:
            found = entry.get_DIE_from_attribute("DW_AT_type")
            plain = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")
            return _type(found) if found.tag in plain else found
    return None


def _size(entry: Any) -> int:
    return entry.attributes["DW_AT_byte_size"].value if "DW_AT_byte_size" in entry.attributes else 0


Leaf = tuple[str, str, tuple[int, ...], int, int, int]


def _leaves(name: str, entry: Any, at: int) -> Iterator[Leaf]:
    """The numbers of which a variable consists: name, type, shape, offset, bytes of an element, elements."""
    if entry is None or not name and entry.tag == "DW_TAG_pointer_type":
        return
    if entry.tag == "DW_TAG_array_type":
        shape = tuple(_bounds(entry))
        inner = list(_leaves(name, _type(entry), at))
        if len(inner) == 1 and 0 not in shape:
            _, kind, inner_shape, _, size, count = inner[0]
            for length in shape:
                count *= length
            if size * count <= MOST_BYTES or not name:
                yield name, kind, (*shape, *inner_shape), at, size, count
    elif entry.tag in ("DW_TAG_base_type", "DW_TAG_enumeration_type"):
        if _size(entry) in SIZES:
            stored = entry if entry.tag == "DW_TAG_base_type" else _type(entry)  # an enum is an integer
            kind = _name(stored) if stored is not None else "int"
            yield name, kind or "int", (), at, _size(entry), 1
    elif entry.tag in STRUCTS[:2] and _name(entry) != TENSOR_MAP:
        yield from _members(name, entry, at)


def _members(name: str, entry: Any, at: int) -> Iterator[Leaf]:
    """Those of a struct: one vector if they are alike and side by side, as in a float4; else each by itself."""
    of_struct = _name(entry)
    if of_struct in NAMES_OF_STRUCTS:
        yield name, NAMES_OF_STRUCTS[of_struct], (), at, _size(entry), 1
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
        if not _name(m).startswith("__")  # what a lambda has caught
        for leaf in _leaves(f"{name}.{_name(m)}" if name else _name(m), _type(m), place)
    ]
    alike = len({leaf[1] for leaf in leaves}) == 1 and all(not leaf[2] for leaf in leaves)
    side_by_side = alike and sum(leaf[4] for leaf in leaves) == _size(entry)
    if side_by_side and (len(leaves) > 1 or not name):
        yield name, leaves[0][1], (len(leaves),) if len(leaves) > 1 else (), at, leaves[0][4], len(leaves)
    elif name:
        yield from leaves


def _bounds(entry: Any) -> Iterator[int]:
    for child in entry.iter_children():
        if child.tag == "DW_TAG_subrange_type":
            if "DW_AT_count" in child.attributes:
                yield child.attributes["DW_AT_count"].value
            elif "DW_AT_upper_bound" in child.attributes and isinstance(
                child.attributes["DW_AT_upper_bound"].value, int
            ):
                yield child.attributes["DW_AT_upper_bound"].value + 1
            else:
                yield 0
