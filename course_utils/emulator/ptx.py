"""Inline PTX: turns the text of an `asm` statement into calls of the functions in include/emu_ptx.h."""

from __future__ import annotations

import re
from collections.abc import Callable

Operands = list[str]
TYPES = {"pred": "bool", "f32": "float", "f64": "double", "b64": "unsigned long long", "b16": "unsigned short"}
TYPES |= {"u64": TYPES["b64"], "s64": "long long", "s32": "int"}  # all others: unsigned
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FORMATS = {  # PTX type -> its numbers, as C++
    "f16": "emu::fp16_format",
    "bf16": "emu::bf16_format",
    "e4m3": "emu::e4m3_format",
    "e5m2": "emu::e5m2_format",
}


class UnknownInstruction(Exception):
    """PTX that the emulator does not know; the argument is the instruction."""


def _call(function: str) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: f"emu::ptx::{function}({', '.join(operands)})"


def _mma(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::mma_m16n8<{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _ldmatrix(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::ldmatrix_x{opcode[1]}<{'true' if opcode[2] else 'false'}>({', '.join(operands)})"


def _wgmma(opcode: re.Match[str], operands: Operands) -> str:
    """Numbers of D, then A (a descriptor or four registers), B, whether D counts, signs, and which are transposed."""
    columns, left_format, right_format = int(opcode[1]), FORMATS[opcode[3]], FORMATS[opcode[4]]
    d, rest = operands[: columns // 2], operands[columns // 2 :]
    in_registers = len(rest) > 7
    a, (b, *flags) = (rest[:4], rest[4:]) if in_registers else (rest[:1], rest[1:])
    may_be_transposed = 0 if opcode[2] == "32" else 1 if in_registers else 2  # of 16 bits, what lies in shared memory
    if columns % 8 or not 8 <= columns <= 256 or len(flags) != 3 + may_be_transposed:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    transposed = [*["0"] * (2 - may_be_transposed), *flags[3:]]
    addresses = ", ".join(f"&({one})" for one in d)
    places = ", ".join(f"emu::ptx::place_of({one})" for one in a)
    registers = f"emu::ptx::registers_of_a emu_a = {{{{{', '.join(a)}}}, {{{places}}}}}"
    left = registers if in_registers else f"unsigned long long emu_a = {a[0]}"
    rest = ", ".join(["emu_a", b, *flags[:3], *transposed])
    call = f"emu::ptx::wgmma<{left_format}, {right_format}>(emu_d, {rest})"
    return f"{{ float* emu_d[] = {{{addresses}}}; {left}; {call}; }}"


def _box(opcode: re.Match[str], operands: Operands) -> str:
    rank, load = int(opcode[1]), "global.shared" not in opcode[0]
    if len(operands) != rank + (
        3 if load else 2
    ):  # a load: to, map, coordinates, barrier; a store: map, coordinates, from
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    before, at, behind = operands[: 1 + load], operands[1 + load : 1 + load + rank], operands[-1]
    before[-1] = f"(const void*)({before[-1]})"
    function = "load_box" if load else "store_box"
    return (
        f"{{ const int emu_at[] = {{{', '.join(at)}}}; emu::ptx::{function}({', '.join(before)}, emu_at, {behind}); }}"
    )


def _bar_red(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::bar_red_{opcode[1]}({', '.join(operands)})"


def _convert_pair(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::cvt_pair<{FORMATS[opcode[1]]}>({', '.join(operands)})"


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
]
# For kernels whose header says `arch: sm_90a only`.
OF_HOPPER: list[tuple[str, Callable[[re.Match[str], Operands], str]]] = [
    (r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", _call("bar_sync")),
    (r"(?:bar|barrier)(?:\.cta)?\.arrive(?:\.aligned)?", _call("bar_arrive")),
    (r"(?:bar|barrier)(?:\.cta)?\.red\.(or|and|popc)(?:\.aligned)?\.(?:pred|u32)", _bar_red),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(16)\.f32\.(f16|bf16)\.(\3)", _wgmma),
    (r"wgmma\.mma_async\.sync\.aligned\.m64n(\d+)k(32)\.f32\.(e4m3|e5m2)\.(e4m3|e5m2)", _wgmma),
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
    (r"cp\.async\.bulk\.shared::(?:cta|cluster)\.global\.mbarrier::complete_tx::bytes", _call("bulk_load")),
    (r"cp\.async\.bulk\.global\.shared::cta\.bulk_group", _call("bulk_store")),
    (
        r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cta|cluster)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes",
        _box,
    ),
    (r"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group", _box),
    (r"cp\.async\.bulk\.commit_group", _call("bulk_commit")),
    (r"cp\.async\.bulk\.wait_group(?:\.read)?", _call("bulk_wait")),
    (r"fence\.mbarrier_init\.release\.cluster", _call("fence_mbarrier_init")),
    (r"fence\.proxy\.async\.global", _call("fence")),
    (r"fence\.proxy\.async(?:\.shared::(?:cta|cluster))?", _call("fence_proxy")),
    (
        r"setmaxnreg\.(inc|dec)\.sync\.aligned\.u32",
        lambda opcode, operands: (
            f"emu::ptx::set_register_limit<{'true' if opcode[1] == 'inc' else 'false'}>({operands[0]})"
        ),
    ),
]


def translate(ptx: str, operands: Operands, *, number: int = 0, hopper: bool = False) -> str:
    """One `asm` body as C++ statements. `operands` are the C++ expressions of %0, %1, ... in order; `number` makes the
    labels of a body its own; hopper: whether the kernel is for sm_90a. Registers that the body declares become
    variables. Raises UnknownInstruction.
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
            values = [_operand(token, operands, registers) for token in tokens]
            statement = _known(opcode, values, instruction, hopper)
        if guard:
            sign, name = ("!", guard[2:]) if guard[1] == "!" else ("", guard[1:])
            statement = f"if ({sign}{_operand(name, operands, registers)}) {{ {statement}; }}"
        statements.append(statement)
    return "; ".join(statements).replace(":;", ":")


_INSTRUCTION = re.compile(r"(?:(\w+):(?!:))?\s*(@!?\w+)?\s*(\S*)\s*(.*)", flags=re.DOTALL)


def _known(opcode: str, values: Operands, instruction: str, hopper: bool) -> str:
    if opcode in ("bar.sync", "barrier.sync") and values == ["0"]:  # of the 16 barriers, that of __syncthreads()
        return "__syncthreads()"
    for table in (INSTRUCTIONS, OF_HOPPER):
        for pattern, build in table:
            match = re.fullmatch(pattern, opcode)
            if match and table is OF_HOPPER and not hopper:
                raise UnknownInstruction(f"{instruction}, but in a kernel whose header says `arch: sm_90a only`")
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
