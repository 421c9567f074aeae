"""The check itself is checked: right operators pass it, each kind of wrong operator fails it."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_utils import checks, reference

# ---------------------------------------------------------------------------------------------- right operators


def online_softmax_attention(query, key, value, *, is_causal=False, scale=None, return_lse=False):
    """FlashAttention's recurrence over tiles of 16 keys, in fp32: another order of rounding than plain torch."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    q, k, v = query.float(), key.float(), value.float()
    rows, columns = query.shape[2], key.shape[2]
    m = torch.full((*query.shape[:3], 1), -torch.inf)
    total, o = torch.zeros_like(m), torch.zeros_like(q)
    keep = reference.causal_mask(rows, columns) if is_causal else torch.ones(rows, columns, dtype=torch.bool)
    for j in range(0, columns, 16):
        s = (q @ k[:, :, j : j + 16].mT * scale).masked_fill(~keep[:, j : j + 16], -torch.inf)
        m_new = torch.maximum(m, s.amax(dim=-1, keepdim=True))
        shift = m_new.masked_fill(m_new == -torch.inf, 0.0)
        p, correction = torch.exp(s - shift), torch.exp(m - shift)
        total = total * correction + p.sum(dim=-1, keepdim=True)
        o, m = o * correction + p @ v[:, :, j : j + 16], m_new
    out = torch.empty_like(query)
    out.copy_(o / total.masked_fill(total == 0, 1.0))
    return (out, (m + torch.log(total)).squeeze(-1)) if return_lse else out


def sdpa(query, key, value, *, is_causal=False, scale=None, enable_gqa=False):
    mask = reference.causal_mask(query.shape[2], key.shape[2]) if is_causal else None
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=enable_gqa)


OTHER_DTYPE = pytest.mark.exhaustive("float32 here; every operator is checked by the same rule in its own dtypes")


@pytest.mark.parametrize(
    "dtype", [torch.float32, *(pytest.param(one, marks=OTHER_DTYPE) for one in (torch.float16, torch.bfloat16))]
)
def test_online_softmax_passes(dtype):
    reports = checks.check_attention(online_softmax_attention, dtype=dtype)
    assert {report.name for report in reports} == {"out", "lse"}
    assert len(reports) == 2 * len(checks.attention_cases())


THE_MEASURE = pytest.mark.exhaustive("without shared heads torch is what each operator is measured by, in its check")


@pytest.mark.parametrize("enable_gqa", [pytest.param(False, marks=THE_MEASURE), True])
def test_torch_attention_passes_with_gradients(enable_gqa):
    reports = checks.check_attention(reference.torch_attention, gradients=True, enable_gqa=enable_gqa)
    assert {report.name for report in reports} == {"out", "dq", "dk", "dv"}


def test_sdpa_passes():
    checks.check_attention(sdpa)


class FlashBackward(torch.autograd.Function):
    """The recomputing backward pass, in the dtype of the inputs: P = exp(S − LSE), never stored by the forward pass."""

    @staticmethod
    def forward(ctx, query, key, value, is_causal, scale):
        out, lse = online_softmax_attention(query, key, value, is_causal=is_causal, scale=scale, return_lse=True)
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.is_causal, ctx.scale = is_causal, query.shape[-1] ** -0.5 if scale is None else scale
        return out

    @staticmethod
    def backward(ctx, grad_output):
        query, key, value, out, lse = ctx.saved_tensors
        weights = torch.exp(query @ key.mT * ctx.scale - lse[..., None])
        if ctx.is_causal:
            weights = weights.masked_fill(~reference.causal_mask(query.shape[2], key.shape[2]), 0.0)
        row_sum = (grad_output * out).sum(dim=-1, keepdim=True)
        grad_scores = weights * (grad_output @ value.mT - row_sum)
        return ctx.scale * grad_scores @ key, ctx.scale * grad_scores.mT @ query, weights.mT @ grad_output, None, None


def test_recomputed_gradients_pass():
    def operator(query, key, value, *, is_causal=False, scale=None):
        return FlashBackward.apply(query, key, value, is_causal, scale)

    checks.check_attention(operator, gradients=True)


# ---------------------------------------------------------------------------------------------- wrong operators


def mean_of_values(query, key, value, *, is_causal=False, scale=None):
    return value.mean(dim=2, keepdim=True).expand(query.shape).clone()


def zeros(query, key, value, *, is_causal=False, scale=None):
    return torch.zeros_like(query)


def all_nan(query, key, value, *, is_causal=False, scale=None):
    return torch.full_like(query, torch.nan)


def nothing_written(query, key, value, *, is_causal=False, scale=None):
    return torch.empty_like(query)


def last_row_not_written(query, key, value, *, is_causal=False, scale=None):
    out = torch.empty_like(query)
    out[:, :, :-1] = sdpa(query, key, value, is_causal=is_causal, scale=scale)[:, :, :-1]
    return out


def top_left_causal(query, key, value, *, is_causal=False, scale=None):
    return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal, scale=scale)


def ignores_causal(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query, key, value, scale=scale)


def no_scale(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query, key, value, is_causal=is_causal, scale=1.0)


def ignores_scale(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query, key, value, is_causal=is_causal)


def masked(query, key, value, shift, scale):
    """Causal attention whose diagonal is moved by `shift` keys."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    rows, columns = torch.arange(query.shape[2])[:, None], torch.arange(key.shape[2])[None, :]
    keep = columns <= rows + key.shape[2] - query.shape[2] + shift
    scores = (query @ key.mT * scale).masked_fill(~keep, -torch.inf)
    return torch.nan_to_num(torch.softmax(scores, dim=-1)) @ value


def sees_one_key_too_many(query, key, value, *, is_causal=False, scale=None):
    return masked(query, key, value, 1 if is_causal else 10**6, scale)


def misses_the_diagonal(query, key, value, *, is_causal=False, scale=None):
    return masked(query, key, value, -1 if is_causal else 10**6, scale)


def misses_the_last_key(query, key, value, *, is_causal=False, scale=None):
    if key.shape[2] == 1:
        return sdpa(query, key, value, is_causal=is_causal, scale=scale)
    key = key.clone()
    out = masked(query, key, value, 0 if is_causal else 10**6, scale)
    if key.shape[2] % 16:  # the classic: the ragged last tile is cut short by one
        out[:, :, -1:] = sdpa(query[:, :, -1:], key[:, :, :-1], value[:, :, :-1], scale=scale)
    return out


def no_maximum_subtracted(query, key, value, *, is_causal=False, scale=None):
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = scores.masked_fill(~reference.causal_mask(query.shape[2], key.shape[2]), -torch.inf)
    weights = torch.exp(scores)
    total = weights.sum(dim=-1, keepdim=True)
    return weights @ value / total.masked_fill(total == 0, 1.0)


def finite_fill_instead_of_minus_infinity(query, key, value, *, is_causal=False, scale=None):
    """A fully masked row becomes a uniform average."""
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = scores.masked_fill(~reference.causal_mask(query.shape[2], key.shape[2]), -1e9)
    return torch.softmax(scores, dim=-1) @ value


def weights_in_half(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query.half().float(), key.half().float(), value, is_causal=is_causal, scale=scale)


def heads_swapped(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query, key.flip(1), value, is_causal=is_causal, scale=scale)


def wrong_dtype(query, key, value, *, is_causal=False, scale=None):
    return sdpa(query, key, value, is_causal=is_causal, scale=scale).double()


def reads_strided_input_as_contiguous(query, key, value, *, is_causal=False, scale=None):
    def reread(tensor):
        return torch.as_strided(tensor, tensor.shape, torch.empty(tensor.shape).stride())

    return sdpa(reread(query), reread(key), reread(value), is_causal=is_causal, scale=scale)


@pytest.mark.parametrize(
    ("operator", "words"),
    [
        (mean_of_values, "off"),
        (zeros, "off"),
        (all_nan, "not finite"),
        (nothing_written, "not finite"),
        (last_row_not_written, "not finite"),
        (top_left_causal, "off|not finite|not 0"),
        (ignores_causal, "off|not 0"),
        (no_scale, "off"),
        (ignores_scale, "off"),
        (sees_one_key_too_many, "off|not 0"),
        (misses_the_diagonal, "off"),
        (misses_the_last_key, "off"),
        (no_maximum_subtracted, "not finite"),
        (finite_fill_instead_of_minus_infinity, "not 0"),
        (weights_in_half, "off"),
        (heads_swapped, "off"),
        (wrong_dtype, "float64"),
        (reads_strided_input_as_contiguous, "off"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_wrong_operator_fails(operator, words):
    with pytest.raises(AssertionError, match=rf"{operator.__name__}, B=.*seed \d+.*({words})"):
        checks.check_attention(operator)


@pytest.mark.parametrize("kind", checks.KINDS)
@pytest.mark.parametrize("operator", [mean_of_values, zeros, all_nan])
def test_trivial_outputs_fail_on_every_kind_of_input(operator, kind):
    case = checks.AttentionCase(1, 2, 2, 65, 65, 32, False, kind)
    assert not checks.check_case(operator, case, seed=1)[0].passed


@pytest.mark.parametrize("shift", [1, -1])
def test_planted_keys_show_a_mask_that_is_off_by_one(shift):
    def off_by_one_from_row_100(query, key, value, *, is_causal, scale):  # in the first rows any key would show
        out = masked(query, key, value, shift, scale)
        out[:, :, :100] = masked(query, key, value, 0, scale)[:, :, :100]
        return out

    case = checks.AttentionCase(1, 2, 2, 200, 200, 64, True, "planted")
    assert checks.check_case(off_by_one_from_row_100, case, seed=2)[0].max_error > 2


def with_lse(change):
    def operator(query, key, value, *, is_causal=False, scale=None, return_lse=False):
        out, lse = online_softmax_attention(query, key, value, is_causal=is_causal, scale=scale, return_lse=True)
        return out, change(lse)

    return operator


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lse: lse / math.log(2), "off"),  # base 2 instead of natural
        (lambda lse: lse + 0.1, "off"),
        (lambda lse: torch.full_like(lse, torch.nan), "not finite|minus infinity"),
        (lambda lse: lse.masked_fill(lse == -torch.inf, -1e9), "minus infinity"),
        (lambda lse: torch.empty_like(lse), "not finite|minus infinity"),
    ],
)
def test_wrong_lse_fails(change, words):
    with pytest.raises(AssertionError, match=rf"lse: WRONG.*({words})"):
        checks.check_attention(with_lse(change))


class WrongGradient(torch.autograd.Function):
    """Right output and gradients, but for dQ, which is one in a thousand too large."""

    @staticmethod
    def forward(ctx, query, key, value, is_causal, scale):
        ctx.save_for_backward(query, key, value)
        ctx.options = {"is_causal": is_causal, "scale": scale}
        return reference.torch_attention(query, key, value, **ctx.options)

    @staticmethod
    def backward(ctx, grad_output):
        query, key, value = ctx.saved_tensors
        dq, dk, dv = reference.attention_gradients(query, key, value, grad_output, **ctx.options)
        return 1.001 * dq.float(), dk.float(), dv.float(), None, None


def test_wrong_gradient_fails():
    def operator(query, key, value, *, is_causal=False, scale=None):
        return WrongGradient.apply(query, key, value, is_causal, scale)

    checks.check_attention(operator)
    with pytest.raises(AssertionError, match="dq: WRONG"):
        checks.check_attention(operator, gradients=True)


# ---------------------------------------------------------------------------------------------- the comparison


def test_nan_never_passes_whatever_torch_gives():
    expected = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    nan = torch.full((1, 1, 2, 2), torch.nan)
    assert not checks.error_report(nan, expected).passed
    assert not checks.error_report(nan, expected, nan).passed
    assert not checks.error_report(torch.full_like(nan, torch.inf), expected, nan).passed
    far = checks.error_report(torch.ones_like(nan), expected, nan)  # NaN from torch must not widen what is allowed
    assert not far.passed and far.allowed == 1e-5
    far = checks.error_report(torch.ones_like(nan), expected, torch.full_like(nan, torch.inf))
    assert not far.passed and far.allowed == 1e-5


@pytest.mark.parametrize(("dtype", "floor"), [(torch.float32, 1e-5), (torch.float16, 1e-3), (torch.bfloat16, 8e-3)])
def test_allowed_error_is_the_floor_or_twice_that_of_torch(dtype, floor):
    expected = torch.zeros(1, 1, 2, 2, dtype=torch.float64)
    output = torch.zeros(1, 1, 2, 2, dtype=dtype)
    assert checks.error_report(output, expected).allowed == floor
    assert checks.error_report(output, expected, output).allowed == floor
    assert checks.error_report(output, expected + 10, output).allowed == 20
    assert checks.error_report(output, expected + 10).allowed == pytest.approx(10 * floor)
    assert checks.error_report(output, expected + 10, output, factor=3).allowed == 30


def test_the_worst_run_of_torch_counts_and_no_more_are_made_than_it_takes():
    expected, output, taken = torch.full((1, 1, 2, 2), 10.0, dtype=torch.float64), torch.zeros(1, 1, 2, 2), []

    def runs(*errors):
        for error in errors:
            taken.append(error)
            yield (expected - error).float()

    enough = checks.error_report(output, expected, runs(1, 6, 2, 7))
    assert enough.passed and (enough.allowed, enough.torch_error, taken) == (12, 6, [1, 6])
    taken.clear()
    too_far = checks.error_report(output, expected, runs(1, 4, 2))
    assert not too_far.passed and (too_far.allowed, too_far.torch_error, taken) == (8, 4, [1, 4, 2])


def test_report_is_one_line_with_all_figures():
    report = checks.error_report(torch.ones(1, 1, 1, 2), torch.zeros(1, 1, 1, 2, dtype=torch.float64), name="dk")
    assert (
        str(report)
        == "dk: WRONG (2 of 2 elements off, the worst at (0, 0, 0, 0)), max error 1.00e+00, allowed 1.00e-05"
    )


def test_reports_refuse_what_cannot_be_compared():
    with pytest.raises(ValueError, match="output has shape"):
        checks.error_report(torch.zeros(2), torch.zeros(3))
    with pytest.raises(TypeError, match="output has dtype"):
        checks.error_report(torch.zeros(2, dtype=torch.int32), torch.zeros(2))
    with pytest.raises(TypeError, match="lse has dtype"):
        checks.lse_report(torch.zeros(2, dtype=torch.float64), torch.zeros(2))
    with pytest.raises(ValueError, match="lse has shape"):
        checks.lse_report(torch.zeros(2), torch.zeros(3))


def test_poisoned_outputs_start_as_nan_and_torch_is_left_as_found():
    def state():
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,
        )

    before = state()
    with pytest.raises(ZeroDivisionError), checks.poisoned_outputs():
        assert torch.empty(3).isnan().all() and torch.empty_like(torch.ones(2)).isnan().all()
        _ = 1 / 0
    assert state() == before


# ---------------------------------------------------------------------------------------------- the cases


@pytest.mark.parametrize("enable_gqa", [False, True])
def test_rotation_covers_every_length_and_every_pair_of_factors(enable_gqa):
    cases = checks.attention_cases(enable_gqa=enable_gqa)
    lengths = {(n, n) for n in checks.LENGTHS} | set(checks.UNEQUAL_LENGTHS)
    assert {(c.query_length, c.key_length, c.is_causal) for c in cases} == {
        (*pair, causal) for pair in lengths for causal in (False, True)
    }
    for first, second in [("kind", "head_dim"), ("kind", "is_causal"), ("head_dim", "is_causal")]:
        seen = {(getattr(c, first), getattr(c, second)) for c in cases}
        values = [{getattr(c, factor) for c in cases} for factor in (first, second)]
        assert len(seen) == len(values[0]) * len(values[1])
    assert {c.kind for c in cases} == set(checks.KINDS)
    assert any(c.batch > 1 and c.heads > 1 for c in cases)
    assert any(c.empty_rows.any() for c in cases)
    assert {c.scale is None for c in cases} == {c.strided for c in cases} == {True, False}


def test_full_is_the_product_of_all_factors():
    cases = checks.attention_cases(full=True)
    assert len(cases) == (len(checks.LENGTHS) + len(checks.UNEQUAL_LENGTHS)) * 2 * len(checks.HEAD_DIMS) * len(
        checks.KINDS
    )


@pytest.mark.parametrize(("kind", "limit"), [("large logits", 50), ("overflowing exp", 100)])
def test_logits_reach_their_limit(kind, limit):
    for scale in (None, 0.25):
        case = checks.AttentionCase(2, 4, 2, 7, 9, 32, False, kind, scale)
        query, key, *_ = checks.make_inputs(case, seed=3)
        scores = query.double() @ key.double().repeat_interleave(2, dim=1).mT * (32**-0.5 if scale is None else scale)
        assert scores.abs().max().item() == pytest.approx(limit, rel=1e-4)
        assert kind == "large logits" or (scores[:, :, -1].amax(dim=-1) > 99.9).all()


def test_a_logit_near_zero_does_not_make_queries_that_fp16_cannot_hold():
    case = checks.AttentionCase(1, 64, 64, 1, 1, 64, True, "overflowing exp")  # one key: one of 64 logits is near 0
    for seed in range(20):
        query, *_ = checks.make_inputs(case, dtype=torch.float16, seed=seed)
        assert query.abs().max() < 1000


def test_inputs_depend_on_the_seed_alone():
    case = checks.AttentionCase(2, 2, 2, 5, 9, 32, True, "planted", strided=True)
    first, again, other = (checks.make_inputs(case, seed=seed) for seed in (1, 1, 2))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not first[0].is_contiguous()


def test_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"case\.kind is 'zeros'"):
        checks.make_inputs(checks.AttentionCase(1, 1, 1, 1, 1, 32, False, "zeros"), seed=0)


# ---------------------------------------------------------------------------------------------- torch's own runs


def test_torch_is_also_run_with_sums_in_a_loop():
    left, right = torch.randn(2, 3, 40), torch.randn(2, 40, 5)
    with checks._SumsInALoop():
        product, row_sums = left @ right, left.sum(dim=-1, keepdim=True)
    expected, expected_sums = torch.zeros(2, 3, 5), torch.zeros(2, 3, 1)
    for n in range(40):
        expected = torch.addcmul(expected, left[..., n : n + 1], right[..., n : n + 1, :])
        expected_sums = expected_sums + left[..., n : n + 1]
    torch.testing.assert_close((product, row_sums), (expected, expected_sums), rtol=0, atol=0)


@pytest.mark.parametrize(("error", "runs"), [(0.0, 0), (3e-5, 16), (1e-3, 8), (math.nan, 8)])
def test_no_sums_in_a_loop_are_asked_for_where_none_could_explain_the_error(error, runs):
    asked = []
    expected = torch.ones(4, dtype=torch.float64)

    def same_dtype():
        for n in range(2 * checks.TORCH_RUNS):
            asked.append(n)
            yield torch.ones(4)

    report = checks.error_report(torch.full((4,), 1 + error), expected, same_dtype())
    assert (report.passed, len(asked)) == (error == 0, runs)
