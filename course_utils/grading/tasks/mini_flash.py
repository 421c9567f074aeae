"""How exercise 02.2, Mini FlashAttention, is graded: forward with tiles, O and LSE, one property after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from course_utils import checks, costs, reference
from course_utils.checks import AttentionCase
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part, Question

B_R, B_C, LANES, THREADS = 16, 32, 8, 128
RATIO = 1.0  # of forward_plain's time, for the bonus
HEADS = 2  # H of most cases

_TILES = "chapter 02, section 3, 'The tiled algorithm'"
_NUMBERS = "chapter 02, section 2, 'Two numbers'"
_OUTPUT = "chapter 02, section 2, 'The output comes along'"
_PIECES = "chapter 02, section 2, 'A list, split in two'"
_TRAP = "chapter 02, section 2, 'The one trap'"
_KERNEL = "chapter 02, section 4, 'The plain kernel, read aloud'"
_REGISTERS = "chapter 02, section 9, 'From plain to fast: register tiles'"
_LSE = "chapter 02, section 10, 'What must be kept?'"
_SCALE = "chapter 01, section 2, 'Why the scores are divided by √d'"
_OVERFLOW = "chapter 01, section 6, 'Softmax without overflow'"
_CAUSAL = "chapter 01, section 10, 'The causal mask, and a model that cheats'"
_CROSS = "chapter 01, section 11, 'Cross-attention: more keys than queries'"

PARTS = (
    Part("rows", 3, "O where the largest score is in the first tile"),
    Part("peaks", 3, "O where peaks come late"),
    Part("large", 2, "O with large logits: ±50, and more than exp can hold"),
    Part("causal", 2, "O with the causal mask"),
    Part("unequal", 2, "O with L_q ≠ L_k, and rows that see no key"),
    Part("lengths", 2, "O for ragged and tiny lengths, D = 64 too"),
    Part("lse", 2, "The log-sum-exp"),
    Part("clean", 2, "Nothing for the sanitizer to find"),
    Part("speed", 2, "Faster than forward_plain.cu", bonus=True),
)


# ---------------------------------------------------------------------------------------------- cases


def _case(
    part: str,
    inputs: tuple[Tensor, Tensor, Tensor],
    *,
    is_causal: bool = False,
    scale: float | None = None,
    judged: str = "O",
    **options: object,
) -> Case:
    """One launch on Q, K and V. judged: which of O and LSE the part is about."""
    Q, K, V = inputs
    batch, heads, query_length, head_dim = Q.shape
    key_length = K.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    out, lse = reference.attention(Q, K, V, is_causal=is_causal, scale=scale, return_lse=True)
    empty = (torch.arange(query_length) + key_length - query_length < 0) & is_causal
    lengths = (np.int32(query_length), np.int32(key_length), np.float32(scale), np.int32(is_causal))
    launch = Launch(
        "mini_flash",
        (costs.ceil_div(query_length, B_R), heads, batch),
        (THREADS,),
        ("Q", "K", "V", "O", "LSE", *lengths),
        options=(f"-DD={head_dim}",),
    )
    outputs = {
        "O": Output(
            out, same_dtype=_plain(Q, K, V, is_causal, scale), kind="values" if "O" in judged.split() else "scratch"
        ),
        "LSE": Output(lse, kind="lse" if "LSE" in judged.split() else "scratch"),
    }
    name = f"L_q = {query_length}, L_k = {key_length}, D = {head_dim}{', causal' * is_causal}"
    facts = {"is_causal": is_causal, "scale": scale, "empty_rows": empty}
    return Case(part, name, (launch,), {"Q": Q, "K": K, "V": V}, outputs, facts, **options)


def _plain(Q: Tensor, K: Tensor, V: Tensor, is_causal: bool, scale: float) -> Tensor:
    """The same in plain fp32."""
    S = scale * (Q @ K.mT)
    if is_causal:
        S = S.masked_fill(~reference.causal_mask(Q.shape[2], K.shape[2]), -torch.inf)
    return torch.softmax(S, dim=-1).nan_to_num(nan=0.0) @ V


def _inputs(
    generator: torch.Generator,
    query_length: int,
    key_length: int,
    kind: str = "normal",
    *,
    head_dim: int = 32,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Q, K and V of a kind of `course_utils.checks`."""
    batch = 2 if query_length * key_length < 2000 else 1  # two where it costs little
    case = AttentionCase(batch, HEADS, HEADS, query_length, key_length, head_dim, is_causal, kind)
    seed = int(torch.randint(2**31, (1,), generator=generator))
    return checks.make_inputs(case, seed=seed)[:3]


def _toward(inputs: tuple[Tensor, Tensor, Tensor], logits: Mapping[int, float]) -> tuple[Tensor, Tensor, Tensor]:
    """The same, but all queries turn one way, and the keys given have about these logits with each of them."""
    Q, K, V = inputs
    way = torch.ones_like(Q[:, :, 0])
    for j, logit in logits.items():
        K[:, :, j] = logit * Q.shape[3] ** -0.5 * way
    return 0.5 * Q + way[:, :, None], K, V


def _far(generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Query 3: a logit of 120 in the first tile, all others near −240. Query 8: all near −240. Query 17: near 240.

    Meant for a scale of 0.25. Keys are rounded, so that no logit of these rows is: at 240, that alone would be an
    error of 1e-5 in O.
    """
    Q, K, V = _inputs(generator, 20, 96)
    K = (16 * K).round() / 16 + 2
    half = Q.shape[3] // 2
    K[:, :, 2, :half] = -1
    Q[:, :, (3, 8, 17)] = 0
    Q[:, :, 3, :half] = -30
    Q[:, :, 8, half:] = -30
    Q[:, :, 17, half:] = 30
    return Q, K, V


def _speed(generator: torch.Generator) -> Case:
    """Many rows, for the GPU. Some of them are compared, so that a kernel that does nothing is not fast."""
    batch, heads, length, head_dim = 2, 16, 1024, 64
    shape = (batch, heads, length, head_dim)
    Q, K, V = (torch.randn(1, 1, length, head_dim, generator=generator).expand(shape) for _ in range(3))
    lengths = (np.int32(length), np.int32(length), np.float32(head_dim**-0.5), np.int32(0))
    arguments = ("Q", "K", "V", "O", "LSE", *lengths)
    launch = Launch("mini_flash", (length // B_R, heads, batch), (THREADS,), arguments, options=(f"-DD={head_dim}",))
    rows, cols = 64, 32
    plain = Launch(
        "forward_plain",
        (length // rows, heads, batch),
        (rows,),
        arguments,
        options=(f"-DD={head_dim}", f"-DB_R={rows}", f"-DB_C={cols}"),
        shared_mem=4 * (rows * (head_dim + 1) + 2 * cols * head_dim + rows * (cols + 1)),
    )
    outputs = {"O": Output(torch.zeros(1).expand(shape), kind="scratch")}
    outputs["LSE"] = Output(torch.zeros(1).expand(shape[:3]), kind="scratch")
    return Case(
        "speed",
        f"B = {batch}, H = {heads}, L = {length}, D = {head_dim}",
        (launch,),
        {"Q": Q, "K": K, "V": V},
        outputs,
        compare=_compare_some_rows,
        reference=(("02_flash_attention_minimal/forward_plain.cu", plain),),
        ratio=RATIO,
    )


def _compare_some_rows(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    rows = torch.arange(5, case.inputs["Q"].shape[2], 101)
    expected = reference.attention(case.inputs["Q"][:, :, rows], case.inputs["K"], case.inputs["V"])
    report = checks.error_report(outputs["O"][:, :, rows], expected, name="O")
    return None if report.passed else Diagnosis("O is wrong where the time is taken", f"{case.name}: {report}")


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh inputs for each part."""
    make = partial(_inputs, generator)
    return [
        _case("rows", _toward(make(48, 64), {3: 6.0})),
        _case("rows", _toward(make(20, 96, "offset on V"), {9: 6.0}), scale=0.25),
        _case("peaks", _toward(make(40, 96), {40: 5.0, 70: 7.0})),
        _case("peaks", make(48, 80, "planted")),
        _case("large", make(40, 64, "large logits")),
        _case("large", _far(generator), scale=0.25),
        _case("causal", make(48, 48, is_causal=True), is_causal=True),
        _case("causal", make(40, 40, "planted", is_causal=True), is_causal=True),
        _case("unequal", make(24, 70)),
        _case("unequal", make(20, 70, "planted", is_causal=True), is_causal=True),
        _case("unequal", make(50, 20, is_causal=True), is_causal=True),
        *(
            _case("lengths", make(*lengths, head_dim=head_dim))
            for *lengths, head_dim in ((1, 1, 32), (3, 3, 32), (15, 31, 32), (17, 33, 64), (16, 65, 64))
        ),
        _case("lse", make(33, 70), judged="LSE"),
        _case("lse", _far(generator), scale=0.25, judged="LSE"),
        _case("lse", make(50, 20, is_causal=True), is_causal=True, judged="LSE"),
        _case("clean", make(40, 72, is_causal=True), is_causal=True, judged="O LSE", must_be_clean=True),
        _case("clean", make(17, 33, head_dim=64), judged="O LSE", must_be_clean=True),
        _speed(generator),
    ]


# ---------------------------------------------------------------------------------------------- known mistakes

Hide = Callable[[Tensor, Tensor, int, int, bool], Tensor]  # (i, j, L_q, L_k, is_causal) -> bool [L_q, keys]


def _hide(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j > i + key_length - query_length))


def _diagonal_hidden(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j >= i + key_length - query_length))


def _one_too_many(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j > i + 1 + key_length - query_length))


def _top_left(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j > i))


def _wrong_sign(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j > i + query_length - key_length))


def _no_mask(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length).expand(query_length, -1)


def _no_end(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i + key_length - query_length)


def _flash(
    case: Case,
    *,
    scale_power: int = 1,
    hide: Hide = _hide,
    fill: float = -math.inf,
    start: float = -math.inf,
    maximum: str = "running",
    shared_maximum: bool = True,
    guarded: bool = True,
    of_sum: str = "rescaled",
    of_output: str = "rescaled",
    own_keys: bool = False,
    full_tiles: bool = False,
    shared_sum: bool = True,
    divide: str = "once",
    guard: str = "zero",
) -> dict[str, Tensor]:
    """O and LSE as mini_flash.cu computes them, tile by tile and lane by lane, with something wrong.

    In fp32, since overflow is part of what is simulated. maximum: "running", "tile" or "none". of_sum, of_output: what
    becomes of l and O when m changes: "rescaled", "kept", "inverse" (as it stands, or "guarded inverse" where m was
    −∞), or "late" (rescaled after the tile was added).
    own_keys: a lane adds to its columns of O only the keys it has scored. full_tiles: the ragged tile is left out.
    divide: by l "once", in "each tile", or "never". guard: in the end l "zero" is asked for, or "positive", or "none".
    """
    Q, K, V = (case.inputs[name] for name in "QKV")
    query_length, key_length = Q.shape[2], K.shape[2]
    end = key_length // B_C * B_C if full_tiles else costs.ceil_div(key_length, B_C) * B_C
    scores = torch.nn.functional.pad((Q @ K.mT) * case.facts["scale"] ** scale_power, (0, end - key_length))
    V = torch.nn.functional.pad(V, (0, 0, 0, end - key_length))
    i, j = torch.arange(query_length)[:, None], torch.arange(end)[None, :]
    scores = scores.masked_fill(hide(i, j, query_length, key_length, bool(case.facts["is_causal"])), fill)
    lane = torch.arange(Q.shape[3]) % LANES  # the lane of each column of O
    m, total = torch.full((*Q.shape[:3], LANES), start), torch.zeros(*Q.shape[:3], LANES)
    out = torch.zeros_like(Q)
    for j0 in range(0, end, B_C):
        S = scores[..., j0 : j0 + B_C].unflatten(-1, (-1, LANES))  # [.., keys of a lane, lanes]
        newest = S.amax(dim=-2)
        if shared_maximum:
            newest = newest.amax(dim=-1, keepdim=True).expand_as(m)
        m_new = {"running": torch.maximum(m, newest), "tile": newest, "none": torch.zeros_like(m)}[maximum]
        base = torch.where(m_new == -torch.inf, 0.0, m_new) if guarded else m_new
        P = torch.exp(S - base[..., None, :])
        down, up = torch.exp(m - base), torch.exp(base - m)
        one = torch.ones_like(m)
        started = torch.where(m == -torch.inf, 0.0, up)
        before = {"rescaled": down, "kept": one, "inverse": up, "guarded inverse": started, "late": one}
        total = total * before[of_sum] + P.sum(dim=-2)
        added = _product(P.flatten(-2), V[:, :, j0 : j0 + B_C], own_keys)
        out = out * before[of_output][..., lane] + added
        if of_output == "late":
            out = out * down[..., lane]
        if divide == "each tile":
            out = out / total.sum(dim=-1, keepdim=True)
        m = m_new
    if shared_sum:
        total = total.sum(dim=-1, keepdim=True).expand_as(m)
    if divide == "once":
        out = out / total[..., lane]
    lse = m[..., 0] + torch.log(total[..., 0])
    if guard != "none":
        empty = total == 0 if guard == "zero" else ~(total > 0)
        out, lse = torch.where(empty[..., lane], 0.0, out), torch.where(empty[..., 0], -torch.inf, lse)
    return {"O": out.double(), "LSE": lse.double()}


def _product(P: Tensor, V: Tensor, own_keys: bool) -> Tensor:
    if not own_keys:
        return P @ V
    out = torch.zeros(*P.shape[:3], V.shape[3])
    for lane in range(LANES):
        out[..., lane::LANES] = P[..., lane::LANES] @ V[:, :, lane::LANES, lane::LANES]
    return out


def _lse(of: Callable[[Tensor, Tensor], Tensor], case: Case) -> dict[str, Tensor]:
    """A log-sum-exp made of m and l in another way."""
    S = (case.inputs["Q"].double() @ case.inputs["K"].double().mT) * case.facts["scale"]
    if case.facts["is_causal"]:
        S = S.masked_fill(~reference.causal_mask(*S.shape[-2:]), -torch.inf)
    m = S.amax(dim=-1)
    total = torch.exp(S - torch.where(m == -torch.inf, 0.0, m)[..., None]).sum(dim=-1)
    return {"LSE": torch.where(total == 0, -torch.inf, of(m, total))}


def _mistake(name: str, detail: str, read_again: str, *ways: Mapping[str, object]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which a kernel may make it: arguments of `_flash`."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_flash, **way)) for way in ways)


def _lse_mistake(name: str, detail: str, *ways: Callable[[Tensor, Tensor], Tensor]) -> tuple[Mistake, ...]:
    """The same for ways to make the log-sum-exp of m and l."""
    return tuple(Mistake(Diagnosis(name, detail, _LSE), partial(_lse, way)) for way in ways)


MISTAKES = (
    *_mistake(
        "O is not rescaled when the maximum changes",
        "O_i is a sum of exp(S − m) · V for the m of that time; when m rises, it takes the factor exp(m_old − m_new)",
        _OUTPUT,
        {"of_output": "kept"},
    ),
    *_mistake(
        "l is not rescaled when the maximum changes",
        "l is a sum of exp(S − m) for the m of that time; when m rises, it takes the factor exp(m_old − m_new)",
        _NUMBERS,
        {"of_sum": "kept"},
    ),
    *_mistake(
        "neither l nor O is rescaled when the maximum changes",
        "when m rises, both take the factor exp(m_old − m_new)",
        _OUTPUT,
        {"of_sum": "kept", "of_output": "kept"},
    ),
    *_mistake(
        "the rescale factor is upside down",
        "the factor is exp(m_old − m_new), at most 1; here it is exp(m_new − m_old)",
        _NUMBERS,
        *({"of_sum": way, "of_output": way} for way in ("inverse", "guarded inverse")),
        *({"of_output": way} for way in ("inverse", "guarded inverse")),
        *({"of_sum": way} for way in ("inverse", "guarded inverse")),
    ),
    *_mistake(
        "O is rescaled after the new tile was added",
        "the new P is relative to the new maximum already: rescale O_i first, then add P V",
        _OUTPUT,
        {"of_output": "late"},
    ),
    *_mistake(
        "the division by l is missing",
        "O_i = Σ exp(S − m) · V is not normalised: one division per row at the end",
        _OUTPUT,
        {"divide": "never"},
    ),
    *_mistake(
        "O is divided by l in each tile",
        "after such a division the factor for the next tile is another: keep O_i unnormalised, divide once at the end",
        _OUTPUT,
        {"divide": "each tile"},
    ),
    *_mistake(
        "the scale is missing",
        "S = scale · Q Kᵀ; here S = Q Kᵀ",
        _SCALE,
        {"scale_power": 0},
    ),
    *_mistake("the scale is applied twice", "S = scale · Q Kᵀ, with scale once", _SCALE, {"scale_power": 2}),
    *_mistake(
        "a row without keys gives NaN",
        "there m stays −∞ and l = 0: subtract 0 in place of −∞, and write O = 0, LSE = −∞ instead of 0 / 0",
        _TRAP,
        {"guard": "none"},
        {"guarded": False},
    ),
    *_mistake(
        "the maximum is not subtracted",
        "exp overflows fp32 above 88.7 and is 0 below −103: P = exp(S − m)",
        _OVERFLOW,
        {"maximum": "none"},
        {"maximum": "none", "guard": "none"},
    ),
    *_mistake(
        "the maximum starts at 0 instead of −∞",
        "in a row of negative scores m stays 0, and every exp(S − m) may be 0",
        _TRAP,
        {"start": 0.0},
        {"start": 0.0, "guard": "none"},
    ),
    *_mistake(
        "m is the maximum of the tile, not the largest so far",
        "a later tile may hold smaller scores only: m = max(m, scores of the tile)",
        _NUMBERS,
        {"maximum": "tile"},
        {"maximum": "tile", "guard": "positive"},
        {"maximum": "tile", "guarded": False},
        {"maximum": "tile", "of_sum": "kept", "of_output": "kept"},
    ),
    *_mistake(
        "the lanes of a row do not share the maximum",
        "each lane subtracts the maximum of its own keys: eight lanes must agree on one, by shuffles",
        _PIECES,
        {"shared_maximum": False},
    ),
    *_mistake(
        "l is summed per lane, but never over the lanes",
        "each lane divides by the l of its own keys: add up the eight l before the division",
        _REGISTERS,
        {"shared_sum": False},
    ),
    *_mistake(
        "each lane adds only its own keys to O",
        "a lane has its own columns of O, and for them it needs P of all keys of the tile, by way of tile.P",
        _REGISTERS,
        {"own_keys": True},
    ),
    *_mistake(
        "the mask is off by one: the diagonal is hidden",
        "query i sees j <= i + L_k − L_q, itself included",
        _CAUSAL,
        {"hide": _diagonal_hidden},
        {"hide": _diagonal_hidden, "guarded": False},
        {"hide": _diagonal_hidden, "guard": "none"},
    ),
    *_mistake(
        "the mask is off by one: a key of the future is seen",
        "query i sees j <= i + L_k − L_q, and no key behind it",
        _CAUSAL,
        {"hide": _one_too_many},
    ),
    *_mistake(
        "the mask is aligned top-left instead of bottom-right",
        "with L_q ≠ L_k the last query sees every key: j <= i + L_k − L_q; here it is j <= i",
        _CROSS,
        {"hide": _top_left},
    ),
    *_mistake(
        "the shift of the mask has the wrong sign",
        "with L_q ≠ L_k the last query sees every key: j <= i + L_k − L_q; here it is j <= i + L_q − L_k",
        _CROSS,
        {"hide": _wrong_sign},
    ),
    *_mistake("the causal mask is missing", "is_causal = 1 hides j > i + L_k − L_q", _CAUSAL, {"hide": _no_mask}),
    *_mistake(
        "padding keys of the last tile count as score 0",
        "the tile is filled up by zeros: their score is 0, and exp(0 − m) is not; a key j >= L_k has −∞",
        _KERNEL,
        {"hide": _no_end},
        {"hide": _no_end, "guard": "none"},
    ),
    *_mistake(
        "the last, ragged tile is left out",
        "the loop over tiles ends at L_k, not at the last multiple of 32",
        _TILES,
        {"full_tiles": True},
        {"full_tiles": True, "guard": "none"},
    ),
    *_mistake(
        "a hidden key has a finite score: a row without keys gives a mean of V",
        "with a large negative number in place of −∞ all hidden keys weigh the same there",
        _TRAP,
        *(
            {"fill": fill, "start": start}
            for fill in (-1e9, -1e30, torch.finfo(torch.float32).min)
            for start in (-math.inf, fill)
        ),
    ),
    *_lse_mistake("LSE lacks m", "LSE = m + log(l); here it is log(l) alone", lambda m, total: total.log()),
    *_lse_mistake("LSE lacks the logarithm", "LSE = m + log(l); here it is m + l", lambda m, total: m + total),
    *_lse_mistake("LSE is the maximum", "LSE = m + log(l); here it is m alone", lambda m, total: m),
    *_lse_mistake(
        "LSE is in base 2",
        "LSE is a natural logarithm: with exp2 and log2 inside, multiply by log(2) in the end",
        lambda m, total: m + total.log2(),
        lambda m, total: m / math.log(2) + total.log2(),
    ),
)

FINDINGS = {
    "synccheck": Diagnosis(
        "not all threads come to a barrier or shuffle",
        read_again="chapter 00, section 10, 'Reading a finding'",
    )
}


# ---------------------------------------------------------------------------------------------- questions

_LENGTH, _HEAD_DIM = 4096, 64


def _kv_mib(block_rows: int) -> float:
    steps = costs.fa2_traffic(1, 1, _LENGTH, _LENGTH, _HEAD_DIM, block_rows=block_rows, block_cols=B_C, element_bytes=4)
    return next(step.bytes_read for step in steps if step.name == "K and V tiles") / 2**20


QUESTIONS = (
    Question(
        "kv_mib",
        1,
        "MiB of K and V that the blocks of one head ask for, L = 4096, D = 64",
        _kv_mib(B_R),
        unit="MiB",
        misconceptions=(
            (_kv_mib(_LENGTH), "K and V are read once for each query tile, not once"),
            (_kv_mib(_LENGTH) / 2, "K and V are read once for each query tile, not once, and both of them"),
            (_kv_mib(B_C), "there are L / B_r query tiles, of 16 rows; count K and V, and fp32"),
            (_kv_mib(1), "a tile of K and V serves all 16 rows of the query tile"),
            (_kv_mib(B_R) * 2, "there are L / B_r query tiles, and 4 bytes in an fp32 number"),
        ),
        read_again="chapter 02, section 7, 'Two loop orders and their traffic'",
    ),
    Question(
        "gflop",
        1,
        "GFLOP of the forward pass of one head, not causal, L = 4096, D = 64",
        costs.attention_flops(1, 1, _LENGTH, _LENGTH, _HEAD_DIM) / 1e9,
        unit="GFLOP",
        misconceptions=(
            (_LENGTH**2 / 1e9, "L² is the number of scores: each of them takes 4 · D floating-point operations"),
            (_LENGTH**2 * _HEAD_DIM / 1e9, "two products, Q Kᵀ and P V, and 2 for each multiply-add"),
            (2 * _LENGTH**2 * _HEAD_DIM / 1e9, "there are two products, Q Kᵀ and P V, and a multiply-add counts 2"),
        ),
        read_again="chapter 01, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/mini_flash",
    title="Mini FlashAttention",
    parts=PARTS,
    kernels=("mini_flash",),
    cases=cases,
    mistakes=MISTAKES,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
