"""What torch does with the operators beside calling them: a test for each row of the table in docs/in_your_model.md."""

import copy
import gc
from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch._dynamo.utils import counters
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import scaled_dot_product_attention
from torch.testing._internal.optests.generate_tests import ALL_TEST_UTILS
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count, sdpa_flop_count

from course_utils import patterns, reference
from course_utils.operators import (
    append_paged,
    block_sparse_attention,
    csr_attention,
    decode_attention,
    flash_attention_hopper,
    flash_attention_minimal,
    flash_attention_v2,
    flash_fa1_order,
    flash_plain,
    hopper,
    indexer,
    library,
    lightning_indexer,
    minimal,
    mla,
    mla_attention,
    naive,
    naive_attention,
    paged_attention,
    prepare,
    quantize_e4m3,
    select_topk,
    serving,
    serving_choice,
    sparse,
    sparse_attention,
    sparse_mla,
    topk,
    varlen,
    varlen_attention,
)
from course_utils.operators import flash_v2 as v2
from course_utils.operators import windowed as windowed_operator
from tests.helpers import tensors
from tests.helpers.fresh_process import run_without_the_course

HALF, DOCUMENTS = torch.float16, patterns.causal() & patterns.document([3, 4, 2])
WINDOW, STREWN = patterns.sliding_window(4), patterns.streaming(1, 2) | patterns.global_tokens([5])


def attention_inputs(device, *, dtype=HALF, grad=False, lengths=(5, 3), d=24, heads=(2, 2)):
    """Query, key and value, strided: `[B, L, H, d]` with two axes exchanged. Causal, the first queries see no key."""
    shapes = [(1, length, heads_, d) for length, heads_ in zip((*lengths, lengths[1]), (*heads, heads[1]), strict=True)]
    made = [tensors.random(*shape, device=device, dtype=dtype, seed=seed) for seed, shape in enumerate(shapes)]
    return [tensor.transpose(1, 2).requires_grad_(grad) for tensor in made]


def some_sinks(device, grad=False):
    return tensors.random(2, device=device, seed=7).requires_grad_(grad)


def varlen_inputs(device, grad=False):
    """Three sequences, of which one is empty and one has more queries than keys; causal, with all options."""
    inputs = [tensor[0].transpose(0, 1).requires_grad_(grad) for tensor in attention_inputs(device, lengths=(9, 7))]
    ends = ([0, 4, 4, 9], [0, 3, 3, 7])
    cu_seq = (torch.tensor(one, dtype=torch.int32, device=device) for one in ends)
    return *inputs, some_sinks(device, grad), *cu_seq, True, 3, 5.0, 0.3


def latent_inputs(device, *, grad=False):
    """Query, latent and lists, of which one is empty."""
    query = tensors.random(2, 5, 40, device=device, dtype=HALF).transpose(0, 1)  # [S, H, d]
    latent = tensors.random(40, 7, device=device, dtype=HALF, seed=1).mT
    indices = torch.tensor([[0, 6, 2], [-1, -1, -1], [9, 1, 1], [3, -1, 4], [5, 5, 0]], dtype=torch.int32)
    return query.requires_grad_(grad), latent.requires_grad_(grad), indices.to(device)


def index_inputs(device):
    return (
        tensors.random(3, 5, 40, device=device, dtype=HALF).transpose(0, 1),
        tensors.random(40, 7, device=device, dtype=HALF, seed=1).mT,
        tensors.random(3, 5, device=device, seed=2).mT,
    )


def gradient_inputs(operator, inputs, *others):
    """What the gradient of an operator takes: gradient of out, then inputs and results, by their names, and numbers."""
    with torch.no_grad():
        results = operator(*inputs, *others)
    values = dict(zip((*operator.arguments, "out", "lse"), (*inputs, *others, *results), strict=True))
    return torch.randn_like(results[0]), *(values[name] for name in operator.gradient.arguments[1:])


def fp8_inputs(device):
    query, key, weights = index_inputs(device)
    (query, q_scale), (key, k_scale) = quantize_e4m3(query), quantize_e4m3(key)
    return query, key, weights, q_scale, k_scale, 1


def cache_inputs(device, *, paged=False, eight_bits=False):
    """Query, a strided cache or pages with their table, lengths with none among them, parents, and scales."""
    query = tensors.random(2, 2, 4, 24, device=device, dtype=HALF).transpose(1, 2)  # [B, H, L_q, d]
    shape = (4, 3, 2, 24) if paged else (2, 2, 9, 24)  # [pages, page_size, H_kv, d] or [B, H_kv, L, d]
    key, value = (tensors.random(*shape, device=device, dtype=HALF, seed=seed) for seed in (1, 2))
    key, value = (cache.transpose(1, 2).contiguous().transpose(1, 2) for cache in (key, value))
    scales = (None, None)
    if eight_bits:
        key, value = key.to(serving_choice.E4M3), value.to(serving_choice.E4M3)
        scales = tuple(tensors.random(2, 2, device=device, seed=seed).abs() + 0.1 for seed in (3, 4))
    lengths, parents = torch.tensor([7, 0], dtype=torch.int32), torch.tensor([[-1, 0], [-1, -1]], dtype=torch.int32)
    table = torch.tensor([[2, 0, 2], [9, 9, 9]], dtype=torch.int32)
    if paged:  # without cu_seq_q, sinks, window and softcap
        table = table.to(device), lengths.to(device), None
        return query, key, value, *table, parents.to(device), *scales, None, 0, 0.0, 0.3, 2, 0
    return query, key, value, lengths.to(device), parents.to(device), *scales, 0.3, 2, 0


def packed_cache_inputs(device):
    """Those of paged_attention with all options: 2 queries of a sequence, none of the other, and a row behind them."""
    given = cache_inputs(device, paged=True)
    query = tensors.random(4, 3, 24, device=device, dtype=HALF).transpose(0, 1)  # [total_q, H, d]
    cu_seq_q = torch.tensor([0, 2, 2], dtype=torch.int32, device=device)
    sinks = tensors.random(4, device=device, seed=7)
    return query, *given[1:5], cu_seq_q, None, None, None, sinks, 3, 5.0, *given[-3:]


def new_tokens(device, *layers, count=2):
    """Keys and values of 2 sequences, strided, pages for them, the table, and lengths with none among them."""
    key, value = (tensors.random(2, count, *layers, 2, 64, device=device, dtype=HALF, seed=seed) for seed in (1, 2))
    if layers:
        key, value = key.movedim(2, 0), value.movedim(2, 0)
    pages = [tensors.random(*layers, 4, 3, 2, 64, device=device, dtype=HALF, seed=seed) for seed in (3, 4)]
    table = torch.tensor([[2, 0, 3], [9, 9, 9]], dtype=torch.int32)
    return key, value, *pages, table.to(device), torch.tensor([7, 0], dtype=torch.int32).to(device)


def e4m3_inputs(device):
    """Those of flash_attention_hopper_e4m3: strided, with fewer key heads, and rows that see no key."""
    given = attention_inputs(device, heads=(4, 2))
    numbers, scales = zip(*map(reference.quantize_heads, given), strict=True)
    return *(x.transpose(1, 2).contiguous().transpose(1, 2) for x in numbers), *scales, True, -0.3


def step_inputs(device):
    """Those of a step of 3 layers, with a workspace."""
    query = tensors.random(3, 2, 2, 4, 64, device=device, dtype=HALF).transpose(2, 3)  # [layers, B, H, L_q, d]
    parents = torch.tensor([[-1, 0], [-1, -1]], dtype=torch.int32).to(device)
    workspace = torch.zeros(serving_choice.step_workspace(2, 2), dtype=torch.int32, device=device)
    return query, *new_tokens(device, 3), parents, None, None, workspace, 0.3, 2, 0


# Operator, and its arguments on a device: strided, ragged, with a row that sees nothing; `grad` where there is one.
EXAMPLES = {
    "naive_attention": (naive._attention, lambda device, grad: (*attention_inputs(device), True, 0.3)),
    "flash_attention_minimal": (
        minimal._attention.operator,
        lambda device, grad: (*attention_inputs(device, dtype=torch.float32, grad=grad), True, 0.3),
    ),
    "flash_attention_v2": (
        v2._attention.operator,
        lambda device, grad: (*attention_inputs(device, grad=grad, heads=(4, 2)), True, -0.3),
    ),
    "flash_attention_hopper": (
        hopper._attention.operator,
        lambda device, grad: (*attention_inputs(device, grad=grad, heads=(4, 2)), True, -0.3),
    ),
    "flash_attention_hopper_e4m3": (hopper._e4m3_attention, lambda device, grad: e4m3_inputs(device)),
    "sparse_attention": (
        sparse._attention.operator,
        lambda device, grad: (*attention_inputs(device, grad=grad), None, WINDOW.number, 0.0, 0.3),
    ),
    "sparse_attention, lists": (
        sparse._attention.operator,
        lambda device, grad: (*attention_inputs(device, grad=grad), None, STREWN.number, 0.0, 0.3),
    ),
    "sparse_attention, rows": (
        sparse._attention.operator,
        lambda device, grad: (
            *attention_inputs(device, grad=grad, lengths=(5, 9)),
            some_sinks(device, grad),
            DOCUMENTS.number,
            5.0,
            0.3,
        ),
    ),
    "windowed_attention": (
        windowed_operator._attention.operator,
        lambda device, grad: (*attention_inputs(device, grad=grad), some_sinks(device, grad), True, 3, 5.0, 0.3),
    ),
    "varlen_attention": (varlen._attention, lambda device, grad: varlen_inputs(device, grad)),
    "lightning_indexer": (indexer._indexer, lambda device, grad: (*index_inputs(device), None, None, -1)),
    "lightning_indexer, FP8": (indexer._indexer, lambda device, grad: fp8_inputs(device)),
    "select_topk": (topk._select, lambda device, grad: (tensors.random(5, 3, device=device).mT, 1)),
    "mla_attention": (mla._dense_mla, lambda device, grad: (*latent_inputs(device)[:2], 0.3, 24, True)),
    "sparse_mla": (mla._sparse_mla, lambda device, grad: (*latent_inputs(device, grad=grad), 0.3, 24)),
    "decode_attention": (serving._decode, lambda device, grad: cache_inputs(device)),
    "decode_attention, FP8": (serving._decode, lambda device, grad: cache_inputs(device, eight_bits=True)),
    "paged_attention": (serving._paged, lambda device, grad: cache_inputs(device, paged=True)),
    "paged_attention, packed": (serving._paged, lambda device, grad: packed_cache_inputs(device)),
    "append_paged": (serving._append, lambda device, grad: (*new_tokens(device), None, None)),
    "decode_step": (serving._step, lambda device, grad: step_inputs(device)),
    "merge_attention": (
        serving._merge,
        lambda device, grad: (tensors.random(3, 1, 2, 2, 6, device=device), tensors.random(3, 1, 2, 2, device=device)),
    ),
    "flash_attention_minimal_backward": (
        minimal._attention.operator.gradient,
        lambda device, grad: gradient_inputs(
            minimal._attention.operator, attention_inputs(device, dtype=torch.float32), True, 0.3
        ),
    ),
    "flash_attention_v2_backward": (
        v2._attention.operator.gradient,
        lambda device, grad: gradient_inputs(
            v2._attention.operator, attention_inputs(device, heads=(4, 2)), True, -0.3
        ),
    ),
    "flash_attention_hopper_backward": (
        hopper._attention.operator.gradient,
        lambda device, grad: gradient_inputs(
            hopper._attention.operator, attention_inputs(device, heads=(4, 2)), True, -0.3
        ),
    ),
    "sparse_attention_backward": (
        sparse._attention.operator.gradient,
        lambda device, grad: gradient_inputs(
            sparse._attention.operator, attention_inputs(device), None, WINDOW.number, 0.0, 0.3
        ),
    ),
    "windowed_attention_backward": (
        windowed_operator._attention.operator.gradient,
        lambda device, grad: gradient_inputs(
            windowed_operator._attention.operator, attention_inputs(device), some_sinks(device), True, 3, 5.0, 0.3
        ),
    ),
    "varlen_attention_backward": (
        varlen._gradient,
        lambda device, grad: gradient_inputs(varlen._attention, varlen_inputs(device)[:3], *varlen_inputs(device)[3:]),
    ),
    "sparse_mla_backward": (
        mla._gradient,
        lambda device, grad: gradient_inputs(mla._sparse_mla, latent_inputs(device), 0.3, 24),
    ),
}
DIFFERENTIABLE = (
    *("flash_attention_minimal", "flash_attention_v2", "flash_attention_hopper"),
    *("sparse_attention", "sparse_attention, lists"),
    *("sparse_attention, rows", "windowed_attention", "varlen_attention", "sparse_mla"),
)


def causal_v2(query, key, value):
    return flash_attention_v2(query, key, value, is_causal=True)


def causal_hopper(query, key, value):
    return flash_attention_hopper(query, key, value, is_causal=True)


def packed(query, key, value):
    """All rows as one sequence of a packed batch."""
    rows = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
    ends = (torch.arange(0, len(one) + 1, len(one), dtype=torch.int32, device=query.device) for one in rows[:2])
    return varlen_attention(*rows, *ends, is_causal=True).transpose(0, 1)[None]


def windowed(query, key, value):
    return sparse_attention(query, key, value, WINDOW)


def strewn(query, key, value):
    return sparse_attention(query, key, value, STREWN)


class Block(torch.nn.Module):
    """A small layer of attention in 16 bits."""

    def __init__(self, attend=causal_v2):
        super().__init__()
        self.qkv, self.out = torch.nn.Linear(16, 48, bias=False), torch.nn.Linear(16, 16, bias=False)
        self.attend = attend
        self.to(torch.bfloat16)

    def forward(self, x):  # [B, L, 16]
        query, key, value = self.qkv(x).unflatten(-1, (6, 8)).transpose(1, 2).chunk(3, dim=1)
        return x + self.out(self.attend(query, key, value).transpose(1, 2).flatten(2))


@pytest.fixture
def block(device):
    torch.manual_seed(0)
    return Block().to(device)


@pytest.fixture
def x(device):
    return tensors.random(1, 9, 16, device=device, dtype=torch.bfloat16, seed=9)


@pytest.fixture(autouse=True)
def nothing_compiled():
    """What other tests compiled would count, and hold the patterns of its graphs."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def results_and_gradients(attend, inputs):
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    out = attend(*inputs)
    return out, *torch.autograd.grad(out.float().square().sum(), inputs)


def assert_same(found, expected):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)  # dQ is summed by atomics, in no fixed order


# ---------------------------------------------------------------------------------------------- the operators


def test_every_operator_has_an_example():
    names = [name.split("::") for name in torch._C._dispatch_get_all_op_names()]
    known = {name.partition(".")[0] for namespace, name in names if namespace == library.NAMESPACE}
    assert known == {name.split(",")[0] for name in EXAMPLES}


TRACES = "test_aot_dispatch_dynamic", "test_aot_dispatch_static"
# Below, in test_compiled_and_captured.py, test_serving.py, or test_decode_step.py; all but the last two for any length.
TRACED_ELSEWHERE = (
    *("flash_attention_minimal", "flash_attention_v2", "sparse_attention", "lightning_indexer", "select_topk"),
    *("decode_attention", "paged_attention", "decode_step", "sparse_mla"),
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_opcheck(name, device, thinned):
    """On the emulator by one trace; by none what is traced elsewhere, a second example of an operator, and its
    gradient: the first has it."""
    operator, arguments = EXAMPLES[name]
    trace = 2 if "," in name or "backward" in name or name in TRACED_ELSEWHERE else 0
    tests = [*(set(ALL_TEST_UTILS) - {*TRACES}), *thinned(TRACES, 2, trace)]
    if "FP8" in name or "e4m3" in name:
        tests.remove("test_schema")  # it compares by what torch has not
    for grad in thinned((False, True)[: 1 + (name in DIFFERENTIABLE)], 2, name in DIFFERENTIABLE):
        torch.library.opcheck(operator.op, arguments(device, grad), test_utils=tests)


# Arguments whose last axis may have any size, whatever the others are.
ANY_SIZE = "logits", "outs", "block_table", "indices", "grad_out of sparse_mla_backward"


def faked(mode, argument):
    is_faked = isinstance(mode, FakeTensorMode) and isinstance(argument, torch.Tensor)
    return mode.from_tensor(argument) if is_faked else argument


@pytest.mark.parametrize("name", EXAMPLES)
def test_called_by_its_name_an_operator_refuses_a_tensor_that_does_not_fit(name, device, thinned):
    operator, arguments = EXAMPLES[name]
    given, names = arguments(device, False), "|".join(operator.arguments)
    for place, tensor in enumerate(given):
        if not isinstance(tensor, torch.Tensor):
            continue
        argument = operator.arguments[place]
        wrong = [tensor[None], tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)]
        if argument not in ANY_SIZE and f"{argument} of {name}" not in ANY_SIZE:
            wrong.append(tensor[..., :-1])
        if device.type == "cuda" and sum(isinstance(one, torch.Tensor) for one in given) > 1:
            wrong.append(tensor.cpu())  # the only tensor of a call may lie anywhere
        for n, one in enumerate(wrong):
            arguments_now = *given[:place], one, *given[place + 1 :]
            for make_mode in thinned([nullcontext, FakeTensorMode], 2, (n + place) % 2):  # as it runs, and in a graph
                with make_mode() as mode, pytest.raises((TypeError, ValueError), match=f"^({names}) (has|is) "):
                    operator.op(*(faked(mode, argument) for argument in arguments_now))


@pytest.mark.parametrize("name", EXAMPLES)
def test_no_operator_reads_a_tensor_without_memory(name, device):
    operator, arguments = EXAMPLES[name]
    given = arguments(device, False)
    for place, tensor in enumerate(given):
        if isinstance(tensor, torch.Tensor):
            (resized := tensor.clone()).untyped_storage().resize_(0)
            for call in (operator, operator.op):  # past the dispatcher, and by it
                with pytest.raises(ValueError, match=f"^{operator.arguments[place]} has 0 bytes of memory for the "):
                    call(*given[:place], resized, *given[place + 1 :])


@pytest.mark.parametrize(
    ("name", "argument", "numbers"),
    [
        *((name, "scale", (float("nan"), 1e39, 1e-40)) for name in EXAMPLES if "scale" in EXAMPLES[name][0].arguments),
        ("mla_attention", "value_dim", (0, 41)),
        ("sparse_mla", "value_dim", (0, 41)),
        ("select_topk", "k", (0, 2049)),
        ("paged_attention", "num_splits", (-1, 65536)),
        ("paged_attention, packed", "window", (-1,)),
        ("paged_attention, packed", "softcap", (-1.0, 1e5)),
        ("decode_attention", "split_size", (-1, 4)),  # num_splits is 2 there
        ("decode_step", "split_size", (-1, 4)),
    ],
)
def test_called_by_its_name_an_operator_refuses_a_number_that_does_not_fit(name, argument, numbers):
    operator, arguments = EXAMPLES[name]
    given = list(arguments("cpu", False))
    for given[operator.arguments.index(argument)] in numbers:
        with pytest.raises(ValueError, match=f"{argument} (is )?"):
            operator.op(*given)


@pytest.mark.parametrize(
    ("module", "check", "call"),
    [
        (prepare, "_check", lambda: causal_v2(*attention_inputs("cpu"))),
        (serving, "check_decode", lambda: decode_attention(*cache_inputs("cpu")[:3])),
        (mla, "_checked", lambda: sparse_mla(*latent_inputs("cpu"), scale=0.3, value_dim=24)),
    ],
    ids=["attention", "decode", "latent"],
)
def test_what_a_public_function_has_checked_is_not_checked_again(module, check, call, monkeypatch):
    calls, checks = [], getattr(module, check)
    monkeypatch.setattr(module, check, lambda *args: (calls.append(args), checks(*args))[1])
    call()
    assert len(calls) == 1


def test_autocast_casts_as_for_sdpa(device):
    inputs = attention_inputs(device, dtype=torch.float32, grad=True, lengths=(9, 9))
    latent = [tensor.float() for tensor in latent_inputs(device)[:2]]
    for lower in (torch.float16, torch.bfloat16):
        with torch.autocast(device.type, lower):
            expected = scaled_dot_product_attention(*inputs).dtype
            for attend in (causal_v2, windowed, naive_attention):
                assert attend(*inputs).dtype == expected == lower, attend
            assert mla_attention(*latent, scale=0.3, value_dim=24)[0].dtype == lower
            assert flash_attention_minimal(*[tensor.to(lower) for tensor in inputs]).dtype == torch.float32
            assert lightning_indexer(*map(torch.Tensor.float, index_inputs(device))).dtype == torch.float32
    assert torch.autograd.grad(flash_under_autocast(device, inputs).sum(), inputs)[0].dtype == torch.float32


def test_decode_casts_what_has_no_scales(device):
    query, key, value, lengths, parents, *_ = cache_inputs(device)
    expected = decode_attention(query, key, value, seq_lens=lengths, parents=parents)
    eight = [cache.to(serving_choice.E4M3) for cache in (key, value)]
    scale = torch.ones(2, 2, device=device)
    of_eight = decode_attention(query, *eight, seq_lens=lengths, k_scale=scale, v_scale=scale)
    with torch.autocast(device.type, HALF):
        wide = [tensor.float() for tensor in (query, key, value)]
        assert torch.equal(decode_attention(*wide, seq_lens=lengths, parents=parents), expected)
        found = decode_attention(wide[0], *eight, seq_lens=lengths, k_scale=scale, v_scale=scale)
    assert torch.equal(found, of_eight)


def flash_under_autocast(device, inputs):
    with torch.autocast(device.type, torch.bfloat16):
        return causal_v2(*inputs)


def test_autocast_leaves_8_and_64_bits_alone(device):
    arguments = fp8_inputs(device)
    with torch.autocast(device.type, torch.bfloat16):
        found = lightning_indexer(*arguments[:3], q_scale=arguments[3], k_scale=arguments[4], q_start=1)
        with pytest.raises(TypeError, match="query has dtype torch.float64"):
            causal_v2(*attention_inputs(device, dtype=torch.float64))
    expected = lightning_indexer(*arguments[:3], q_scale=arguments[3], k_scale=arguments[4], q_start=1)
    assert torch.equal(found, expected)


# ---------------------------------------------------------------------------------------------- compiled, exported


def test_compiled_in_one_graph_it_gives_the_same(device, thinned):
    """On the emulator the one that is compiled nowhere else: patterns are in
    `test_another_pattern_trains_by_the_same_graph`, and flash_attention_v2 in test_compiled_and_captured.py."""
    inputs = attention_inputs(device, lengths=(9, 9))
    for attend in thinned([causal_v2, windowed, naive_attention, strewn], 4, 2):
        compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(*inputs), attend(*inputs))
        if attend is not naive_attention:
            assert_same(results_and_gradients(compiled, inputs), results_and_gradients(attend, inputs))


def test_the_parts_of_deepseeks_attention_compile_in_one_graph(device):
    def chosen(query, latent, q_index, k_index, weights):
        indices = select_topk(lightning_indexer(q_index, k_index, weights, q_start=2), 3)
        return sparse_mla(query, latent, indices, scale=0.3, value_dim=24)

    inputs = *latent_inputs(device)[:2], *index_inputs(device)
    compiled = torch.compile(chosen, fullgraph=True, backend="aot_eager")
    for found, expected in zip(compiled(*inputs), chosen(*inputs), strict=True):
        torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)  # the order of the lists is free


def test_decode_compiles_in_one_graph(device):
    def step(query, key, value, lengths):
        return decode_attention(query, key, value, seq_lens=lengths, split_size=4, return_lse=True)

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=True)
    query, key, value, lengths, *_ = cache_inputs(device)
    for capacity in (9, 8, 7):
        inputs = query, *(cache[:, :, :capacity].contiguous() for cache in (key, value)), lengths
        for found, expected in zip(compiled(*inputs), step(*inputs), strict=True):
            assert torch.equal(found, expected)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    "device",
    [
        pytest.param("cpu", marks=pytest.mark.exhaustive("inductor compiles C++; `aot_eager` above has all but that")),
        pytest.param("cuda", marks=pytest.mark.gpu),
    ],
)
@pytest.mark.parametrize("attend", [causal_v2, causal_hopper, packed, strewn], ids=lambda attend: attend.__name__)
def test_compiled_with_reduced_overhead_it_gives_the_same(attend, device):
    torch.manual_seed(0)
    block = Block(attend).to(device)
    compiled = torch.compile(block, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):  # on a GPU: warm-up, capture, replay
        x = tensors.random(1, 9, 16, device=device, dtype=torch.bfloat16, seed=seed)
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), block(x), atol=2e-2, rtol=2e-2)


def test_a_second_length_compiles_no_graph_of_its_own(device):
    compiled = torch.compile(strewn, fullgraph=True, backend="aot_eager", dynamic=True)
    for length in (9, 12, 70, 71):
        inputs = attention_inputs(device, lengths=(length, length))
        assert torch.equal(compiled(*inputs), strewn(*inputs))
    assert counters["stats"]["unique_graphs"] == 1


def chosen_at_the_end(query, key, weights):
    """Keys that the last queries choose: their place and the number of keys follow from the lengths."""
    logits = lightning_indexer(query, key, weights, q_start=key.shape[0] - query.shape[0])
    return select_topk(logits, min(6, key.shape[0] - 3)).sort().values


def inputs_at_the_end(queries, device):
    return (
        tensors.random(queries, 3, 40, device=device, dtype=HALF),
        tensors.random(queries + 4, 40, device=device, dtype=HALF, seed=1),
        tensors.random(queries, 3, device=device, seed=2),
    )


def test_a_second_length_of_the_indexer_compiles_no_graph_of_its_own(device, thinned):
    compiled = torch.compile(chosen_at_the_end, fullgraph=True, backend="aot_eager", dynamic=True)
    for queries in thinned((5, 7, 9), 2):
        inputs = inputs_at_the_end(queries, device)
        assert torch.equal(compiled(*inputs), chosen_at_the_end(*inputs))
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.exhaustive("`make test` exports flash_attention_v2 and decoding, and compiles the indexer for any length")
def test_the_indexer_exported_gives_the_same(device):
    class Chosen(torch.nn.Module):
        def forward(self, query, key, weights):
            return chosen_at_the_end(query, key, weights)

    longest, any_length = inputs_at_the_end(9, device), {0: torch.export.Dim.DYNAMIC}
    exported = torch.export.export(Chosen(), longest, dynamic_shapes=(any_length,) * 3, strict=False).module()
    shorter = longest[0][:7], longest[1][:12], longest[2][:7]
    assert torch.equal(exported(*shorter), chosen_at_the_end(*shorter))


def test_another_pattern_compiles_no_graph_of_its_own(device):
    compiled = torch.compile(sparse_attention, fullgraph=True, backend="aot_eager")
    inputs = attention_inputs(device, lengths=(9, 9))
    for window in range(1, 6):
        pattern = patterns.sliding_window(window)
        assert torch.equal(compiled(*inputs, pattern), sparse_attention(*inputs, pattern))
    assert counters["stats"]["unique_graphs"] <= 2


def test_another_pattern_trains_by_the_same_graph(device):
    compiled = torch.compile(sparse_attention, fullgraph=True, backend="aot_eager")
    inputs = attention_inputs(device, lengths=(9, 9))
    for pattern in (WINDOW, STREWN, DOCUMENTS):
        expected = results_and_gradients(partial(sparse_attention, pattern=pattern), inputs)
        assert_same(results_and_gradients(lambda *qkv, of=pattern: compiled(*qkv, of), inputs), expected)
    assert counters["stats"]["unique_graphs"] <= 2


@pytest.mark.parametrize(
    "attend", [flash_attention_v2, partial(sparse_attention, pattern=WINDOW)], ids=["v2", "sparse"]
)
def test_another_scale_compiled_gives_the_same(attend, device, thinned):
    """One that is given, and one that follows from the length."""
    scaled = (
        lambda *qkv, scale: attend(*qkv, scale=scale),
        lambda *qkv, scale: attend(*qkv, scale=1 / qkv[0].shape[2]),
    )
    for call in thinned(scaled, 2, attend is flash_attention_v2):
        compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
        for length, scale in thinned([(9, 0.1), (12, -0.2), (15, 0.0), (20, 0.4)], 2, 1):
            inputs = attention_inputs(device, lengths=(length, length))
            assert torch.equal(compiled(*inputs, scale=scale), call(*inputs, scale=scale))


def test_a_pattern_may_be_an_attribute_of_a_module(device, x):
    class Windowed(Block):
        def __init__(self, pattern):
            super().__init__(lambda *qkv: sparse_attention(*qkv, self.pattern))
            self.pattern = pattern

    module = Windowed(DOCUMENTS).to(device)
    assert torch.equal(torch.compile(module, fullgraph=True, backend="aot_eager")(x), module(x))
    assert copy.deepcopy(module).pattern is copy.copy(DOCUMENTS) is DOCUMENTS


MADE_INSIDE = {
    "window": lambda: patterns.sliding_window(4),
    "and": lambda: WINDOW & STREWN,
    "document": lambda: patterns.document([2, 3]),
    "global": lambda: patterns.global_tokens([1]),
    "tree": lambda: patterns.tree([-1, 0, 0]),
    "csr": lambda: patterns.from_csr([0, 1, 2], [0, 1]),
    "mask_mod": lambda: patterns.from_mask_mod(lambda b, h, i, j: i >= j),
    "bigbird": lambda: patterns.bigbird(),
}


@pytest.mark.parametrize("make", MADE_INSIDE.values(), ids=MADE_INSIDE)
def test_what_a_graph_cannot_hold_is_an_error_of_a_full_graph(make):
    def attend(*qkv):
        return sparse_attention(*qkv, make())

    with pytest.raises(Exception) as raised:
        torch.compile(attend, fullgraph=True, backend="aot_eager")(*attention_inputs("cpu"))
    assert "make the pattern outside" in str(raised.value)


def test_lists_given_call_by_call_are_an_error_of_a_full_graph():
    def attend(*qkv):
        return csr_attention(*qkv, torch.arange(6), torch.zeros(5))

    with pytest.raises(Exception) as raised:
        torch.compile(attend, fullgraph=True, backend="aot_eager")(*attention_inputs("cpu"))
    assert "take sparse_attention, with a pattern" in str(raised.value)


def test_a_pattern_made_inside_breaks_a_graph_that_may_break():
    def attend(*qkv):
        return sparse_attention(*qkv, patterns.sliding_window(4))

    inputs = attention_inputs("cpu")
    assert torch.equal(torch.compile(attend, backend="aot_eager")(*inputs), attend(*inputs))


@pytest.mark.parametrize(
    ("argument", "number", "call", "inputs"),
    [
        ("q_start", np.int64(2), lightning_indexer, index_inputs("cpu")),
        ("k", np.int32(2), select_topk, index_inputs("cpu")[2:]),
        (
            "scale",
            np.float64(0.3),
            lambda *lists, scale: sparse_mla(*lists, scale=scale, value_dim=24)[0],
            latent_inputs("cpu"),
        ),
    ],
    ids=["q_start", "k", "scale"],
)
def test_a_number_of_numpy_is_no_constant_of_a_graph(argument, number, call, inputs):
    """torch.compile takes it for an array. Without fullgraph=True it leaves the call to eager mode."""

    def attend(*inputs, **given):
        return call(*inputs, **given)

    with pytest.raises(Exception, match=f"{argument} is a number of NumPy, .*: give a number of Python"):
        torch.compile(attend, fullgraph=True, backend="aot_eager")(*inputs, **{argument: number})
    if argument == "k":  # what torch.compile does then is the same for each
        torch.compiler.reset()
        found = torch.compile(attend, backend="aot_eager")(*inputs, **{argument: number})
        assert torch.equal(found, attend(*inputs, **{argument: number.item()}))


@pytest.mark.parametrize(
    "make", [lambda: patterns.sliding_window(4), lambda: patterns.causal() & patterns.document([3, 4, 2])]
)
def test_under_fake_tensor_mode_no_pattern_is_made_and_none_keeps_fake_lists(make):
    pattern = make()
    with FakeTensorMode():
        for call in (make, partial(pattern.block_lists, 9), partial(pattern.csr, 9), partial(pattern.pairs, 9)):
            with pytest.raises(RuntimeError, match="under FakeTensorMode: make the pattern outside"):
                call()
    lists = pattern.block_lists(9)
    assert lists.pairs() == int(pattern.mask(9).sum())
    with FakeTensorMode():
        assert pattern.block_lists(9) is lists


def test_a_pattern_that_lives_no_more_is_named():
    pattern = patterns.sliding_window(3)
    number, inputs = pattern.number, attention_inputs("cpu", grad=True)
    with pytest.raises(RuntimeError, match=f"pattern number {number + 10**9} .* is not in this process"):
        sparse._attention.operator(*inputs, None, number + 10**9, 0.0, 0.3)
    out = sparse_attention(*inputs, pattern)
    del pattern
    gc.collect()
    out.sum().backward()  # what is to be differentiated keeps its pattern
    del out
    gc.collect()
    with pytest.raises(RuntimeError, match=f"pattern number {number} .* keep the pattern"):
        sparse._attention.operator(*inputs, None, number, 0.0, 0.3)


def test_another_process_has_no_pattern_of_this_ones_numbers():
    """A program exported here would take it for its own there, and attend to other keys in silence."""
    there = (
        "from course_utils import patterns\n"
        "from course_utils.patterns import graphs\n"
        "made = [patterns.causal() for _ in range(1000)]\n"
        f"graphs.registered({WINDOW.number})"
    )
    with pytest.raises(AssertionError, match=f"the pattern number {WINDOW.number} of .* is not in this process"):
        run_without_the_course(there)


def test_exported_it_gives_the_same(device, x, thinned):
    length, longer = torch.export.Dim("length", min=2, max=512), torch.cat([x, x], dim=1)
    for attend in thinned([causal_v2, windowed], 2, 1):
        block = Block(attend).to(device)
        exported = torch.export.export(block, (x,), dynamic_shapes={"x": {1: length}})
        assert any(str(node.target).startswith("attention_course.") for node in exported.graph.nodes)
        for inputs in (x, longer):
            assert torch.equal(exported.module()(inputs), block(inputs))
        trained = exported.module()
        assert_same(gradients_of(trained, trained, x), gradients_of(block, block, x))


class Step(torch.nn.Module):
    def forward(self, query, key, value, key_pages, value_pages, table, lengths):
        append_paged(key, value, key_pages, value_pages, table, lengths)
        return paged_attention(query, key_pages, value_pages, table, lengths)


class Decode(torch.nn.Module):
    def forward(self, query, key, value, lengths):
        return decode_attention(query, key, value, seq_lens=lengths)


def test_decode_exported_gives_the_same(device):
    """A step writes to the pages that it is given; the capacity of a cache may be any."""
    query = tensors.random(2, 2, 4, 64, device=device, dtype=HALF).transpose(1, 2)
    *new, key_pages, value_pages, table, lengths = new_tokens(device)
    found, expected = ([key_pages.clone(), value_pages.clone()] for _ in range(2))
    step = torch.export.export(Step(), (query, *new, key_pages, value_pages, table, lengths)).module()
    out = step(query, *new, *found, table, lengths)
    assert torch.equal(out, Step()(query, *new, *expected, table, lengths))
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))

    query, key, value, lengths, *_ = cache_inputs(device)
    any_length = {2: torch.export.Dim("capacity", min=2, max=512)}
    dynamic = {"query": None, "key": any_length, "value": any_length, "lengths": None}
    decode = torch.export.export(Decode(), (query, key, value, lengths), dynamic_shapes=dynamic).module()
    longer = query, torch.cat([key, key], dim=2), torch.cat([value, value], dim=2), lengths
    assert torch.equal(decode(*longer), Decode()(*longer))


# ---------------------------------------------------------------------------------------------- in a module


def test_functional_call(block, x):
    doubled = {name: 2 * parameter.detach() for name, parameter in block.named_parameters()}
    found = torch.func.functional_call(block, doubled, (x,))
    block.load_state_dict(doubled)
    assert torch.equal(found, block(x))


def gradients_of(block, run, x):
    block.zero_grad()
    run(x).float().square().sum().backward()
    return [parameter.grad.clone() for parameter in block.parameters()]


def test_checkpointing_runs_the_forward_pass_again(block, x, device, monkeypatch):
    runs = []

    def counted(*qkv):
        runs.append(1)
        return causal_v2(*qkv)

    expected = gradients_of(block, block, x)
    block.attend = counted
    assert_same(gradients_of(block, partial(checkpoint, block, use_reentrant=False), x), expected)
    assert len(runs) == 2


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_what_is_kept_for_the_backward_pass_may_come_back_with_other_strides(name, device):
    operator, arguments = EXAMPLES[name]

    def gradients(*hooks):
        given = arguments(device, True)
        inputs = [one for one in given if isinstance(one, torch.Tensor) and one.requires_grad]
        with torch.autograd.graph.saved_tensors_hooks(*hooks):
            out = operator(*given)[0]
        return torch.autograd.grad(out.float().square().sum(), inputs)

    def strided(tensor):
        return torch.stack([tensor, tensor], dim=-1)[..., 0]

    assert_same(gradients(torch.Tensor.detach, strided), gradients(torch.Tensor.detach, torch.Tensor.detach))


def test_the_backward_hooks_of_ddp(x, tmp_path):
    torch.manual_seed(0)
    block = Block()
    expected = gradients_of(block, block, x := x.cpu())
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        assert_same(gradients_of(block, torch.nn.parallel.DistributedDataParallel(block), x), expected)
    finally:
        dist.destroy_process_group()


def test_the_profiler_shows_the_operators_names(device):
    inputs = attention_inputs(device, grad=True)
    causal_v2(*inputs)
    with torch.profiler.profile() as profile:
        causal_v2(*inputs).sum().backward()
        with torch.no_grad():
            causal_v2(*inputs)
    shown = [event.key for event in profile.key_averages()]
    counts = {event.key: event.count for event in profile.key_averages()}
    assert counts["attention_course::flash_attention_v2"] >= 2, shown
    assert "attention_course::flash_attention_v2_backward" in shown


def counted(attend, inputs):
    """FLOPs of the forward and the backward pass, as torch counts them."""
    with FlopCounterMode(display=False) as forward:
        out = attend(*inputs)
    with FlopCounterMode(display=False) as backward:
        out.sum().backward()
    return forward.get_total_flops(), backward.get_total_flops()


def test_the_flop_counter_counts_as_for_sdpa(device):
    inputs = attention_inputs(device, grad=True, lengths=(9, 12), heads=(4, 2))
    query = inputs[0].shape
    key = value = inputs[1].repeat_interleave(2, dim=1).shape  # torch 2.11 counts no heads that share a key head
    expected = sdpa_flop_count(query, key, value), sdpa_backward_flop_count(query, query, key, value)
    assert counted(partial(flash_attention_v2, is_causal=True, enable_gqa=True), inputs) == expected


@pytest.mark.parametrize("pattern", [WINDOW, STREWN, DOCUMENTS], ids=str)
def test_the_flop_counter_counts_the_pairs_of_a_pattern(pattern, device):
    inputs = attention_inputs(device, grad=True, lengths=(9, 9))
    flops, of_all_pairs = 4 * 2 * 24 * int(pattern.mask(9).sum()), 4 * 2 * 24 * 81
    assert counted(partial(sparse_attention, pattern=pattern), inputs) == (flops, flops * 5 // 2)
    lists = pattern.block_lists(9, device=device)
    assert counted(partial(block_sparse_attention, block_lists=lists), inputs)[0] == of_all_pairs
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, FlopCounterMode(display=False) as counter:
        sparse_attention(*map(mode.from_tensor, inputs), pattern)
    assert counter.get_total_flops() == flops


@pytest.mark.parametrize(
    ("name", "flops"),
    [
        ("lightning_indexer", 2 * 3 * 5 * 7 * 40),
        ("mla_attention", 2 * 5 * 2 * 7 * (40 + 24)),
        ("sparse_mla", 2 * 5 * 2 * 3 * (40 + 24)),
        ("sparse_mla_backward", 2 * 5 * 2 * 3 * (3 * 40 + 2 * 24)),
        ("decode_attention", 4 * 2 * 4 * 2 * 9 * 24),
        ("paged_attention", 4 * 2 * 4 * 2 * 9 * 24),
        ("paged_attention, packed", 4 * 3 * 4 * 3 * 24),  # of a window
        ("decode_step", 3 * 4 * 2 * 4 * 2 * 9 * 64),
        ("naive_attention", 4 * 2 * 5 * 3 * 24),
        ("flash_attention_minimal_backward", 10 * 2 * 5 * 3 * 24),
    ],
)
def test_the_flop_counter_counts_the_products(name, flops, device):
    operator, arguments = EXAMPLES[name]
    given = arguments(device, False)
    with FlopCounterMode(display=False) as counter:
        operator(*given)
    assert counter.get_total_flops() == flops


@pytest.mark.gpu
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_operator_may_be_captured(name):
    """Which says, too, that it waits for nothing, and takes no memory that is not of torch's allocator."""
    operator, arguments = EXAMPLES[name]
    given = arguments(torch.device("cuda"), False)
    expected = operator(*given)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = operator(*given)
    for _ in range(2):
        graph.replay()
        if expected is not None:
            assert_same(*([found] if isinstance(found, torch.Tensor) else found for found in (captured, expected)))


@pytest.mark.gpu
def test_a_captured_graph_reads_new_numbers_and_lists_in_place():
    device = torch.device("cuda")
    attention, (query, latent, indices) = attention_inputs(device, lengths=(64, 64)), latent_inputs(device)

    def run():
        return (
            causal_v2(*attention),
            strewn(*attention),
            sparse_mla(query, latent, indices, scale=0.3, value_dim=24)[0],
        )

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.no_grad():
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        captured = run()
    for length in (3, 2, 1):  # of the lists
        for tensor in attention:
            tensor.copy_(torch.randn_like(tensor))
        indices[:, length:] = -1
        graph.replay()
        assert_same(captured, run())


@pytest.mark.gpu
def test_a_captured_decode_step_follows_lengths_and_tables_in_place():
    query, pages, values, table, lengths, *_ = cache_inputs(torch.device("cuda"), paged=True)

    def run():
        return paged_attention(query, pages, values, table, lengths, return_lse=True)

    run()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for new, order in (
        ([9, 9], [[1, 2, 3], [0, 0, 3]]),
        ([1, 0], [[3, 9, 9], [9, 9, 9]]),
        ([8, 2], [[0, 1, 2], [3, 9, 9]]),
    ):
        lengths.copy_(torch.tensor(new, dtype=torch.int32))
        table.copy_(torch.tensor(order, dtype=torch.int32))
        graph.replay()
        for found, expected in zip(captured, run(), strict=True):
            assert torch.equal(found, expected)


@pytest.mark.gpu
def test_lists_cannot_be_made_while_a_graph_is_captured():
    inputs, pattern = attention_inputs("cuda", lengths=(64, 64)), patterns.streaming(1, 2) | patterns.global_tokens([7])
    sparse_attention(*inputs, STREWN)  # compiles the kernel
    with pytest.raises(RuntimeError, match="call the operator once before"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        sparse_attention(*inputs, pattern)


# ---------------------------------------------------------------------------------------------- what is not supported


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
@pytest.mark.parametrize("attend", [naive_attention, causal_v2, windowed])
def test_vmap_calls_one_after_the_other(attend):
    inputs = attention_inputs("cpu")
    queries = torch.stack([inputs[0], -inputs[0]])
    found = torch.vmap(lambda query: attend(query, *inputs[1:]))(queries)
    assert torch.equal(found, torch.stack([attend(query, *inputs[1:]) for query in queries]))


def test_derivatives_by_torch_func_and_in_forward_mode_are_errors():
    inputs = attention_inputs("cpu")

    def attend(query):
        return causal_v2(query, *inputs[1:]).float().sum()

    with pytest.raises(RuntimeError, match="autograd.Function with functorch transforms"):
        torch.func.grad(attend)(inputs[0])
    for derivative in (torch.func.jvp, forward_derivative):
        with pytest.raises(NotImplementedError, match="flash_attention_v2 has no forward-mode derivative"):
            derivative(attend, (inputs[0],), (inputs[0],))


@pytest.mark.parametrize("attend", [causal_v2, windowed], ids=lambda attend: attend.__name__)
def test_a_gradient_has_none_of_its_own(attend, device):
    inputs = attention_inputs(device, grad=True, lengths=(9, 9))
    (first,) = torch.autograd.grad(attend(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="attention.* is differentiable once: its gradient has none"):
        first.sum().backward()


WITHOUT_GRADIENT = [name for name in EXAMPLES if name not in DIFFERENTIABLE and not name.endswith("_backward")]
WITHOUT_GRADIENT.remove("select_topk")  # of which nobody can ask for one: it gives integers
ASKED = {"lightning_indexer, FP8": "weights", "append_paged": "key", "merge_attention": "outs"}  # others: the first


@pytest.mark.filterwarnings("ignore:Error detected in:UserWarning")  # as torch.compile says where it was
@pytest.mark.parametrize("name", WITHOUT_GRADIENT)
def test_to_ask_for_a_gradient_that_there_is_not_is_an_error_that_names_the_operator(name, device, thinned):
    """In eager mode and compiled (on the emulator every third operator); by torch.no_grad() all is as ever."""
    operator, arguments = EXAMPLES[name]
    given = list(arguments(device, False))
    place = operator.arguments.index(ASKED.get(name, operator.arguments[0]))
    one, says = given[place], f"{operator.name} has no gradient; take .*, or call it under torch.no_grad"

    def call(tensor):
        found = operator(*given[:place], tensor, *given[place + 1 :])
        return found[0] if isinstance(found, tuple) else found

    def compiled():
        torch.compile(call, fullgraph=True, backend="aot_eager")(asked).sum().backward()

    asked, writes = one.clone().requires_grad_(), name in ("append_paged", "decode_step")
    ways = [
        lambda: call(asked).sum().backward(),
        *([] if writes else [lambda: operator.op(*given[:place], asked, *given[place + 1 :])[0].sum().backward()]),
        *thinned([compiled], 3, WITHOUT_GRADIENT.index(name) % 3),
    ]
    for way in ways:
        with pytest.raises(Exception, match=says):
            way()
    with torch.no_grad():
        call(asked)


def forward_derivative(call, inputs, tangents):
    with torch.autograd.forward_ad.dual_level():
        return call(*map(torch.autograd.forward_ad.make_dual, inputs, tangents))


def test_what_is_no_operator_of_torch_refuses_a_gradient_too():
    query = attention_inputs("cpu", dtype=torch.float32, grad=True)
    for attend in (flash_plain, flash_fa1_order):
        with pytest.raises(NotImplementedError, match=f"{attend.__name__} has no gradient; take flash_attention_mini"):
            attend(*query)
        with torch.no_grad():
            attend(*query)


def test_a_selection_is_a_constant(device):
    """As that of torch.topk is: it has integers."""
    scores = tensors.random(5, 3, device=device, seed=1).requires_grad_()
    assert not select_topk(scores, 2).requires_grad
    query, latent, *_ = latent_inputs(device, grad=True)
    index = [tensor.requires_grad_() for tensor in index_inputs(device)]  # as in training: the choice has no gradient
    chosen = select_topk(lightning_indexer(*index, q_start=2), 3)
    sparse_mla(query, latent, chosen, scale=0.3, value_dim=24)[0].sum().backward()
    assert query.grad.any() and index[0].grad is None


def test_the_tags_are_those_that_are_true():
    unsafe = {operator.name for operator, _ in EXAMPLES.values() if torch.Tag.cudagraph_unsafe in operator.op.tags}
    assert unsafe == {name + of for name in ("sparse_attention", "windowed_attention") for of in ("", "_backward")}
    for operator, _ in EXAMPLES.values():
        assert {torch.Tag.pt2_compliant_tag, torch.Tag.flexible_layout} <= set(operator.op.tags)
