"""lightning_indexer and quantize_e4m3: right for every size and dtype, seen to be wrong when broken."""

import pytest
import torch

from course_utils import checks, emulator, reference
from course_utils.cuda import read_kernel
from course_utils.emulator import sanitize
from course_utils.operators import indexer, lightning_indexer, quantize_e4m3
from course_utils.operators.tensor_core import takes_wgmma
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers.one_of_each import every_second

HALF, BF16, E4M3 = torch.float16, torch.bfloat16, torch.float8_e4m3fn
KERNELS = ("lightning_indexer", "lightning_indexer_fp8")
CASES = (  # S, T, H, d, q_start
    (1, 1, 1, 8, 0),
    (5, 300, 3, 128, 295),
    (3, 257, 64, 64, 253),
    (9, 65, 17, 128, 40),
    (70, 70, 4, 40, 0),
    (4, 513, 16, 64, 600),
)


@pytest.fixture(autouse=True)
def fp8_where_there_is_any(request):
    """Skips FP8 on a GPU without it."""
    values = getattr(request.node, "callspec", None)
    if values and E4M3 in values.params.values() and values.params.get("device") == "cuda":
        if torch.cuda.get_device_capability() < (8, 9):
            pytest.skip("this GPU has no FP8")


def make_inputs(case, dtype, device="cpu", size=1.0, seed=0):
    """Normal vectors and weights of both signs: the arguments of the operator, and its keyword arguments."""
    queries, keys, heads, dim, q_start = case
    generator = torch.Generator().manual_seed(seed)
    q, k, weights = (
        torch.randn(shape, generator=generator).to(device)
        for shape in ((queries, heads, dim), (keys, dim), (queries, heads))
    )
    q, k, options = size * q, size * k, {"q_start": q_start}
    if dtype == E4M3:
        (q, options["q_scale"]), (k, options["k_scale"]) = quantize_e4m3(q), quantize_e4m3(k)
    return (q.to(dtype), k.to(dtype), weights), options


def precision(dtype, device, wgmma=False):
    """The largest error of a sum over heads and numbers, relative to the same sum of absolute values. Tensor cores that
    multiply E4M3 keep some 14 bits of what they add, in each of four steps: on a GPU, and where `wgmma` is emulated."""
    return 2.0**-11 if dtype == E4M3 and (wgmma or device.type == "cuda") else 2.0**-20


def check(inputs, options, out=None, wgmma=False):
    """Against float64 on the same inputs: minus infinity exactly where a key is not legal, else close."""
    q, k, weights = inputs
    if out is None:
        with checks.poisoned_outputs():
            out = lightning_indexer(*inputs, **options)
    assert out.shape == (q.shape[0], k.shape[0]) and out.dtype == torch.float32 and out.device == q.device
    expected = reference.lightning_indexer(*inputs, **options)
    absolute = (tensor.float().abs() for tensor in (q, k, weights))
    magnitude = reference.lightning_indexer(*absolute, **(options | {"q_start": k.shape[0]}))
    illegal = torch.arange(k.shape[0]) > torch.arange(q.shape[0])[:, None] + options["q_start"]
    assert torch.equal((out == -torch.inf).cpu(), illegal)
    error = (out - expected).abs().masked_fill(illegal.to(out.device), 0)
    assert torch.isfinite(error).all()
    assert (error <= precision(q.dtype, q.device, wgmma) * magnitude).all(), (error / magnitude).max()


# ---------------------------------------------------------------------------------------------- right


@pytest.mark.parametrize("dtype", [BF16, HALF, E4M3])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_ragged_and_tiny_sizes(device, case, dtype, monkeypatch, thinned):
    """All queries in one block, which then passes from one to the next, or one query in each."""
    for slots in thinned([1, indexer.SLOTS], 2, (case[0] + len(str(dtype))) % 2):
        monkeypatch.setattr(indexer, "SLOTS", slots)
        check(*make_inputs(case, dtype, device))


@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_every_place_of_the_border_between_legal_keys_and_others(device, dtype, monkeypatch, thinned):
    monkeypatch.setattr(indexer, "SLOTS", 4)
    starts = [-(2**40), -70, -69, -33, -1, 0, 1, 190, 263, 264, 2**31 - 1, 2**40]
    for q_start in thinned(starts, 2, dtype == E4M3):
        check(*make_inputs((70, 264, 2, 16, q_start), dtype, device))


@pytest.mark.parametrize("dtype", [BF16, HALF, E4M3])
def test_large_numbers(device, dtype):
    """q · k to 1e8 in fp16, 1e24 in bf16 and FP8."""
    check(*make_inputs((3, 70, 5, 128, 68), dtype, device, size=1e3 if dtype == HALF else 1e11))


@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_infinite_keys_do_not_reach_other_keys(device, dtype):
    """What fills up heads and numbers is 0, and 0 · ∞ is NaN."""
    (q, k, weights), options = make_inputs((3, 70, 5, 40, 70), dtype, device)
    expected = lightning_indexer(q, k, weights, **options)
    k[33] = torch.nan if dtype == E4M3 else torch.inf
    out = lightning_indexer(q, k, weights, **options)
    others = torch.arange(70) != 33
    assert torch.equal(out[:, others], expected[:, others])


def test_strided_inputs_and_gradients(device):
    (q, k, weights), options = make_inputs((5, 40, 6, 64, 38), BF16, device)
    strided = [q.transpose(0, 1).contiguous().transpose(0, 1), k.T.contiguous().T, weights.T.contiguous().T]
    out = lightning_indexer(*(tensor.requires_grad_() for tensor in strided), **options)
    with pytest.raises(NotImplementedError, match="lightning_indexer has no gradient"):
        out[:, 0].sum().backward()
    check((q, k, weights), options, out.detach())


def test_a_slice_that_begins_anywhere(device):
    (q, k, weights), options = make_inputs((4, 40, 3, 8, 38), E4M3, device)
    options |= {"q_scale": options["q_scale"][1:], "q_start": 39}
    check((q[1:], k, weights[1:]), options)


@pytest.mark.parametrize("dtype", [BF16, E4M3], ids=str)
def test_every_run_gives_the_same_bits(device, dtype):
    queries, keys, runs = (500, 4000, 50) if device.type == "cuda" else (8, 300, 1)
    inputs, options = make_inputs((queries, keys, 64, 128, keys - queries), dtype, device)
    first = lightning_indexer(*inputs, **options)
    assert all(torch.equal(first, lightning_indexer(*inputs, **options)) for _ in range(runs))


def test_the_portable_fp8_kernel_beside_the_one_for_hopper(device, thinned):
    if device.type == "cuda" and not takes_wgmma(device):
        pytest.skip("this GPU is no Hopper")
    for case in thinned(CASES, 3):
        inputs, options = make_inputs(case, E4M3, device)
        for hopper in (True, False):
            check(inputs, options, indexer.indexer_forward(*inputs, **options, hopper=hopper), wgmma=hopper)


def test_the_kernel_for_hopper_has_other_sums_only_where_tensor_cores_cut_them():
    inputs, options = make_inputs(CASES[0], E4M3, torch.device("cpu"))
    with emulator.configure(exact_sums=True):
        check(inputs, options, indexer.indexer_forward(*inputs, **options, hopper=True))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_more_logits_than_an_int_can_count(dtype):
    if dtype == E4M3 and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("this GPU has no FP8")
    (q, k, weights), options = make_inputs((2**13 + 5, 2**18 + 9, 2, 16, 2**18), dtype, "cuda")
    out = lightning_indexer(q, k, weights, **options)
    assert out.numel() > 2**31
    for rows in (slice(0, 3), slice(2**13, None)):
        of_rows = {name: scale[rows] for name, scale in options.items() if name == "q_scale"}
        check((q[rows], k, weights[rows]), options | of_rows | {"q_start": 2**18 + rows.start}, out[rows])


def test_how_queries_are_split_among_blocks():
    assert indexer.grid(4096, 32768) == (128, 64)  # 64 queries a block
    assert indexer.grid(4, 256) == (1, 4)  # a query each
    assert indexer.grid(64, 32768) == (128, 5)  # enough blocks for a GPU to run two rounds of them
    assert indexer.grid(1, 100_000) == (391, 1)
    assert indexer.grid(2**23, 1) == (1, 65535)  # the most that a grid has


# ---------------------------------------------------------------------------------------------- quantize_e4m3


@pytest.mark.parametrize("dtype", [torch.float32, BF16, HALF])
def test_a_scale_is_the_least_power_of_two_that_lets_a_vector_fit(device, dtype):
    generator = torch.Generator().manual_seed(0)
    sizes = 10.0 ** torch.arange(-3, 4)[:, None, None]
    x = (sizes * torch.randn(7, 50, 32, generator=generator)).to(device, dtype)
    x8, scale = quantize_e4m3(x)
    assert x8.dtype == E4M3 and x8.shape == x.shape and scale.dtype == torch.float32 and scale.shape == x.shape[:-1]
    assert (torch.frexp(scale).mantissa == 0.5).all()
    largest = x.float().abs().amax(dim=-1).clamp(min=1e-4)
    assert (largest <= 448 * scale).all() and (largest > 224 * scale).all()
    error = (x8.float() * scale[..., None] - x.float()).abs()
    assert (error <= torch.maximum(x.float().abs() / 16, scale[..., None] * 2**-10)).all()


def test_quantization_at_the_edges(device):
    x = torch.tensor([[0.0, 0.0], [448.0, -448.0], [448.1, 1.0], [3e38, -3e38], [1e-30, 0.0], [7.0, -3.5]])
    x8, scale = (tensor.cpu() for tensor in quantize_e4m3(x.to(device)))
    assert scale.tolist() == [2**-22, 1, 2, 2.0**120, 2**-22, 2**-6]
    assert torch.equal(x8.float()[[0, 1, 5]] * scale[[0, 1, 5], None], x[[0, 1, 5]])
    assert torch.isfinite(x8.float()).all() and x8[4].float().eq(0).all()


@pytest.mark.parametrize(
    ("x", "error", "message"),
    [
        ([1.0], TypeError, "x is a list; it must be a torch tensor"),
        (torch.ones(3).double(), TypeError, "x has dtype torch.float64; it must be torch.float32 or"),
        (torch.tensor(1.0), ValueError, r"x has shape \[\]; it must be \[..., d\]"),
        (torch.ones(3, 0), ValueError, r"x has shape \[3, 0\]"),
    ],
)
def test_quantization_names_a_bad_argument(x, error, message):
    with pytest.raises(error, match=message):
        quantize_e4m3(x)


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
def test_a_vector_that_is_not_finite_becomes_nan(device, value):
    x = torch.ones(3, 8, device=device)
    x[1, 2] = value
    x8, scale = quantize_e4m3(x)
    assert x8[1].float().isnan().all() and scale[1].isnan()
    assert torch.equal(x8[::2].float() * scale[::2, None], x[::2])


# ---------------------------------------------------------------------------------------------- bad input

ONES = {
    "q_index": torch.ones(3, 2, 8, dtype=BF16),
    "k_index": torch.ones(5, 8, dtype=BF16),
    "weights": torch.ones(3, 2),
}
ONES_FP8 = {
    "q_index": torch.ones(3, 2, 8).to(E4M3),
    "k_index": torch.ones(5, 8).to(E4M3),
    "weights": torch.ones(3, 2),
    "q_scale": torch.ones(3, 2),
    "k_scale": torch.ones(5),
}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (ONES | {"q_index": [1.0]}, TypeError, "q_index is a list; it must be a torch tensor"),
        (ONES | {"q_index": torch.ones(3, 2, 8)}, TypeError, "q_index has dtype torch.float32; it must be torch"),
        (ONES | {"q_index": torch.ones(3, 8).half()}, ValueError, r"q_index has shape \[3, 8\]; .* \[S, H_I, d_I\]"),
        (ONES | {"q_index": torch.ones(0, 2, 8).half()}, ValueError, r"q_index has shape \[0, 2, 8\]; .* of them 0"),
        (ONES | {"q_index": torch.ones(3, 65, 8).half()}, ValueError, "q_index has 65 heads; it must have at most 64"),
        (ONES | {"q_index": torch.ones(3, 2, 129).half()}, ValueError, "q_index has vectors of 129 numbers; .* 128"),
        (ONES | {"q_index": torch.ones(3, 2, 8, device="meta").half()}, ValueError, "q_index is on meta"),
        (ONES | {"k_index": torch.ones(5, 8).half()}, TypeError, "k_index has dtype torch.float16; it must be torch."),
        (ONES | {"k_index": torch.ones(5, 9).bfloat16()}, ValueError, r"k_index has shape \[5, 9\]; .* \[T, 8\]"),
        (ONES | {"k_index": torch.ones(0, 8).bfloat16()}, ValueError, r"k_index has shape \[0, 8\]; .* \[T, 8\]"),
        (ONES | {"k_index": torch.ones(5, 8, device="meta").bfloat16()}, ValueError, "k_index is on meta; .* on cpu"),
        (ONES | {"weights": torch.ones(3, 2).half()}, TypeError, "weights has dtype torch.float16; .* torch.float32"),
        (ONES | {"weights": torch.ones(2, 3)}, ValueError, r"weights has shape \[2, 3\]; it must be \[3, 2\]"),
        (ONES | {"q_start": 1.0}, TypeError, "q_start is 1.0; it must be an int"),
        (ONES | {"q_start": True}, TypeError, "q_start is True; it must be an int"),
        (ONES | {"q_scale": torch.ones(3, 2)}, ValueError, "q_scale is for FP8 only; .* q_index of torch.bfloat16"),
        (ONES | {"k_scale": torch.ones(5)}, ValueError, "k_scale is for FP8 only"),
        (ONES_FP8 | {"q_scale": None}, ValueError, "q_scale is needed for q_index of torch.float8_e4m3fn"),
        (ONES_FP8 | {"k_scale": None}, ValueError, "k_scale is needed"),
        (ONES_FP8 | {"k_scale": torch.ones(4)}, ValueError, r"k_scale has shape \[4\]; it must be \[5\]"),
        (ONES_FP8 | {"q_scale": torch.ones(3, 2).half()}, TypeError, "q_scale has dtype torch.float16"),
    ],
)  # fmt: skip
def test_a_bad_argument_is_named(arguments, error, message):
    with pytest.raises(error, match=message):
        lightning_indexer(**arguments)


# ---------------------------------------------------------------------------------------------- seen to be wrong


@pytest.mark.parametrize(
    ("right", "wrong"),
    every_second(
        [
            ("relu(scores);", ""),
            ("max(t0, s0 - q_start)", "max(t0, s0 - q_start + 1)"),
            ("r <= t + q_start", "r < t + q_start"),
            ("j < H; j += 16", "j + 16 <= H; j += 16"),
            ("tile.query[t % 2]", "tile.query[0]"),
            ("__shfl_xor_sync(0xffffffff, send, half)", "send"),
        ]
    ),
)
@pytest.mark.parametrize("file", KERNELS)
def test_the_check_sees_a_broken_kernel(file, right, wrong, break_kernel, monkeypatch):
    monkeypatch.setattr(indexer, "SLOTS", 1)
    break_kernel(f"{indexer.FOLDER}/{file}.cu", right, wrong)
    dtype = BF16 if file == "lightning_indexer" else E4M3
    with pytest.raises(AssertionError):
        check(*make_inputs((5, 300, 20, 64, 254), dtype))


@pytest.mark.parametrize("scale", ["*= scale", "* own_scale[r]"])
def test_the_check_sees_a_missing_scale(scale, break_kernel):
    break_kernel(f"{indexer.FOLDER}/lightning_indexer_fp8.cu", scale, "*= 1" if "=" in scale else "")
    with pytest.raises(AssertionError):
        check(*make_inputs((3, 70, 4, 64, 68), E4M3))


@pytest.mark.parametrize("dtype", [BF16, E4M3])
def test_the_sanitizer_finds_nothing(dtype, monkeypatch):
    monkeypatch.setattr(indexer, "SLOTS", 1)
    inputs, options = make_inputs((4, 270, 20, 128, 268), dtype)
    with sanitize() as report:
        lightning_indexer(*inputs, **options)
    assert not report.findings


@pytest.mark.parametrize("dtype, dim", [(BF16, 64), (BF16, 128), (E4M3, 128)])
def test_two_blocks_fit_a_multiprocessor_without_spills(dtype, dim):
    kernel = indexer.variant(dtype, dim, torch.device("cpu"))
    source = read_kernel(f"05_deepseek_sparse/{kernel.file}.cu")
    assert kernel.options in compile_options(source)  # the gate compiles what the operator launches
    found = nvrtc.compile_kernel(source, "sm_90", kernel.options).resources[kernel.file]
    assert found.spill_stores == found.spill_loads == found.stack_frame == 0
    assert nvrtc.occupancy(found, kernel.threads, kernel.shared_bytes, "sm_90").blocks >= 2
