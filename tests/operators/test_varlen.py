"""varlen_attention: sequences packed one behind another are as if each were alone; seen to be wrong when broken."""

import itertools

import pytest
import torch

from course_utils import checks, reference
from course_utils.emulator import sanitize
from course_utils.operators import sparse_launch, varlen, varlen_attention
from tests.helpers import tensors
from tests.helpers.deterministic import told_to_be_deterministic
from tests.helpers.one_of_each import all_on_a_gpu

HALF, BF16 = torch.float16, torch.bfloat16
# Where sequences end, in queries and in keys: equal and unequal lengths, empty sequences, more queries than keys.
ENDS = {
    "equal": ([0, 30, 94, 224], [0, 30, 94, 224]),
    "unequal": ([0, 30, 30, 100, 137], [0, 30, 40, 110, 160]),
    "one": ([0, 70], [0, 129]),
    "of single queries": ([0, 1, 2, 3, 4], [0, 5, 90, 91, 260]),
    "more queries than keys": ([0, 50, 70, 75], [0, 20, 20, 80]),
    "without keys at first": ([0, 9, 40], [0, 0, 33]),
    "many short ones": (list(range(0, 130, 3)), list(range(0, 130, 3))),
}
MASKS = {"all": {}, "causal": {"is_causal": True}, "window": {"window": 17}}


def inputs_of(ends, *, heads=4, kv_heads=2, d=64, dtype=HALF, device="cpu", more=0):
    """more: rows behind the last sequence, which no sequence has."""
    totals = [one[-1] + more for one in ends]
    query, key, value, grad_out = (
        tensors.random(total, h, d, dtype=dtype, device=device, seed=seed)
        for seed, (total, h) in enumerate(
            [(totals[0], heads), (totals[1], kv_heads), (totals[1], kv_heads), (totals[0], heads)]
        )
    )
    cu_seq = [torch.tensor(one, dtype=torch.int32, device=device) for one in ends]
    return (2 * query, key, value), cu_seq, grad_out


def reports_of(inputs, cu_seq, grad_out, *, sinks=None, gradients=True, **options):
    """Comparisons with each sequence alone in float64."""
    options = options | {"enable_gqa": inputs[0].shape[1] != inputs[1].shape[1]}

    def run(function, **more):
        given = [tensor.detach().requires_grad_(gradients) for tensor in inputs]
        of_sinks = None if sinks is None else sinks.detach().requires_grad_(gradients)
        found = function(*given, *cu_seq, sinks=of_sinks, **options, **more)
        out, lse = found if isinstance(found, tuple) else (found, None)
        wanted = [*given, *([] if of_sinks is None else [of_sinks])]
        return out, lse, torch.autograd.grad(out, wanted, grad_out.to(out.dtype)) if gradients else ()

    dtype = inputs[0].dtype
    with checks.poisoned_outputs():
        out, lse, grads = run(varlen_attention, return_lse=True)
    expected, expected_lse, wanted = run(reference.varlen_attention, return_lse=True)
    plain, _, of_plain = run(reference.varlen_attention, attend=reference.torch_attention)
    reports = [checks.error_report(out, expected, plain), checks.lse_report(lse[None], expected_lse[None])]
    for name, found, right, in_torch in zip(("dq", "dk", "dv", "dsinks"), grads, wanted, of_plain, strict=False):
        factor = checks.GRADIENT_FACTOR
        reports.append(checks.error_report(found.to(dtype), right, in_torch, factor=factor, name=name))
    return reports


def assert_right(reports):
    assert not [str(report) for report in reports if not report.passed]


def in_turn(ends, mask):
    """All masks where lengths are unequal, which they see most of; one of them for each of the others."""
    return ends == "unequal" or (list(ENDS).index(ends) - list(MASKS).index(mask)) % 3 == 0


@all_on_a_gpu(
    "ends, mask",
    itertools.product(ENDS, MASKS),
    in_turn,
    "`make test` has these ends under another mask, and this mask with other ends",
)
def test_each_sequence_is_as_if_it_were_alone(ends, mask, device):
    n = list(ENDS).index(ends) + list(MASKS).index(mask)
    inputs, cu_seq, grad_out = inputs_of(
        ENDS[ends], kv_heads=(4, 2)[n % 2], d=(64, 128, 40)[n % 3], dtype=(HALF, BF16, HALF)[n % 3], device=device
    )
    sinks = torch.linspace(-3, 4, 4, device=device) if n % 2 else None
    options = {"sinks": sinks, "softcap": (None, 5.0, None)[n % 3]}
    assert_right(reports_of(inputs, cu_seq, grad_out, **MASKS[mask], **options))


@pytest.mark.parametrize(
    ("ends", "mask"), [("unequal", "causal"), ("more queries than keys", "window"), ("one", "all")]
)
@pytest.mark.parametrize("is_hopper", [False, True])
def test_each_is_in_a_second_pass_too(ends, mask, is_hopper, device, monkeypatch):
    """On a Hopper GPU the forward pass takes its kernels, and the backward pass the portable ones."""
    if device.type == "cpu":
        for room in (varlen, sparse_launch):
            monkeypatch.setattr(room, "takes_wgmma", lambda _: is_hopper)
    options = {"sinks": torch.linspace(-3, 4, 4, device=device), "softcap": 5.0} if mask == "causal" else {}
    inputs, cu_seq, grad_out = inputs_of(ENDS[ends], d=128 if mask == "all" else 64, device=device)
    with told_to_be_deterministic():
        assert_right(reports_of(inputs, cu_seq, grad_out, **MASKS[mask], **options))


@pytest.mark.parametrize(
    ("ends", "mask"), [("unequal", "causal"), ("more queries than keys", "window"), ("one", "all")]
)
def test_each_is_by_the_kernels_for_hopper_too(ends, mask, monkeypatch):
    for room in (varlen, sparse_launch):
        monkeypatch.setattr(room, "takes_wgmma", lambda _: True)
    varlen._ready_forward.cache_clear()
    options = {"sinks": torch.linspace(-3, 4, 4), "softcap": 5.0} if mask == "causal" else {}
    inputs, cu_seq, grad_out = inputs_of(ENDS[ends], d=128 if mask == "all" else 64)
    assert_right(reports_of(inputs, cu_seq, grad_out, **MASKS[mask], **options))


def test_rows_behind_the_last_sequence_see_nothing(device):
    inputs, cu_seq, grad_out = inputs_of(ENDS["unequal"], device=device, more=70)
    given = [tensor.requires_grad_() for tensor in inputs]
    out, lse = varlen_attention(*given, *cu_seq, is_causal=True, enable_gqa=True, return_lse=True)
    (end, _), grads = (ends[-1] for ends in ENDS["unequal"]), torch.autograd.grad(out, given, grad_out)
    assert (out[end:] == 0).all() and (lse[:, end:] == -torch.inf).all() and torch.isfinite(out).all()
    assert all((grad[-70:] == 0).all() and torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("totals", [(0, 0), (0, 9), (9, 0)])
def test_without_queries_or_keys(totals, device):
    inputs, _, grad_out = inputs_of([[total] for total in totals], device=device)
    cu_seq = [torch.tensor([0, total], dtype=torch.int32, device=device) for total in totals]
    given = [tensor.requires_grad_() for tensor in inputs]
    out, lse = varlen_attention(*given, *cu_seq, enable_gqa=True, return_lse=True)
    assert out.shape == inputs[0].shape and (out == 0).all() and lse.shape == (4, totals[0])
    assert (lse == -torch.inf).all()
    grads = torch.autograd.grad(out, given, grad_out)
    assert all(grad.shape == one.shape and (grad == 0).all() for grad, one in zip(grads, given, strict=True))


def test_without_queries_the_arguments_are_checked_and_sinks_have_a_gradient(device):
    inputs, _, _ = inputs_of([[0], [0]], device=device)
    cu_seq = [torch.zeros(2, dtype=torch.int32, device=device)] * 2
    sinks = torch.full((4,), torch.inf, device=device, requires_grad=True)
    out = varlen_attention(*inputs, *cu_seq, sinks=sinks, enable_gqa=True)
    assert torch.autograd.grad(out.sum(), sinks)[0].equal(torch.zeros_like(sinks))
    with torch.autocast(device.type, BF16):
        assert varlen_attention(*(one.float() for one in inputs), *cu_seq, enable_gqa=True).dtype == BF16
    for wrong, message in (
        ({"softcap": -1.0}, "softcap is"),
        ({"sinks": sinks[:3]}, "sinks has"),
        ({"scale": "x"}, "scale is"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            varlen_attention(*inputs, *cu_seq, enable_gqa=True, **wrong)


def test_a_key_has_the_width_of_query():
    query, key = torch.zeros(9, 2, 64, dtype=HALF), torch.zeros(9, 2, 32, dtype=HALF)
    cu_seq = torch.tensor([0, 9], dtype=torch.int32)
    with pytest.raises(ValueError, match="key has shape .* B and d must be those of query"):
        varlen_attention(query, key, key, cu_seq, cu_seq)


def test_of_no_sequences(device):
    inputs, _, _ = inputs_of(([5], [7]), device=device)
    cu_seq = [torch.zeros(1, dtype=torch.int32, device=device)] * 2
    out, lse = varlen_attention(*inputs, *cu_seq, enable_gqa=True, return_lse=True)
    assert (out == 0).all() and (lse == -torch.inf).all()


def test_the_inputs_may_be_parts_of_one_projection(device):
    ends = ENDS["unequal"][0], ENDS["unequal"][0]
    inputs, cu_seq, _ = inputs_of(ends, kv_heads=4, device=device)
    parts = torch.cat(inputs, dim=1).split(4, dim=1)
    assert varlen_attention(*parts, *cu_seq, is_causal=True).equal(varlen_attention(*inputs, *cu_seq, is_causal=True))


def test_a_compiled_call_follows_the_lengths(device):
    inputs, cu_seq, _ = inputs_of(ENDS["unequal"], kv_heads=4, device=device)
    compiled = torch.compile(varlen_attention, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        assert compiled(*inputs, *cu_seq, window=9).equal(varlen_attention(*inputs, *cu_seq, window=9))
        cu_seq[0] = cu_seq[0].clone()
        cu_seq[0][1:3] -= 7


@pytest.mark.gpu
def test_a_captured_call_follows_the_lengths_in_place():
    inputs, cu_seq, grad_out = inputs_of(ENDS["equal"], kv_heads=4, device="cuda")
    given = [tensor.requires_grad_() for tensor in inputs]

    def call():
        out = varlen_attention(*given, *cu_seq, is_causal=True)
        return out, *torch.autograd.grad(out, given, grad_out)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()
    for ends in (cu_seq[0].clone(), torch.tensor([0, 64, 65, 224]), torch.tensor([0, 0, 224, 224])):
        for one in cu_seq:
            one.copy_(ends)
        graph.replay()
        for one, other in zip(found, call(), strict=True):
            torch.testing.assert_close(one, other, atol=2e-3, rtol=2e-3)  # dQ is summed by atomics


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"query": torch.zeros(1, 4, 137, 64, dtype=HALF)},
            r"query has shape \[1, 4, 137, 64\]; it must be \[total, H",
        ),
        ({"key": None}, r"key is a NoneType; it must be a torch tensor"),
        ({"cu_seq_q": [0, 137]}, r"cu_seq_q is a list; it must be a torch tensor"),
        ({"cu_seq_q": torch.tensor([0, 137])}, r"cu_seq_q has dtype torch.int64; it must be torch.int32"),
        ({"cu_seq_k": torch.zeros(3, dtype=torch.int32)}, r"cu_seq_k has 3 elements; it must have 5"),
        (
            {"cu_seq_q": torch.tensor([1, 30, 30, 100, 137], dtype=torch.int32)},
            r"cu_seq_q is \[1, 30, 30, 100, 137\]; it must begin with 0, never fall, and end at 137",
        ),
        ({"cu_seq_k": torch.tensor([0, 30, 20, 110, 160], dtype=torch.int32)}, r"cu_seq_k is .* never fall"),
        ({"cu_seq_k": torch.tensor([0, 30, 40, 110, 161], dtype=torch.int32)}, r"cu_seq_k is .* end at 160"),
        ({"window": 0}, r"window is 0; it must be an integer from 1"),
    ],
)
def test_bad_input_is_named(wrong, message):
    inputs, cu_seq, _ = inputs_of(ENDS["unequal"], kv_heads=4)
    names = ("query", "key", "value", "cu_seq_q", "cu_seq_k")
    given = dict(zip(names, (*inputs, *cu_seq), strict=True)) | wrong
    with pytest.raises((TypeError, ValueError), match=message):
        varlen_attention(**given)


# Each as a function of the rows: starts, ends, and where sequences begin and end in keys.
BROKEN = {
    "a sequence sees its neighbour": lambda rows, q, k: rows._replace(ends=(rows.ends + 1).clamp(max=int(k[-1]))),
    "a window off by one": lambda rows, q, k: rows._replace(starts=(rows.starts - 1).clamp(min=0)),
    "the first sequence's keys for all": lambda rows, q, k: rows._replace(starts=torch.zeros_like(rows.starts)),
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_broken_rows_fail_the_check(mistake, monkeypatch, device):
    right = varlen.rows_of_sequences
    monkeypatch.setattr(varlen, "rows_of_sequences", lambda q, k, *others: BROKEN[mistake](right(q, k, *others), q, k))
    inputs, cu_seq, grad_out = inputs_of(ENDS["equal"], device=device)
    reports = reports_of(inputs, cu_seq, grad_out, window=17, gradients=False)
    assert [report for report in reports if not report.passed]


def test_the_sanitizer_finds_nothing():
    inputs, cu_seq, grad_out = inputs_of(ENDS["unequal"])
    given = [tensor.requires_grad_() for tensor in inputs]
    sinks = torch.zeros(4, requires_grad=True)
    with sanitize() as report:
        out = varlen_attention(*given, *cu_seq, window=20, sinks=sinks, softcap=5.0, enable_gqa=True)
        torch.autograd.grad(out, [*given, sinks], grad_out)
    assert report.launches and not report.findings, str(report)
