"""Inline PTX: turns the text of an `asm` statement into calls of the functions in include/emu_ptx.h."""

from __future__ import annotations

import re
from collections.abc import Callable

Operands = list[str]
FORMATS = {"f16": "fp16_format", "bf16": "bf16_format", "e4m3": "e4m3_format"}  # PTX type -> its numbers, as C++


class UnknownInstruction(Exception):
    """PTX that the emulator does not know; the argument is the instruction."""


def _call(function: str) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: f"emu::ptx::{function}({', '.join(operands)})"


def _mma(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::mma_m16n8<emu::{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _ldmatrix(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::ldmatrix_x{opcode[1]}<{'true' if opcode[2] else 'false'}>({', '.join(operands)})"


def _convert_pair(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::cvt_pair<emu::{FORMATS[opcode[1]]}>({', '.join(operands)})"


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
]


def translate(ptx: str, operands: Operands) -> str:
    """One `asm` body as C++ statements. `operands` are the C++ expressions of %0, %1, ... in order.

    A body may declare 64-bit registers for `cvta.to.shared.u64`, the long way to a shared address. Raises
    UnknownInstruction.
    """
    statements = []
    shared_pointers: dict[
        str, str
    ] = {}  # a register that holds a generic pointer into shared memory -> the C++ pointer
    for instruction in _instructions(ptx):
        opcode, _, rest = instruction.partition(" ")
        values = [_operand(token, operands) for token in re.findall(r"%%?\w+|-?\d+|\w+", rest)]
        if opcode == "cvta.to.shared.u64" and len(values) == 2:
            shared_pointers[values[0]] = values[1]
        elif opcode == "cvt.u32.u64" and len(values) == 2 and values[1] in shared_pointers:
            statements.append(f"{values[0]} = emu_shared_offset((const void*)({shared_pointers[values[1]]}))")
        elif opcode == "mov.u32" and values[1:] == ["%laneid"]:
            statements.append(f"emu::ptx::lane_id({values[0]})")
        elif opcode in ("bar.sync", "barrier.sync") and values == ["0"]:  # of the 16 barriers, that of __syncthreads()
            statements.append("__syncthreads()")
        else:
            statements.append(_known(opcode, values, instruction))
    return "; ".join(statements)


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
    parts = (part.strip() for part in body.split(";"))
    return [part for part in parts if part and not part.startswith(".reg")]


def _operand(token: str, operands: Operands) -> str:
    if re.fullmatch(r"%\d+", token):
        index = int(token[1:])
        if index >= len(operands):
            raise UnknownInstruction(f"operand {token}, of {len(operands)}")
        return operands[index]
    return token.replace("%%", "%")
