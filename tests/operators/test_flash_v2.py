"""flash_attention_v2 and its kernels: right on every case, the same in every run, seen to be wrong when broken."""

import dataclasses
import itertools
from functools import partial

import pytest
import torch

from course_utils import checks
from course_utils.cuda import read_kernel
from course_utils.emulator import profile, sanitize
from course_utils.launches.chapters import course_launches
from course_utils.launches.ladder import LADDER
from course_utils.operators import flash_attention_v2, flash_v2, prepare, tensor_core
from course_utils.toolchain import nvrtc
from course_utils.toolchain.source import compile_options
from tests.helpers import tensors
from tests.helpers.attention_rules import check_rows_without_keys, check_strided_and_misaligned
from tests.helpers.deterministic import told_to_be_deterministic
from tests.helpers.one_of_each import every_second, last_of_each_kernel

CASES = checks.attention_cases(head_dims=flash_v2.HEAD_DIMS)
GQA_CASES = checks.attention_cases(head_dims=flash_v2.HEAD_DIMS, enable_gqa=True)
# Lengths of flash-attention's own tests, beside those that every operator is checked with.
MORE_LENGTHS = ((1, 239), (239, 1), (799, 3), (113, 203))
LONG_LENGTHS = ((1023, 1024), (1024, 1023))
# With the causal mask the diagonal enters a tile, of a warp or of a block, by a corner alone, or leaves it so.
CORNER_LENGTHS = ((66, 128), (130, 131))
DTYPES = (torch.float16, torch.bfloat16)
# Of the NVRTC gates: bf16 differs from fp16 in the conversions alone.
BF16_OPTIONS = [0, pytest.param(1, marks=pytest.mark.exhaustive("fp16 has the same registers and shared memory"))]
ALL_FORWARD_TILES = [
    tile for of in (tensor_core.FORWARD_TILES, tensor_core.PACKED_TILES) for tiles in of.values() for tile in tiles
]
ALL_BACKWARD_TILES = [tile for tiles in flash_v2.BACKWARD_TILES.values() for tile in tiles]


random = partial(tensors.random, dtype=torch.float16)


@pytest.fixture(params=["atomics", "deterministic"])
def dq_path(request, monkeypatch):
    """How the backward pass adds up dQ. The operator asks torch, whose switch `checks` needs on to poison memory."""
    answer = request.param == "deterministic"
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: answer)
    return request.param


@pytest.fixture
def deterministic():
    """torch's own switch, on."""
    with told_to_be_deterministic():
        yield


# ---------------------------------------------------------------------------------------------- right


def test_output_lse_and_gradients_are_correct_on_every_case(device, dq_path, thinned):
    cases = thinned(CASES, 7, 2 * (dq_path == "atomics"))  # the two paths share all but the sums of dQ
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=True, cases=cases)


def test_bf16_is_correct(device, dq_path, thinned):
    cases = thinned(CASES, 11, 4 + 2 * (dq_path == "atomics"))
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.bfloat16, gradients=True, cases=cases)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_grouped_heads_are_correct(device, dq_path, dtype, thinned):
    cases = thinned(GQA_CASES, 19, 7 * DTYPES.index(dtype) + 1 + 3 * (dq_path == "atomics"))
    checks.check_attention(flash_attention_v2, device=device, dtype=dtype, gradients=True, cases=cases)


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_4_and_8_query_heads_may_share_a_key_head(device, dq_path, kv_heads):
    case = checks.AttentionCase(1, 8, kv_heads, 33, 40, 64, True, "planted")
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=True, cases=[case])


@pytest.mark.exhaustive("`make test` has the lengths of checks.UNEQUAL_LENGTHS; a GPU has these in all combinations")
@pytest.mark.parametrize("lengths", MORE_LENGTHS, ids=str)
def test_very_unequal_lengths(device, dq_path, lengths):
    is_causal = dq_path == "deterministic"
    kind = "planted" if is_causal else "large logits"
    cases = [checks.AttentionCase(1, 2, 1, *lengths, 64, is_causal, kind)]
    cases += [checks.AttentionCase(1, 1, 1, *lengths, 128, not is_causal, "normal")]
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=True, cases=cases)


# Groups and queries whose heads share tiles, each with some length of keys: one that fills no tile, none at all for
# the first queries, and keys of several tiles. 8 · 17 rows are two tiles, and so are 4 · 60.
PACKED_CASES = [
    checks.AttentionCase(
        1 + n % 2, 2 * group, 2, length, (1, 3, 40, 130, 257)[n % 5], 64, n % 3 > 0, checks.KINDS[n % 5]
    )
    for n, (group, length) in enumerate([*itertools.product((2, 4, 7, 8), (1, 2, 3, 5, 17)), (4, 60)])
]


@pytest.mark.parametrize(("dtype", "head_dim"), [(torch.float16, 64), (torch.bfloat16, 128)], ids=str)
def test_heads_of_a_group_that_share_tiles_are_correct(device, dtype, head_dim, thinned):
    """Their gradients, by kernels in which none do, are in `test_4_and_8_query_heads_may_share_a_key_head`."""
    cases = [dataclasses.replace(case, head_dim=head_dim) for case in PACKED_CASES]
    assert all(tile_of(case.query_length, case.heads // case.kv_heads, head_dim).packed for case in cases)
    assert any(case.empty_rows.any() for case in cases)
    cases = thinned(cases, 2, head_dim // 128)
    checks.check_attention(flash_attention_v2, device=device, dtype=dtype, cases=cases)


def test_the_sanitizer_finds_nothing_where_heads_share_tiles():
    query, key = random(1, 14, 19, 64), random(1, 2, 70, 64)
    with sanitize() as report:
        flash_attention_v2(query, key, key, is_causal=True, enable_gqa=True)
    assert report.launches == 1 and not report.findings, str(report)


def tile_of(query_length, group, head_dim=128):
    return tensor_core.forward_tile(query_length, group, head_dim, torch.device("cpu"))


@pytest.mark.parametrize(
    ("query_length", "group", "packed", "rows"),
    [
        (1, 1, False, 128),
        (1, 2, True, 64),
        (16, 4, True, 64),
        (17, 4, True, 128),  # 68 rows
        (64, 2, True, 128),
        (65, 2, False, 128),  # 130 rows: two tiles, as before
        (96, 4, True, 128),  # three instead of four
        (97, 4, False, 128),
        (1025, 8, False, 128),  # 65 tiles instead of 72, but causal ones would all see the last key
    ],
)
def test_heads_share_tiles_where_that_makes_fewer_that_visit_the_same_keys(query_length, group, packed, rows):
    tile = tile_of(query_length, group)
    assert (tile.packed, tile.block_rows) == (packed, rows)


def test_heads_that_share_tiles_read_their_keys_once():
    query, key = random(1, 8, 2, 64), random(1, 2, 300, 64)
    q_bytes, kv_bytes = 2 * query.numel(), 2 * 2 * key.numel()
    for keys, copies in ((key, 1), (key.repeat_interleave(4, dim=1), 4)):
        with profile() as counters:
            flash_attention_v2(query, keys, keys, enable_gqa=copies == 1)
        assert counters.total("bytes", "global", "load") == q_bytes + copies * kv_bytes


def corner_cases():
    return [
        checks.AttentionCase(1, 2, 1, *lengths, head_dim, True, "normal")
        for lengths in CORNER_LENGTHS
        for head_dim in flash_v2.HEAD_DIMS
    ]


def test_the_diagonal_in_a_corner_of_a_tile(device, dq_path, thinned):
    cases = thinned(corner_cases(), 2, dq_path == "atomics")
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=True, cases=cases)


@pytest.mark.exhaustive("`make test` has lengths of three tiles; a GPU has these in all combinations")
@pytest.mark.parametrize("lengths", LONG_LENGTHS, ids=str)
def test_long_lengths_that_differ_by_one(device, lengths):
    case = checks.AttentionCase(1, 1, 1, *lengths, 64, True, "planted")
    on_gpu = device.type == "cuda"  # slow on the emulator
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=on_gpu, cases=[case])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("enable_gqa", [False, True])
def test_all_combinations_on_a_gpu(dq_path, dtype, enable_gqa):
    cases = checks.attention_cases(full=True, enable_gqa=enable_gqa, head_dims=flash_v2.HEAD_DIMS)
    template = checks.AttentionCase(2, 4, 2 if enable_gqa else 4, 1, 1, 64, False, "normal")
    for query_length, key_length in MORE_LENGTHS + LONG_LENGTHS + CORNER_LENGTHS:
        for n in range(4):
            change = {"head_dim": (64, 128)[n % 2], "is_causal": n >= 2, "kind": checks.KINDS[n]}
            cases.append(dataclasses.replace(template, query_length=query_length, key_length=key_length, **change))
    checks.check_attention(flash_attention_v2, device="cuda", dtype=dtype, gradients=True, cases=cases)


@pytest.mark.parametrize("head_dim", [1, 111])
def test_a_head_dim_without_a_kernel_is_filled_up(device, head_dim):
    case = checks.AttentionCase(1, 2, 1, 33, 70, head_dim, True, "normal")
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, cases=[case], gradients=True)


def test_smaller_tiles_are_correct(device, monkeypatch, thinned):
    for made in ("dense_forward", "ready_backward_of"):  # not with the tiles of another test
        monkeypatch.setattr(flash_v2, made, getattr(flash_v2, made).__wrapped__)
    monkeypatch.setattr(prepare, "shared_memory_limit", lambda device: 99 * 1024)  # of sm_86, 89 and 120
    chosen = [prepare.fitting(tiles[128], device) for tiles in (flash_v2.FORWARD_TILES, flash_v2.BACKWARD_TILES)]
    assert all(tile.shared_bytes <= 99 * 1024 for tile in chosen) and chosen[1].dq_shared_bytes <= 99 * 1024
    cases = thinned([case for case in CASES if case.head_dim == 128], 7)
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, gradients=True, cases=cases)


@pytest.mark.parametrize("scale", [0.0, -0.3, 2, 1e-46])
def test_any_finite_scale(device, scale):
    case = checks.AttentionCase(1, 2, 2, 40, 70, 64, True, "normal", scale)
    checks.check_attention(flash_attention_v2, device=device, dtype=torch.float16, cases=[case], gradients=True)


def test_a_negative_scale_gives_the_bits_of_the_negated_query(device):
    query, key, value = (random(1, 2, 40, 64, device=device, seed=s) for s in range(3))
    out = flash_attention_v2(query, key, value, scale=-0.3)
    assert torch.equal(out, flash_attention_v2(-query, key, value, scale=0.3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_gradients_where_that_of_out_has_a_large_common_part(device, dtype, monkeypatch):
    """Then dP and Δ, which is summed from the 16 bits of O, are large, and dS, their difference, is small."""
    make_inputs = checks.make_inputs

    def with_common_part(*args, **options):
        *inputs, grad_out = make_inputs(*args, **options)
        return *inputs, grad_out + 100

    monkeypatch.setattr(checks, "make_inputs", with_common_part)
    kinds = ["normal", "planted", "large logits"]
    kinds += ["offset on V"] if dtype == torch.bfloat16 else []  # beyond what dP in fp16 can hold, in torch
    cases = [checks.AttentionCase(1, 2, 1, 65, 113, 64, n % 2 > 0, kind) for n, kind in enumerate(kinds)]
    checks.check_attention(flash_attention_v2, device=device, dtype=dtype, gradients=True, cases=cases)


def test_rows_that_see_no_key_give_zero_and_minus_infinity_and_no_gradient(device, dq_path):
    inputs = tuple(random(1, 2, length, 64, device=device) for length in (150, 3, 3))
    check_rows_without_keys(flash_attention_v2, inputs)


def test_strided_and_misaligned_inputs_are_copied(device):
    flat = random(3 * 20 * 2 * 64 + 1, device=device)
    check_strided_and_misaligned(flash_attention_v2, flat, 64)


def test_a_strided_gradient_is_copied(device):
    inputs = [random(1, 2, 20, 64, device=device, seed=s).requires_grad_() for s in range(3)]
    grad = random(1, 20, 2, 64, device=device, seed=3).transpose(1, 2)
    out = flash_attention_v2(*inputs)
    strided = torch.autograd.grad(out, inputs, grad, retain_graph=True)
    assert all(map(torch.equal, strided[1:], torch.autograd.grad(out, inputs, grad.contiguous())[1:]))


def test_lse_is_not_differentiable_and_out_is_once():
    inputs = [random(1, 1, 5, 64, seed=s).requires_grad_() for s in range(3)]
    out, lse = flash_attention_v2(*inputs, return_lse=True)
    assert out.requires_grad and out.dtype == torch.float16
    assert not lse.requires_grad and lse.dtype == torch.float32 and lse.shape == (1, 1, 5)
    assert not flash_attention_v2(*(tensor.detach() for tensor in inputs)).requires_grad
    (first,) = torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()
    # Also where the gradient of out is a constant, and the one of query, all the same, depends on query.
    (first,) = torch.autograd.grad(flash_attention_v2(*inputs).sum(), inputs[0], create_graph=True)
    with pytest.raises(RuntimeError, match="is differentiable once"):
        first.sum().backward()


def test_a_row_with_nan_is_not_taken_for_one_without_keys(device):
    query, key, value = (random(1, 1, 40, 64, device=device, seed=s) for s in range(3))
    query[0, 0, 5, 3] = torch.nan
    out, lse = flash_attention_v2(query, key, value, return_lse=True)
    assert out[0, 0, 5].isnan().all() and lse[0, 0, 5].isnan()


FINAL = {name: launch for name, launch in course_launches().items() if name.startswith(("v2 forward", "v2 backward_d"))}


@pytest.mark.parametrize("launch", last_of_each_kernel((name, launch, launch) for name, launch in FINAL.items()))
def test_no_bank_conflicts_in_the_final_kernels(launch):
    with profile() as counters:
        launch.run()
    assert counters.total("bank_conflicts", "shared") == 0


@pytest.mark.gpu
def test_offsets_beyond_32_bits():
    free, _ = torch.cuda.mem_get_info()
    if free < 16 << 30:
        pytest.skip(f"needs 16 GiB of free GPU memory, {free >> 30} are")
    value = torch.zeros(129, 32, 4096, 128, device="cuda", dtype=torch.float16)
    value[-1, -1] = 3.0  # the last head starts beyond element 2^31
    key = torch.zeros_like(value)
    out = flash_attention_v2(key[:, :, :64], key, value)
    torch.testing.assert_close(out[-1, -1], torch.full_like(out[-1, -1], 3.0))
    assert (out[0] == 0).all()


# ---------------------------------------------------------------------------------------------- the same every time


def all_results(query, key, value):
    out, lse = flash_attention_v2(query, key, value, is_causal=True, enable_gqa=True, return_lse=True)
    return (out, lse, *torch.autograd.grad(out.square().sum(), (query, key, value)))


def test_every_run_gives_the_same_bits(device, deterministic):
    inputs = [random(1, heads, 150, 64, device=device, seed=heads).requires_grad_() for heads in (4, 2, 2)]
    first, second = all_results(*inputs), all_results(*inputs)
    assert all(map(torch.equal, first, second))


def test_without_the_switch_only_the_gradient_of_query_may_change(device):
    inputs = [random(1, heads, 150, 64, device=device, seed=heads).requires_grad_() for heads in (4, 2, 2)]
    first, second = all_results(*inputs), all_results(*inputs)
    assert all(torch.equal(first[n], second[n]) for n in (0, 1, 3, 4))
    torch.testing.assert_close(first[2], second[2], atol=1e-3, rtol=1e-3)


def test_both_ways_to_the_gradient_of_query_agree(device):
    """By atomics, and under torch's switch by a second pass: `check_attention` asks for the second only."""
    inputs = [random(1, heads, 130, 64, device=device, seed=heads).requires_grad_() for heads in (4, 2, 2)]
    by_atomics = all_results(*inputs)[2]
    with told_to_be_deterministic():
        by_second_pass = all_results(*inputs)[2]
    torch.testing.assert_close(by_atomics, by_second_pass, atol=1e-3, rtol=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("head_dim", flash_v2.HEAD_DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_100_runs_of_many_blocks_give_the_same_bits(deterministic, head_dim, dtype):
    inputs = [
        random(4, heads, 1111, head_dim, device="cuda", dtype=dtype, seed=heads).requires_grad_()
        for heads in (16, 4, 4)
    ]
    first = all_results(*inputs)
    for n in range(1, 100):
        assert all(map(torch.equal, first, all_results(*inputs))), f"run {n} differs from the first"


# ---------------------------------------------------------------------------------------------- the kernels themselves


@pytest.mark.parametrize("tile", ALL_BACKWARD_TILES)
@pytest.mark.parametrize("bf16", BF16_OPTIONS)
def test_shared_memory_is_what_the_backward_kernels_lay_out_and_nothing_spills(tile, bf16):
    code = read_kernel("03_flash_attention_v2/backward.cu")
    for struct, count in (("Tiles", tile.shared_bytes), ("QueryTiles", tile.dq_shared_bytes)):
        code += f"\nstatic_assert(sizeof({struct}) == {count});\n"
    code += f"static_assert(THREADS == {tile.threads} && B_C == {tile.block_cols});\n"
    for found in nvrtc.compile_kernel(code, "sm_90", (*tile.options, f"-DBF16={bf16}")).resources.values():
        if tile.head_dim != tensor_core.WIDE:  # of which a warp's sums take more registers than there are
            assert found.spill_stores == found.spill_loads == found.stack_frame == 0


@pytest.mark.parametrize("tile", ALL_FORWARD_TILES)
@pytest.mark.parametrize("bf16", BF16_OPTIONS)
def test_shared_memory_is_what_the_forward_kernel_lays_out_and_next_to_nothing_spills(tile, bf16):
    code = read_kernel("03_flash_attention_v2/forward.cu")
    code += f"\nstatic_assert(THREADS == {tile.threads} && sizeof(Tiles) == {tile.shared_bytes});\n"
    found = nvrtc.compile_kernel(code, "sm_90", (*tile.options, f"-DBF16={bf16}")).resources["forward"]
    # Bytes: of 255 registers, a few are too few for d = 128, and packed rows' numbers take one more in the mask.
    assert max(found.spill_stores, found.spill_loads) <= (32 if tile.packed else 16)


@pytest.mark.parametrize("head_dim", flash_v2.HEAD_DIMS)
def test_the_ladder_ends_with_the_kernel_of_the_operator(head_dim):
    tile, last = flash_v2.FORWARD_TILES[head_dim][0], LADDER[-1]
    assert last.file == f"{flash_v2.FOLDER}/forward.cu"
    assert set(last.options(head_dim, torch.float16)) == {*tile.options, "-DBF16=0"}
    assert (last.threads(head_dim), last.shared_bytes(head_dim)) == (tile.threads, tile.shared_bytes)


@pytest.mark.parametrize(("file", "tiles"), [("forward", ALL_FORWARD_TILES), ("backward", ALL_BACKWARD_TILES)])
def test_the_header_lists_the_tiles_in_use(file, tiles):
    header = compile_options(read_kernel(f"03_flash_attention_v2/{file}.cu"))
    listed = {frozenset(option for option in options if not option.startswith("-DBF16")) for options in header}
    assert listed == {frozenset(tile.options) for tile in tiles}


# ---------------------------------------------------------------------------------------------- broken kernels are seen


def check_broken(gradients):
    """The check on cases with one set of options, in which lengths and heads differ and all kinds of input occur."""
    cases = [dataclasses.replace(case, head_dim=64) for case in GQA_CASES if case.query_length != case.key_length]
    cases.sort(key=lambda case: not case.is_causal)  # where most mistakes show
    cases = corner_cases()[::2] + cases
    checks.check_attention(flash_attention_v2, dtype=torch.float16, gradients=gradients, cases=cases, seed=0)


@pytest.mark.parametrize(
    ("right", "wrong"),
    every_second(
        [
            ("exceeds |= highest[i][r] * factor > state.m[i][r] + LAG;", ""),  # no running maximum: exp overflows
            ("state.m[i][r] = m_new, state.l[i][r] *= rescale;", "state.m[i][r] = m_new;"),
            ("scale_row(state.O[i], r, rescale);", ";"),
            ("x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));", ";"),  # lanes of a row disagree
            ("query(row) + shift + 1)", "query(row) + shift + 2)"),  # sees one key of the future
            ("query(row) + shift + 1)", "query(row) + 1)"),  # top-left
            ("j0 + B_C - 1 > first + shift", "j0 > first + shift"),  # forgets the mask in tiles on the diagonal
            ("j0 + B_C - 1 > first + shift", "j0 + B_C - 2 > first + shift"),  # forgets it in their corners
            (
                "min(L_k, query(row) + shift + 1) : L_k",
                "query(row) + shift + 1 : L_k + B_C",
            ),  # the ragged end counts as keys of zeros
            ("l == 0 ? 0 : __fdividef(rescale, l)", "__fdividef(rescale, l)"),  # NaN in rows without keys
            ("(state.m[i][r] + __log2f(l)) * LN_2", "state.m[i][r] + __log2f(l)"),  # log-sum-exp in base 2
            ("? head : head / group;", "? head : head % (gridDim.y / group);"),
        ]
    ),
)
def test_a_broken_forward_kernel_fails_the_check(break_kernel, right, wrong):
    break_kernel(flash_v2.FORWARD, right, wrong)
    with pytest.raises(AssertionError, match="WRONG"):
        check_broken(gradients=False)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("(i_warp + row) % L_q :", "(i_warp + row) / group :"),  # as if neighbouring rows were of different heads
        ("first = PACKED ? 0 :", "first = PACKED ? L_q - 1 :"),  # forgets the mask where only a head's last sees all
        ("PACKED ? group * L_q : L_q;", "L_q;"),  # leaves out all heads of a group but one
        ("kv_head = PACKED ? head :", "kv_head = PACKED ? head / group :"),
    ],
)
def test_a_broken_packing_fails_the_check(break_kernel, right, wrong):
    break_kernel(flash_v2.FORWARD, right, wrong)
    with pytest.raises(AssertionError, match="WRONG"):
        checks.check_attention(flash_attention_v2, dtype=torch.float16, cases=PACKED_CASES[-6:], seed=0)


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    every_second(
        [
            ("atomics", "SOFTCAP ? dPt[m][n][e] : dPt[m][n][e] - delta[query]", "dPt[m][n][e]"),
            ("atomics", "- LSE[query] * LOG2_E", "- LSE[query]"),
            ("atomics", "<= i0 + query + shift", "<= i0 + query + shift + 1"),
            ("atomics", "write_keys(keys.dK, scale, dK + at", "write_keys(keys.dK, 1, dK + at"),
            ("atomics", "steps = group * (", "steps = ("),  # only the first query head of a group counts
            ("atomics", "max(j0 - shift, 0)", "max(j0 - shift + 1, 0)"),  # begins a row too late
            ("atomics", "scale * sum.x", "sum.x"),
            ("atomics", "j0 + B_C - 1 > i0 + shift", "j0 + B_C - 2 > i0 + shift"),  # forgets the mask in corners
            ("deterministic", "j0 + KEY_TILE - 1 > i0 + shift", "j0 + KEY_TILE - 2 > i0 + shift"),
            ("deterministic", "i0 + QUERIES + shift)", "i0 + QUERIES - 1 + shift)"),  # ends a key too early
            ("deterministic", "P * (dP[m][n][e] - queries.delta[query / 8]);", "P * dP[m][n][e];"),
            ("deterministic", "<= i_warp + query + shift);", "<= i_warp + query + shift + 1);"),
        ]
    ),
)
def test_a_broken_backward_kernel_fails_the_check(break_kernel, monkeypatch, path, right, wrong):
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: path == "deterministic")
    break_kernel(flash_v2.BACKWARD, right, wrong)
    with pytest.raises(AssertionError, match="d[qkv]: WRONG"):
        check_broken(gradients=True)


# ---------------------------------------------------------------------------------------------- bad input


HALF = torch.float16


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"query": torch.zeros(2, 3, 4, dtype=HALF)}, ValueError, r"query has shape \[2, 3, 4\]"),
        ({"query": torch.zeros(1, 2, 0, 4, dtype=HALF)}, ValueError, r"query has shape \[1, 2, 0, 4\]"),
        ({"query": [1.0]}, TypeError, "query is a list"),
        ({"key": torch.zeros(1, 2, 5, 4, dtype=torch.bfloat16)}, TypeError, "key has dtype torch.bfloat16"),
        ({"value": torch.zeros(1, 2, 6, 4, dtype=HALF)}, ValueError, r"value has shape \[1, 2, 6, 4\]"),
        (
            {name: torch.zeros(1, 1, 5, 4, dtype=HALF) for name in ("key", "value")},
            ValueError,
            "key has 1 heads and query 2.*enable_gqa=True",
        ),
        (
            {name: torch.zeros(1, 3, 5, 4, dtype=HALF) for name in ("key", "value")} | {"enable_gqa": True},
            ValueError,
            "key has 3 heads; with enable_gqa that must divide the 2 heads of query",
        ),
        ({"key": torch.zeros(1, 2, 5, 4, dtype=HALF, device="meta")}, ValueError, "key is on meta"),
        ({"scale": float("nan")}, ValueError, "scale is nan"),
        ({"scale": "1"}, TypeError, "scale is '1'"),
        ({"is_causal": None}, TypeError, "is_causal is None"),
        (
            {name: torch.zeros(1, 2, 5, 4) for name in ("query", "key", "value")},
            TypeError,
            "query has dtype torch.float32; it must be torch.float16 or torch.bfloat16",
        ),
        (
            {name: torch.zeros(1, 2, 5, 257, dtype=HALF) for name in ("query", "key", "value")},
            ValueError,
            "query has head dimension 257; it must be at most 256",
        ),
    ],
)
def test_bad_input_is_named(change, error, message):
    arguments = {name: torch.zeros(1, 2, 5, 4, dtype=HALF) for name in ("query", "key", "value")} | change
    with pytest.raises(error, match=message):
        flash_attention_v2(**arguments)
