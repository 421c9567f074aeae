"""How exercise 03.3, dK and dV by tiles, is graded: both gradients, one property after the other, and their traffic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_utils import costs, reference
from course_utils.grading import names
from course_utils.grading.diagnosis import READING_A_FINDING
from course_utils.grading.draws import attention_inputs, between, same_in_each_head
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Launch, Mistake, Outcome, Output, Part, Question
from course_utils.grading.job import still_blank
from course_utils.grading.seen import one_hot_values, weights_in, wrong_weights

B_R, B_C, LANES, THREADS = 16, 16, 8, 128
AXES = ("sequence", "head", "key", "column")

_FORMULAS = "02 FlashAttention, backward, section 15, 'The formulas'"
_WALK = "02 FlashAttention, backward, section 16, 'Two walks over the tiles'"
_LSE = "02 FlashAttention, backward, section 14, 'What must be kept'"
_PIECES = "02 FlashAttention, minimal, section 2, 'A list, split in two'"
_TRAP = "02 FlashAttention, minimal, section 2, 'The one trap'"
_SCALE = "01 Attention basics, section 2, 'Why the scores are divided by √d'"
_OVERFLOW = "01 Attention basics, section 6, 'Softmax without overflow'"
_CAUSAL = "01 Attention basics, section 10, 'The causal mask, and a model without it'"
_CROSS = "01 Attention basics, section 11, 'Cross-attention: more keys than queries'"
_TRAFFIC = "02 FlashAttention, minimal, section 7, 'Two loop orders and their traffic'"
_SPEC = "this exercise, 'What to write'"

PARTS = (
    Part("dv", 3, "dV = Pᵀ dO"),
    Part("dk", 4, "dK = scale · dSᵀ Q"),
    Part("large", 2, "Both with large logits: more than exp can hold"),
    Part("causal", 2, "Both with the causal mask"),
    Part("unequal", 2, "Both with L_q ≠ L_k, and queries that see no key"),
    Part("lengths", 2, "Both for tiny and ragged lengths, and other D"),
    Part("traffic", 2, "A block asks for each number once, and writes nothing but dK and dV"),
    Part("clean", 1, "Nothing for the sanitizer to find"),
)

Inputs = dict[str, Tensor]  # Q, K, V and dO


# ---------------------------------------------------------------------------------------------- cases


def _case(
    part: str,
    given: Inputs,
    *,
    is_causal: bool = False,
    scale: float | None = None,
    judged: str = "dK dV",
    **options: Any,
) -> Case:
    """One launch on Q, K, V and dO. judged: which of dK and dV the part is about."""
    Q, K, V, dO = (given[name] for name in ("Q", "K", "V", "dO"))
    batch, heads, query_length, head_dim = Q.shape
    key_length = K.shape[2]
    scale = head_dim**-0.5 if scale is None else scale
    out, lse = reference.attention(Q, K, V, is_causal=is_causal, scale=scale, return_lse=True)
    inputs = {**given, "LSE": lse.float(), "delta": (dO.double() * out).sum(dim=-1).float()}
    _, dK, dV = reference.attention_gradients(Q, K, V, dO, is_causal=is_causal, scale=scale)
    lengths = (np.int32(query_length), np.int32(key_length), np.float32(scale), np.int32(is_causal))
    launch = Launch(
        "backward_tiles",
        (costs.ceil_div(key_length, B_C), heads, batch),
        (THREADS,),
        ("Q", "K", "V", "dO", "LSE", "delta", "dK", "dV", *lengths),
        options=(f"-DD={head_dim}",),
    )
    plain = [_plain(inputs, is_causal, scale, base, first) for base in (math.e, 2.0) for first in (False, True)]
    outputs = {
        name: Output(
            expected,
            same_dtype=[run[name] for run in plain],
            kind="values" if name in judged.split() else "scratch",
            axes=AXES,
        )
        for name, expected in (("dK", dK), ("dV", dV))
    }
    name = f"L_q = {query_length}, L_k = {key_length}, D = {head_dim}{', causal' * is_causal}"
    facts = {"is_causal": is_causal, "scale": scale, "simulated": {}}
    return Case(part, name, (launch,), inputs, outputs, facts, **options)


def _plain(inputs: Mapping[str, Tensor], is_causal: bool, scale: float, base: float, first: bool) -> dict[str, Tensor]:
    """dK and dV in plain fp32, with powers of this base. first: whether K takes the scale before the product."""
    Q, K, V, dO, LSE, delta = (inputs[name] for name in ("Q", "K", "V", "dO", "LSE", "delta"))
    factor = scale / math.log(base)
    S = Q @ (factor * K).mT if first else factor * (Q @ K.mT)
    P = torch.pow(base, S - (LSE / math.log(base))[..., None])
    if is_causal:
        P = P.masked_fill(~reference.causal_mask(Q.shape[2], K.shape[2]), 0.0)
    dS = P * (dO @ V.mT - delta[..., None])
    return {"dK": scale * (dS.mT @ Q), "dV": P.mT @ dO}


def _inputs(generator: torch.Generator, *lengths_and_kind: Any, **sizes: Any) -> Inputs:
    """`attention_inputs` with a seed that is drawn."""
    made = attention_inputs(between(generator, 0, 2**31 - 2), *lengths_and_kind, **sizes)
    return dict(zip(("Q", "K", "V", "dO"), made, strict=True))


def _one_hot(generator: torch.Generator, query_length: int, key_length: int, head_dim: int = 32) -> Inputs:
    """Every head has the same Q, K and V, every query a column of dO of its own: dV is Pᵀ. No weight is small."""
    dO = one_hot_values(query_length, head_dim)
    lengths = {"Q": query_length, "K": key_length, "V": key_length}
    made = {name: same_in_each_head(generator, dO.shape[1], length, head_dim) for name, length in lengths.items()}
    return {**made, "Q": 0.5 * made["Q"], "dO": dO}


def _weights(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is read off dV where dO is one-hot: the weight of each query in the row of each key."""
    if still_blank(outputs["dV"]).any():
        return None
    if bool(torch.isnan(outputs["dV"]).all()) and bool(torch.isneginf(case.inputs["LSE"]).any()):
        return Diagnosis(names.EMPTY_ROW_IS_NAN, _OF_EMPTY, _TRAP)
    queries = case.inputs["Q"].shape[2]
    got, expected = weights_in(outputs["dV"], queries), weights_in(case.outputs["dV"].expected, queries)
    return wrong_weights(got, expected, ("key", "query"))


_OF_EMPTY = "LSE is −∞ there, and S − LSE is +∞ or NaN, which no factor 0 mends: choose P = 0 for a hidden key"


def _far(generator: torch.Generator, query_length: int, key_length: int) -> Inputs:
    """Logits far from 0, or far apart: of head 0, a third of the queries near −300, a third near 300.

    Meant for a scale of 0.25. All products are exact in fp32, so that no order of the sums is better than another.
    """
    made = _inputs(generator, query_length, key_length)
    made["Q"], made["K"] = (8 * made["Q"]).round() / 4, (8 * made["K"]).round() / 8
    made["K"][..., 0] = 1
    i = torch.arange(query_length)
    shift = torch.randperm(3, generator=generator)
    made["Q"][:, 0, :, 0] = torch.tensor([-1200.0, 1200.0, 0.0])[shift][i % 3]
    return made


def _written(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """For the part that is about findings only: dK and dV must be there, right or not."""
    for name, got in outputs.items():
        unwritten = still_blank(got)
        if unwritten.any():
            return Diagnosis(f"{name} is never written{'' if unwritten.all() else ' in places'}", case.name)
        if not torch.isfinite(got).all() or not got.std() > 0:
            words = f"{case.name}: it is not finite, or always the same"
            return Diagnosis(f"nothing like a gradient stands in {name}", words)
    return None


def _traffic(case: Case, outcome: Outcome) -> Diagnosis | None:
    """Whether a block asks for each number of its keys and of the queries once, and writes dK and dV once."""
    heads, query_length, head_dim = case.inputs["Q"].shape[1:]
    key_length = case.inputs["K"].shape[2]
    row = 4 * heads * head_dim
    blocks = costs.ceil_div(key_length, B_C)
    arrays = [argument for argument in case.launches[0].arguments if isinstance(argument, str)]
    loaded = {name: touched.bytes_loaded for name, touched in zip(arrays, outcome.footprint, strict=True)}
    for both, once, what in (
        (("Q", "dO"), blocks * query_length * row, "a tile of queries is loaded more than once by a block"),
        (("K", "V"), key_length * row, "a tile of keys is loaded more than once"),
        (("dK", "dV"), 0, "dK or dV is read back from global memory"),
    ):
        for name in both:
            if loaded[name] > once:
                times = f", {loaded[name] / once:.3g} times as many" if once else ""
                words = f"{case.name}: of {name}, {loaded[name]:,} bytes were asked for; {once:,} would do{times}"
                return Diagnosis(what, f"{words}. The threads of a block share what is in `tile`", _TRAFFIC)
    stored = sum(row.bytes for row in outcome.counters if row.space == "global" and row.operation != "load")
    needed = 2 * key_length * row
    if stored > needed:
        words = f"{case.name}: {stored:,} bytes were written; dK and dV have {needed:,}"
        return Diagnosis("more than dK and dV is written to global memory", words, _WALK)
    return None


def cases(generator: torch.Generator, python: Mapping[str, Tensor]) -> list[Case]:
    """Fresh inputs for each part. Sizes, places and scales are drawn, so that no number in a kernel fits them."""
    make, number = partial(_inputs, generator), partial(between, generator)
    head_dim = 8 * (1, 2, 3, 5, 6, 7, 9, 10, 12, 16)[number(0, 9)]
    scale, other_scale = number(20, 30) / 100, number(35, 60) / 100
    square, shift = number(34, 47), number(3, 13)
    more = {"batch": 2, "heads": number(2, 3)}
    return [
        _case("dv", make(number(33, 47), number(33, 47)), judged="dV"),
        _case("dv", _one_hot(generator, number(33, 47), number(17, 31)), scale=scale, judged="dV", explain=_weights),
        _case("dk", make(number(33, 47), number(17, 31), "offset on V"), judged="dK"),
        _case("dk", make(number(33, 47), number(17, 31), "planted"), judged="dK"),
        _case("dk", make(number(17, 31), number(33, 47), heads=1), scale=other_scale, judged="dK"),
        _case("large", _far(generator, number(33, 47), number(17, 31)), scale=0.25),
        _case("large", make(number(17, 31), number(33, 47), "large logits", heads=1)),
        _case("causal", _one_hot(generator, square, square), is_causal=True, explain=_weights),
        _case("causal", make(square, square, "planted", is_causal=True), is_causal=True),
        _case("unequal", make(number(17, 31), number(49, 63), **more)),
        _case("unequal", _one_hot(generator, square, square + shift), is_causal=True, explain=_weights),
        _case("unequal", _one_hot(generator, square, square - shift), is_causal=True, explain=_weights),
        _case("unequal", _one_hot(generator, number(50, 60), number(20, 30)), is_causal=True, explain=_weights),
        _case("lengths", make(1, 1, **more), judged="dV"),  # with one key P is 1 and dK is 0, whatever the scale
        _case("lengths", make(1, number(2, 5), **more)),
        _case("lengths", make(number(2, 7), number(2, 7), head_dim=64)),
        _case("lengths", make(number(17, 31), number(9, 15), head_dim=head_dim)),
        _case("traffic", make(number(33, 47), 32), review=_traffic),
        _case(
            "clean",
            make(number(33, 40), number(41, 47), is_causal=True, heads=1),
            is_causal=True,
            must_be_clean=True,
            compare=_written,
        ),
    ]


def experiments(generator: torch.Generator) -> list[Case]:
    """What tells mistakes apart that may look alike in the cases."""
    make, number = partial(_inputs, generator), partial(between, generator)
    return [
        _case("weights", _one_hot(generator, number(33, 47), number(33, 47)), explain=_weights),
        _case("whole", make(48, 32)),
        _case("heads", make(number(17, 31), number(17, 31), batch=2, heads=3)),
    ]


# ---------------------------------------------------------------------------------------------- known mistakes

Hide = Callable[[Tensor, Tensor, int, int, bool], Tensor]  # (i, j, L_q, L_k, is_causal) -> bool [queries, keys]
Rows = Callable[[Tensor, Tensor], Tensor]  # (i, j) -> the query whose LSE or Δ is taken
Product = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]  # (P, dS, Q, dO) -> a gradient


def _hidden(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i + key_length - query_length)


def _hidden_past(distance: int) -> Hide:
    """Keys are hidden from this many past a query's own one on."""
    return lambda i, j, query_length, key_length, is_causal: is_causal & (j >= i + distance + key_length - query_length)


def _nothing(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return torch.zeros(len(i), j.shape[1], dtype=torch.bool)


def _always(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return j > i + key_length - query_length


def _top_left(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i)


def _wrong_sign(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i + query_length - key_length)


def _other_side(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j < i + key_length - query_length)


def _queries_of_tile(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j > i % B_R + key_length - query_length)


def _keys_of_block(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    return is_causal & (j % B_C > i + key_length - query_length)


def _tiles_unshifted(i: Tensor, j: Tensor, query_length: int, key_length: int, is_causal: bool) -> Tensor:
    skipped = j // B_C * B_C > i // B_R * B_R + B_R - 1
    return is_causal & ((j > i + key_length - query_length) | skipped)


def _but(counts: Callable[[Tensor, int], Tensor]) -> Hide:
    """Besides, queries of which `counts(i, L_q)` is false."""
    return lambda i, j, query_length, key_length, is_causal: (
        _hidden(i, j, query_length, key_length, is_causal) | ~counts(i, query_length)
    )


def _divided(S: Tensor, LSE: Tensor) -> Tensor:
    return (torch.exp(S.float()) / torch.exp(LSE.float())).double()


@dataclass(frozen=True)
class Way:
    """How a kernel works; as it stands, the right one.

    of_head_0: the inputs that every head reads of head 0. scale, end_scale, dV_scale: of S, dK and dV, from the
    argument and D. columns: where those of Q and K end that S is made of. hide, hide_dS: which pairs have P = 0, and
    dS = 0 where that differs. fill: the score of a hidden pair, if P is made of it. LSE_row, delta_row: whose LSE and Δ
    a pair takes. stale: the inputs whose rows past the end hold those of the tile before. turned: which of "P dS" are
    read [query][key] though they were written [key][query]. own: whether a lane adds up the queries alone that it has
    scored. side_by_side: whether a lane's columns are taken for neighbours when they are written. swapped: dK and dV.
    """

    of_head_0: str = ""
    scale: Callable[[float, int], float] = lambda scale, head_dim: scale
    end_scale: Callable[[float, int], float] = lambda scale, head_dim: scale
    dV_scale: Callable[[float, int], float] = lambda scale, head_dim: 1.0
    columns: int | None = None
    weights: Callable[[Tensor, Tensor], Tensor] = lambda S, LSE: torch.exp(S - LSE)
    hide: Hide = _hidden
    hide_dS: Hide | None = None
    fill: float | None = None
    LSE_row: Rows = lambda i, j: i
    delta_row: Rows = lambda i, j: i
    stale: str = ""
    dP: Callable[[Mapping[str, Tensor]], Tensor] = lambda read: read["dO"] @ read["V"].mT
    dS: Callable[[Tensor, Tensor, Tensor], Tensor] = lambda P, dP, delta: P * (dP - delta)
    turned: str = ""
    dV: Product = lambda P, dS, Q, dO: P.mT @ dO
    dK: Product = lambda P, dS, Q, dO: dS.mT @ Q
    own: bool = False
    side_by_side: bool = False
    swapped: bool = False


def _padded(x: Tensor, rows: int, stale: bool) -> Tensor:
    """[B, H, L, ...] with `rows` rows: past the end zeros, or what the tile before left there."""
    end = x.shape[2]
    more = torch.zeros(*x.shape[:2], rows - end, *x.shape[3:], dtype=x.dtype)
    if stale and end > B_R:
        more = x[:, :, end - B_R : rows - B_R]
    return torch.cat((x, more), dim=2)


def _gradients(case: Case, way: Way) -> dict[str, Tensor]:
    """dK and dV as backward_tiles.cu computes them, in float64."""
    is_causal, scale = bool(case.facts["is_causal"]), float(case.facts["scale"])
    query_length, key_length, head_dim = case.inputs["Q"].shape[2], case.inputs["K"].shape[2], case.inputs["Q"].shape[3]
    queries, keys = (costs.ceil_div(n, B_R) * B_R for n in (query_length, key_length))
    read = {}
    for name, x in case.inputs.items():
        of_head = x[:1, :1].expand_as(x) if name in way.of_head_0.split() else x
        rows = keys if name in ("K", "V") else queries
        read[name] = _padded(of_head.double(), rows, name in way.stale.split())
    i, j = torch.arange(queries)[:, None], torch.arange(keys)[None, :]
    LSE, delta = (
        read[name][:, :, row(i, j).clamp(0, queries - 1).expand(queries, keys)]
        for name, row in (("LSE", way.LSE_row), ("delta", way.delta_row))
    )
    S = way.scale(scale, head_dim) * (read["Q"][..., : way.columns] @ read["K"][..., : way.columns].mT)
    hidden = way.hide(i, j, query_length, key_length, is_causal)
    if way.fill is None:
        P = way.weights(S, LSE).masked_fill(hidden, 0.0)
    else:
        P = way.weights(S.masked_fill(hidden, way.fill), LSE)
    P_of_dS = P
    if way.hide_dS is not None:
        P_of_dS = way.weights(S, LSE).masked_fill(way.hide_dS(i, j, query_length, key_length, is_causal), 0.0)
    dS = way.dS(P_of_dS, way.dP(read), delta)
    P, dS = (_turned(x) if name in way.turned.split() else x for name, x in (("P", P), ("dS", dS)))
    Q, dO = read["Q"], read["dO"]
    made = {"dK": way.dK(P, dS, Q, dO), "dV": way.dV(P, dS, Q, dO)}
    if way.own:
        for lane in range(LANES):
            mine = slice(lane, None, LANES)
            part = P[:, :, mine], dS[:, :, mine], Q[:, :, mine], dO[:, :, mine]
            made["dK"][..., mine], made["dV"][..., mine] = way.dK(*part)[..., mine], way.dV(*part)[..., mine]
    made["dK"] = way.end_scale(scale, head_dim) * made["dK"]
    made["dV"] = way.dV_scale(scale, head_dim) * made["dV"]
    if way.side_by_side:
        made = {name: x.unflatten(-1, (-1, LANES)).transpose(-1, -2).flatten(-2) for name, x in made.items()}
    if way.swapped:
        made = {"dK": made["dV"], "dV": made["dK"]}
    return {name: x[:, :, :key_length] for name, x in made.items()}


def _turned(x: Tensor) -> Tensor:
    """Each tile of 16 queries and 16 keys transposed in its place."""
    tiles = x.unflatten(-1, (-1, B_C)).unflatten(-3, (-1, B_R))
    return tiles.transpose(-1, -3).flatten(-2).flatten(-3, -2)


def _remembered(way: Way, case: Case) -> dict[str, Tensor] | None:
    """`_gradients`, once for each case: the grader asks before the experiments, and after."""
    if case.part == "clean":
        return None
    known: dict[int, dict[str, Tensor]] = case.facts["simulated"]
    if id(way) not in known:
        known[id(way)] = _gradients(case, way)
    return known[id(way)]


def _mistake(name: str, detail: str, read_again: str, *ways: Mapping[str, Any]) -> tuple[Mistake, ...]:
    """One mistake, in each of the ways in which a kernel may make it: fields of `Way`."""
    diagnosis = Diagnosis(name, detail, read_again)
    return tuple(Mistake(diagnosis, partial(_remembered, Way(**way))) for way in ways)


def _one_over_root(scale: float, head_dim: int) -> float:
    return head_dim**-0.5


_DELTA_WRONG = "the Δ of query i belongs to row i of dS: tile.delta[row], loaded from delta[i0 + row]"
_LSE_WRONG = "the LSE of query i belongs to row i of S: tile.LSE[row], loaded from LSE[i0 + row]"
_OTHER_ROWS: tuple[Rows, ...] = (
    lambda i, j: i % B_R,
    lambda i, j: torch.zeros_like(i),
    lambda i, j: i // B_R * B_R,
    lambda i, j: j,
    lambda i, j: i // B_R * B_R + j % B_C,
    lambda i, j: i + 1,
)

MISTAKES = (
    *_mistake(
        "the scale is missing in dK",
        "S = scale · Q Kᵀ, so each step back from S to K takes the factor too: dK = scale · dSᵀ Q",
        _FORMULAS,
        {"end_scale": lambda scale, head_dim: 1.0},
    ),
    *_mistake(
        "the scale is applied twice in dK",
        "dK = scale · dSᵀ Q, with scale once: on the way, or at the end",
        _FORMULAS,
        {"end_scale": lambda scale, head_dim: scale**2},
    ),
    *_mistake(names.SCALE_MISSING, "S = scale · Q Kᵀ; here S = Q Kᵀ", _SCALE,
              {"scale": lambda scale, head_dim: 1.0},
              {"scale": lambda scale, head_dim: 1.0, "end_scale": lambda scale, head_dim: 1.0}),
    *_mistake(names.SCALE_TWICE, "S = scale · Q Kᵀ, with scale once", _SCALE,
              {"scale": lambda scale, head_dim: scale**2}),
    *_mistake(
        names.SCALE_NOT_THE_ARGUMENT,
        "the caller may want another scale than 1/√d: it is an argument of the kernel",
        _SCALE,
        {"scale": _one_over_root},
        {"scale": _one_over_root, "end_scale": _one_over_root},
        {"end_scale": _one_over_root},
    ),
    *_mistake(
        "Δ is forgotten in dS",
        "a weight can rise only if the others of its row fall: dS = P ∘ (dP − Δ), and here it is P ∘ dP",
        _FORMULAS,
        {"dS": lambda P, dP, delta: P * dP},
    ),
    *_mistake(
        "Δ is added, not subtracted",
        "dS = P ∘ (dP − Δ)",
        _FORMULAS,
        {"dS": lambda P, dP, delta: P * (dP + delta)},
    ),
    *_mistake("dS has the wrong sign", "dS = P ∘ (dP − Δ); here it is P ∘ (Δ − dP)", _FORMULAS,
              {"dS": lambda P, dP, delta: P * (delta - dP)}),
    *_mistake("dS lacks the factor P", "dS = P ∘ (dP − Δ): a key without weight has no part in it", _FORMULAS,
              {"dS": lambda P, dP, delta: dP - delta}),
    *_mistake("Δ is not multiplied by P", "dS = P ∘ (dP − Δ): the bracket first", _FORMULAS,
              {"dS": lambda P, dP, delta: P * dP - delta}),
    *_mistake("dS has the factor P twice", "dS = P ∘ (dP − Δ)", _FORMULAS,
              {"dS": lambda P, dP, delta: P * P * (dP - delta)}),
    *_mistake(
        "dP is made with K in place of V",
        "O = P V, so dP = dO Vᵀ",
        _FORMULAS,
        {"dP": lambda read: read["dO"] @ read["K"].mT},
    ),
    *_mistake("dP is made with Q in place of dO", "O = P V, so dP = dO Vᵀ", _FORMULAS,
              {"dP": lambda read: read["Q"] @ read["V"].mT}),
    *_mistake(
        "dP lacks the product with Vᵀ",
        "dP = dO Vᵀ: for each pair the product of two rows; here the numbers of dO are only added up",
        _FORMULAS,
        {"dP": lambda read: read["dO"].sum(dim=-1, keepdim=True).expand(-1, -1, -1, read["V"].shape[2])},
    ),
    *_mistake("dV is made of dS in place of P", "dV = Pᵀ dO", _FORMULAS,
              {"dV": lambda P, dS, Q, dO: dS.mT @ dO}),
    *_mistake("dV is made of Q in place of dO", "dV = Pᵀ dO", _FORMULAS,
              {"dV": lambda P, dS, Q, dO: P.mT @ Q}),
    *_mistake("dK is made of P in place of dS", "dK = scale · dSᵀ Q", _FORMULAS,
              {"dK": lambda P, dS, Q, dO: P.mT @ Q}),
    *_mistake("dK is made of dO in place of Q", "dK = scale · dSᵀ Q", _FORMULAS,
              {"dK": lambda P, dS, Q, dO: dS.mT @ dO}),
    *_mistake("dK and dV are swapped", "dK takes dSᵀ Q and dV takes Pᵀ dO", _SPEC, {"swapped": True}),
    *_mistake("dV has the factor scale", "dV = Pᵀ dO; only dK has it", _FORMULAS,
              {"dV_scale": lambda scale, head_dim: scale}),
    *_mistake(
        "P is not turned",
        "a block owns keys: tile.P[key][row] is written and read in this order, Pᵀ and dSᵀ",
        _WALK,
        {"turned": "P dS"},
        {"turned": "P"},
        {"turned": "dS"},
    ),
    *_mistake(
        "the LSE is not subtracted",
        "P = exp(S − LSE): the weights of a row must sum to 1",
        _LSE,
        {"weights": lambda S, LSE: torch.exp(S)},
    ),
    *_mistake(
        "exp(S) is divided by exp(LSE)",
        "right on paper, but exp overflows fp32 above 88.7 and is 0 below −103: exp(S − LSE)",
        _OVERFLOW,
        {"weights": _divided},
    ),
    *_mistake(
        names.LSE_BASE_2,
        "LSE is a natural logarithm: exp, or exp2 of (S − LSE) · log2(e)",
        _LSE,
        {"weights": lambda S, LSE: torch.exp2(S - LSE)},
        {"weights": lambda S, LSE: torch.exp2(S / math.log(2) - LSE)},
    ),
    *_mistake("the LSE of another query is subtracted", _LSE_WRONG, _LSE,
              *({"LSE_row": row} for row in _OTHER_ROWS),
              *({"LSE_row": row, "delta_row": row} for row in _OTHER_ROWS)),
    *_mistake("the Δ of another query is subtracted", _DELTA_WRONG, _FORMULAS,
              *({"delta_row": row} for row in _OTHER_ROWS)),
    *_mistake(names.OWN_KEY_HIDDEN, "query i sees j <= i + L_k − L_q, itself included", _CAUSAL,
              {"hide": _hidden_past(0)}),
    *_mistake(names.NEXT_KEY_SEEN, "query i sees j <= i + L_k − L_q, and no key behind it", _CAUSAL,
              {"hide": _hidden_past(2)}),
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
    *_mistake(
        "P is not masked",
        "Q and K know nothing of the mask: P = 0 for j > i + L_k − L_q, before dV and dS take it",
        _CAUSAL,
        {"hide": _nothing},
    ),
    *_mistake("hidden pairs count in dK", "P of a hidden pair is 0, and so is its dS", _CAUSAL,
              {"hide_dS": _nothing}),
    *_mistake("hidden pairs count in dV", "P of a hidden pair is 0, and not its dS alone", _CAUSAL,
              {"hide": _nothing, "hide_dS": _hidden}),
    *_mistake(names.HIDDEN_IS_ZERO, "exp(0 − LSE) is not 0: a hidden pair has P = 0", _CAUSAL, {"fill": 0.0}),
    *_mistake("P of a hidden pair is 1", "P of a hidden pair is 0", _CAUSAL,
              {"weights": lambda S, LSE: torch.exp(S - torch.where(torch.isneginf(S), S, LSE)), "fill": -math.inf}),
    *_mistake(names.MASK_UNASKED, "with is_causal = 0 every query sees every key",
              _CAUSAL, {"hide": _always}),
    *_mistake(names.EARLIER_KEYS_HIDDEN, "query i sees j <= i + L_k − L_q", _CAUSAL,
              {"hide": _other_side}),
    *_mistake("the mask counts queries from the first of the tile", "a query's own number is i0 plus its row", _CAUSAL,
              {"hide": _queries_of_tile}),
    *_mistake("the mask counts keys from the first of the block", "a key's own number is blockIdx.x · 16 + key",
              _CAUSAL, {"hide": _keys_of_block}),
    *_mistake(
        names.SKIPPING_UNSHIFTED,
        "a query sees keys up to its number plus L_k − L_q: the mask knows that, the skipping does not",
        _CROSS,
        {"hide": _tiles_unshifted},
    ),
    *_mistake(
        names.LAST_TILE_LEFT_OUT,
        "the loop over tiles ends at L_q, not at the last multiple of 16",
        _WALK,
        {"hide": _but(lambda i, length: i < length // B_R * B_R)},
    ),
    *_mistake("the last query is left out", "there are queries 0 to L_q − 1, and the last of them counts", _WALK,
              {"hide": _but(lambda i, length: i != length - 1)}),
    *_mistake(
        "the sums start anew with each tile of queries",
        "dK_j and dV_j are sums over all queries: only the last tile counts here",
        _WALK,
        {"hide": _but(lambda i, length: i // B_R == (length - 1) // B_R)},
    ),
    *_mistake("dK_j and dV_j are set, not added to", "they are sums over all queries: only the last one counts here",
              _WALK,
              {"hide": _but(lambda i, length: i == costs.ceil_div(length, B_R) * B_R - 1)}),
    *_mistake("only the first tile of queries counts", "the loop walks over all tiles: i0 = 0, 16, 32, …", _WALK,
              {"hide": _but(lambda i, length: i < B_R)}),
    *_mistake(
        "rows past the end hold the tile before",
        "the last tile may be ragged: past L_q there must be zeros, else its old queries count twice",
        _WALK,
        *({"stale": which} for which in ("Q dO LSE delta", "Q dO", "dO", "dO LSE delta", "Q dO delta", "Q dO LSE")),
    ),
    *_mistake(
        "each lane adds only its own queries",
        "a lane has its own columns of dK and dV, and for them it needs all 16 queries of the tile, by way of tile.P "
        "and tile.dS",
        _PIECES,
        {"own": True},
    ),
    *_mistake("the columns of a lane stand in two orders",
              "what a lane keeps at place c is column lane + c · 8: where it is added, and where it is written", _SPEC,
              {"side_by_side": True}),
    *_mistake(names.FIRST_32_COLUMNS, "D is a compile option", _SPEC, {"columns": 32}),
    *_mistake(names.LAST_COLUMN_LEFT_OUT, "a product of rows has D terms", _SPEC,
              {"columns": -1}),
    *_mistake(names.HEAD_ZERO_READ, "each head of each sequence has its own rows", _SPEC,
              {"of_head_0": "Q K V dO LSE delta"}, {"of_head_0": "Q dO LSE delta"}, {"of_head_0": "K V"}),
    *(
        mistake
        for name in ("Q", "K", "V", "dO", "LSE", "delta")
        for mistake in _mistake(f"{names.HEAD_ZERO_READ} of {name}", "each head of each sequence has its own rows",
                                _SPEC, {"of_head_0": name})
    ),
)  # fmt: skip

FINDINGS = {
    "synccheck": Diagnosis(
        names.NOT_ALL_ARRIVE,
        read_again=READING_A_FINDING,
    )
}


# ---------------------------------------------------------------------------------------------- questions

_LENGTH, _HEAD_DIM = 4096, 64
_BACKWARD = costs.attention_flops(1, 1, _LENGTH, _LENGTH, _HEAD_DIM, backward=True) / 1e9


def _query_mib(block_keys: int) -> float:
    """MiB of Q and dO, fp32, that the blocks of one head ask for."""
    return costs.ceil_div(_LENGTH, block_keys) * 2 * _LENGTH * _HEAD_DIM * 4 / 2**20


QUESTIONS = (
    Question(
        "query_mib",
        1,
        "MiB of Q and dO that the blocks of one head ask for, L = 4096, D = 64",
        _query_mib(B_C),
        unit="MiB",
        misconceptions=(
            (_query_mib(_LENGTH), "Q and dO are read once for each tile of keys, not once"),
            (_query_mib(B_C) / 2, "both Q and dO are read, in fp32"),
            (_query_mib(1), "a tile of queries serves all 16 keys of the block"),
            (_query_mib(128), "a block has 128 threads, but 16 keys"),
            (_query_mib(B_C) * 2, "there are L / 16 tiles of keys, and 4 bytes in an fp32 number"),
        ),
        read_again=_TRAFFIC,
    ),
    Question(
        "gflop",
        1,
        "GFLOP of the products of this kernel for one head, not causal, L = 4096, D = 64",
        _BACKWARD * 4 / 5,
        unit="GFLOP",
        misconceptions=(
            (_BACKWARD, "of the five products of the backward pass, dQ = dS K is another kernel's"),
            (_BACKWARD * 2 / 5, "there are four products, S, dP, dV and dK, and a multiply-add counts 2"),
            (_BACKWARD * 3 / 5, "S is computed again: with dP, dV and dK there are four products"),
        ),
        read_again=_WALK,
    ),
)

EXERCISE = Exercise(
    id="03_flash_attention_v2/backward_tiles",
    title="dK and dV, tile by tile",
    difficulty=4,
    importance=4,
    parts=PARTS,
    kernels=("backward_tiles",),
    cases=cases,
    mistakes=MISTAKES,
    experiments=experiments,
    findings=FINDINGS,
    questions=QUESTIONS,
    cells=("answers",),
)
