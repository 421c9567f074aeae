"""What "correct" means in this course, and inputs that expose wrong kernels.

An output is compared with the float64 reference. It must be finite everywhere, and its largest error may be at most
twice that of the same computation in plain torch and the same dtype (gradients: three times), or a floor of 1e-5
(fp32), 1e-3 (fp16), 8e-3 (bf16) times `max(1, max |reference|)`, whichever is more. A log-sum-exp must be within 2e-3
relative. Rows without keys must be exactly 0, their log-sum-exp exactly minus infinity. flash-attention's own tests
work this way. In E4M3 an error of single numbers says little: there the root of the mean square counts, and may be at
most 1.5 times that of plain torch with weights rounded to E4M3.

Small random inputs prove little: with N(0, 0.01), `mean(V)` and even zeros pass. So the cases here have peaked weights
on planted keys, logits up to ±50 and beyond what exp can hold, a large offset on V, ragged and tiny lengths, and
outputs that start as NaN, so that an element that was never written shows.
"""

import inspect
import math
import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from course_utils import reference

FLOORS = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
OUTPUT_FACTOR, GRADIENT_FACTOR, LSE_TOLERANCE = 2.0, 3.0, 2e-3
E4M3_FACTOR = 1.5
# Sums of 8-bit products keep 14 bits on Hopper: each of four steps of a score may lose one of the last.
E4M3_SUM_ERROR = 4 * 2.0**-13
TORCH_RUNS = 8

LENGTHS = (1, 3, 63, 64, 65, 113, 200, 257)
UNEQUAL_LENGTHS = ((1, 3), (3, 1), (63, 65), (65, 63), (113, 200), (200, 113), (64, 257), (257, 64), (1, 257), (257, 1))
HEAD_DIMS = (32, 64, 128)
KINDS = ("normal", "planted", "large logits", "overflowing exp", "offset on V")


# ---------------------------------------------------------------------------------------------- one comparison


class ErrorReport(NamedTuple):
    """Outcome of one comparison; `str()` gives one line.

    Attributes:
        name: what was compared, such as "out" or "dk".
        max_error: largest |output − reference|; NaN or infinite if the output is not finite.
        torch_error: the same for plain torch in the same dtype, the worst of the runs that were needed; None where the
            rule does not use it.
        allowed: the largest error that passes.
        problem: empty when it passed, else what is wrong, in words.
        measure: what the errors are, if not the largest.
    """

    name: str
    max_error: float
    torch_error: float | None
    allowed: float
    problem: str
    measure: str = "max error"

    @property
    def passed(self) -> bool:
        """Whether the output is correct."""
        return not self.problem

    def __str__(self) -> str:
        torch_error = "" if self.torch_error is None else f", torch in the same dtype {self.torch_error:.2e}"
        verdict = "ok" if self.passed else f"WRONG ({self.problem})"
        return f"{self.name}: {verdict}, {self.measure} {self.max_error:.2e}, allowed {self.allowed:.2e}{torch_error}"


def error_report(
    output: Tensor,
    expected: Tensor,
    same_dtype: Tensor | Iterable[Tensor] | None = None,
    *,
    factor: float = OUTPUT_FACTOR,
    empty_rows: Tensor | None = None,
    name: str = "out",
) -> ErrorReport:
    """Compare an output (or gradient) with the float64 reference by the rule at the head of this file.

    Args:
        output: what the kernel gave; fp32, fp16 or bf16.
        expected: the reference, float64, same shape, finite.
        same_dtype: plain torch in the dtype of `output`, or several such runs of which the worst counts: they are
            taken one by one, until the output is within what is allowed: none where it is within the floor. None
            leaves only the floor.
        factor: how many times the error of `same_dtype` is allowed (2 for outputs, 3 for gradients).
        empty_rows: bool `[L_q]`, True for rows that see no key: there `output[..., row, :]` must be exactly 0.
        name: what the report calls it.

    Raises:
        TypeError, ValueError: dtype or shape that cannot be compared (an error of the caller, not of the numbers).
    """
    if output.dtype not in FLOORS:
        raise TypeError(f"output has dtype {output.dtype}; it must be one of {', '.join(map(str, FLOORS))}")
    if output.shape != expected.shape:
        raise ValueError(f"output has shape {list(output.shape)}; the reference has {list(expected.shape)}")
    expected = expected.detach().to(output.device, torch.float64)
    error = (output.detach().double() - expected).abs()
    max_error = error.max().item()  # torch's max is NaN as soon as one element is
    torch_errors: list[float] = []
    allowed = FLOORS[output.dtype] * max(1.0, expected.abs().max().item())
    if isinstance(same_dtype, Tensor):
        same_dtype = [same_dtype]
    elif max_error <= allowed:
        same_dtype = None
    for run in same_dtype or ():
        torch_errors.append((run.to(expected.device, torch.float64) - expected).abs().max().item())
        if allowed < torch_errors[-1] * factor < math.inf:  # otherwise, and for NaN, `allowed` stays
            allowed = torch_errors[-1] * factor
        far_off = not max_error < 10 * allowed  # no order of adding explains that
        if max_error <= allowed or (far_off and len(torch_errors) >= TORCH_RUNS):
            break

    finite = torch.isfinite(output)
    problem = ""
    if not finite.all():
        problem = f"{_count(~finite)} not finite, the first at {_first(~finite)}"
    elif empty_rows is not None and (stray := output[..., empty_rows.to(output.device), :] != 0).any():
        problem = f"{_count(stray)} not 0 in rows that see no key"
    elif not max_error <= allowed:
        problem = f"{_count(error > allowed)} off, the worst at {_first(error == error.max())}"
    return ErrorReport(name, max_error, max(torch_errors, default=None), allowed, problem)


def rms_report(
    output: Tensor, expected: Tensor, rounded: Tensor, unit: Tensor, *, empty_rows: Tensor, name: str = "out"
) -> ErrorReport:
    """Compare an output `[B, H, L, d]` that was computed in E4M3 with the float64 reference by the rule at the head of
    this file.

    Args:
        rounded: the same in plain torch, with weights rounded to E4M3.
        unit: what an error of each head is counted in, `[B, H]`: else heads with a small scale would not count.
        empty_rows: as for `error_report`.
    """
    expected, unit = expected.to(output.device), unit.double()[..., None, None]

    def error(other: Tensor) -> float:
        return ((other.double() - expected) / unit).square().mean().sqrt().item()

    ours, theirs = error(output), error(rounded)
    finite = torch.isfinite(output)
    problem = ""
    if not finite.all():
        problem = f"{_count(~finite)} not finite, the first at {_first(~finite)}"
    elif (stray := output[..., empty_rows.to(output.device), :] != 0).any():
        problem = f"{_count(stray)} not 0 in rows that see no key"
    elif not ours <= E4M3_FACTOR * theirs:
        problem = "the root of the mean square"
    return ErrorReport(name, ours, theirs, E4M3_FACTOR * theirs, problem, "rms error")


def lse_report(lse: Tensor, expected: Tensor, *, more: Tensor | None = None, name: str = "lse") -> ErrorReport:
    """Compare a log-sum-exp, fp32 `[B, H, L_q]`, with the reference: within `2e-3 · max(1, |reference|)`, and minus
    infinity exactly where the reference has it. The report's errors are relative in this sense. more: an absolute error
    that is allowed besides, for each row."""
    if lse.dtype != torch.float32:
        raise TypeError(f"lse has dtype {lse.dtype}; it must be torch.float32")
    if lse.shape != expected.shape:
        raise ValueError(f"lse has shape {list(lse.shape)}; the reference has {list(expected.shape)}")
    expected = expected.detach().to(lse.device, torch.float64)
    empty = expected == -torch.inf
    error = (lse.detach().double() - expected).abs() - (0.0 if more is None else more.to(expected.device))
    relative = error.clamp(min=0.0) / expected.abs().clamp(min=1.0)
    relative = relative.masked_fill(empty, 0.0)
    max_error = relative.max().item()
    misplaced = (lse == -torch.inf) != empty
    invalid = ~torch.isfinite(lse) & ~empty
    problem = ""
    if misplaced.any():
        where = f"{_count(misplaced)} wrong, the first at {_first(misplaced)}"
        problem = f"minus infinity must mark the rows without keys and no other; {where}"
    elif invalid.any():
        problem = f"{_count(invalid)} not finite, the first at {_first(invalid)}"
    elif not max_error <= LSE_TOLERANCE:
        problem = f"{_count(relative > LSE_TOLERANCE)} off, the worst at {_first(relative == relative.max())}"
    return ErrorReport(name, max_error, None, LSE_TOLERANCE, problem)


@contextmanager
def poisoned_outputs() -> Iterator[None]:
    """Inside, memory from `torch.empty` and its relatives starts as NaN (integers: the largest value), on CPU and GPU.

    An output element that a kernel never writes then fails the check instead of passing with stale numbers. torch's
    settings are put back afterwards.
    """
    fill = torch.utils.deterministic.fill_uninitialized_memory
    mode = torch.get_deterministic_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*deterministic.*", category=UserWarning)
        try:
            torch.utils.deterministic.fill_uninitialized_memory = True
            # use_deterministic_algorithms() sets the same, and imports torch.compile's modules first: 3 s.
            torch.set_deterministic_debug_mode("warn")
            yield
        finally:
            torch.set_deterministic_debug_mode(mode)
            torch.utils.deterministic.fill_uninitialized_memory = fill


# ---------------------------------------------------------------------------------------------- the cases


@dataclass(frozen=True)
class AttentionCase:
    """One set of inputs for an attention operator.

    Attributes:
        kind: one of `KINDS`; see `make_inputs`.
        strided: the inputs are views that are not contiguous, which an operator must copy.
    """

    batch: int
    heads: int
    kv_heads: int
    query_length: int
    key_length: int
    head_dim: int
    is_causal: bool
    kind: str
    scale: float | None = None
    strided: bool = False

    def __str__(self) -> str:
        heads = f"H={self.heads}" if self.heads == self.kv_heads else f"H={self.heads} (key {self.kv_heads})"
        extras = f"{', causal' * self.is_causal}{f', scale={self.scale}' * (self.scale is not None)}"
        return (
            f"B={self.batch} {heads} L_q={self.query_length} L_k={self.key_length} d={self.head_dim}"
            f"{extras}{', strided' * self.strided}, {self.kind}"
        )

    @property
    def empty_rows(self) -> Tensor:
        """bool `[L_q]`, True for rows that see no key."""
        seen = torch.arange(self.query_length) + self.key_length - self.query_length
        return (seen < 0) & self.is_causal


def attention_cases(
    *, full: bool = False, enable_gqa: bool = False, head_dims: tuple[int, ...] = HEAD_DIMS
) -> list[AttentionCase]:
    """The cases every attention operator is checked with.

    Every length of `LENGTHS` and `UNEQUAL_LENGTHS` occurs with and without the causal mask; head dim, kind of input,
    B and H, scale and strides rotate through a few dozen cases, every pair of mask, head dim and kind among them:
    seconds on the emulator.
    `full=True` takes every length with every mask, head dim and kind instead (540 cases): for a GPU.
    """
    shapes = ((2, 2), (1, 3), (3, 1)) if not enable_gqa else ((2, 4), (1, 6), (3, 2))
    lengths = [(length, length) for length in LENGTHS] + list(UNEQUAL_LENGTHS)
    if full:
        chosen = [
            (pair, causal, d, kind) for pair in lengths for causal in (False, True) for d in head_dims for kind in KINDS
        ]
    else:
        pairs = [(pair, causal) for causal in (False, True) for pair in lengths]
        chosen = [
            (pair, causal, head_dims[n % len(head_dims)], KINDS[n % len(KINDS)])
            for n, (pair, causal) in enumerate(pairs)
        ]
    cases = []
    for n, ((query_length, key_length), is_causal, head_dim, kind) in enumerate(chosen):
        batch, heads = shapes[n % len(shapes)] if query_length * key_length < 10_000 else (1, shapes[0][1])
        scale = (None, None, None, 0.25)[n % 4]
        kv_heads = heads // 2 if enable_gqa else heads
        cases.append(
            AttentionCase(
                batch, heads, kv_heads, query_length, key_length, head_dim, is_causal, kind, scale, n % 7 == 3
            )
        )
    return cases


def make_inputs(
    case: AttentionCase, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", seed: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Query, key, value and a gradient of the output for one case, the same for a seed on every device.

    All are standard normal, changed according to the kind:

    - "planted": keys are a multiple of one query, which therefore attends to little else. A third sit on the causal
      diagonal, a third one place beyond it where the mask must hide them, a third anywhere. No |logit| exceeds 50.
    - "large logits": scaled so that the largest |logit| is 50.
    - "overflowing exp": besides, the last query of each head is changed so that its largest logit is 100: without
      subtracting the maximum, exp overflows fp32 there.
    - "offset on V": 100 is added to V, so that weights which do not sum to 1 show.
    """
    generator = torch.Generator().manual_seed(seed)

    def normal(heads: int, length: int) -> Tensor:
        return torch.randn(case.batch, heads, length, case.head_dim, generator=generator, dtype=torch.float64)

    query, grad_output = normal(case.heads, case.query_length), normal(case.heads, case.query_length)
    key, value = normal(case.kv_heads, case.key_length), normal(case.kv_heads, case.key_length)
    if case.kind == "planted":
        columns = torch.arange(case.key_length)
        rows = columns - (case.key_length - case.query_length) - columns % 3  # 0: diagonal, 1: one past it, 2: replaced
        anywhere = torch.randint(case.query_length, rows.shape, generator=generator)
        rows = torch.where((columns % 3 == 2) | (rows < 0), anywhere, rows)
        key = 2.0 * query[:, :: case.heads // case.kv_heads][:, :, rows] + 0.5 * key
    scale = case.head_dim**-0.5 if case.scale is None else case.scale
    logits = scale * (query @ key.repeat_interleave(case.heads // case.kv_heads, dim=1).mT)
    to_fifty = 50 / logits.abs().max()
    if case.kind == "planted":
        query *= to_fifty.clamp(max=1.0)
    elif case.kind in ("large logits", "overflowing exp"):
        query *= to_fifty
        if case.kind == "overflowing exp":
            # Turned towards the key of its largest logit: to scale it alone would be too much where all are near 0.
            keys = key.repeat_interleave(case.heads // case.kv_heads, dim=1)
            best = logits[:, :, -1].abs().argmax(dim=-1)[..., None, None].expand(-1, -1, 1, case.head_dim)
            toward = keys.gather(2, best)
            missing = 100 - scale * (query[:, :, -1:] * toward).sum(dim=-1, keepdim=True)
            last = query[:, :, -1:] + missing / (scale * toward.square().sum(dim=-1, keepdim=True)) * toward
            query[:, :, -1:] = last * (100 / (scale * (last @ keys.mT)).abs().amax(dim=-1, keepdim=True))
    elif case.kind == "offset on V":
        value += 100.0
    elif case.kind != "normal":
        raise ValueError(f"case.kind is {case.kind!r}; it must be one of {', '.join(KINDS)}")
    inputs = [tensor.to(dtype).to(device) for tensor in (query, key, value, grad_output)]
    if case.strided:  # as a projection gives them: [B, L, H, d] seen as [B, H, L, d]
        inputs = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in inputs]
    return tuple(inputs)


# ---------------------------------------------------------------------------------------------- checking an operator


def check_attention(
    operator: Callable[..., Tensor],
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
    lse: bool | None = None,
    enable_gqa: bool = False,
    full: bool = False,
    cases: list[AttentionCase] | None = None,
    seed: int | None = None,
) -> list[ErrorReport]:
    """Run an attention operator over the cases and compare with the float64 reference.

    Args:
        operator: called as `operator(query, key, value, is_causal=..., scale=...)`, and with `return_lse=True` or
            `enable_gqa=True` when those are checked; the signatures of `course_utils.operators`.
        device: where the inputs are; "cpu" runs kernels on the emulator.
        dtype: of the inputs; the output must have it too.
        gradients: also check dq, dk and dv by autograd through the operator.
        lse: also check `return_lse=True`; None does so if the operator has that argument.
        enable_gqa: check with fewer key heads than query heads.
        full: every combination instead of a rotation (see `attention_cases`); ignored when `cases` are given.
        cases: None takes `attention_cases(...)`.
        seed: None draws a fresh one; a failure prints it, so that it can be run again.

    Returns:
        the reports of all comparisons, all passed.

    Raises:
        AssertionError: a comparison failed; one line names the case, the seed and the error.
    """
    if lse is None:
        lse = "return_lse" in inspect.signature(operator).parameters
    if cases is None:
        cases = attention_cases(full=full, enable_gqa=enable_gqa)
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    reports = []
    for n, case in enumerate(cases):
        for report in check_case(
            operator, case, device=device, dtype=dtype, gradients=gradients, lse=lse, seed=seed + n
        ):
            if not report.passed:
                raise AssertionError(f"{_name(operator)}, {case}, {dtype}, seed {seed + n}: {report}")
            reports.append(report)
    return reports


def check_case(
    operator: Callable[..., Tensor],
    case: AttentionCase,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    gradients: bool = False,
    lse: bool = False,
    attn_mask: Tensor | None = None,
    seed: int,
) -> list[ErrorReport]:
    """Reports of one case, passed or not; arguments as for `check_attention`.

    attn_mask: bool `[L_q, L_k]` instead of the causal mask, for an operator without `is_causal` that has it built in.
    """
    query, key, value, grad_output = make_inputs(case, dtype=dtype, device=device, seed=seed)
    options, mask, empty_rows = {"scale": case.scale}, {"is_causal": case.is_causal}, case.empty_rows
    if attn_mask is None:
        options |= mask
    else:
        mask, empty_rows = {"attn_mask": attn_mask.to(device)}, ~attn_mask.any(dim=1)
    if case.kv_heads != case.heads:
        options["enable_gqa"] = True
    inputs = [tensor.detach().requires_grad_(gradients) for tensor in (query, key, value)]
    with poisoned_outputs():  # the operator runs first: memory holds no right result yet
        out, out_lse = operator(*inputs, **options, return_lse=True) if lse else (operator(*inputs, **options), None)
        grads = torch.autograd.grad(out, inputs, grad_output) if gradients else ()
    if out.dtype != dtype or out.shape != query.shape:
        got = f"gave {out.dtype} {list(out.shape)}, expected {dtype} {list(query.shape)}"
        return [ErrorReport("out", float("nan"), None, 0.0, got)]

    options |= mask
    expected, expected_lse = reference.attention(query, key, value, **options, return_lse=True)
    runs = _TorchRuns(query, key, value, grad_output if gradients else None, options)
    reports = [error_report(out, expected, runs.of(0), empty_rows=empty_rows)]
    if lse:
        reports.append(lse_report(out_lse, expected_lse))
    if gradients:
        wanted = reference.attention_gradients(query, key, value, grad_output, **options)
        for n, (name, ours, ref) in enumerate(zip(("dq", "dk", "dv"), grads, wanted, strict=True), start=1):
            rows = empty_rows if name == "dq" else None
            reports.append(error_report(ours, ref, runs.of(n), factor=GRADIENT_FACTOR, empty_rows=rows, name=name))
    return reports


def check_e4m3_attention(
    operator: Callable[..., Tensor],
    *,
    device: torch.device | str = "cpu",
    cases: list[AttentionCase],
    seed: int | None = None,
) -> list[ErrorReport]:
    """`check_attention` of an operator on inputs in E4M3, which also takes q_scale, k_scale and v_scale: the inputs of
    the cases, quantised by head. From key head to key head the scales of values grow; the scales of queries grow
    as much as the scales of keys shrink."""
    seed = random.SystemRandom().randrange(2**31) if seed is None else seed
    reports = []
    for n, case in enumerate(cases):
        for report in check_e4m3_case(operator, case, device=device, seed=seed + n):
            if not report.passed:
                raise AssertionError(f"{_name(operator)}, {case}, E4M3, seed {seed + n}: {report}")
            reports.append(report)
    return reports


def check_e4m3_case(
    operator: Callable[..., Tensor], case: AttentionCase, *, device: torch.device | str = "cpu", seed: int
) -> list[ErrorReport]:
    """Reports of one case, passed or not."""
    group = case.heads // case.kv_heads
    steps = ("q_scale", 4.0, case.heads), ("k_scale", 0.25, case.kv_heads), ("v_scale", 1.5, case.kv_heads)
    tensors, scales = [], {}
    for (name, step, heads), tensor in zip(steps, make_inputs(case, device=device, seed=seed), strict=False):
        numbers, scale = reference.quantize_heads(tensor)
        kv_head = torch.arange(heads, device=device) // (heads // case.kv_heads)
        scales[name] = scale * step**kv_head
        tensors.append(numbers.transpose(1, 2).contiguous().transpose(1, 2) if case.strided else numbers)
    options = {"is_causal": case.is_causal, "scale": case.scale}
    if case.kv_heads != case.heads:
        options["enable_gqa"] = True
    with poisoned_outputs():
        out, lse = operator(*tensors, **options, **scales, return_lse=True)
    query, key, _ = tensors
    if out.dtype != torch.bfloat16 or out.shape != query.shape:
        got = f"gave {out.dtype} {list(out.shape)}, expected torch.bfloat16 {list(query.shape)}"
        return [ErrorReport("out", float("nan"), None, 0.0, got)]
    expected, expected_lse = reference.e4m3_attention(*tensors, **options, **scales, return_lse=True)
    rounded = reference.rounded_e4m3_attention(*tensors, **options, **scales)
    unit = scales["v_scale"].repeat_interleave(group, dim=1)
    # The sizes of all products of a score, without their signs.
    q, k = (reference.dequantize_heads(x, scales[s]).abs() for x, s in ((query, "q_scale"), (key, "k_scale")))
    sizes = q @ k.repeat_interleave(group, dim=1).mT * abs(case.head_dim**-0.5 if case.scale is None else case.scale)
    return [
        rms_report(out, expected, rounded, unit, empty_rows=case.empty_rows),
        lse_report(lse, expected_lse, more=E4M3_SUM_ERROR * sizes.amax(dim=-1)),
    ]


class _TorchRuns:
    """Plain torch in the dtype of the inputs: the output, then dq, dk and dv if `grad_output` is given. There are
    `TORCH_RUNS` runs that differ only in the order of the head dimension, and so in rounding, and as many whose
    products are summed in a loop. Each is made when it is first needed.

    Where one key takes all the weight, `dP − D` cancels to nothing but rounding, and a single run may be exact by
    luck; the worst of several is a fair yardstick. A loop is how a simple kernel sums, and less exact than torch's
    library, which adds partial sums.
    """

    def __init__(
        self, query: Tensor, key: Tensor, value: Tensor, grad_output: Tensor | None, options: dict[str, object]
    ) -> None:
        self._inputs, self._grad_output, self._options = (query, key, value), grad_output, options
        self._made: list[list[Tensor]] = []

    def of(self, result: int) -> Iterator[Tensor]:
        """One result, by its place, of each run."""
        for n in range(2 * TORCH_RUNS):
            if n == len(self._made):
                self._made.append(self._run(n))
            yield self._made[n][result]

    def _run(self, n: int) -> list[Tensor]:
        query, grad_output, options = self._inputs[0], self._grad_output, self._options
        order = torch.randperm(query.shape[-1], generator=torch.Generator().manual_seed(n)).to(query.device)
        inputs = [tensor[..., order] for tensor in self._inputs]
        sums = nullcontext() if n < TORCH_RUNS else _SumsInALoop()
        with reference.full_float32(), torch.no_grad(), sums:
            results = [reference.torch_attention(*inputs, **options)]
            if grad_output is not None:
                gradient = grad_output[..., order]
                results += reference.attention_gradients(*inputs, gradient, **options, dtype=query.dtype)
        return [result[..., order.argsort()] for result in results]


class _SumsInALoop(TorchFunctionMode):
    """Inside, matrix products and sums along the last dimension add one number after the other, in fp32 if the inputs
    have 16 bits."""

    PRODUCTS = (torch.Tensor.__matmul__, torch.Tensor.matmul, torch.matmul)

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: Iterable[type],
        args: tuple[Tensor, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        kwargs = kwargs or {}
        if func is torch.Tensor.sum and kwargs == {"dim": -1, "keepdim": True}:
            return _in_a_loop(args[0], torch.ones_like(args[0][..., :1, :]).mT)
        return _in_a_loop(*args) if func in self.PRODUCTS else func(*args, **kwargs)


def _in_a_loop(left: Tensor, right: Tensor) -> Tensor:
    """left @ right, one product after the other."""
    a, b = (factor.to(torch.promote_types(factor.dtype, torch.float32)) for factor in (left, right))
    total = a[..., :1] * b[..., :1, :]
    for n in range(1, a.shape[-1]):
        total.addcmul_(a[..., n : n + 1], b[..., n : n + 1, :])
    return total.to(left.dtype)


def _count(where: Tensor) -> str:
    return f"{int(where.sum())} of {where.numel()} elements"


def _first(where: Tensor) -> tuple[int, ...]:
    """Index of the first True element."""
    return tuple(where.nonzero()[0].tolist())


def _name(operator: Callable[..., Tensor]) -> str:
    return getattr(operator, "__name__", type(operator).__name__)
