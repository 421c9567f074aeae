"""Which attention fits on a device, how fast it can be at best, and what to try next.

A plan is about the forward pass of one attention layer at prefill (as many queries as keys; `decode` has the other
case): the memory of its tensors, all in device memory at once, and the time floors of `costs` at the datasheet's rates.
Weights, optimiser states, other layers and the allocator's own needs come on top. A floor is no promise: kernels take a
multiple of it. But a method whose floor is above a target cannot meet it.

Dense, flash and sparse have the sizes of the setting. MLA and DSA always have DeepSeek-V3.2's sizes (128 heads, latents
of 512 + 64 in bf16, index heads of 128 in FP8), because they need a model that was trained with them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from course_utils import costs
from course_utils.costs import TOP_K, V3_2, ceil_div
from course_utils.planner import devices
from course_utils.planner.devices import DTYPES, Device

WINDOW = 4096  # keys
CHUNK = 4096  # queries at a time
RETRIEVED = 8192  # tokens
TARGET_MS = 10.0
HOPPER = 9, 0  # the capability whose GPUs, and no other, run chapter 07's kernels
LARGEST_HEAD_DIM = 128  # of the course's dense kernels
L2_CROSSINGS = 4  # S is written and read, P is written and read
TITLES = {
    "dense": "Dense, written out",
    "flash": "Flash",
    "sparse": "Sparse, sliding window",
    "mla": "MLA, dense (DeepSeek's sizes)",
    "dsa": "DSA (DeepSeek's sizes)",
}


@dataclass(frozen=True)
class Part:
    """One tensor, or several of a kind, in device memory: name, bytes."""

    name: str
    bytes: int


@dataclass(frozen=True)
class Method:
    """One way to compute a layer.

    Attributes:
        name: a key of `TITLES`.
        parts: what is in device memory at once.
        flops: FLOPs that it carries out.
        least_bytes: bytes that it must move through device memory.
        arithmetic_seconds, memory_seconds: the two floors; for several kernels one after the other, the sums over the
            kernels whose floor it is.
        seconds: the time floor.
        bound: "arithmetic" or "memory": which floor that is, or most of it.
        capacity: the device's memory in bytes.
    """

    name: str
    parts: tuple[Part, ...]
    flops: int
    least_bytes: int
    arithmetic_seconds: float
    memory_seconds: float
    seconds: float
    capacity: int

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def memory_bytes(self) -> int:
        return sum(part.bytes for part in self.parts)

    @property
    def bound(self) -> str:
        return "arithmetic" if self.arithmetic_seconds >= self.memory_seconds else "memory"

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.capacity

    @property
    def breaking_part(self) -> Part | None:
        """The part at which memory runs out, when they are allocated in order; None if all fit."""
        used = 0
        for part in self.parts:
            used += part.bytes
            if used > self.capacity:
                return part
        return None


@dataclass(frozen=True)
class Setting:
    """The sizes of one attention layer, and the device it runs on. `plan` says what the names mean."""

    length: int
    batch: int
    heads: int
    kv_heads: int
    head_dim: int
    dtype: str
    device: Device
    is_causal: bool
    window: int
    top_k: int

    @property
    def element_bytes(self) -> int:
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class Plan:
    """The methods for one setting, by name. `left_out`: name -> why a method does not apply."""

    setting: Setting
    methods: dict[str, Method]
    left_out: dict[str, str]


@dataclass(frozen=True)
class Advice:
    """One step of the order in which to try things.

    Attributes:
        step: its name.
        verdict: "try this"; "not needed" after the steps before; "no help" here; or "last", if those fail.
        effect: what it would do to memory and floor here, in figures.
        why: why it is or is not the next thing to try.
        memory_bytes, seconds: memory and time floor after it.
    """

    step: str
    verdict: str
    effect: str
    why: str
    memory_bytes: int
    seconds: float


def plan(
    length: int,
    batch: int = 1,
    heads: int = 16,
    head_dim: int = 128,
    dtype: str = "float16",
    device: str | Device = "H200",
    *,
    kv_heads: int | None = None,
    is_causal: bool = True,
    window: int = WINDOW,
    top_k: int = TOP_K,
) -> Plan:
    """Memory, FLOPs, bytes and time floor of dense, flash, sparse, MLA and DSA for `length` queries and keys.

    Args:
        length: tokens of each sequence.
        batch: sequences at a time.
        heads: query heads; kv_heads: key heads, a divisor of it; None: as many.
        head_dim: d.
        dtype: "float16", "bfloat16" or "float32" of dense, flash and sparse. In fp32 their rate is that of the CUDA
            cores; a kernel that makes fp32 products of several TF32 ones can be faster than that.
        device: a name in `devices.DEVICES`, or a `Device`.
        is_causal: MLA and DSA are, and are left out otherwise.
        window: keys that each query of the sliding window sees; if not causal, on either side of it, itself included.
        top_k: keys that DSA selects for each query.

    Raises:
        ValueError: naming the argument.
    """
    setting = _setting(length, batch, heads, head_dim, dtype, device, kv_heads, is_causal, window, top_k)
    methods = [_dense(setting), _flash(setting), _sparse(setting)]
    left_out: dict[str, str] = {}
    if is_causal:
        methods += [_mla(setting), _dsa(setting)]
    else:
        left_out = dict.fromkeys(("mla", "dsa"), "DeepSeek's are causal")
    return Plan(setting, {method.name: method for method in methods}, left_out)


def _setting(
    length: int,
    batch: int,
    heads: int,
    head_dim: int,
    dtype: str,
    device: str | Device,
    kv_heads: int | None,
    is_causal: bool,
    window: int,
    top_k: int,
) -> Setting:
    kv_heads = heads if kv_heads is None else kv_heads
    sizes = {"length": length, "batch": batch, "heads": heads, "head_dim": head_dim, "kv_heads": kv_heads}
    for name, got in {**sizes, "window": window, "top_k": top_k}.items():
        if not isinstance(got, int) or isinstance(got, bool) or got < 1:
            raise ValueError(f"{name}: got {got!r}, takes a positive whole number")
    if heads % kv_heads:
        raise ValueError(f"kv_heads: got {kv_heads}, takes a divisor of heads, {heads}")
    if not isinstance(is_causal, bool):
        raise ValueError(f"is_causal: got {is_causal!r}, takes True or False")
    where = devices.device(device)
    where.peak_flops(dtype)
    return Setting(length, batch, heads, kv_heads, head_dim, dtype, where, is_causal, window, top_k)


# ---------------------------------------------------------------------------------------------- the methods


def _dense(setting: Setting) -> Method:
    """S and P whole; all L² pairs, masked or not. What the L2 cache may hold back of S and P is not charged, and a mask
    is gone before P is there."""
    s, element = setting, setting.element_bytes
    square = costs.score_matrix_bytes(s.batch, s.heads, s.length, s.length, element)
    parts = [*_tensors(s), Part("S", square), Part("P", square)]
    moved = costs.total_bytes(costs.naive_traffic(s.batch, s.heads, s.length, s.length, s.head_dim, element))
    shared = (s.heads - s.kv_heads) * 2 * s.batch * s.length * s.head_dim * element  # keys and values, with GQA
    moved = max(moved - shared - L2_CROSSINGS * s.device.l2_bytes, _least(s))
    flops = costs.attention_flops(s.batch, s.heads, s.length, s.length, s.head_dim)
    return _method("dense", parts, [(flops, moved, _peak(s))], s.device)


def _flash(setting: Setting) -> Method:
    """The same FLOPs or, causal, half of them; beside the output only the log-sum-exp."""
    s = setting
    flops = costs.attention_flops(s.batch, s.heads, s.length, s.length, s.head_dim, s.is_causal)
    return _method("flash", [*_tensors(s), _lse(s)], [(flops, _least(s), _peak(s))], s.device)


def _sparse(setting: Setting) -> Method:
    """A sliding window: which tiles to visit is arithmetic, and no list of them is stored."""
    s = setting
    pairs = costs.window_pairs(s.length, s.window, s.is_causal)
    flops = 4 * s.batch * s.heads * s.head_dim * pairs
    parts = [*_tensors(s), _lse(s), Part("lists of blocks", 0)]
    return _method("sparse", parts, [(flops, _least(s), _peak(s))], s.device)


def _mla(setting: Setting) -> Method:
    """Dense attention in the latent space (absorbed), causal, bf16."""
    s = setting
    work = costs.mla_work(s.length, s.length)
    return _method("mla", _latent_parts(s), [(s.batch * work.flops, s.batch * work.bytes_moved, _bf16(s))], s.device)


def _dsa(setting: Setting) -> Method:
    """Indexer, top-k and sparse core, one after the other; the logits of all queries at once."""
    s = setting
    fp8 = s.device.fp8_flops
    index_bytes = 2 if fp8 is None else 1
    indexer, select, core = costs.dsa_work(s.length, s.length, s.top_k, index_bytes=index_bytes)
    rates = zip((indexer, select, core), (_bf16(s) if fp8 is None else fp8, _bf16(s), _bf16(s)), strict=True)
    work = [(s.batch * one.flops, s.batch * one.bytes_moved, rate) for one, rate in rates]
    index_keys = costs.index_cache_bytes(
        s.length, element_bytes=index_bytes, scale_bytes=4 if index_bytes == 1 else 0, batch=s.batch
    )
    scale = 4 if index_bytes == 1 else 0
    index_queries = s.batch * s.length * V3_2.index_n_heads * (V3_2.index_head_dim * index_bytes + scale + 4)
    parts = [
        *_latent_parts(s),
        Part("index queries and weights", index_queries),
        Part("index keys", index_keys),
        Part("logits of the indexer, fp32", s.batch * costs.logits_bytes(s.length, s.length)),
        Part("lists of keys, int32", 4 * s.batch * s.length * s.top_k),
    ]
    return _method("dsa", parts, work, s.device)


def _method(name: str, parts: list[Part], work: list[tuple[int, int, float]], where: Device) -> Method:
    """work: (FLOPs, bytes, FLOP/s) of each kernel, one after the other, so that their floors add up."""
    floors = [(flops / rate, moved / where.bandwidth) for flops, moved, rate in work]
    return Method(
        name,
        tuple(parts),
        sum(flops for flops, _, _ in work),
        sum(moved for _, moved, _ in work),
        sum(arithmetic for arithmetic, memory in floors if arithmetic >= memory) if len(floors) > 1 else floors[0][0],
        sum(memory for arithmetic, memory in floors if memory > arithmetic) if len(floors) > 1 else floors[0][1],
        sum(costs.time_floor(flops, moved, rate, where.bandwidth) for flops, moved, rate in work),
        where.memory_bytes,
    )


def _tensors(s: Setting) -> list[Part]:
    """Q, K, V and O."""
    query = s.batch * s.heads * s.length * s.head_dim * s.element_bytes
    key_and_value = costs.kv_cache_bytes(s.length, s.kv_heads, s.head_dim, element_bytes=s.element_bytes, batch=s.batch)
    return [Part("Q", query), Part("K", key_and_value // 2), Part("V", key_and_value // 2), Part("O", query)]


def _lse(s: Setting) -> Part:
    return Part("log-sum-exp, fp32", costs.lse_bytes(s.batch, s.heads, s.length))


def _latent_parts(s: Setting) -> list[Part]:
    """Absorbed queries, latents, sums of latents, and log-sum-exp, of DeepSeek-V3.2's sizes in bf16."""
    row = V3_2.kv_lora_rank + V3_2.qk_rope_head_dim
    rows = s.batch * s.length * V3_2.n_heads
    return [
        Part("queries, absorbed", 2 * rows * row),
        Part("latents", costs.mla_cache_bytes(s.length, batch=s.batch)),
        Part("sums of latents", 2 * rows * V3_2.kv_lora_rank),
        Part("log-sum-exp, fp32", costs.lse_bytes(s.batch, V3_2.n_heads, s.length)),
    ]


def _least(s: Setting) -> int:
    return costs.least_bytes(s.batch, s.heads, s.length, s.length, s.head_dim, s.element_bytes, kv_heads=s.kv_heads)


def _peak(s: Setting) -> float:
    return s.device.peak_flops(s.dtype)


def _bf16(s: Setting) -> float:
    """FLOP/s in 16 bits: bf16, or fp16 where a device lacks it."""
    return s.device.half_flops


# ---------------------------------------------------------------------------------------------- what to try


def advice(planned: Plan, target_ms: float = TARGET_MS) -> list[Advice]:
    """What to try, in order, until the setting fits in memory and its floor is at most `target_ms` a layer.

    1. Is flash really on? 2. Batch and dtype. 3. Sparse, or chunks of queries, with a quality check. 4. Retrieval.
    Flash, a smaller batch and chunks compute the same; 16 bits round. A window and retrieval leave keys out, and what
    that costs in quality no formula says: measure it.

    Raises ValueError for a target that is not positive.
    """
    if isinstance(target_ms, bool) or not isinstance(target_ms, int | float) or not target_ms > 0:
        raise ValueError(f"target_ms: got {target_ms!r}, takes a positive number of milliseconds")
    target, s = target_ms / 1e3, planned.setting
    dense, flash = planned.methods["dense"], planned.methods["flash"]
    steps = [_flash_step(dense, flash, s, target)]
    steps.append(_batch_step(flash, s, target))
    smaller = _smaller(s, target)
    steps.append(_sparse_step(smaller, target))
    steps.append(_retrieval_step(smaller, target))
    return steps


def order(steps: list[Advice]) -> str:
    """The steps to try, in words: "flash, then sparse or chunks"."""
    names = ("flash", "batch and dtype", "sparse or chunks, with a quality check", "retrieval")
    return ", then ".join(name for name, step in zip(names, steps, strict=True) if step.verdict == "try this")


def _good(memory_bytes: int, seconds: float, s: Setting, target: float) -> bool:
    return memory_bytes <= s.device.memory_bytes and seconds <= target


def _flash_step(dense: Method, flash: Method, s: Setting, target: float) -> Advice:
    effect = (
        f"memory {amount(dense.memory_bytes)} → {amount(flash.memory_bytes)}, "
        f"time floor {duration(dense.seconds)} → {duration(flash.seconds)}"
    )
    if s.dtype == "float32":
        why = (
            "Exact, so always first. But torch's FLASH and cuDNN kernels take 16-bit inputs only: in fp32 its "
            "memory-efficient kernel runs. It stores no S either, but is slower: take the next step with this one."
        )
    elif not dense.fits:
        part = dense.breaking_part
        why = f"Exact, so always first. Written out, memory runs out at {part.name} ({amount(part.bytes)})."
    else:
        why = "Exact, so always first: look which kernel really runs, torch chooses without a word."
    if ours := flash_kernel(s):
        why += f" The course's kernel for it is {ours}."
    enough = " Then the target is within reach." if _good(flash.memory_bytes, flash.seconds, s, target) else ""
    return Advice("Is flash really on?", "try this", effect, why + enough, flash.memory_bytes, flash.seconds)


def flash_kernel(s: Setting) -> str | None:
    """The fastest operator of the course that computes dense attention in a setting; None where none takes it: d beyond
    128, and 16 bits on GPUs before Ampere."""
    if s.head_dim > LARGEST_HEAD_DIM:
        return None
    if s.dtype == "float32":
        return "flash_attention_minimal"
    if s.device.capability == HOPPER:
        return "flash_attention_hopper"
    return "flash_attention_v2" if s.device.capability >= (8, 0) else None


def _smaller(s: Setting, target: float) -> Setting:
    """The setting after step 2: 16 bits, and the largest batch that fits and meets the target; at least 1."""
    half = dataclasses.replace(s, dtype="float16") if s.dtype == "float32" else s
    flash = _flash(half)
    fitting = half.batch * half.device.memory_bytes // flash.memory_bytes  # memory and floor grow with the batch
    batch = max(1, min(half.batch, fitting, int(half.batch * target / flash.seconds)))
    return dataclasses.replace(half, batch=batch)


def _batch_step(flash: Method, s: Setting, target: float) -> Advice:
    smaller = _smaller(s, target)
    after = _flash(smaller)
    changes = []
    if smaller.dtype != s.dtype:
        changes.append(f"{s.dtype} → {smaller.dtype}")
    if smaller.batch != s.batch:
        changes.append(f"batch {s.batch} → {smaller.batch}")
    name = "Batch and dtype"
    good = _good(flash.memory_bytes, flash.seconds, s, target)
    if not changes:
        effect = f"16 bits and batch {s.batch} already: memory stays {amount(flash.memory_bytes)}"
        why = "Flash alone is enough." if good else "There is nothing left to take away here."
        return Advice(name, "not needed" if good else "no help", effect, why, flash.memory_bytes, flash.seconds)
    effect = (
        f"{', '.join(changes)}: memory {amount(flash.memory_bytes)} → {amount(after.memory_bytes)}, "
        f"time floor {duration(flash.seconds)} → {duration(after.seconds)}"
    )
    if good and smaller.dtype == s.dtype:
        return Advice(name, "not needed", effect, "Flash alone is enough.", after.memory_bytes, after.seconds)
    why = "16 bits halve every tensor and suit the tensor cores; they round." if smaller.dtype != s.dtype else ""
    if smaller.batch != s.batch:
        why += (
            " A smaller batch divides memory and the time of a call alike; the time for all sequences stays the same."
        )
    return Advice(name, "try this", effect, why.strip(), after.memory_bytes, after.seconds)


def _sparse_step(s: Setting, target: float) -> Advice:
    flash, sparse, chunked = _flash(s), _sparse(s), chunked_bytes(s)
    name = "Sparse, or chunks of queries; check quality"
    kept = costs.window_pairs(s.length, s.window, s.is_causal) / costs.attended_pairs(s.length, s.length, s.is_causal)
    effect = (
        f"a window of {s.window:,} keeps {kept:.1%} of the pairs: time floor {duration(flash.seconds)} → "
        f"{duration(sparse.seconds)}; chunks of {min(CHUNK, s.length):,} queries: "
        f"memory {amount(flash.memory_bytes)} → {amount(chunked)}"
    )
    memory, seconds = min(chunked, sparse.memory_bytes), sparse.seconds
    if _good(flash.memory_bytes, flash.seconds, s, target):
        verdict, why = "not needed", "The steps before are enough, and they leave no key out."
    elif flash.fits and sparse.seconds > 0.9 * flash.seconds:
        verdict, why = "no help", f"A window of {s.window:,} leaves out almost nothing at {s.length:,} tokens."
    elif flash.fits:
        verdict = "try this"
        why = (
            "It leaves keys out: first measure on your own data how much of the attention the window keeps, then the "
            "task itself. The model may have to be trained with it."
        )
    else:  # Q, K, V and O of one sequence
        verdict = "try this"
        why = (
            "What does not fit are Q, K, V and O themselves, and a mask makes none of them smaller. Chunks of queries "
            "do (exact), at no extra FLOP; a window saves time, and needs a quality check."
        )
    return Advice(name, verdict, effect, why, memory, seconds)


def _retrieval_step(s: Setting, target: float) -> Advice:
    sparse, chunked = _sparse(s), chunked_bytes(s)
    context = min(RETRIEVED, s.length)
    flash, after = _flash(s), _flash(dataclasses.replace(s, length=context))
    name = "Retrieval: put less into the context"
    effect = (
        f"the best {context:,} of {s.length:,} tokens with flash: memory {amount(flash.memory_bytes)} → "
        f"{amount(after.memory_bytes)}, time floor {duration(flash.seconds)} → {duration(after.seconds)}"
    )
    if _good(flash.memory_bytes, flash.seconds, s, target):
        verdict, why = "not needed", "The steps before are enough, and they leave no key out."
    elif context == s.length:
        verdict, why = "no help", "The context is as short as that already."
    elif _good(min(chunked, sparse.memory_bytes), sparse.seconds, s, target):
        verdict = "last"
        why = "Only if the quality check of the step before fails. What is not retrieved, no layer can attend to."
    else:
        verdict = "try this"
        why = (
            "The steps before do not reach the target. What is not retrieved, no layer can attend to: check the recall "
            "of the retrieval. A model trained with DSA selects in each layer, yet its indexer still looks at all keys."
        )
    return Advice(name, verdict, effect, why, after.memory_bytes, after.seconds)


def chunked_bytes(s: Setting, chunk: int = CHUNK) -> int:
    """Memory of flash attention over `chunk` queries at a time: K and V whole, Q, O and the log-sum-exp of a chunk."""
    parts = {part.name: part.bytes for part in _flash(s).parts}
    chunks = ceil_div(s.length, chunk)
    return parts["K"] + parts["V"] + ceil_div(parts["Q"] + parts["O"] + parts["log-sum-exp, fp32"], chunks)


# ---------------------------------------------------------------------------------------------- in words


def amount(count: float) -> str:
    """Bytes with three significant digits and a decimal unit: "34.4 GB"."""
    return _scaled(count, ("bytes", "kB", "MB", "GB", "TB", "PB"))


def duration(seconds: float) -> str:
    """Seconds with three significant digits: "12.3 ms"."""
    if seconds >= 1:
        return f"{seconds:,.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
    return _scaled(seconds * 1e9, ("ns", "µs", "ms", "s"))


def _scaled(value: float, units: tuple[str, ...]) -> str:
    power = 0
    while float(f"{value:.3g}") >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    digits = f"{value:.3g}"
    return f"{float(digits):,.0f} {units[power]}" if "e" in digits else f"{digits} {units[power]}"
