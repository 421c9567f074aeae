"""How exercise 02.2, Mini FlashAttention, is graded: forward with tiles, O and LSE, one property after the other."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import checks, costs, reference
from course_utils.grading.diagnosis import NOT_ALL_ARRIVE, unwritten_or_empty
from course_utils.grading.draws import attention_inputs, between, same_in_each_head
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Output, Part, Question
from course_utils.grading.mistakes import read_mistakes
from course_utils.grading.wrong_values import one_hot_values, weights_in, wrong_weights

Inputs = tuple[Tensor, Tensor, Tensor]

B_R, B_C, LANES, THREADS = 16, 32, 8, 128
LONGEST = 200  # keys of a case in which mistakes are simulated
RATIO = 1.0  # of forward_plain's time, for the bonus

_TILES = "02 FlashAttention, minimal, section 3, 'The tiled algorithm'"

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
    facts: dict[str, Any] = {"is_causal": is_causal, "scale": scale}
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
    """Two equal sequences: a kernel that reads the wrong one loses no points here."""
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
        _case("lengths", _long(generator), explain=_end_of_long, names=False),
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
    written = partial(unwritten_or_empty, names=("O",), what="an output")
    return _case("clean", inputs, judged="", must_be_clean=True, compare=written, names=False, **options)


def experiments(generator: torch.Generator) -> list[Case]:
    """What tells mistakes apart that may look alike in the cases."""
    make, number = partial(_inputs, generator), partial(between, generator)
    return [
        _case("weights", _one_hot(generator, number(17, 31), number(97, 120)), explain=_weights),
        _case("first", make(number(9, 16), 32)),
        _case("heads", make(number(17, 31), 64, batch=2, heads=3)),
        _case("aligned", _far(generator, 96), scale=0.25),
    ]


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
    mistakes=read_mistakes("02_flash_attention_minimal/mini_flash"),
    experiments=experiments,
    findings=NOT_ALL_ARRIVE,
    questions=QUESTIONS,
    cells=("answers",),
)
