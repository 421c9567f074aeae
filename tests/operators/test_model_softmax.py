"""What models add to the softmax, a window, sinks and a softcap, alone and together: right in the dense operators and
under a pattern, forward and backward, and seen to be wrong when broken."""

import dataclasses
import functools
import itertools

import pytest
import torch

from course_utils import checks, patterns, reference
from course_utils.operators import (
    flash_attention_hopper,
    flash_attention_v2,
    sparse_attention,
    sparse_launch,
    sparse_work,
    windowed,
)
from tests.helpers import model_softmax
from tests.helpers.one_of_each import all_on_a_gpu

HALF, BF16 = torch.float16, torch.bfloat16
LENGTHS = ((1, 1), (65, 65), (130, 200), (113, 60), (3, 257), (200, 200))
WINDOWS = (None, 1, 100)
TABLE, BACKWARD = "04_sparse_patterns/range.cu", "04_sparse_patterns/range_backward.cu"
LISTS, LISTS_BACKWARD = "04_sparse_patterns/block_sparse.cu", "04_sparse_patterns/block_sparse_backward.cu"


@pytest.fixture(autouse=True)
def by_portable_kernels(monkeypatch):
    """What a Hopper GPU takes instead, test_sparse_hopper.py has."""
    monkeypatch.setattr(sparse_launch, "takes_wgmma", lambda _: False)


OPTIONS = list(itertools.product((False, True), (None, 5.0, 50.0), WINDOWS))


def in_turn(*options):
    """Every second combination: each option with each of the two others."""
    return OPTIONS.index(options) % 2 == 0


def sinks_of(case, device):
    """Some below and some above the largest score of most rows."""
    return torch.linspace(-3, 6, case.heads, device=device)


def reports_of(operator, case, options, dtype, device, sinks, attn_mask=None):
    """Comparisons of out, lse and all gradients with float64. attn_mask: what the operator has built in."""
    *inputs, grad_out = checks.make_inputs(case, dtype=dtype, device=device, seed=1)
    inputs = [tensor.requires_grad_() for tensor in (*inputs, *([] if sinks is None else [sinks]))]
    options = options | {"scale": case.scale}
    with checks.poisoned_outputs():
        out, lse = operator(
            *inputs[:3], sinks=sinks, return_lse=True, enable_gqa=case.heads != case.kv_heads, **options
        )
        grads = torch.autograd.grad(out, inputs, grad_out)
    options |= {} if attn_mask is None else {"attn_mask": attn_mask}
    found = dict(zip(("out", "dq", "dk", "dv", "dsinks"), (out.detach(), *grads), strict=False))
    _, expected_lse = model_softmax.exact(inputs, **options)
    return [*model_softmax.reports(found, inputs, grad_out, **options), checks.lse_report(lse, expected_lse)]


def assert_right(reports):
    assert not [str(report) for report in reports if not report.passed]


@all_on_a_gpu(
    "with_sinks, softcap, window",
    OPTIONS[1:],  # the first has none of them
    in_turn,
    "`make test` has each of these options with each of the two others",
)
def test_right_alone_and_together(with_sinks, softcap, window, device):
    """Lengths, head dims with their dtypes, and kinds of input in turn."""
    n = OPTIONS.index((with_sinks, softcap, window)) // 2
    head_dim, dtype = ((64, HALF), (128, BF16), (40, HALF))[n % 3 if n % 4 else 1]
    lengths, kind, scale = LENGTHS[n % len(LENGTHS)], checks.KINDS[n % len(checks.KINDS)], (None, 0.3, -0.2)[n // 2 % 3]
    case = checks.AttentionCase(1 + n % 2, 4, (4, 2)[n % 2], *lengths, head_dim, n % 3 > 0, kind, scale)
    sinks = sinks_of(case, device) if with_sinks else None
    options = {"window": window, "softcap": softcap, "is_causal": case.is_causal}
    assert_right(reports_of(flash_attention_v2, case, options, dtype, device, sinks))


CASE = checks.AttentionCase(1, 4, 2, 130, 150, 64, True, "planted", None)
PATTERNS = {
    "documents": patterns.document([60, 7, 83]) & patterns.causal(),
    "equal blocks": patterns.block_diagonal(64),
    "a window": patterns.sliding_window(33),
    "sinks and a window": patterns.streaming(4, 30),
    "BigBird": patterns.bigbird(block=16, global_blocks=1, seed=5),
}


@pytest.mark.parametrize("name", PATTERNS)
def test_right_under_a_pattern(name, device):
    pattern = PATTERNS[name]

    mask = pattern.mask(CASE.query_length, CASE.key_length, device=device)
    attend = functools.partial(under, pattern)
    assert_right(reports_of(attend, CASE, {"softcap": 4.0}, HALF, device, sinks_of(CASE, device), mask))


def under(pattern, query, key, value, **options):
    return sparse_attention(query, key, value, pattern, **options)


@pytest.mark.parametrize(("d", "value_dim"), [(200, 200), (256, 256), (192, 128), (64, 128), (40, 24)])
def test_wide_heads_and_values_of_their_own_width(d, value_dim, device):
    case = dataclasses.replace(CASE, head_dim=max(d, value_dim), kind="large logits")
    query, key, value, grad_out = checks.make_inputs(case, dtype=BF16, device=device, seed=2)
    inputs = [query[..., :d], key[..., :d], value[..., :value_dim]]
    options = {"is_causal": True, "scale": 0.1, "enable_gqa": True, "sinks": sinks_of(case, device)}

    def run(attend, as_wide=False, **more):
        given = [tensor.detach().requires_grad_() for tensor in inputs]
        columns = max(d, value_dim)
        taken = [torch.nn.functional.pad(x, (0, columns - x.shape[-1])) for x in given] if as_wide else given
        found = attend(*taken, **options, **more)
        out, lse = found if isinstance(found, tuple) else (found, None)
        out = out[..., :value_dim]
        return out, lse, torch.autograd.grad(out, given, grad_out[..., :value_dim].to(out.dtype))

    out, lse, grads = run(flash_attention_v2, return_lse=True)
    expected, expected_lse, wanted = run(reference.attention, as_wide=True, return_lse=True)
    plain, _, of_plain = run(reference.torch_attention, as_wide=True)
    assert_right([checks.error_report(out, expected, plain), checks.lse_report(lse, expected_lse)])
    for found, right, in_torch in zip(grads, wanted, of_plain, strict=True):
        assert_right([checks.error_report(found, right, in_torch, factor=checks.GRADIENT_FACTOR)])


def test_a_head_wider_than_256_is_refused():
    query = torch.zeros(1, 1, 3, 300, dtype=HALF)
    with pytest.raises(ValueError, match="query has head dimension 300; it must be at most 256"):
        flash_attention_v2(query, query, query)


def test_a_row_without_a_key_has_its_sink_alone(device):
    case = checks.AttentionCase(1, 2, 2, 9, 4, 64, True, "normal")
    query, key, value, _ = checks.make_inputs(case, dtype=HALF, device=device, seed=0)
    sinks = torch.tensor([1.5, -2.0], device=device)
    out, lse = flash_attention_v2(query, key, value, is_causal=True, sinks=sinks, return_lse=True)
    assert (out[:, :, :5] == 0).all()
    torch.testing.assert_close(lse[0, :, :5], sinks[:, None].expand(2, 5))


def test_compiled_in_one_graph_it_gives_the_same(device):
    *inputs, grad_out = checks.make_inputs(CASE, dtype=HALF, device=device, seed=3)

    def attend(query, key, value, sinks):
        return flash_attention_v2(query, key, value, window=20, sinks=sinks, softcap=3.0, enable_gqa=True)

    found = []
    for function in (attend, torch.compile(attend, fullgraph=True, backend="aot_eager")):
        given = [tensor.detach().requires_grad_() for tensor in (*inputs, sinks_of(CASE, device))]
        out = function(*given)
        found.append((out, *torch.autograd.grad(out, given, grad_out)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)  # dQ is summed by atomics, in no fixed order


def test_a_compiled_window_may_change(device):
    """What a graph is made of is not made by an eager call before."""
    windowed._pattern.cache_clear()
    *inputs, _ = checks.make_inputs(CASE, dtype=HALF, device=device, seed=3)

    def attend(query, key, value, window):
        return flash_attention_v2(query, key, value, window=window, enable_gqa=True)

    compiled = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    found = [compiled(*inputs, window) for window in (20, 33, 50)]
    assert all(map(torch.equal, found, [attend(*inputs, window) for window in (20, 33, 50)]))


def test_exported_it_gives_the_same(device):
    windowed._pattern.cache_clear()
    *inputs, _ = checks.make_inputs(CASE, dtype=HALF, device=device, seed=3)

    class Layer(torch.nn.Module):
        def forward(self, query, key, value):
            return flash_attention_v2(query, key, value, window=20, softcap=3.0, enable_gqa=True)

    program = torch.export.export(Layer(), tuple(inputs))
    assert program.module()(*inputs).equal(Layer()(*inputs))


def test_the_operator_of_chapter_07_takes_them_too(device):
    *inputs, _ = checks.make_inputs(CASE, dtype=HALF, device=device, seed=3)
    options = {"window": 20, "sinks": sinks_of(CASE, device), "softcap": 3.0, "enable_gqa": True}
    assert flash_attention_hopper(*inputs, **options).equal(flash_attention_v2(*inputs, **options))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"window": 0}, r"window is 0; it must be an integer from 1"),
        ({"window": 2.0}, r"window is 2.0; it must be an integer"),
        ({"softcap": 0}, r"softcap is 0; it must be a number from 0.001 to 10000, or None"),
        ({"softcap": float("nan")}, r"softcap is nan; it must be a number from 0.001"),
        ({"softcap": 1e30}, r"softcap is 1e\+30; it must be a number from 0.001"),
        ({"softcap": "50"}, r"softcap is '50'; it must be a number from 0.001"),
        ({"sinks": [0.0, 0.0]}, r"sinks is a list; it must be a torch tensor \[4\]"),
        ({"sinks": torch.zeros(3)}, r"sinks has shape \[3\]; it must be \[4\]"),
        ({"sinks": torch.zeros(4, dtype=HALF)}, r"sinks has dtype torch.float16; it must be torch.float32"),
    ],
)
def test_bad_input_is_named(wrong, message):
    *inputs, _ = checks.make_inputs(CASE, dtype=HALF, seed=3)
    with pytest.raises((TypeError, ValueError), match=message):
        flash_attention_v2(*inputs, enable_gqa=True, **wrong)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((192, 128, 128), r"key has shape \[1, 2, 5, 128\]; B and d must be those of query, \[1, 2, 5, 192\]"),
        ((64, 64, 300), r"value has head dimension 300; it must be from 1 to 256"),
        ((64, 64, 0), r"value has head dimension 0; it must be from 1 to 256"),
        ((0, 0, 64), r"query has shape \[1, 2, 5, 0\]; it must be \[B, H, L, d\]"),
    ],
)
def test_only_values_have_a_width_of_their_own(sizes, message):
    tensors = [torch.zeros(1, 2, 5, size, dtype=HALF) for size in sizes]
    for attend in (flash_attention_v2, flash_attention_hopper, functools.partial(under, patterns.causal())):
        with pytest.raises(ValueError, match=message):
            attend(*tensors)


def test_sinks_with_a_query_that_is_none_name_the_query():
    tensors = [torch.zeros(1, 2, 5, 64, dtype=HALF)] * 3
    with pytest.raises(TypeError, match="query is a list"):
        flash_attention_v2([1], *tensors[1:], sinks=torch.zeros(2))


def test_values_of_their_own_width_give_a_dense_output():
    out = flash_attention_v2(*(torch.zeros(1, 2, 5, d, dtype=HALF) for d in (64, 64, 24)))
    assert out.shape == (1, 2, 5, 24) and out.is_contiguous()


def test_a_pattern_whose_rows_are_no_ranges_has_no_wide_heads():
    query = torch.zeros(1, 1, 9, 200, dtype=HALF)
    with pytest.raises(NotImplementedError, match="streaming.* with head dimension 256: .* at most 128"):
        sparse_attention(query, query, query, patterns.streaming(4, 30))


def under_a_new_pattern(query, key, value, *, window, **options):
    """A pattern that is kept has its launches, of the kernel as it was."""
    return sparse_attention(query, key, value, patterns.sliding_window(window), **options)


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        (TABLE, "scale_row(state.O[i], r, inverse);", "scale_row(state.O[i], r, inverse / rescale);"),
        (TABLE, "l = l * rescale + exp2_approx(sink - base);", "l += exp2_approx(sink - base);"),
        (TABLE, "softmax.sink(blockIdx.y)", "softmax.sink(blockIdx.y / group)"),
        (TABLE, "sink_logits[head] * LOG2_E", "sink_logits[head]"),
        (TABLE, "cap_scores(S, scale / softmax.softcap);", "cap_scores(S, 1 / softmax.softcap);"),
        (TABLE, "SOFTCAP ? softcap : scale;", "scale;"),
        (BACKWARD, "- delta[query]) * (1 - St[m][n][e] * St[m][n][e]);", "- delta[query]);"),
        (BACKWARD, "(1 - St[m][n][e] * St[m][n][e]);", "(1 - St[m][n][e]);"),
        (BACKWARD, "SOFTCAP ? softcap : scale;", "scale;"),
    ],
)
def test_a_broken_kernel_fails_the_check(break_kernel, file, right, wrong, device):
    break_kernel(file, right, wrong)
    reports = reports_of(
        under_a_new_pattern, CASE, {"window": 70, "softcap": 4.0}, HALF, device, sinks_of(CASE, device)
    )
    assert [report for report in reports if not report.passed]


LONG_ROWS = checks.AttentionCase(1, 4, 2, 70, 300, 64, True, "planted", None)


def of_split_rows(monkeypatch, device, **options):
    """Reports of lists whose first row is split in parts."""
    monkeypatch.setattr(sparse_work, "SHORTEST_PART", 64)
    pattern = patterns.local(9) | patterns.global_tokens([3])
    lists = pattern.block_lists(LONG_ROWS.query_length, LONG_ROWS.key_length)
    assert sparse_work.work_items(lists, LONG_ROWS.heads).parts > 1
    mask = pattern.mask(LONG_ROWS.query_length, LONG_ROWS.key_length, device=device)
    return reports_of(functools.partial(under, pattern), LONG_ROWS, options, HALF, device, sinks_of(CASE, device), mask)


def test_a_split_row_has_its_sink_once(monkeypatch, device):
    assert_right(of_split_rows(monkeypatch, device, softcap=4.0))


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    [
        (LISTS, "SINKS && item.y == row_starts[item.x]", "SINKS"),
        (LISTS, "SINKS && item.y == row_starts[item.x]", "SINKS && part < 0"),
        (LISTS, "cap_scores(S, scale / softcap);", "cap_scores(S, 1 / softcap);"),
        (LISTS, "softmax.factor(scale) * LOG2_E;", "scale * LOG2_E;"),
        (LISTS_BACKWARD, "parts, rows, bits_index, bits, {softcap}", "parts, rows, bits_index, bits, {1}"),
    ],
)
def test_a_broken_kernel_of_lists_fails_the_check(break_kernel, monkeypatch, file, right, wrong, device):
    break_kernel(file, right, wrong)
    assert [report for report in of_split_rows(monkeypatch, device, softcap=4.0) if not report.passed]


def test_the_softcap_is_put_on_scores_before_they_are_masked(break_kernel, device):
    """After it a masked score would be cap · tanh(−∞) = −cap, and have weight."""
    line = "if (SOFTCAP) cap_scores(S, scale / softmax.softcap);\n"
    break_kernel(TABLE, line, "")
    break_kernel(TABLE, "update_maximum(state, S, factor);", line + "        update_maximum(state, S, factor);")
    reports = reports_of(under_a_new_pattern, CASE, {"window": 20, "softcap": 4.0}, HALF, device, None)
    assert "out" in [report.name for report in reports if not report.passed]
