"""Inline PTX: turns the text of an `asm` statement into calls of the functions in include/emu_ptx.h."""

from __future__ import annotations

import re
from collections.abc import Callable

Operands = list[str]
TYPES = {"pred": "bool", "f32": "float", "f64": "double", "b64": "unsigned long long", "b16": "unsigned short"}
TYPES |= {"u64": TYPES["b64"], "s64": "long long", "s32": "int"}  # all others: unsigned
IN_MEMORY = TYPES | {"b32": "unsigned", "u32": "unsigned", "u16": TYPES["b16"], "s16": "short"}
IN_MEMORY |= {"b8": "unsigned char", "u8": "unsigned char", "s8": "signed char"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FORMATS = {  # PTX type -> its numbers, as C++
    "f16": "emu::fp16_format",
    "bf16": "emu::bf16_format",
    "e4m3": "emu::e4m3_format",
    "e5m2": "emu::e5m2_format",
}
HINT = r"((?:\.L2::cache_hint)?)"  # behind it, the last operand is a cache policy
SHARED = r"(?:\.shared(?:::cta)?)?"
CLUSTER = r"(?:\.shared::cluster)"


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


def _without_hint(opcode: re.Match[str], operands: Operands) -> Operands:
    return operands[:-1] if "cache_hint" in opcode[0] else operands


def _box(opcode: re.Match[str], operands: Operands) -> str:
    """A load: to, map, coordinates, barrier, blocks; a store: map, coordinates, from; a prefetch: map, coordinates."""
    operands, rank = _without_hint(opcode, operands), int(opcode[1])
    kind = "prefetch" if "prefetch" in opcode[0] else "store" if "global.shared" in opcode[0] else "load"
    first = 2 if kind == "load" else 1
    behind = {"load": 1 + ("multicast" in opcode[0]), "store": 1, "prefetch": 0}[kind]
    if len(operands) != first + rank + behind:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    before, at, rest = operands[:first], operands[first : first + rank], operands[first + rank :]
    before[-1] = f"(const void*)({before[-1]})"
    how = f"<emu::ptx::op_{opcode[2]}>" if "reduce" in opcode[0] else ""
    function = "add_box" if how else f"{kind}_box"
    arguments = ", ".join([*before, "emu_at", *rest])
    return f"{{ const int emu_at[] = {{{', '.join(at)}}}; emu::ptx::{function}{how}({arguments}); }}"


def _bulk(function: str) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: _call(function)(opcode, _without_hint(opcode, operands))


def _bulk_add(opcode: re.Match[str], operands: Operands) -> str:
    operation, kind = opcode[2], opcode[3]
    words = {"f16": "emu::ptx::half_bits", "bf16": "emu::ptx::bfloat_bits"}
    arguments = ", ".join(_without_hint(opcode, operands))
    return f"emu::ptx::bulk_add<{words.get(kind) or IN_MEMORY[kind]}, emu::ptx::op_{operation}>({arguments})"


def _place(space: str | None, address: str, const: str = "") -> str:
    return f"emu_shared_pointer({address})" if space == "shared" else f"({const}void*)({address})"


def _fence(opcode: re.Match[str], operands: Operands) -> str:
    return "__threadfence_block()" if ".cta" in opcode[0] else "__threadfence()"


def _kind(opcode: re.Match[str]) -> str:
    how = re.search(r"\.(?:volatile|relaxed|acquire|release)\b", opcode[0])
    return f"{'volatile ' if how else ''}{IN_MEMORY[opcode[3]]}"


def _load(opcode: re.Match[str], operands: Operands) -> str:
    operands, count = _without_hint(opcode, operands), int(opcode[2] or 1)
    if len(operands) != count + 1:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    place = _place(opcode[1], operands[count], "const ")
    return f"emu::ptx::load<{_kind(opcode)}>({', '.join([place, 'emu_here()', *operands[:count]])})"


def _store(opcode: re.Match[str], operands: Operands) -> str:
    operands, count = _without_hint(opcode, operands), int(opcode[2] or 1)
    if len(operands) != count + 1:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    place = _place(opcode[1], operands[0])
    store = f"emu::ptx::store<{_kind(opcode)}>({', '.join([place, 'emu_here()', *operands[1:]])})"
    if ".release" not in opcode[0] or opcode[1] == "shared":
        return store
    return f"{{ {_fence(opcode, [])}; {store}; }}"


def _store_async(opcode: re.Match[str], operands: Operands) -> str:
    count = int(opcode[1] or 1)
    if len(operands) != count + 2:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    to, *values, barrier = operands
    return f"emu::ptx::store_async<{IN_MEMORY[opcode[2]]}>({', '.join([to, barrier, *values])})"


def _matrices(function: str) -> Callable[[re.Match[str], Operands], str]:
    return lambda opcode, operands: f"emu::ptx::{function}<{'true' if opcode[2] else 'false'}>({', '.join(operands)})"


def _arrival(function: str) -> Callable[[re.Match[str], Operands], str]:
    """At an mbarrier; with .relaxed it does not release what the thread did before."""
    return lambda opcode, operands: (
        f"emu::ptx::{function}<{'false' if opcode[1] == 'relaxed' else 'true'}>({', '.join(operands)})"
    )


def _bar_red(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::bar_red_{opcode[1]}({', '.join(operands)})"


def _convert_pair(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::cvt_pair<{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _move(_: re.Match[str], operands: Operands) -> str:
    """One number, or two of half the size, the lower one first."""
    to, *halves = operands
    if len(halves) == 1:
        return f"{to} = {halves[0]}"
    return f"{to} = emu::ptx::joined({', '.join(halves)})"


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
    (r"membar\.(?:cta|gl|sys)|fence\.acq_rel\.(?:cta|gpu|sys)", _fence),
    (r"cvt\.rn\.satfinite\.(e4m3)x2\.f32", _convert_pair),
    (r"mov\.[bus](?:32|64)", _move),
    (r"setp\.(eq|ne|lt|le|gt|ge)\.([bus]32|[bus]64)", _compare),
    (r"selp\.[bus]32", lambda _, operands: "{0} = ({3}) ? ({1}) : ({2})".format(*operands)),
    (r"cvta\.to\.shared\.u64", lambda _, operands: f"{operands[0]} = emu_shared_offset((const void*)({operands[1]}))"),
    (r"cvt\.u32\.u64", lambda _, operands: f"{operands[0]} = (unsigned)({operands[1]})"),
    (
        r"ld(?:\.(?:weak|volatile|relaxed|acquire)(?:\.(?:cta|cluster|gpu|sys))?)?(?:\.(global|shared)(?:::cta)?)?"
        rf"(?:\.nc)?(?:\.L[12]::(?!cache_hint)\w+)*(?:\.L2::cache_hint)?(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})",
        _load,
    ),
    (
        r"st(?:\.(?:weak|volatile|relaxed|release)(?:\.(?:cta|cluster|gpu|sys))?)?(?:\.(global|shared)(?:::cta)?)?"
        rf"(?:\.L[12]::(?!cache_hint)\w+)*(?:\.L2::cache_hint)?(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})",
        _store,
    ),
    (r"prefetch(?:\.global)?\.L[12](?:::\w+)?|prefetchu\.L1", _call("prefetch")),
    (r"prefetch\.local\.L[12](?:::\w+)?", _call("nothing")),
    (r"createpolicy\.fractional(?:\.L2::\w+){1,2}\.b64", _call("create_policy")),
    (r"movmatrix\.sync\.aligned\.m8n8(\.)(trans)\.b16", _call("movmatrix")),
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
    (rf"mbarrier\.init{SHARED}\.b64", _call("mbarrier_init")),
    (rf"mbarrier\.inval{SHARED}\.b64", _call("mbarrier_invalidate")),
    (
        rf"mbarrier\.arrive(?:\.(release|relaxed)\.(?:cta|cluster))?(?:{SHARED}|{CLUSTER})\.b64",
        _arrival("mbarrier_arrive"),
    ),
    (
        rf"mbarrier\.arrive\.expect_tx(?:\.(release|relaxed)\.(?:cta|cluster))?(?:{SHARED}|{CLUSTER})\.b64",
        _arrival("mbarrier_arrive_expecting"),
    ),
    (rf"mbarrier\.arrive\.noComplete(?:\.release\.cta)?{SHARED}\.b64", _call("mbarrier_arrive_not_last")),
    (
        rf"mbarrier\.arrive_drop(?:\.(release|relaxed)\.(?:cta|cluster))?(?:{SHARED}|{CLUSTER})\.b64",
        _arrival("mbarrier_drop"),
    ),
    (r"mbarrier\.pending_count\.b64", _call("mbarrier_pending")),
    (rf"mbarrier\.expect_tx(?:\.relaxed\.(?:cta|cluster))?(?:{SHARED}|{CLUSTER})\.b64", _call("mbarrier_expect")),
    (
        rf"mbarrier\.complete_tx(?:\.relaxed\.(?:cta|cluster))?(?:{SHARED}|{CLUSTER})\.b64",
        _call("mbarrier_complete"),
    ),
    (
        rf"mbarrier\.(test|try)_wait(\.parity)?(?:\.(?:acquire|relaxed)\.(?:cta|cluster))?{SHARED}\.b64",
        lambda opcode, operands: (
            f"emu::ptx::mbarrier_wait{'_parity' if opcode[2] else ''}"
            f"<{'true' if opcode[1] == 'try' else 'false'}>({', '.join(operands[:3])})"
        ),
    ),
    (rf"cp\.async\.mbarrier\.arrive{SHARED}\.b64", _call("copies_arrive<true>")),
    (rf"cp\.async\.mbarrier\.arrive\.noinc{SHARED}\.b64", _call("copies_arrive<false>")),
    (
        rf"cp\.async\.bulk\.shared::(?:cta|cluster)\.global\.mbarrier::complete_tx::bytes(\.multicast::cluster)?{HINT}",
        _bulk("bulk_load"),
    ),
    (r"cp\.async\.bulk\.shared::cluster\.shared::cta\.mbarrier::complete_tx::bytes", _call("bulk_between")),
    (rf"cp\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}", _bulk("bulk_store")),
    (
        rf"cp\.reduce\.async\.bulk\.global\.shared::cta\.bulk_group{HINT}\.(\w+)(?:\.noftz)?\.(\w+)",
        _bulk_add,
    ),
    (
        r"cp\.async\.bulk\.tensor\.([1-5])d\.shared::(?:cta|cluster)\.global(?:\.tile)?\.mbarrier::complete_tx::bytes"
        rf"(\.multicast::cluster)?{HINT}",
        _box,
    ),
    (rf"cp\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta(?:\.tile)?\.bulk_group{HINT}", _box),
    (rf"cp\.reduce\.async\.bulk\.tensor\.([1-5])d\.global\.shared::cta\.(\w+)(?:\.tile)?\.bulk_group{HINT}", _box),
    (rf"cp\.async\.bulk\.prefetch\.tensor\.([1-5])d\.L2\.global(?:\.tile)?{HINT}", _box),
    (rf"cp\.async\.bulk\.prefetch\.L2\.global{HINT}", _bulk("bulk_prefetch")),
    (r"prefetch(?:\.param|\.const)?\.tensormap", _call("prefetch_map")),
    (r"cp\.async\.bulk\.commit_group", _call("bulk_commit")),
    (r"cp\.async\.bulk\.wait_group", _call("bulk_wait")),
    (r"cp\.async\.bulk\.wait_group\.read", _call("bulk_wait_read")),
    (r"elect\.sync", _call("elect")),
    (r"stmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _matrices("stmatrix")),
    (r"griddepcontrol\.(?:wait|launch_dependents)", _call("nothing")),
    (r"mapa(\.shared::cluster)?\.u(?:32|64)", _call("map_to_block")),
    (r"getctarank(\.shared::cluster)?\.u(?:32|64)", _call("rank_of")),
    (rf"ld(?:\.(?:weak|relaxed|acquire)(?:\.\w+)?)?\.(shared)::cluster(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})", _load),
    (rf"st(?:\.(?:weak|relaxed|release)(?:\.\w+)?)?\.(shared)::cluster(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})", _store),
    (
        r"st\.async(?:\.weak)?\.shared::cluster\.mbarrier::complete_tx::bytes(?:\.v([24]))?\.([busf](?:32|64))",
        _store_async,
    ),
    (r"barrier\.cluster\.arrive(?:\.release|\.relaxed)?(?:\.aligned)?", _call("cluster_arrive")),
    (r"barrier\.cluster\.wait(?:\.acquire)?(?:\.aligned)?", _call("cluster_wait")),
    (r"fence\.acq_rel\.cluster|fence\.sc\.\w+", _fence),
    (r"fence\.mbarrier_init\.release\.cluster", _call("fence_mbarrier_init")),
    (r"fence\.proxy\.async\.global", _fence),
    (r"fence\.proxy\.async(?:\.shared::(?:cta|cluster))?", _call("fence_proxy")),
    (r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32", _call("set_register_limit")),
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
            tokens = re.findall(_TOKEN, rest)
            values = [_operand(token, operands, registers) for token in tokens]
            statement = _known(opcode, values, instruction, hopper)
        if guard:
            sign, name = ("!", guard[2:]) if guard[1] == "!" else ("", guard[1:])
            statement = f"if ({sign}{_operand(name, operands, registers)}) {{ {statement}; }}"
        statements.append(statement)
    return "; ".join(statements).replace(":;", ":")


_TOKEN = r"(?:%%?\w+(?:\.[xyz])?|-?\d[\w.]*|\w+)(?:\s*\+\s*-?\w+)?"  # [%0 + 16] is one, too
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
    place, _, behind = token.partition("+")
    if behind:
        return f"emu::ptx::plus({_operand(place.strip(), operands, registers)}, {behind.strip()})"
    if re.fullmatch(r"%\d+", token):
        index = int(token[1:])
        if index >= len(operands):
            raise UnknownInstruction(f"operand {token}, of {len(operands)}")
        return operands[index]
    return SPECIAL.get(token) or registers.get(token, token.replace("%%", "%"))


SPECIAL = {
    "_": "emu::ptx::nowhere()",
    "%%laneid": "emu::lane()",
    "%%warpid": "emu_self()->warp",
    "%%clock": "(unsigned)emu_steps()",
    "%%clock64": "emu_steps()",
    "%%globaltimer": "emu_steps()",
    "%%cluster_ctarank": "emu_self()->cluster_rank",
    "%%cluster_nctarank": "emu::cluster_blocks()",
    **{
        f"%%{name}.{axis}": f"emu_self()->{field}.{axis}"
        for name, field in (
            *(("tid", "thread_idx"), ("ctaid", "block_idx"), ("ntid", "block_dim"), ("nctaid", "grid_dim")),
            ("cluster_nctaid", "cluster_dim"),
        )
        for axis in "xyz"
    },
    **{
        f"%%{name}.{axis}": f"(emu_self()->{counted}.{axis} {sign} emu_self()->cluster_dim.{axis})"
        for name, counted, sign in (
            *(("clusterid", "block_idx", "/"), ("nclusterid", "grid_dim", "/")),
            ("cluster_ctaid", "block_idx", "%"),
        )
        for axis in "xyz"
    },
}
