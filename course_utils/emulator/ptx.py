"""Inline PTX: turns the text of an `asm` statement into calls of the functions in include/emu_ptx.h."""

from __future__ import annotations

import re
from collections.abc import Callable

Operands = list[str]
TYPES = {"pred": "bool", "f32": "float", "f64": "double", "b64": "unsigned long long", "b16": "unsigned short"}
TYPES |= {"u64": TYPES["b64"], "s64": "long long", "s32": "int"}  # all others: unsigned
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FORMATS = {"f16": "fp16_format", "bf16": "bf16_format", "e4m3": "e4m3_format"}  # PTX type -> its numbers, as C++


class UnknownInstruction(Exception):
    """PTX that the emulator does not know; the argument is the instruction."""


def _call(function: str) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: f"emu::ptx::{function}({', '.join(operands)})"


def _call_with(function: str, group: int) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: f"emu::ptx::{function}_{opcode[group]}({', '.join(operands)})"


def _mma(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::mma_m16n8<emu::{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _ldmatrix(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::ldmatrix_x{opcode[1]}<{'true' if opcode[2] else 'false'}>({', '.join(operands)})"


def _wgmma(opcode: re.Match[str], operands: Operands) -> str:
    """Numbers of D, then A (a descriptor or four registers), B, whether D counts, signs, and which are transposed."""
    columns, kind = int(opcode[1]), opcode[3]
    d, rest = operands[: columns // 2], operands[columns // 2 :]
    in_registers = len(rest) > 7
    a, (b, *flags) = (rest[:4], rest[4:]) if in_registers else (rest[:1], rest[1:])
    may_be_transposed = 0 if kind == "e4m3" else 1 if in_registers else 2  # of 16 bits, what lies in shared memory
    if columns % 8 or not 8 <= columns <= 256 or len(flags) != 3 + may_be_transposed:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    transposed = [*["0"] * (2 - may_be_transposed), *flags[3:]]
    addresses = ", ".join(f"&({one})" for one in d)
    left = f"unsigned emu_a[] = {{{', '.join(a)}}}" if in_registers else f"unsigned long long emu_a = {a[0]}"
    rest = ", ".join(["emu_a", b, *flags[:3], *transposed])
    return f"{{ float* emu_d[] = {{{addresses}}}; {left}; emu::ptx::wgmma<emu::{FORMATS[kind]}>(emu_d, {rest}); }}"


def _named_barrier(waits: str) -> Callable[[re.Match[str], Operands], str]:
    def build(opcode: re.Match[str], operands: Operands) -> str:
        if waits == "true" and operands == ["0"]:
            return "__syncthreads()"
        return f"emu::ptx::named_barrier({', '.join(operands)}, {waits})"

    return build


def _convert_pair(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::cvt_pair<emu::{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _compare(opcode: re.Match[str], operands: Operands) -> str:
    kind = TYPES.get(opcode[2], "unsigned")
    return f"{operands[0]} = ({kind})({operands[1]}) {COMPARISONS[opcode[1]]} ({kind})({operands[2]})"


INSTRUCTIONS: list[tuple[str, Callable[[re.Match[str], Operands], str]]] = [
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32", _mma),
    (r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.(e4m3)\.\1\.f32", _mma),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"cp\.async\.ca\.shared(?:::cta)?\.global(?:\.L2::\w+)?", _call("cp_async<false>")),
    (r"cp\.async\.cg\.shared(?:::cta)?\.global(?:\.L2::\w+)?", _call("cp_async<true>")),
    (r"cp\.async\.commit_group", _call("cp_async_commit_group")),
    (r"cp\.async\.wait_group", _call("cp_async_wait_group")),
    (r"cp\.async\.wait_all", _call("cp_async_wait_all")),
    (r"ex2\.approx(?:\.ftz)?\.f32", _call("ex2")),
    (r"lg2\.approx(?:\.ftz)?\.f32", _call("lg2")),
    (r"rcp\.approx(?:\.ftz)?\.f32", _call("rcp")),
    (r"rsqrt\.approx(?:\.ftz)?\.f32", _call("rsqrt")),
    (r"tanh\.approx\.f32", _call("tanh")),
    (r"cvt\.rn\.(f16|bf16)x2\.f32", _convert_pair),
    (r"membar\.(?:cta|gl|sys)|fence\.acq_rel\.(?:cta|gpu|sys)", _call("fence")),
    (r"mov\.[bus](?:32|64)", lambda _, operands: f"{operands[0]} = {operands[1]}"),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.([bus]32|[bus]64)", _compare),
    (r"selp\.[bus]32", lambda _, operands: "{0} = ({3}) ? ({1}) : ({2})".format(*operands)),
    (r"cvta\.to\.shared\.u64", lambda _, operands: f"{operands[0]} = emu_shared_offset((const void*)({operands[1]}))"),
    (r"cvt\.u32\.u64", lambda _, operands: f"{operands[0]} = (unsigned)({operands[1]})"),
    (r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", _named_barrier("true")),
    (r"(?:bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?", _named_barrier("false")),
    (r"(?:bar|barrier)(?:\.cta)?\.red\.(or|and|popc)(?:\.aligned)?\.(?:pred|u32)", _call_with("named_reduction", 1)),
    # ---- sm_90a
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(16|32)\.f32\.(f16|bf16|e4m3)\.\3", _wgmma),
    (r"wgmma\.fence\.sync\.aligned", _call("wgmma_fence")),
    (r"wgmma\.commit_group\.sync\.aligned", _call("wgmma_commit")),
    (r"wgmma\.wait_group\.sync\.aligned", _call("wgmma_wait")),
    (r"mbarrier\.init(?:\.shared(?:::cta)?)?\.b64", _call("mbarrier_init")),
    (r"mbarrier\.inval(?:\.shared(?:::cta)?)?\.b64", _call("mbarrier_invalidate")),
    (r"mbarrier\.arrive(?:\.(?:release|relaxed)\.cta)?(?:\.shared(?:::cta)?)?\.b64", _call("mbarrier_arrive")),
    (
        r"mbarrier\.arrive\.expect_tx(?:\.(?:release|relaxed)\.cta)?(?:\.shared(?:::cta)?)?\.b64",
        _call("mbarrier_arrive_expecting"),
    ),
    (
        r"mbarrier\.arrive\.noComplete(?:\.release\.cta)?(?:\.shared(?:::cta)?)?\.b64",
        _call("mbarrier_arrive_not_last"),
    ),
    (r"mbarrier\.expect_tx(?:\.relaxed\.cta)?(?:\.shared(?:::cta)?)?\.b64", _call("mbarrier_expect")),
    (r"mbarrier\.complete_tx(?:\.relaxed\.cta)?(?:\.shared(?:::cta)?)?\.b64", _call("mbarrier_complete")),
    (
        r"mbarrier\.(test|try)_wait(\.parity)?(?:\.(?:acquire|relaxed)\.cta)?(?:\.shared(?:::cta)?)?\.b64",
        lambda opcode, operands: (
            f"emu::ptx::mbarrier_wait{'_parity' if opcode[2] else ''}"
            f"<{'true' if opcode[1] == 'try' else 'false'}>({', '.join(operands[:3])})"
        ),
    ),
    (r"fence\.mbarrier_init\.release\.cluster|fence\.proxy\.async(?:\.[\w:]+)*", _call("fence")),
    (
        r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32",
        lambda opcode, operands: f"emu::ptx::set_register_limit<{'true' if opcode[1] == 'inc' else 'false'}>({operands[0]})",
    ),
]


def translate(ptx: str, operands: Operands, number: int = 0) -> str:
    """One `asm` body as C++ statements. `operands` are the C++ expressions of %0, %1, ... in order; `number` makes the
    labels of a body its own. Registers that the body declares become variables. Raises UnknownInstruction.
    """
    statements: list[str] = []
    registers: dict[str, str] = {}
    for instruction in _instructions(ptx):
        declared = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", instruction)
        if declared:
            for name in re.findall(r"\w+", declared[2]):
                registers[name] = f"emu_{name}"
                statements.append(f"{TYPES.get(declared[1], 'unsigned')} emu_{name}")
            continue
        labelled, guard, opcode, rest = _INSTRUCTION.fullmatch(instruction).groups()
        if labelled:
            statements.append(f"emu_{labelled}_{number}:")
        if not opcode:
            continue
        if opcode.startswith("bra"):
            statement = f"goto emu_{rest.strip()}_{number}"
        else:
            tokens = re.findall(r"%%?\w+|-?\d+|\w+", rest)
            statement = _known(opcode, [_operand(token, operands, registers) for token in tokens], instruction)
        if guard:
            sign, name = ("!", guard[2:]) if guard[1] == "!" else ("", guard[1:])
            statement = f"if ({sign}{_operand(name, operands, registers)}) {{ {statement}; }}"
        statements.append(statement)
    return "; ".join(statements).replace(":;", ":")


_INSTRUCTION = re.compile(r"(?:(\w+):(?!:))?\s*(@!?\w+)?\s*(\S*)\s*(.*)", flags=re.DOTALL)


def _known(opcode: str, values: Operands, instruction: str) -> str:
    for pattern, build in INSTRUCTIONS:
        match = re.fullmatch(pattern, opcode)
        if match:
            return build(match, values)
    raise UnknownInstruction(instruction)


def _instructions(ptx: str) -> list[str]:
    body = " ".join(ptx.split())
    if body.startswith("{") and body.endswith("}"):
        body = body[1:-1]
    return [part for part in (part.strip() for part in body.split(";")) if part]


def _operand(token: str, operands: Operands, registers: dict[str, str]) -> str:
    if re.fullmatch(r"%\d+", token):
        index = int(token[1:])
        if index >= len(operands):
            raise UnknownInstruction(f"operand {token}, of {len(operands)}")
        return operands[index]
    special = {"%%laneid": "emu::lane()", "_": "emu::ptx::nowhere()"}
    return special.get(token) or registers.get(token, token.replace("%%", "%"))
