"""Inline PTX that computes: which function of include/emu_arithmetic_ptx.h an instruction is, by its name's parts."""

from __future__ import annotations

from collections.abc import Sequence

NUMBERS = {kind: f"emu::ptx::compute::{kind}" for kind in ("f16", "bf16", "f16x2", "bf16x2")}
NUMBERS |= {"f32": "float", "f64": "double"}
INTEGERS = {"u8": "unsigned char", "s8": "signed char", "u16": "unsigned short", "s16": "short", "u32": "unsigned"}
INTEGERS |= {"s32": "int", "u64": "unsigned long long", "s64": "long long"}
TYPES = NUMBERS | INTEGERS | {"pred": "bool", **{f"b{bits}": INTEGERS[f"u{bits}"] for bits in (8, 16, 32, 64)}}
WIDE = {"u16": "u32", "s16": "s32", "u32": "u64", "s32": "s64"}

# The operands behind the result: T is of the type that the name ends with, U unsigned, W twice as long, P a predicate.
OPERANDS = {
    **dict.fromkeys(("add", "sub", "mul", "mul_hi", "mul_wide", "mul24", "div", "rem", "min", "max", "copysign"), "TT"),
    **dict.fromkeys(("min_nan", "max_nan", "bit_and", "bit_or", "bit_xor"), "TT"),
    **dict.fromkeys(("fma", "mad", "mad_hi", "sad"), "TTT"),
    **dict.fromkeys(("neg", "abs", "bit_not", "cnot", "popc", "clz", "brev", "bfind", "bfind_shiftamt"), "T"),
    **dict.fromkeys(("sqrt", "rcp", "rsqrt", "sin", "cos", "ex2", "lg2", "tanh"), "T"),
    **dict.fromkeys(("shf_l_wrap", "shf_l_clamp", "shf_r_wrap", "shf_r_clamp", "prmt"), "UUU"),
    **{"mad_wide": "TTW", "shl": "TU", "shr": "TU", "bfe": "TUU", "bfi": "TTUU", "lop3": "UUUU", "choose": "TTP"},
}
NAMES = {"and": "bit_and", "or": "bit_or", "xor": "bit_xor", "not": "bit_not", "selp": "choose"}
WITHOUT_EFFECT = {"rn", "approx", "full", "lo"}  # .lo of a product; all results here are as good as rounding makes them
ROUNDED = {"rni", "rzi", "rmi", "rpi"}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs"}
COMPARISONS |= {"equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}
JOINS = {"": "", "and": "&", "or": "|", "xor": "^"}


def compute(opcode: str, operands: Sequence[str]) -> str | None:
    """The instruction as a C++ statement; None for other instructions."""
    name, *modifiers = opcode.split(".")
    if name == "cvt":
        return _convert(modifiers, operands)
    if name == "setp":
        return _compare(modifiers, operands)
    if name in ("dp4a", "dp2a"):
        return _products(name, modifiers, operands)
    if name in ("addc", "subc", "madc") or "cc" in modifiers:
        return _carry(name, modifiers, operands)
    if not modifiers or modifiers[-1] not in TYPES:
        return None
    kind = modifiers.pop()
    wraps = []
    if "ftz" in modifiers:
        modifiers.remove("ftz")
        wraps += ["flush"] if kind == "f32" else []
    of_numbers = kind in NUMBERS
    if "sat" in modifiers and of_numbers:
        modifiers.remove("sat")
        wraps.append("saturate")
    full_name = "_".join([NAMES.get(name, name), *(m.lower() for m in modifiers if m not in WITHOUT_EFFECT)])
    full_name = full_name.replace("_sat", "_saturated")
    letters = OPERANDS.get("add" if full_name in ("add_saturated", "sub_saturated") else full_name, "")
    if len(operands) != 1 + len(letters) or not letters:
        return None
    of_letter = {"T": TYPES[kind], "U": "unsigned", "P": "bool", "W": TYPES[WIDE.get(kind, kind)]}
    values = [_value(of_letter[letter], operand) for letter, operand in zip(letters, operands[1:], strict=True)]
    if "flush" in wraps:
        values = [f"emu::ptx::compute::flush({value})" for value in values]
    call = f"emu::ptx::compute::{full_name}({', '.join(values)})"
    for wrap in wraps:
        call = f"emu::ptx::compute::{wrap}({call})"
    return f"emu::ptx::put({operands[0]}, {call})"


def _value(kind: str, operand: str) -> str:
    return f"emu::ptx::get<{kind}>({operand})"


def _convert(modifiers: Sequence[str], operands: Sequence[str]) -> str | None:
    *how, to, source = modifiers
    how = [one for one in how if one not in ("rn", "ftz")]
    if len(operands) != 2 or source not in TYPES:
        return None
    value = _value(TYPES[source], operands[1])
    if to == "tf32" and how in ([], ["rna"]):
        return f"emu::ptx::put({operands[0]}, emu::ptx::compute::to_tf32_{'rna' if how else 'rn'}({value}))"
    of_numbers = source in NUMBERS and "x2" not in source
    rounded = next((one for one in how if one in ROUNDED and of_numbers), None)
    # A float that becomes an integer is always cut off at the ends of its range.
    rest = [one for one in how if one != rounded and not (one == "sat" and rounded and to in INTEGERS)]
    name = f"convert_{rounded}" if rounded else "convert_saturated" if rest == ["sat"] else "convert"
    is_cut_off = of_numbers and to in INTEGERS and not rounded
    if to not in TYPES or "x2" in to or is_cut_off or rest not in ([], ["sat"]) or (rounded and rest):
        return None
    if name == "convert_saturated" and to in NUMBERS and source in INTEGERS:
        return None
    return f"emu::ptx::put({operands[0]}, emu::ptx::compute::{name}<{TYPES[to]}>({value}))"


def _compare(modifiers: Sequence[str], operands: Sequence[str]) -> str | None:
    """setp: into one predicate, or into two with opposite values; each may be joined with a third."""
    how, *joins, kind = [one for one in modifiers if one != "ftz"]
    joined = joins[0] if joins else ""
    targets = operands[: len(operands) - 2 - bool(joined)]
    if how not in COMPARISONS or kind not in TYPES or joined not in JOINS or len(targets) not in (1, 2):
        return None
    a, b = (_value(TYPES[kind], operand) for operand in operands[len(targets) : len(targets) + 2])
    join = f" {JOINS[joined]} {_value('bool', operands[-1])}" if joined else ""
    condition = f"emu::ptx::compute::{how}({a}, {b})"
    results = [f"{condition}{join}", f"!{condition}{join}"]
    if len(targets) == 1:
        return f"{targets[0]} = {results[0]}"
    return f"{{ const bool emu_p = {results[0]}, emu_q = {results[1]}; {targets[0]} = emu_p; {targets[1]} = emu_q; }}"


def _carry(name: str, modifiers: Sequence[str], operands: Sequence[str]) -> str | None:
    """add, sub and mad of numbers longer than a register. addc and the like take what was carried; .cc hands it on."""
    *how, kind = modifiers
    operation, takes, hands_on = name[:3], name.endswith("c"), "cc" in how
    product = {"lo": "mul", "hi": "mul_hi"}.get("".join(one for one in how if one != "cc"))
    is_product = operation == "mad"
    if kind not in ("u32", "s32", "u64", "s64") or is_product != (product is not None):
        return None
    if operation not in ("add", "sub", "mad") or len(operands) != 3 + is_product:
        return None
    values = [_value(TYPES[kind], operand) for operand in operands[1:]]
    if is_product:
        values = [f"emu::ptx::compute::{product}({values[0]}, {values[1]})", values[2]]
    function = f"{'sub' if operation == 'sub' else 'add'}_carrying<{str(takes).lower()}, {str(hands_on).lower()}>"
    return f"emu::ptx::put({operands[0]}, emu::ptx::compute::{function}({', '.join(values)}))"


def _products(name: str, modifiers: Sequence[str], operands: Sequence[str]) -> str | None:
    *half, left, right = modifiers
    if len(operands) != 4 or not {left, right} <= {"u32", "s32"} or half not in ([], ["lo"], ["hi"]):
        return None
    factors = f"{TYPES[left[0] + ('8' if name == 'dp4a' else '16')]}, {TYPES[right[0] + '8']}"
    values = ", ".join([*(_value("unsigned", operand) for operand in operands[1:3]), _value("int", operands[3])])
    return f"emu::ptx::put({operands[0]}, emu::ptx::compute::{'_'.join([name, *half])}<{factors}>({values}))"
