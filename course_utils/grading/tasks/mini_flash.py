"""How exercise 02.2, Mini FlashAttention, is graded: forward with tiles, O and LSE, one property after the other."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import checks, costs, reference
from course_utils.grading import names
from course_utils.grading.diagnosis import READING_A_FINDING
from course_utils.grading.draws import attention_inputs, between, same_in_each_head
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.seen import one_hot_values, weights_in, wrong_weights

Inputs = tuple[Tensor, Tensor, Tensor]

B_R, B_C, LANES, THREADS = 16, 32, 8, 128
LONGEST = 200  # keys of a case in which mistakes are simulated
RATIO = 1.0  # of forward_plain's time, for the bonus

_TILES = "02 FlashAttention, minimal, section 3, 'The tiled algorithm'"
_NUMBERS = "02 FlashAttention, minimal, section 2, 'Two numbers'"
_OUTPUT = "02 FlashAttention, minimal, section 2, 'The output comes along'"
_PIECES = "02 FlashAttention, minimal, section 2, 'A list, split in two'"
_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
_KERNEL = "02 FlashAttention, minimal, section 4, 'The plain kernel, read aloud'"
_REGISTERS = "02 FlashAttention, minimal, section 9, 'From plain to fast: register tiles'"
_LSE = "02 FlashAttention, backward, section 14, 'What must be kept'"
_SCALE = "01 Attention basics, section 2, 'Why the scores are divided by √d'"
_OVERFLOW = "01 Attention basics, section 6, 'Softmax without overflow'"
_CAUSAL = "01 Attention basics, section 10, 'The causal mask, and a model without it'"
_CROSS = "01 Attention basics, section 11, 'Cross-attention: more keys than queries'"

PARTS = (
    Part("rows", 3, "O where the largest score is in the first tile"),
    Part("peaks", 3, "O where peaks come late"),
    Part("large", 2, "O with large logits: more than exp can hold"),
    Part("causal", 2, "O with the causal mask"),
    Part("unequal", 2, "O with L_q ≠ L_k, and rows that see no key"),
    Part("lengths", 2, "O for tiny, ragged and long rows, and other D"),
    Part("lse", 2, "The log-sum-exp"),
    Part("clean", 2, "Nothing for the sanitizer to find"),
    Part("speed", 2, "Faster than forward_plain.cu", bonus=True),
)


# ---------------------------------------------------------------------------------------------- cases


def _case(
    part: str,
    inputs: Inputs,
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
    lengths = (np.int32(query_length), np.int32(key_length), np.float32(scale), np.int32(is_causal))
    launch = Launch(
        "mini_flash",
        (costs.ceil_div(query_length, B_R), heads, batch),
        (THREADS,),
        ("Q", "K", "V", "O", "LSE", *lengths),
        options=(f"-DD={head_dim}",),
    )
    plain = [_plain(Q, K, V, is_causal, scale, base) for base in (math.e, 2.0)]
    axes = ("sequence", "head", "query", "column")
    outputs = {
        "O": Output(out, same_dtype=[o for o, _ in plain], kind="values" if judged == "O" else "scratch", axes=axes),
        "LSE": Output(
            lse, same_dtype=[e for _, e in plain], kind="values" if judged == "LSE" else "scratch", axes=axes[:3]
        ),
    }
    name = f"L_q = {query_length}, L_k = {key_length}, D = {head_dim}{', causal' * is_causal}"
    facts: dict[str, Any] = {"is_causal": is_causal, "scale": scale, "simulated": {}}
    if judged == "O":
        facts["empty_rows"] = (torch.arange(query_length) + key_length - query_length < 0) & is_causal
    return Case(part, name, (launch,), {"Q": Q, "K": K, "V": V}, outputs, facts, **options)


def _plain(Q: Tensor, K: Tensor, V: Tensor, is_causal: bool, scale: float, base: float) -> tuple[Tensor, Tensor]:
    """O and LSE in plain fp32, with powers of this base."""
    S = scale / math.log(base) * (Q @ K.mT)
    if is_causal:
        S = S.masked_fill(~reference.causal_mask(Q.shape[2], K.shape[2]), -torch.inf)
    m = S.amax(dim=-1, keepdim=True).nan_to_num(neginf=0.0)
    P = torch.pow(base, S - m)
    total = P.sum(dim=-1, keepdim=True)
    lse = (m + total.log() / math.log(base)) * math.log(base)
    return (P / total).nan_to_num(nan=0.0) @ V, lse[..., 0].nan_to_num(neginf=0.0)


def _one_of(generator: torch.Generator, *options: Any) -> Any:
    return options[between(generator, 0, len(options) - 1)]


def _inputs(generator: torch.Generator, *lengths_and_kind: Any, **sizes: Any) -> Inputs:
    """`attention_inputs` with a seed that is drawn, without dO."""
    return attention_inputs(between(generator, 0, 2**31 - 1), *lengths_and_kind, **sizes)[:3]


def _toward(inputs: Inputs, logits: Mapping[int, float]) -> Inputs:
    """The same, but all queries turn one way, and the keys given have about these logits with each of them."""
    Q, K, V = inputs
    way = torch.ones_like(Q[:, :, 0])
    for j, logit in logits.items():
        K[:, :, j] = logit * Q.shape[3] ** -0.5 * way
    return 0.5 * Q + way[:, :, None], K, V


def _one_hot(generator: torch.Generator, query_length: int, key_length: int, head_dim: int = 32) -> Inputs:
    """Every head has the same Q and K, every key a column of O of its own: O is the weights. None of them is small."""
    V = one_hot_values(key_length, head_dim)
    Q, K = (same_in_each_head(generator, V.shape[1], length, head_dim) for length in (query_length, key_length))
    return 0.5 * Q, K, V


def _shifted(generator: torch.Generator, *shifts: int) -> Inputs:
    """`_one_hot` on three or four blocks, with one of these L_k − L_q."""
    shift = _one_of(generator, *shifts)
    query_length = between(generator, 34, 47) + 16 * (shift < -15)
    return _one_hot(generator, query_length, query_length + shift)


def _weights(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is read off O where V is one-hot."""
    keys = case.inputs["K"].shape[2]
    return wrong_weights(weights_in(outputs["O"], keys), weights_in(case.outputs["O"].expected, keys))


def _long(generator: torch.Generator) -> Inputs:
    """One row of more than two thousand keys. Each column of O has the weights of some neighbours."""
    key_length = between(generator, 2060, 2300)
    Q, K, V = _inputs(generator, 1, key_length, heads=1)
    key = torch.arange(key_length)
    V = torch.zeros_like(V)
    V[0, 0, key, key * V.shape[3] // key_length] = 1
    return 0.5 * Q, K, V


def _end_of_long(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """From which key on a long row has no weights: l is as much smaller as the weights of the others are larger."""
    Q, K, V = (case.inputs[name].double() for name in "QKV")
    S = case.facts["scale"] * Q @ K.mT
    kept = case.outputs["O"].expected[0, 0, 0, 0] / outputs["O"][0, 0, 0, 0].double()
    first = int((torch.softmax(S, dim=-1)[0, 0, 0].cumsum(dim=0) - kept).abs().argmin()) + 1
    without = torch.softmax(S[..., :first], dim=-1) @ V[:, :, :first]
    if first == S.shape[3] or not torch.allclose(outputs["O"].double(), without, rtol=1e-3, atol=1e-6):
        return None
    return Diagnosis(f"keys {first} and later have no weight", "in a row of more than two thousand keys", _TILES)


def _tempted(generator: torch.Generator, inputs: Inputs, scale: float) -> Inputs:
    """The same, square and causal, but a query would like best, by far, the key next to its own: a hidden one.

    Its logits with the keys that it sees are 0.
    """
    Q, K, V = inputs
    i = between(generator, 1, Q.shape[2] - 2)
    hidden = K[:, :, i + 1 : i + 2]
    toward = hidden / hidden.square().sum(dim=-1, keepdim=True)
    K[:, :, : i + 1] -= (K[:, :, : i + 1] * hidden).sum(dim=-1, keepdim=True) * toward
    Q[:, :, i : i + 1] = 250 / scale * toward
    return Q, K, V


def _high(generator: torch.Generator, inputs: Inputs, logit: float) -> Inputs:
    """The same, but the last query has this logit with one key: more than exp can hold, if over 89. For 1/√d."""
    Q, K, V = inputs
    own = K[:, :, between(generator, 0, K.shape[2] - 1)]
    Q[:, :, -1] = logit * Q.shape[3] ** 0.5 * own / own.square().sum(dim=-1, keepdim=True)
    return Q, K, V


def _twice(inputs: Inputs) -> Inputs:
    """Two sequences that are alike: whoever reads the wrong one loses nothing here."""
    Q, K, V = (x.repeat(2, 1, 1, 1) for x in inputs)
    return Q, K, V


def _apart(generator: torch.Generator, query_length: int, key_length: int) -> Inputs:
    """Two of three queries have a logit of 250 with one key, far above their others: in each quarter of a tile."""
    Q, K, V = _inputs(generator, query_length, key_length)
    i = torch.arange(query_length)
    own = K[:, :, (3 * i + between(generator, 0, 31)) % key_length]
    toward = 250 * Q.shape[3] ** 0.5 * own / own.square().sum(dim=-1, keepdim=True)
    return torch.where(i[:, None] % 3 > 0, toward, Q), K, V


def _far(generator: torch.Generator, key_length: int, *, lowest: bool = True) -> Inputs:
    """Rows of logits far from 0, or far apart. Meant for a scale of 0.25.

    One has 120 in the first tile, all others near −240. One ends with 240, after others near −240. One is near −240,
    one near 240, one is −20,000 throughout, and one −1e20 or less (`lowest`). Keys are rounded, so that no logit of
    these rows is: at 240, that alone would be an error of 1e-5 in O.
    """
    Q, K, V = _inputs(generator, between(generator, 18, 31), key_length)
    K = (16 * K).round() / 16 + 2
    K[..., 31] = 2
    first, late, low, high, deep, bottom = torch.randperm(Q.shape[2], generator=generator)[:6].tolist()
    K[:, :, between(generator, 0, 31), :10] = -1
    K[:, :, -1, 10:20] = -2
    Q[:, :, (first, late, low, high, deep)] = 0
    Q[:, :, first, :10] = -48
    Q[:, :, late, 10:20] = -48
    Q[:, :, low, 20:31] = -44
    Q[:, :, high, 20:31] = 44
    Q[:, :, deep, 31] = -40_000
    if lowest:
        Q[:, :, bottom] = 0
        Q[:, :, bottom, 31] = -2e20 * between(generator, 1, 9)
    return Q, K, V


def _lowest(generator: torch.Generator) -> Inputs:
    """Two rows of −1e20 or less throughout, for LSE: beside usual rows it would hide their errors. For a scale of 1."""
    Q, K, V = _inputs(generator, 2, between(generator, 3, 9), heads=1)
    Q[:] = 0
    Q[..., 0] = -1e20 * between(generator, 1, 9)
    K[..., 0] = 1
    return Q, K, V


def _written(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """For the part that is about findings only: O must be there, right or not."""
    out = outputs["O"]
    unwritten = still_blank(out)
    if unwritten.any():
        return Diagnosis(f"O is never written{'' if unwritten.all() else ' in places'}", case.name)
    if not torch.isfinite(out).all() or not out.std() > 0:
        return Diagnosis("nothing like an output stands in O", f"{case.name}: it is not finite, or always the same")
    return None


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
    """Fresh inputs for each part. Sizes, places and scales are drawn, so that no number in a kernel fits them."""
    make, number = partial(_inputs, generator), partial(between, generator)
    head_dim, wide = _one_of(generator, 8, 16, 24, 40, 48, 56), 8 * number(13, 16)
    more = {"batch": 2, "heads": number(2, 3)}
    square = number(34, 60)
    shift = _one_of(generator, 1, 17, 33)
    others = (14, 30) if shift == 1 else (14, 30, -2, -18)  # of these four, two tell what is wrong where the shift is 1
    shift_lse, scale = number(-30, -1), _scale(generator)
    queries_lse = number(35, 60)
    length = number(33, 42)
    tempted = make(length, length, "planted", head_dim=64, is_causal=True, heads=1)
    lse = make(queries_lse, queries_lse + shift_lse, is_causal=True)
    return [
        _case("rows", _toward(make(number(17, 48), 64), {number(0, 31): 6.0})),
        _case("rows", _toward(make(number(17, 32), 96, "offset on V"), {number(0, 31): 6.0}), scale=_scale(generator)),
        _case("peaks", _toward(make(number(17, 48), 96), {number(32, 63): 5.0, number(64, 95): 7.0})),
        _case("peaks", make(number(17, 48), number(97, 127), "planted"), scale=32**-0.5),
        _case("large", _apart(generator, number(17, 48), 64)),
        _case("large", _far(generator, number(70, 95)), scale=0.25),
        _case("causal", _one_hot(generator, square, square), is_causal=True, explain=_weights),
        _case("causal", _twice(_tempted(generator, tempted, scale)), scale=scale, is_causal=True),
        _case("unequal", make(number(17, 31), number(65, 95), **more)),
        _case("unequal", _shifted(generator, shift), is_causal=True, explain=_weights),
        _case("unequal", _shifted(generator, -15, -31), is_causal=True, explain=_weights),
        _case("unequal", _shifted(generator, *others), is_causal=True, explain=_weights),
        _case("unequal", make(number(2, 4), number(260, 288), is_causal=True, heads=1), is_causal=True),
        _case("lengths", make(1, 1, **more)),
        _case("lengths", make(number(2, 7), number(2, 7), head_dim=128)),
        _case("lengths", make(number(9, 15), 31, head_dim=64)),
        _case("lengths", make(17, 33, head_dim=wide, heads=1)),
        _case("lengths", _one_hot(generator, 16, number(65, 90), head_dim), explain=_weights),
        _case("lengths", _long(generator), explain=_end_of_long),
        _case("lse", make(number(9, 15), number(65, 95), batch=2), judged="LSE"),
        _case("lse", _far(generator, number(70, 95), lowest=False), scale=0.25, judged="LSE"),
        _case("lse", _lowest(generator), scale=1.0, judged="LSE"),
        _case("lse", _high(generator, lse, 100 + number(5, 20)), is_causal=True, judged="LSE"),
        _clean(make(number(33, 47), number(97, 127), is_causal=True, heads=1), is_causal=True),
        _clean(make(number(17, 31), number(97, 127), head_dim=wide, heads=1)),
        _speed(generator),
    ]


def _scale(generator: torch.Generator) -> float:
    """Not 1/√d."""
    return between(generator, 20, 30) / 100


def _clean(inputs: Inputs, **options: Any) -> Case:
    """Three tiles and more: what a loop's third turn meets is found, too."""
    return _case("clean", inputs, judged="", must_be_clean=True, compare=_written, **options)


def experiments(generator: torch.Generator) -> list[Case]:
    """What tells mistakes apart that may look alike in the cases."""
    make, number = partial(_inputs, generator), partial(between, generator)
    return [
        _case("weights", _one_hot(generator, number(17, 31), number(97, 120)), explain=_weights),
        _case("first", make(number(9, 16), 32)),
        _case("heads", make(number(17, 31), 64, batch=2, heads=3)),
        _case("aligned", _far(generator, 96), scale=0.25),
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
    return (j >= key_length).expand(len(i), -1)


def _no_end(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i + key_length - query_length)


def _nothing_hidden(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return torch.zeros(len(i), j.shape[1], dtype=torch.bool)


def _one_past_the_end(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j > key_length) | (is_causal & (j > i + key_length - query_length))


def _last_key_hidden(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length - 1) | (is_causal & (j > i + key_length - query_length))


def _always_causal(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (j > i + key_length - query_length)


def _queries_of_block(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j > i % B_R + key_length - query_length))


def _keys_of_tile(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j % B_C > i + key_length - query_length))


def _other_side(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return (j >= key_length) | (is_causal & (j < i + key_length - query_length))


def _tiles_unshifted(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    last_of_block = i // B_R * B_R + B_R - 1
    skipped = j // B_C * B_C > last_of_block
    return (j >= key_length) | (is_causal & ((j > i + key_length - query_length) | skipped))


@dataclass(frozen=True)
class Shuffles:
    """How the lanes of a warp put something together: in these steps, by xor or down."""

    steps: tuple[int, ...] = (4, 2, 1)
    down: bool = False

    def __call__(self, x: Tensor, merge: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """x: [..., rows, LANES], with full warps of rows."""
        if self == ROW:  # most do this: it is faster in one go
            whole = x.amax(dim=-1, keepdim=True) if merge is torch.maximum else x.sum(dim=-1, keepdim=True)
            return whole.expand_as(x)
        warps = x.unflatten(-2, (-1, 32 // LANES)).flatten(-2)
        lane = torch.arange(32)
        for step in self.steps:
            partner = torch.where(lane + step < 32, lane + step, lane) if self.down else lane ^ step
            warps = merge(warps, warps[..., partner])
        return warps.unflatten(-1, (-1, LANES)).flatten(-3, -2)


ROW, ALONE = Shuffles(), Shuffles(())
_HALVES = (Shuffles((2, 1)), Shuffles((4, 2)))
_TOO_WIDE = (Shuffles((8, 4, 2, 1)), Shuffles((16, 8, 4, 2, 1)))
_DOWN = Shuffles(down=True)


def _flash(
    case: Case,
    *,
    scale_power: int = 1,
    scale: Callable[[Case], float] | None = None,
    read: Callable[[Case], Inputs] | None = None,
    columns: slice | None = None,
    hide: Hide = _hide,
    hide_max: Hide | None = None,
    hide_sum: Hide | None = None,
    hide_output: Hide | None = None,
    fill: float = -math.inf,
    start: float = -math.inf,
    maximum: str = "running",
    of_maximum: Shuffles = ROW,
    guarded: bool = True,
    of_sum: str = "rescaled",
    of_output: str = "rescaled",
    own_keys: bool = False,
    full_tiles: bool = False,
    of_total: Shuffles = ROW,
    in_each_tile: bool = False,
    at_the_end: bool = True,
    order: str = "",
    divide: str = "once",
    guard: str = "zero",
    only: str = "O LSE",
) -> dict[str, Tensor]:
    """O and LSE as mini_flash.cu computes them, tile by tile and lane by lane, with something wrong.

    In fp32, since overflow is part of what is simulated. read: another Q, K and V.
    columns: those of Q and K that are multiplied. hide_max, hide_sum, hide_output: what is hidden from m, from l and
    from O, where that differs. maximum: "running", "tile", "first" (of the first tile) or "none". of_maximum, of_total:
    how the lanes put m and l together; in_each_tile, at_the_end: when, of l. of_sum, of_output: what becomes
    of l and O when m changes: "rescaled", "kept", "inverse" (as it stands, or "guarded inverse" where m was −∞), "late"
    (rescaled after the tile was added), "lane 0" (rescaled by one lane), or "set". own_keys: a lane adds to its columns
    of O only the keys it has scored. full_tiles: the ragged tile is left out. order: of the tile's "scores", or of its
    weights, "P" or "P back", where each lane has four neighbours, or its "last key" alone; of columns, "O" or "V".
    divide: by l "once", in "each tile", or "never". guard: in the end l "zero" is asked for, or "positive", or "none".
    """
    Q, K, V = read(case) if read else (case.inputs[name] for name in "QKV")
    query_length, key_length = Q.shape[2], K.shape[2]
    end = key_length // B_C * B_C if full_tiles else costs.ceil_div(key_length, B_C) * B_C
    Q = torch.nn.functional.pad(Q, (0, 0, 0, -query_length % B_R))
    V = torch.nn.functional.pad(V, (0, 0, 0, end - key_length))
    if order == "V":
        V = V.unflatten(-1, (LANES, -1)).transpose(-1, -2).flatten(-2)
    factor = scale(case) if scale else case.facts["scale"] ** scale_power
    products = Q @ K.mT if columns is None else Q[..., columns] @ K[..., columns].mT
    seen = torch.nn.functional.pad(products * factor, (0, end - key_length))
    if order == "scores":
        seen = _by_fours(seen)
    i, j = torch.arange(Q.shape[2])[:, None], torch.arange(end)[None, :]
    hidden = partial(_hidden, i, j, query_length, key_length, bool(case.facts["is_causal"]))
    scores = seen.masked_fill(hidden(hide), fill)
    for_max = scores if hide_max is None else seen.masked_fill(hidden(hide_max), fill)
    for_sum, for_output = (
        scores if other is None else seen.masked_fill(hidden(other), fill) for other in (hide_sum, hide_output)
    )
    lane = torch.arange(Q.shape[3]) % LANES  # the lane of each column of O
    m, total = torch.full((*Q.shape[:3], LANES), start), torch.zeros(*Q.shape[:3], LANES)
    out, one = torch.zeros_like(Q), torch.ones_like(m)
    for j0 in range(0, end, B_C):
        newest = for_max[..., j0 : j0 + B_C].unflatten(-1, (-1, LANES)).amax(dim=-2)  # of the lane's keys
        m_new = torch.zeros_like(m) if maximum == "none" else newest
        if maximum == "running" or (maximum == "first" and j0):
            m_new = torch.maximum(m, newest) if maximum == "running" else m
        m_new = of_maximum(m_new, torch.maximum)
        base = torch.where(m_new == -torch.inf, 0.0, m_new) if guarded else m_new
        P = torch.exp(for_output[..., j0 : j0 + B_C].unflatten(-1, (-1, LANES)) - base[..., None, :])
        P_sum = P
        if for_sum is not for_output:
            P_sum = torch.exp(for_sum[..., j0 : j0 + B_C].unflatten(-1, (-1, LANES)) - base[..., None, :])
        down = torch.exp(m - base)
        before = {"rescaled": down, "kept": one, "late": one, "set": one}
        if of_sum not in before or of_output not in before:
            up = torch.exp(base - m)
            before |= {"inverse": up, "guarded inverse": torch.where(m == -torch.inf, 0.0, up)}
            before["lane 0"] = torch.where(torch.arange(LANES) == 0, down, one)
        total = total * before[of_sum] + P_sum.sum(dim=-2)
        if in_each_tile:
            total = of_total(total, torch.add)
        kept = torch.zeros(()) if of_output == "set" else before[of_output][..., lane]
        out = out * kept + _product(P.flatten(-2), V[:, :, j0 : j0 + B_C], own_keys, order)
        if of_output == "late":
            out = out * down[..., lane]
        if divide == "each tile":
            out = out / total.sum(dim=-1, keepdim=True)
        m = m_new
    if at_the_end:
        total = of_total(total, torch.add)
    if divide == "once":
        out = out / total[..., lane]
    lse = m[..., 0] + torch.log(total[..., 0])
    if guard != "none":
        empty = total == 0 if guard == "zero" else ~(total > 0)
        out, lse = torch.where(empty[..., lane], 0.0, out), torch.where(empty[..., 0], -torch.inf, lse)
    if order == "O":
        out = out.unflatten(-1, (-1, LANES)).transpose(-1, -2).flatten(-2)
    given_back = {"O": out[:, :, :query_length].double(), "LSE": lse[:, :, :query_length].double()}
    return {name: given_back[name] for name in only.split()}


def _hidden(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool, hide: Hide) -> Tensor:
    return hide(i, j, query_length, key_length, is_causal)


def _by_fours(x: Tensor) -> Tensor:
    """Along the last dimension, in each tile: at place lane + 8 · k what stands at 4 · lane + k."""
    return x.unflatten(-1, (-1, LANES, B_C // LANES)).transpose(-1, -2).flatten(-3)


def _product(P: Tensor, V: Tensor, own_keys: bool, order: str) -> Tensor:
    if order == "P":
        P = _by_fours(P)
    elif order == "last key":
        P, V = P[..., -1:], V[:, :, -1:]
    elif order == "P back":
        P = P.unflatten(-1, (B_C // LANES, LANES)).transpose(-1, -2).flatten(-2)
    if not own_keys:
        return P @ V
    out = torch.zeros(*P.shape[:3], V.shape[3])
    for lane in range(LANES):
        out[..., lane::LANES] = P[..., lane::LANES] @ V[:, :, lane::LANES, lane::LANES]
    return out


_ALL, _FIRST = slice(None), slice(0, 1)


def _only_first(case: Case, of: tuple[slice, ...], which: str) -> tuple[Tensor, ...]:
    """Q, K and V, those in `which` of the first head or sequence for all."""
    tensors = {name: case.inputs[name] for name in "QKV"}
    return tuple(x[of].expand_as(x) if name in which else x for name, x in tensors.items())


def _rows_of_queries(case: Case, which: str) -> tuple[Tensor, ...] | None:
    """K and V where a head of those in `which` is taken to have L_q rows."""
    tensors = [case.inputs[name] for name in "QKV"]
    batch, heads, query_length, head_dim = tensors[0].shape
    key_length = tensors[1].shape[2]
    start = torch.arange(batch * heads)[:, None] * query_length
    rows = (start + torch.arange(key_length)).reshape(batch, heads, key_length)
    if int(rows.max()) >= batch * heads * key_length:
        return None
    return tuple(x.reshape(-1, head_dim)[rows] if name in which else x for name, x in zip("QKV", tensors, strict=True))


def _without_loads(case: Case) -> dict[str, Tensor] | None:
    """Threads of rows past the end leave once the first tile is loaded: what they would load of the next stays old."""
    query_length = case.inputs["Q"].shape[2]
    idle = query_length % B_R * LANES  # the first thread of the last block that leaves
    if not idle or case.part == "clean" or case.inputs["K"].shape[2] > LONGEST:
        return None

    def stale(case: Case) -> Inputs:
        Q, K, V = (case.inputs[name] for name in "QKV")
        key, column = torch.arange(K.shape[2])[:, None], torch.arange(K.shape[3])
        left = (key >= B_C) & ((key % B_C * K.shape[3] + column) % THREADS >= idle)
        return Q, *(torch.where(left, x[:, :, key[:, 0] % B_C], x) for x in (K, V))

    full = query_length // B_R * B_R
    right, wrong = _flash(case), _flash(case, read=stale)
    return {name: torch.cat((right[name][:, :, :full], wrong[name][:, :, full:]), dim=2) for name in right}


def _lse(of: Callable[[Case, Tensor, Tensor], Tensor], case: Case) -> dict[str, Tensor]:
    """A log-sum-exp made of m and l in another way; of m = −∞ and l = 0, too."""
    if case.part == "clean":
        return {}
    S = (case.inputs["Q"].double() @ case.inputs["K"].double().mT) * case.facts["scale"]
    if case.facts["is_causal"]:
        S = S.masked_fill(~reference.causal_mask(*S.shape[-2:]), -torch.inf)
    m = S.amax(dim=-1)
    total = torch.exp(S - torch.where(m == -torch.inf, 0.0, m)[..., None]).sum(dim=-1)
    return {"LSE": of(case, m, total)}


def _simulated(way: Mapping[str, Any], case: Case) -> dict[str, Tensor] | None:
    """What `_flash` gives with these arguments; None where that is not asked for, or where they change nothing.

    where_causal: the mistake is made in causal launches only.
    """
    if case.part == "clean" or case.inputs["K"].shape[2] > LONGEST:
        return None
    if not case.facts["is_causal"] and way.get("where_causal"):
        return None
    way = {option: value for option, value in way.items() if option != "where_causal"}
    if hides := [hide for option, hide in way.items() if option.startswith("hide")]:
        query_length, key_length = case.inputs["Q"].shape[2], case.inputs["K"].shape[2]
        i, j = torch.arange(query_length)[:, None], torch.arange(costs.ceil_div(key_length, B_C) * B_C)[None, :]
        masks = [hide(i, j, query_length, key_length, bool(case.facts["is_causal"])) for hide in (_hide, *hides)]
        if all(torch.equal(mask, masks[0]) for mask in masks):
            return None
    if "read" in way:
        given = way["read"](case)
        if given is None or all(torch.equal(x, case.inputs[name]) for x, name in zip(given, "QKV", strict=True)):
            return None
    return _flash(case, **way)


def _remembered(way: Mapping[str, Any], case: Case) -> dict[str, Tensor] | None:
    """`_simulated`, once for each case: the grader asks before the experiments, and after."""
    known: dict[int, dict[str, Tensor] | None] = case.facts["simulated"]
    if id(way) not in known:
        known[id(way)] = _simulated(way, case)
    return known[id(way)]


def _mistake(name: str, detail: str, read_again: str, *ways: Mapping[str, object]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which a kernel may make it: arguments of `_flash`."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_remembered, way)) for way in ways)


def _lse_mistake(name: str, detail: str, *ways: Callable[[Tensor, Tensor], Tensor]) -> tuple[Mistake, ...]:
    """The same for ways to make the log-sum-exp of m and l; a row without keys is right."""

    def of(way: Callable[[Tensor, Tensor], Tensor], case: Case, m: Tensor, total: Tensor) -> Tensor:
        return torch.where(total == 0, -torch.inf, way(m, total))

    return tuple(Mistake(Diagnosis(name, detail, _LSE), partial(_lse, partial(of, way))) for way in ways)


MISTAKES = (
    *_mistake(
        names.O_NOT_RESCALED,
        "O_i is a sum of exp(S − m) · V for the m of that time; when m rises, it takes the factor exp(m_old − m_new)",
        _OUTPUT,
        {"of_output": "kept"},
    ),
    *_mistake(
        names.L_NOT_RESCALED,
        "l is a sum of exp(S − m) for the m of that time; when m rises, it takes the factor exp(m_old − m_new)",
        _NUMBERS,
        {"of_sum": "kept"},
    ),
    *_mistake(
        names.NEITHER_RESCALED,
        "when m rises, both take the factor exp(m_old − m_new)",
        _OUTPUT,
        {"of_sum": "kept", "of_output": "kept"},
    ),
    *_mistake(
        names.FACTOR_UPSIDE_DOWN,
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
        names.NOT_DIVIDED,
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
    *_mistake(names.SCALE_MISSING, "S = scale · Q Kᵀ; here S = Q Kᵀ", _SCALE, {"scale_power": 0}),
    *_mistake(names.SCALE_TWICE, "S = scale · Q Kᵀ, with scale once", _SCALE, {"scale_power": 2}),
    *_mistake(
        names.SCALE_NOT_THE_ARGUMENT,
        "the caller may want another scale than 1/√d: it is an argument of the kernel",
        _SCALE,
        {"scale": lambda case: case.inputs["Q"].shape[3] ** -0.5},
    ),
    *_mistake(
        names.EMPTY_ROW_IS_NAN,
        "there m stays −∞ and l = 0: subtract 0 in place of −∞, and write O = 0, LSE = −∞ instead of 0 / 0",
        _TRAP,
        {"guard": "none"},
        {"guarded": False},
    ),
    *_mistake(
        names.NO_MAXIMUM,
        "exp overflows fp32 above 88.7 and is 0 below −103: P = exp(S − m)",
        _OVERFLOW,
        {"maximum": "none"},
        {"maximum": "none", "guard": "none"},
    ),
    *_mistake(
        names.MAXIMUM_FROM_ZERO,
        "in a row of negative scores m stays 0, and every exp(S − m) may be 0",
        _TRAP,
        {"start": 0.0},
        {"start": 0.0, "guard": "none"},
    ),
    *_mistake(
        names.MAXIMUM_FROM_FINITE,
        "in a row of smaller scores m stays there, and every exp(S − m) may be 0: no number is below all scores but −∞",
        _TRAP,
        *({"start": start} for start in (-100.0, -1e3, -1e4, -1e9)),
    ),
    *_mistake(
        names.MAXIMUM_OF_THE_TILE,
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
        {"of_maximum": ALONE},
        {"of_maximum": ALONE, "guard": "none"},
    ),
    *_mistake(
        "l is summed per lane, but never over the lanes",
        "each lane divides by the l of its own keys: add up the eight l before the division",
        _REGISTERS,
        {"of_total": ALONE},
    ),
    *_mistake(
        "each lane adds only its own keys to O",
        "a lane has its own columns of O, and for them it needs P of all keys of the tile, by way of tile.P",
        _REGISTERS,
        {"own_keys": True},
    ),
    *_mistake(
        names.OWN_KEY_HIDDEN,
        "query i sees j <= i + L_k − L_q, itself included",
        _CAUSAL,
        {"hide": _diagonal_hidden},
        {"hide": _diagonal_hidden, "guarded": False},
        {"hide": _diagonal_hidden, "guard": "none"},
    ),
    *_mistake(
        names.NEXT_KEY_SEEN,
        "query i sees j <= i + L_k − L_q, and no key behind it",
        _CAUSAL,
        {"hide": _one_too_many},
    ),
    *_mistake(
        names.MASK_TOP_LEFT,
        "with L_q ≠ L_k the last query sees every key: j <= i + L_k − L_q; here it is j <= i",
        _CROSS,
        {"hide": _top_left},
    ),
    *_mistake(
        names.SHIFT_WRONG_SIGN,
        "with L_q ≠ L_k the last query sees every key: j <= i + L_k − L_q; here it is j <= i + L_q − L_k",
        _CROSS,
        {"hide": _wrong_sign},
    ),
    *_mistake(names.MASK_MISSING, "is_causal = 1 hides j > i + L_k − L_q", _CAUSAL, {"hide": _no_mask}),
    *_mistake(
        names.TAIL_COUNTS,
        "the tile is filled up by zeros: their score is 0, and exp(0 − m) is not; a key j >= L_k has −∞",
        _KERNEL,
        {"hide": _no_end},
        {"hide": _no_end, "guard": "none"},
    ),
    *_mistake(
        names.LAST_TILE_LEFT_OUT,
        "the loop over tiles ends at L_k, not at the last multiple of 32",
        _TILES,
        {"full_tiles": True},
        {"full_tiles": True, "guard": "none"},
    ),
    *_mistake(
        names.HIDDEN_IS_FINITE,
        "with a large negative number in place of −∞ all hidden keys weigh the same there",
        _TRAP,
        *(
            {"fill": fill, "start": start}
            for fill in (-1e4, -1e9, -1e30, torch.finfo(torch.float32).min)
            for start in (-math.inf, fill)
        ),
    ),
    *_mistake(
        "m is the maximum of the first tile only",
        "a later tile may hold larger scores, by more than exp can hold: m is the largest so far",
        _NUMBERS,
        {"maximum": "first"},
        {"maximum": "first", "guard": "positive"},
        {"maximum": "first", "guard": "none"},
    ),
    *_mistake(
        "the maximum is taken over keys that are hidden, too",
        "where a hidden score is far above the others, exp(S − m) is 0 for all that the query sees: hide, then compare",
        _CAUSAL,
        {"hide_max": _nothing_hidden},
        {"hide_max": _no_end},
        {"hide_max": _no_mask},
        {"hide_max": _nothing_hidden, "guard": "none"},
        {"hide_max": _no_end, "guard": "none"},
        {"hide_max": _no_mask, "guard": "none"},
    ),
    *_mistake(
        "only lane 0 of a row rescales",
        "each lane has columns of O and a part of l, and all of them take the factor",
        _REGISTERS,
        {"of_output": "lane 0"},
        {"of_sum": "lane 0"},
        {"of_sum": "lane 0", "of_output": "lane 0"},
    ),
    *_mistake(
        "O_i is set, not added to",
        "O_i[c] is a sum over all keys of all tiles: only the last of them counts here",
        _KERNEL,
        {"of_output": "set"},
        {"of_output": "set", "order": "last key"},
    ),
    *_mistake(
        "the shuffles put only half of a row's lanes together",
        "a row has eight lanes: xor shuffles with steps of 4, 2 and 1 reach all of them",
        _PIECES,
        *({"of_maximum": way} for way in _HALVES),
        *({"of_total": way} for way in _HALVES),
        *({"of_maximum": way, "of_total": way} for way in _HALVES),
    ),
    *_mistake(
        "the shuffles put lanes of other rows together, too",
        "a warp holds four rows: a step of 8 or 16 leads to a lane of another one",
        _PIECES,
        *({"of_maximum": way} for way in _TOO_WIDE),
        *({"of_total": way} for way in _TOO_WIDE),
        *({"of_maximum": way, "of_total": way} for way in _TOO_WIDE),
    ),
    *_mistake(
        "only lane 0 of a row holds the result of the shuffles",
        "after __shfl_down_sync the other lanes have part of it, and of other rows; all eight need it: xor",
        _PIECES,
        {"of_maximum": _DOWN},
        {"of_total": _DOWN},
        {"of_maximum": _DOWN, "of_total": _DOWN},
    ),
    *_mistake(
        "l is added up over the lanes more than once",
        "after the shuffles each lane has the whole sum: to add that up again counts it eight times",
        _REGISTERS,
        {"in_each_tile": True},
        {"in_each_tile": True, "at_the_end": False},
        {"of_total": Shuffles((4, 2, 1, 4, 2, 1))},
    ),
    *_mistake(
        names.HIDDEN_IS_ZERO,
        "exp(0 − m) is not 0: a key that is hidden, or past the last one, has −∞",
        _CAUSAL,
        {"fill": 0.0},
    ),
    *_mistake(
        "hidden keys count in l",
        "O leaves them out, and l does not: the weights of a row do not sum to 1",
        _CAUSAL,
        {"hide_sum": _nothing_hidden},
        {"hide_sum": _no_end},
        {"hide_sum": _no_mask},
        {"hide_sum": _nothing_hidden, "hide_max": _nothing_hidden},
        {"hide_sum": _no_end, "hide_max": _no_end},
        {"hide_sum": _no_mask, "hide_max": _no_mask},
    ),
    *_mistake(
        "hidden keys count in O, and not in l",
        "l leaves them out, and O does not: the weights of a row sum to more than 1",
        _CAUSAL,
        {"hide_output": _no_mask},
        {"hide_output": _no_mask, "hide_max": _no_mask},
    ),
    *_mistake(
        "a key past the end counts as score 0",
        "there are keys 0 to L_k − 1: key L_k is the first that is none",
        _KERNEL,
        {"hide": _one_past_the_end},
        {"hide": _one_past_the_end, "guard": "none"},
    ),
    *_mistake(
        names.LAST_KEY_LEFT_OUT,
        "there are keys 0 to L_k − 1, and the last of them counts",
        _KERNEL,
        {"hide": _last_key_hidden},
        {"hide": _last_key_hidden, "guard": "none"},
    ),
    *_mistake(
        names.MASK_UNASKED,
        "with is_causal = 0 every query sees every key",
        _CAUSAL,
        {"hide": _always_causal},
    ),
    *_mistake(
        "the mask counts queries from the first of the block",
        "a query's own number is blockIdx.x · 16 + row",
        _CAUSAL,
        {"hide": _queries_of_block},
    ),
    *_mistake(
        "the mask counts keys from the first of the tile",
        "a key's own number is j0 plus its place in the tile",
        _CAUSAL,
        {"hide": _keys_of_tile},
    ),
    *_mistake(
        names.EARLIER_KEYS_HIDDEN,
        "query i sees j <= i + L_k − L_q",
        _CAUSAL,
        {"hide": _other_side},
    ),
    *_mistake(
        names.SKIPPING_UNSHIFTED,
        "a block's last query sees keys up to its number plus L_k − L_q: the mask knows that, the skipping does not",
        _CROSS,
        {"hide": _tiles_unshifted},
    ),
    *_mistake(
        names.FIRST_32_COLUMNS,
        "D is a compile option",
        _KERNEL,
        {"columns": slice(32)},
    ),
    *_mistake(
        names.LAST_COLUMN_LEFT_OUT,
        "a product of rows has D terms",
        _KERNEL,
        {"columns": slice(-1)},
    ),
    *_mistake(
        "the keys of a tile stand in two orders",
        "a weight belongs to one key: its score, its place in tile.P and its row of V must be the same key's",
        _REGISTERS,
        {"order": "P"},
        {"order": "P back"},
        {"order": "scores"},
    ),
    *_mistake(
        "the columns of V and of O stand in two orders",
        "what a lane keeps at O_i[c] is one column: of V where it is added, of O where it is written",
        _REGISTERS,
        {"order": "O"},
        {"order": "V"},
    ),
    *(
        mistake
        for name, what, first in (
            (names.HEAD_ZERO_READ, "head", ((_ALL, _FIRST), (_FIRST, _FIRST))),
            (names.BATCH_ZERO_READ, "sequence", ((_FIRST,),)),
        )
        for which in ("QKV", "KV", "Q", "K", "V")
        for mistake in _mistake(
            name if len(which) > 1 else f"{name} of {which}",
            f"each head of each sequence has Q, K and V of its own; here those of the first {what} are read",
            _KERNEL,
            *({"read": partial(_only_first, of=of, which=which)} for of in first),
        )
    ),
    *_mistake(
        "a head of K and V is taken to have L_q rows",
        "K and V have L_k rows a head, Q and O have L_q",
        _CROSS,
        *({"read": partial(_rows_of_queries, which=which)} for which in ("KV", "K", "V")),
    ),
    Mistake(
        Diagnosis(
            "threads of rows past the end leave, and their part of the next tiles is not loaded",
            "all threads of a block load K and V together, and meet at its barriers: who has no query, too",
            _KERNEL,
        ),
        _without_loads,
    ),
    *_mistake(
        "LSE has the l of one lane only",
        "the lanes of a row add up l, for O and for LSE",
        _LSE,
        {"of_total": ALONE, "only": "LSE"},
    ),
    Mistake(
        Diagnosis("LSE is of scores without the scale", "m is the largest of scale · q · k", _LSE),
        partial(
            _lse, lambda case, m, total: torch.where(total == 0, -torch.inf, m / case.facts["scale"] + total.log())
        ),
    ),
    Mistake(
        Diagnosis(names.LSE_EMPTY_ROW, "l is 0 there, and LSE is −∞", _LSE),
        partial(_lse, lambda case, m, total: torch.where(total == 0, 0.0, m + total.log())),
    ),
    *_lse_mistake(names.LSE_LACKS_M, "LSE = m + log(l); here it is log(l) alone", lambda m, total: total.log()),
    *_lse_mistake(names.LSE_LACKS_LOG, "LSE = m + log(l); here it is m + l", lambda m, total: m + total),
    *_lse_mistake(names.LSE_IS_M, "LSE = m + log(l); here it is m alone", lambda m, total: m),
    *_lse_mistake(
        names.LSE_BASE_2,
        "LSE is a natural logarithm: with exp2 and log2 inside, multiply by log(2) in the end",
        lambda m, total: m + total.log2(),
        lambda m, total: m / math.log(2) + total.log2(),
    ),
    *_mistake(
        f"{names.SCALE_NOT_THE_ARGUMENT} where there is a mask",
        "the caller may want another scale than 1/√d, with is_causal = 1, too",
        _SCALE,
        {"scale": lambda case: case.inputs["Q"].shape[3] ** -0.5, "where_causal": True},
    ),
    *_mistake(
        f"{names.NO_MAXIMUM} where there is a mask",
        "exp overflows fp32 above 88.7, with is_causal = 1, too: P = exp(S − m)",
        _OVERFLOW,
        {"maximum": "none", "where_causal": True},
        {"maximum": "none", "guard": "none", "where_causal": True},
    ),
)

FINDINGS = {
    "synccheck": Diagnosis(
        names.NOT_ALL_ARRIVE,
        read_again=READING_A_FINDING,
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
        read_again="02 FlashAttention, minimal, section 7, 'Two loop orders and their traffic'",
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
        read_again="01 Attention basics, section 9, 'The score matrix needs bandwidth'",
    ),
)

EXERCISE = Exercise(
    id="02_flash_attention_minimal/mini_flash",
    title="Mini FlashAttention",
    difficulty=4,
    importance=5,
    parts=PARTS,
    kernels=("mini_flash",),
    cases=cases,
    mistakes=MISTAKES,
    experiments=experiments,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
