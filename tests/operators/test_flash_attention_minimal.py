"""flash_attention_minimal and its kernels: right on every case, seen to be wrong when broken, clear when misused."""

import dataclasses

import pytest
import torch

from course_utils import checks
from course_utils.cuda import read_kernel
from course_utils.operators import flash_attention_minimal, minimal, prepare
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers.attention_rules import check_rows_without_keys, check_strided_and_misaligned
from tests.helpers.one_of_each import every_second
from tests.helpers.tensors import random

CASES = checks.attention_cases()
FOLDER = "02_flash_attention_minimal"
ALL_TILES = [
    *(("forward", tile) for tiles in minimal.FORWARD_TILES.values() for tile in tiles),
    *(("backward", tile) for tiles in minimal.BACKWARD_TILES.values() for tile in tiles),
]


# ---------------------------------------------------------------------------------------------- right


def test_output_lse_and_gradients_are_correct_on_every_case(device, thinned):
    """On the emulator with every second length; the smaller tiles below have the others."""
    checks.check_attention(flash_attention_minimal, device=device, gradients=True, cases=thinned(CASES, 4, 3))


@pytest.mark.gpu
def test_all_combinations_on_a_gpu():
    checks.check_attention(flash_attention_minimal, device="cuda", full=True, gradients=True)


@pytest.mark.parametrize("head_dim", [1, 5, 40, 59, 111])
def test_a_head_dim_without_a_kernel_is_filled_up(device, head_dim):
    case = checks.AttentionCase(1, 2, 2, 33, 70, head_dim, True, "normal")
    checks.check_attention(flash_attention_minimal, device=device, cases=[case], gradients=True)


def test_the_smaller_tiles_are_correct(device, monkeypatch, thinned):
    monkeypatch.setattr(prepare, "shared_memory_limit", lambda device: 64 * 1024)  # a Turing GPU's
    chosen = [prepare.fitting(tiles, device) for tiles in (minimal.FORWARD_TILES[64], minimal.BACKWARD_TILES[128])]
    assert chosen == [minimal.FORWARD_TILES[64][-1], minimal.BACKWARD_TILES[128][-1]]
    checks.check_attention(flash_attention_minimal, device=device, gradients=True, cases=thinned(CASES, 4))


@pytest.mark.parametrize("scale", [0.0, -0.3, 2])
def test_any_finite_scale(device, scale):
    case = checks.AttentionCase(1, 2, 2, 40, 70, 32, True, "normal", scale)
    checks.check_attention(flash_attention_minimal, device=device, cases=[case], gradients=True)


def test_rows_that_see_no_key_give_zero_and_minus_infinity_and_no_gradient(device):
    inputs = tuple(random(1, 2, length, 32, device=device) for length in (70, 3, 3))
    check_rows_without_keys(flash_attention_minimal, inputs)


def test_strided_and_misaligned_inputs_are_copied(device):
    flat = random(3 * 20 * 2 * 32 + 1, device=device)
    check_strided_and_misaligned(flash_attention_minimal, flat, 32)


def test_every_run_gives_the_same_bits(device):
    query, key, value = (random(2, 2, 150, 64, device=device, seed=s).requires_grad_() for s in range(3))
    runs = []
    for _ in range(5 if device.type == "cuda" else 2):
        out = flash_attention_minimal(query, key, value, is_causal=True)
        runs.append((out, *torch.autograd.grad(out.square().sum(), (query, key, value))))
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(runs[0], run, strict=True))


def test_lse_is_not_differentiable_and_out_is_once():
    inputs = [random(1, 1, 5, 32, seed=s).requires_grad_() for s in range(3)]
    out, lse = flash_attention_minimal(*inputs, return_lse=True)
    assert out.requires_grad and not lse.requires_grad and lse.dtype == torch.float32
    assert not flash_attention_minimal(*(tensor.detach() for tensor in inputs)).requires_grad
    (first,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()
    (first,) = torch.autograd.grad(flash_attention_minimal(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()


@pytest.mark.gpu
def test_offsets_beyond_32_bits():
    free, _ = torch.cuda.mem_get_info()
    if free < 24 << 30:
        pytest.skip(f"needs 24 GiB of free GPU memory, {free >> 30} are")
    shape = 129, 32, 4096, 128  # the last head starts beyond element 2^31
    query, key = torch.zeros(129, 32, 64, 128, device="cuda"), torch.zeros(1, device="cuda").expand(shape)
    value = torch.zeros(shape, device="cuda")
    value[-1, -1] = 3.0
    out = flash_attention_minimal(query, key, value)
    torch.testing.assert_close(out[-1, -1], torch.full_like(out[-1, -1], 3.0))
    assert (out[0] == 0).all()


# ---------------------------------------------------------------------------------------------- the kernels themselves


@pytest.mark.parametrize(("file", "tile"), ALL_TILES)
def test_shared_memory_is_what_the_kernel_lays_out_and_nothing_spills(file, tile):
    code = read_kernel(f"{FOLDER}/{file}.cu") + f"\nstatic_assert(sizeof(Tiles) == {tile.shared_bytes});\n"
    code += f"static_assert(THREADS == {tile.threads});\n"
    for found in nvrtc.compile_kernel(code, "sm_90", tile.options).resources.values():
        assert found.spill_stores == found.spill_loads == found.stack_frame == 0


@pytest.mark.parametrize("file", ["forward", "backward"])
def test_the_header_lists_the_tiles_in_use(file):
    listed = {frozenset(options) for options in compile_options(read_kernel(f"{FOLDER}/{file}.cu"))}
    assert listed == {frozenset(tile.options) for name, tile in ALL_TILES if name == file}


# ---------------------------------------------------------------------------------------------- broken kernels are seen


@pytest.mark.parametrize(
    ("file", "right", "wrong"),
    every_second(
        [
            ("forward", "m_new = fmaxf(m_new, S[r][c]);", "m_new = 0;"),  # no running maximum: exp overflows
            ("forward", "m_new = fmaxf(m_new, __shfl_xor_sync(0xffffffff, m_new, x));", ";"),  # each thread its own
            ("forward", "l[r] *= rescale;", "l[r] *= 1;"),
            ("forward", "O_i[r][c] = scaled(rescale, O_i[r][c]);", ";"),
            ("forward", "j > i + shift))", "j > i + shift + 1))"),  # sees one key of the future
            ("forward", "j > i + shift))", "j > i))"),  # top-left
            ("forward", "j0 + B_C - 1 > i0 + shift", "j0 > i0 + shift"),  # forgets the mask in tiles on the diagonal
            ("forward", "j0 + B_C > L_k || ", ""),  # the ragged end counts as keys of zeros
            ("forward", "base = m_new == NEG_INF ? 0 : m_new", "base = m_new"),  # NaN in rows without keys
            ("forward", "l[r] > 0 ? 1 / l[r] : 0", "1 / l[r]"),
            ("forward", "scale * LOG2_E;", "scale;"),  # base 2 for base e
            ("forward", "K += head * L_k * D", "K += head * L_q * D"),
            ("backward", "Pt[r][c] * (dPt[r][c] - delta)", "Pt[r][c] * dPt[r][c]"),
            ("backward", "fmaf(St[r][c], scale, -lse) * LOG2_E", "fmaf(St[r][c], scale, -lse)"),
            ("backward", "fmaf(S[r][c], scale, -lse) * LOG2_E", "fmaf(S[r][c], scale, -lse)"),
            ("backward", "store(dK, dK_j, scale,", "store(dK, dK_j, 1,"),
            ("backward", "store(dQ, dQ_i, scale,", "store(dQ, dQ_i, 1,"),
            ("backward", "max(j0 - shift, 0) / TILE * TILE", "max(j0 - shift + TILE, 0) / TILE * TILE"),
            ("backward", "min(L_k, i0 + TILE + shift)", "min(L_k, i0 + shift)"),
            ("backward", "dK += head * L_k * D", "dK += head * L_q * D"),
        ]
    ),
)
def test_a_broken_kernel_fails_the_check(break_kernel, file, right, wrong):
    break_kernel(f"{FOLDER}/{file}.cu", right, wrong)
    # Lengths differ in the selected cases, all kinds of input occur, and some rows see no key.
    cases = [dataclasses.replace(case, head_dim=32) for case in CASES if case.query_length != case.key_length]
    cases.sort(key=lambda case: not case.is_causal)  # where most mistakes show
    with pytest.raises(AssertionError, match="WRONG"):
        checks.check_attention(flash_attention_minimal, gradients=file == "backward", cases=cases, seed=0)


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(2, 3, 4)}, ValueError, r"query has shape \[2, 3, 4\]"),
        ({"query": torch.zeros(1, 2, 0, 4)}, ValueError, r"query has shape \[1, 2, 0, 4\]"),
        ({"query": [1.0]}, TypeError, "query is a list"),
        ({"key": torch.zeros(1, 2, 5, 4, dtype=torch.float16)}, TypeError, "key has dtype torch.float16"),
        ({"value": torch.zeros(1, 2, 6, 4)}, ValueError, r"value has shape \[1, 2, 6, 4\]"),
        ({name: torch.zeros(1, 1, 5, 4) for name in ("key", "value")}, ValueError, "key has 1 heads and query 2"),
        ({"key": torch.zeros(1, 2, 5, 4, device="meta")}, ValueError, "key is on meta"),
        ({"scale": float("inf")}, ValueError, "scale is inf"),
        ({"scale": "1"}, TypeError, "scale is '1'"),
        (
            {name: torch.zeros(1, 2, 5, 4, dtype=torch.float16) for name in ("query", "key", "value")},
            TypeError,
            "query has dtype torch.float16; it must be torch.float32",
        ),
        (
            {name: torch.zeros(1, 2, 5, 129) for name in ("query", "key", "value")},
            ValueError,
            "query has head dimension 129; it must be at most 128",
        ),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {name: torch.zeros(1, 2, 5, 4) for name in ("query", "key", "value")} | change
    with pytest.raises(error, match=message):
        flash_attention_minimal(**arguments)
