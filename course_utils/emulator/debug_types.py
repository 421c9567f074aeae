"""The entries of DWARF that describe types: what a variable or a member is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# Structs that are numbers: what include/ and CUDA's own headers call them, and what a reader does.
NAMES_OF_STRUCTS = {"scalar16<emu::fp16_format>": "half", "scalar16<emu::bf16_format>": "bfloat16"}
NAMES_OF_STRUCTS |= {"__nv_fp8_e4m3": "float8_e4m3", "__nv_fp8_e5m2": "float8_e5m2"}
STRUCTS = ("DW_TAG_structure_type", "DW_TAG_class_type", "DW_TAG_union_type")
SIZES = (1, 2, 4, 8)  # of numbers that are recorded


def attribute(entry: Any, name: str) -> Any:
    """An attribute of an entry, or of the one that it is an instance of."""
    for link in ("", "DW_AT_abstract_origin", "DW_AT_specification"):
        if link and link not in entry.attributes:
            continue
        origin = entry.get_DIE_from_attribute(link) if link else entry
        if name in origin.attributes:
            return origin.attributes[name]
        if link and (found := attribute(origin, name)) is not None:
            return found
    return None


def name_of(entry: Any) -> str:
    found = attribute(entry, "DW_AT_name")
    return found.value.decode(errors="replace") if found is not None else ""


def type_of(entry: Any) -> Any:
    """The entry of a type, without its names and qualifiers; None for void."""
    for link in ("", "DW_AT_abstract_origin", "DW_AT_specification"):
        if link and link in entry.attributes:
            entry = entry.get_DIE_from_attribute(link)
        if "DW_AT_type" in entry.attributes:
            found = entry.get_DIE_from_attribute("DW_AT_type")
            plain = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type", "DW_TAG_restrict_type")
            return type_of(found) if found.tag in plain else found
    return None


def size_of(entry: Any) -> int:
    return entry.attributes["DW_AT_byte_size"].value if "DW_AT_byte_size" in entry.attributes else 0


def bounds(entry: Any) -> Iterator[int]:
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
