"""Inline PTX: turns the text of an `asm` statement into calls of the functions in include/emu_ptx.h."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator

from course_utils.emulator.arithmetic_ptx import TYPES, compute
from course_utils.toolchain.source import closing

Operands = list[str]
IN_MEMORY = {kind: TYPES[kind] for kind in TYPES if re.fullmatch(r"[busf](8|16|32|64)", kind) and kind != "f16"}
IN_REGISTERS = TYPES | {kind: TYPES["b16"] for kind in ("f16", "bf16")}  # all others: unsigned
SUMS = {"f32": "float", "f64": "double", "s32": "int"}  # of mma
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


def _released(opcode: re.Match[str], access: str) -> str:
    """The access, behind a fence where the instruction hands on what its thread has done before."""
    hands_on = re.search(r"\.(?:release|acq_rel)\b", opcode[0])
    return f"{{ {_fence(opcode, [])}; {access}; }}" if hands_on else access


def _kind(opcode: re.Match[str]) -> str:
    how = re.search(r"\.(?:volatile|relaxed|acquire|release)\b", opcode[0])
    return f"{'volatile ' if how else ''}{IN_MEMORY[opcode[3]]}"


def _load(opcode: re.Match[str], operands: Operands) -> str:
    operands, count = _without_hint(opcode, operands), int(opcode[2] or 1)
    if len(operands) != count + 1:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    place = _place(opcode[1], operands[count], "const ")
    function = "load_again" if re.match(r"ld\.(volatile|relaxed|acquire)", opcode[0]) else "load"
    return f"emu::ptx::{function}<{IN_MEMORY[opcode[3]]}>({', '.join([place, 'emu_here()', *operands[:count]])})"


def _store(opcode: re.Match[str], operands: Operands) -> str:
    operands, count = _without_hint(opcode, operands), int(opcode[2] or 1)
    if len(operands) != count + 1:
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    place = _place(opcode[1], operands[0])
    store = f"emu::ptx::store<{_kind(opcode)}>({', '.join([place, 'emu_here()', *operands[1:]])})"
    return store if opcode[1] == "shared" else _released(opcode, store)


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


def _general_mma(opcode: re.Match[str], operands: Operands) -> str:
    """mma.sync by the rule that its fragments follow: registers of D, A, B and C."""
    rows, depth, sums, kinds = int(opcode[1]), int(opcode[2]), opcode[3], (opcode[4], opcode[5])
    is_known = (rows, depth, sums, kinds[0]) in SHAPES_OF_MMA and (rows, depth, sums, kinds[1]) in SHAPES_OF_MMA
    if not is_known or opcode[6] != sums:
        raise UnknownInstruction(opcode[0])
    bits, word_bits, is_half = SIZES[kinds[0]], 64 if sums == "f64" else 32, sums == "f16"
    of_sums, of_right = rows // (8 if is_half else 4), 8 * depth * bits // 32 // word_bits
    counts = [of_sums, rows // 8 * of_right, of_right, of_sums]
    if len(operands) != sum(counts):
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    word = "unsigned long long" if word_bits == 64 else "unsigned"
    types = [kind := "unsigned" if is_half else SUMS[sums], word, word, kind]
    groups = [operands[sum(counts[:n]) : sum(counts[: n + 1])] for n in range(4)]
    given = [
        f"const {kind} emu_{name}[] = {{{', '.join(f'emu::ptx::get<{kind}>({one})' for one in group)}}}"
        for name, kind, group in zip("abc", types[1:], groups[1:], strict=True)
    ]
    elements = ", ".join(OF_MMA[kind] for kind in kinds)
    call = f"emu::ptx::mma{'_of_halves' if is_half else ''}<{rows}, {depth}, {elements}>(emu_d, emu_a, emu_b, emu_c)"
    results = [f"emu::ptx::put({one}, emu_d[{n}])" for n, one in enumerate(groups[0])]
    return f"{{ {'; '.join([*given, f'{types[0]} emu_d[{counts[0]}]', call, *results])}; }}"


OF_MMA = {
    **{kind: f"emu::ptx::of_16_bits<{FORMATS[kind]}>" for kind in ("f16", "bf16")},
    **{"tf32": "emu::ptx::tf32", "f64": "emu::ptx::fp64"},
    **{"s8": "emu::ptx::of_8_bits<signed char>", "u8": "emu::ptx::of_8_bits<unsigned char>"},
}
SIZES = {"f16": 16, "bf16": 16, "tf32": 32, "f64": 64, "s8": 8, "u8": 8}
SHAPES_OF_MMA = {
    *((16, depth, sums, "f16") for depth in (8, 16) for sums in ("f16", "f32")),
    *((16, depth, "f32", kind) for kind, depths in (("bf16", (8, 16)), ("tf32", (4, 8))) for depth in depths),
    *((rows, depth, "s32", kind) for kind in ("s8", "u8") for rows, depth in ((8, 16), (16, 16), (16, 32))),
    (8, 4, "f64", "f64"),
}


def _shuffle(opcode: re.Match[str], operands: Operands) -> str:
    """Into a register, and where there is one into a predicate: whether there is such a lane."""
    *targets, value, lane, bounds, mask = operands
    if len(targets) not in (1, 2):
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    to, inside = [*targets, "emu_inside"][:2]
    source = f"emu::ptx::{opcode[1]}({lane}, {bounds})"
    arguments = ", ".join([to, inside, f"emu::ptx::get<unsigned>({value})", source, mask, "emu_here()"])
    return f"{{ bool emu_inside; emu::ptx::shfl({arguments}); }}"


def _put(value: str) -> Callable[[re.Match[str], Operands], str]:
    """Puts a function of the operands into a register: {0} is the first operand behind that register."""
    return lambda opcode, operands: f"emu::ptx::put({operands[0]}, {value.format(*operands[1:], opcode=opcode)})"


def _match(opcode: re.Match[str], operands: Operands) -> str:
    """The lanes with the same value; of .all also whether all have it."""
    to, *targets, value, mask = operands
    value = f"emu::ptx::get<{TYPES[opcode[2]]}>({value})"
    if opcode[1] == "any":
        return f"emu::ptx::put({to}, __match_any_sync({mask}, {value}))"
    inside = (targets or ["emu_inside"])[0]
    return f"{{ bool emu_inside; emu::ptx::match_all({to}, {inside}, {value}, {mask}, emu_here()); }}"


def _reduce(opcode: re.Match[str], operands: Operands) -> str:
    to, value, mask = operands
    return f"emu::ptx::put({to}, __reduce_{opcode[1]}_sync({mask}, emu::ptx::get<{TYPES[opcode[2]]}>({value})))"


_OPERATIONS = ("add", "exch", "min", "max", "inc", "dec", "and", "or", "xor")
ATOMICS = {"cas": "atomicCAS", **{operation: f"atomic{operation.capitalize()}" for operation in _OPERATIONS}}


def _atomic(opcode: re.Match[str], operands: Operands) -> str:
    result, (address, *values) = (operands[0], operands[1:]) if opcode[1] == "atom" else ("", operands)
    kind = TYPES[opcode[4]]
    place = f"({kind}*){_place(opcode[2], address)}"
    call = f"{ATOMICS[opcode[3]]}({', '.join([place, *(f'emu::ptx::get<{kind}>({value})' for value in values)])})"
    if len(values) != (2 if opcode[3] == "cas" else 1):
        raise UnknownInstruction(f"{opcode[0]} with {len(operands)} operands")
    update = f"emu::ptx::put({result}, {call})" if result else call
    return _released(opcode, update)


def _barrier_red(opcode: re.Match[str], operands: Operands) -> str:
    """A barrier that reduces over all threads of the block, as __syncthreads_count() does."""
    if len(operands) != 3 or operands[1] != "0":
        raise UnknownInstruction(f"{opcode[0]} {', '.join(operands)}")
    name = {"popc": "count"}.get(opcode[1], opcode[1])
    return f"emu::ptx::put({operands[0]}, (unsigned)__syncthreads_{name}({operands[2]}))"


def _convert_address(opcode: re.Match[str], operands: Operands) -> str:
    to, value = operands
    if opcode[2] != "shared":
        return f"emu::ptx::put({to}, emu::ptx::get<unsigned long long>({value}))"
    if opcode[1]:
        return f"emu::ptx::put({to}, (unsigned long long)emu_shared_offset((const void*)({value})))"
    return f"emu::ptx::put({to}, (unsigned long long)emu_shared_pointer((unsigned)({value})))"


def _is_in_space(opcode: re.Match[str], operands: Operands) -> str:
    function = {"const": "Constant", "param": "GridConstant"}.get(opcode[1], opcode[1].capitalize())
    return f"{operands[0]} = __is{function}((const void*)({operands[1]}))"


def _bar_red(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::bar_red_{opcode[1]}({', '.join(operands)})"


def _convert_pair(opcode: re.Match[str], operands: Operands) -> str:
    return f"emu::ptx::cvt_pair<{FORMATS[opcode[1]]}>({', '.join(operands)})"


def _move(opcode: re.Match[str], operands: Operands) -> str:
    """One number, or several that lie in one, the lowest first."""
    to, *parts = operands
    if len(parts) == 1:
        kind = TYPES[opcode[1]]
        return f"emu::ptx::put({to}, emu::ptx::get<{kind}>({parts[0]}))"
    return f"emu::ptx::join({to}, {', '.join(parts)})"


INSTRUCTIONS: list[tuple[str, Callable[[re.Match[str], Operands], str]]] = [
    (r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16|bf16)\.\1\.f32", _mma),
    (r"mma\.sync\.aligned\.m16n8k32\.row\.col\.f32\.(e4m3)\.\1\.f32", _mma),
    (r"ldmatrix\.sync\.aligned\.m8n8\.x([124])(\.trans)?\.shared(?:::cta)?\.b16", _ldmatrix),
    (r"cp\.async\.ca\.shared(?:::cta)?\.global(?:\.L2::\w+)?", _call("cp_async<false>")),
    (r"cp\.async\.cg\.shared(?:::cta)?\.global(?:\.L2::\w+)?", _call("cp_async<true>")),
    (r"cp\.async\.commit_group", _call("cp_async_commit_group")),
    (r"cp\.async\.wait_group", _call("cp_async_wait_group")),
    (r"cp\.async\.wait_all", _call("cp_async_wait_all")),
    (r"cvt\.rn\.(f16|bf16)x2\.f32", _convert_pair),
    (r"membar\.(?:cta|gl|sys)|fence\.(?:acq_rel|sc)\.(?:cta|gpu|sys)", _fence),
    (r"cvt\.rn\.satfinite\.(e4m3)x2\.f32", _convert_pair),
    (r"mov\.([busf](?:16|32|64)|pred)", _move),
    (r"mma\.sync\.aligned\.m(8|16)n8k(\d+)\.row\.col\.(\w+)\.(\w+)\.(\w+)\.(\w+)", _general_mma),
    (r"cvta(\.to)?\.(global|shared|local|const|param)(?:::cta)?\.u64", _convert_address),
    (r"isspacep\.(global|shared|local|const|param)(?:::cta)?", _is_in_space),
    (r"shfl\.sync\.(up|down|bfly|idx)\.b32", _shuffle),
    (r"vote\.sync\.(all|any|uni)\.pred", _put("__{opcode[1]}_sync({1}, {0})")),
    (r"vote\.sync\.ballot\.b32", _put("__ballot_sync({1}, {0})")),
    (r"match\.(any|all)\.sync\.(b32|b64)", _match),
    (r"redux\.sync\.(add|min|max|and|or|xor)\.([bus]32)", _reduce),
    (r"activemask\.b32", _put("__activemask()")),
    (r"bar\.warp\.sync", lambda _, operands: f"__syncwarp({operands[0]})"),
    (r"vabsdiff4\.u32\.u32\.u32\.add", _put("__vsadu4({0}, {1}) + {2}")),
    (
        r"(atom|red)(?:\.(?:relaxed|acquire|release|acq_rel))?(?:\.(?:cta|cluster|gpu|sys))?(?:\.(global|shared)(?:::cta)?)?"
        rf"(?:\.(?:cta|gpu|sys))?\.({'|'.join(ATOMICS)})(?:\.noftz)?\.([busf](?:16|32|64)|bf16|b?f16x2)",
        _atomic,
    ),
    (r"nanosleep\.u32", lambda _, operands: f"__nanosleep({operands[0]})"),
    (r"trap", lambda *_: "__trap()"),
    (r"brkpt|pmevent(?:\.mask)?", _call("nothing")),
    (
        r"ld(?:\.(?:weak|volatile|relaxed|acquire)(?:\.(?:cta|cluster|gpu|sys))?)?(?:\.(global|shared|local|const)(?:::cta)?)?"
        rf"(?:\.(?:ca|cg|cs|lu|cv))?(?:\.nc)?(?:\.L[12]::(?!cache_hint)\w+)*(?:\.L2::cache_hint)?(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})",
        _load,
    ),
    (
        r"st(?:\.(?:weak|volatile|relaxed|release)(?:\.(?:cta|cluster|gpu|sys))?)?(?:\.(global|shared|local)(?:::cta)?)?"
        rf"(?:\.(?:wb|cg|cs|wt))?(?:\.L[12]::(?!cache_hint)\w+)*(?:\.L2::cache_hint)?(?:\.v([24]))?\.({'|'.join(IN_MEMORY)})",
        _store,
    ),
    (r"prefetch(?:\.global)?\.L[12](?:::\w+)?|prefetchu\.L1", _call("prefetch")),
    (r"prefetch\.local\.L[12](?:::\w+)?|discard(?:\.global)?\.L2", _call("nothing")),
    (r"createpolicy\.fractional(?:\.L2::\w+){1,2}\.b64", _call("create_policy")),
    (r"movmatrix\.sync\.aligned\.m8n8(\.)(trans)\.b16", _call("movmatrix")),
]
# For kernels up to sm_80: a barrier with a number is one of the whole block.
BEFORE_HOPPER: list[tuple[str, Callable[[re.Match[str], Operands], str]]] = [
    (r"(?:bar|barrier)(?:\.cta)?\.sync(?:\.aligned)?", _call("bar_sync")),
    (r"(?:bar|barrier)(?:\.cta)?\.red\.(or|and|popc)(?:\.aligned)?\.(?:pred|u32)", _barrier_red),
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
    (r"fence\.(?:acq_rel|sc)\.cluster", _fence),
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
        if instruction in "{}":
            statements.append(instruction)
            continue
        declared = re.fullmatch(r"\.reg\s+\.(\w+)\s+(.*)", instruction)
        if declared:
            for name in _declared_names(declared[2]):
                registers[name] = f"emu_{name}"
                statements.append(f"{IN_REGISTERS.get(declared[1], 'unsigned')} emu_{name}")
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
            if opcode.startswith("mov.b") and rest.startswith("{"):
                statement = f"emu::ptx::split({', '.join([values[-1], *values[:-1]])})"
            else:
                statement = _known(opcode, values, instruction, hopper)
        if guard:
            sign, name = re.fullmatch(r"@(!?)(.*)", guard).groups()
            statement = f"if ({sign}{_operand(name, operands, registers)}) {{ {statement}; }}"
        statements.append(statement)
    return "; ".join(statements)


def _declared_names(text: str) -> list[str]:
    """The declared names: a, b, r0, r1, r2 for `%a, b, r<3>`."""
    found = re.findall(r"%*(\w+)(?:<(\d+)>)?", text)
    return [name + str(n) for name, count in found for n in (range(int(count)) if count else [""])]


_TOKEN = r"!?(?:%%?\w+(?:\.[xyz])?|-?\d[\w.]*|\w+)(?:\s*\+\s*-?\w+)?"  # [%0 + 16] is one, too
_INSTRUCTION = re.compile(r"(?:(\w+):(?!:))?\s*(@!?%*\w+)?\s*(\S*)\s*(.*)", flags=re.DOTALL)


def _known(opcode: str, values: Operands, instruction: str, hopper: bool) -> str:
    if opcode in ("bar.sync", "barrier.sync") and values == ["0"]:  # of the 16 barriers, that of __syncthreads()
        return "__syncthreads()"
    if found := _in_tables(opcode, values, instruction, hopper) or compute(opcode, values):
        return found
    for other in _other_orders(opcode):
        if found := _in_tables(other, values, instruction, hopper):
            return found
    raise UnknownInstruction(instruction)


def _in_tables(opcode: str, values: Operands, instruction: str, hopper: bool) -> str | None:
    for table in (INSTRUCTIONS, *([] if hopper else [BEFORE_HOPPER]), OF_HOPPER):
        for pattern, build in table:
            match = re.fullmatch(pattern, opcode)
            if match and table is OF_HOPPER and not hopper:
                raise UnknownInstruction(f"{instruction}, but in a kernel whose header says `arch: sm_90a only`")
            if match:
                return build(match, values)
    return None


MOST_MODIFIERS = 7  # to put into other orders: 5,040 of them


def _other_orders(opcode: str) -> Iterator[str]:
    """ptxas takes modifiers in any order, but for types among themselves: the result's comes first."""
    name, *modifiers = opcode.split(".")
    types = [one for one in modifiers if re.fullmatch(r"[busf]\d+(?:x2)?|bf16(?:x2)?|tf32|e\dm\d(?:x2)?|pred", one)]
    for order in itertools.permutations(modifiers) if len(modifiers) <= MOST_MODIFIERS else ():
        if [one for one in order if one in types] == types:
            yield ".".join([name, *order])


def _instructions(ptx: str) -> list[str]:
    """One after the other, without comments; also the brackets of blocks, but for one around them all."""
    body = " ".join(re.sub(r"//[^\n]*|/\*.*?\*/", " ", ptx, flags=re.DOTALL).split())
    if body.startswith("{") and closing(body, 0) == len(body) - 1:
        body = body[1:-1]
    found = []
    for part in body.split(";"):
        brackets, instruction = re.fullmatch(r"([{}\s]*)(.*)", part).groups()
        found += [*brackets.replace(" ", ""), *filter(None, [instruction.strip()])]
    return found


def _operand(token: str, operands: Operands, registers: dict[str, str]) -> str:
    place, _, behind = token.partition("+")
    if behind:
        return f"emu::ptx::plus({_operand(place.strip(), operands, registers)}, {behind.strip()})"
    if token.startswith("!"):
        return f"!{_operand(token[1:], operands, registers)}"
    if re.fullmatch(r"0[fF][0-9a-fA-F]{8}", token):
        return f"emu::bit_cast<float>(0x{token[2:]}u)"
    if re.fullmatch(r"0[dD][0-9a-fA-F]{16}", token):
        return f"emu::bit_cast<double>(0x{token[2:]}ull)"
    if re.fullmatch(r"%\d+", token):
        index = int(token[1:])
        if index >= len(operands):
            raise UnknownInstruction(f"operand {token}, of {len(operands)}")
        return operands[index]
    name = token.lstrip("%")
    return registers.get(name) or SPECIAL.get(f"%%{name}" if token.startswith("%") else token, name)


SPECIAL = {
    "_": "emu::ptx::nowhere()",
    "%%laneid": "emu::lane()",
    "%%warpid": "emu_self()->warp",
    "%%nwarpid": "32u",
    "%%smid": "0u",  # all blocks run on one multiprocessor: no two of them may rely on more
    "%%nsmid": "1u",
    "%%gridid": "0u",
    "%%lanemask_eq": "(1u << emu::lane())",
    "%%lanemask_lt": "((1u << emu::lane()) - 1)",
    "%%lanemask_le": "((2u << emu::lane()) - 1)",
    "%%lanemask_gt": "~((2u << emu::lane()) - 1)",
    "%%lanemask_ge": "~((1u << emu::lane()) - 1)",
    "%%dynamic_smem_size": "emu_dynamic_shared_bytes()",
    "%%total_smem_size": "(unsigned)(emu_shared_bytes() - EMU_SHARED_LIMIT + emu_dynamic_shared_bytes())",
    "%%clock": "(unsigned)emu_steps()",
    "%%clock_hi": "(unsigned)(emu_steps() >> 32)",
    "%%clock64": "emu_steps()",
    "%%globaltimer_lo": "(unsigned)emu_steps()",
    "%%globaltimer_hi": "(unsigned)(emu_steps() >> 32)",
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
