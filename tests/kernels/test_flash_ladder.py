"""The ladder of chapter 03: each step against float64, its table against its header, and what its idea is to change."""

import dataclasses
import difflib
import itertools
import re

import pytest
import torch

from course_utils import checks
from course_utils.cuda import read_kernel
from course_utils.emulator import profile, sanitize
from course_utils.launches.ladder import DTYPES, FORWARD, HEAD_DIMS, LADDER, TUNING, launch
from course_utils.operators import flash_attention_minimal
from course_utils.toolchain.errors import KernelError
from course_utils.toolchain.source import compile_options

STEPS = pytest.mark.parametrize("step", LADDER, ids=lambda step: step.kernel)
OTHER = pytest.mark.exhaustive("`make test` watches each step at one head dimension in each dtype")
PLANTED_ELSEWHERE = pytest.mark.exhaustive("`make test` has another mistake in this step, and tests/mutants/")
LENGTHS = (
    *((length, length) for length in checks.LENGTHS),
    *checks.UNEQUAL_LENGTHS,
    *((1, 239), (239, 1), (799, 3), (113, 203)),
)
LONG = ((1023, 1024), (1024, 1023))
HEADS = ((1, 1), (4, 1), (4, 4), (8, 2))  # of query and of key: groups of 1 and 4


def step_named(name):
    return next(step for step in LADDER if step.kernel.startswith(name))


def cases(step, dtype, *, whole):
    """The two dtypes of a step have every length between them. Mask, heads, D, kind of input and scale take turns, and
    in another way in the next step. `whole`: one of them has 1024 tokens, too; else a dtype of a step has one D, the
    other dtype the other, which halves what is to be built."""
    number, chosen = LADDER.index(step), []
    for n, pair in enumerate(LENGTHS):
        if (n + number // 2) % 2 != DTYPES.index(dtype):
            continue
        turn = n + number
        heads, kv_heads = HEADS[turn // 2 % len(HEADS)] if max(pair) < 200 else (1, 1)
        head_dim = HEAD_DIMS[(turn // 2 if whole else number + DTYPES.index(dtype)) % 2]
        kind = checks.KINDS[turn % len(checks.KINDS)]
        is_causal, scale = turn % 2 == 1, 0.25 if turn % 3 == 0 else None
        chosen.append(checks.AttentionCase(1 + turn // 4 % 2, heads, kv_heads, *pair, head_dim, is_causal, kind, scale))
    if whole and number % 2 == DTYPES.index(dtype):
        pair, is_causal = LONG[number // 2 % 2], number % 4 < 2
        chosen.append(checks.AttentionCase(1, 1, 1, *pair, 64, is_causal, "normal"))
    return chosen


def operator(step):
    """A step, to be called as `check_attention` calls an operator."""

    def attention(query, key, value, *, is_causal, scale, enable_gqa=False, return_lse=False):
        return launch(step, query, key, value, is_causal=is_causal, scale=scale)

    attention.__name__ = step.kernel
    return attention


def inputs(query_length, key_length, head_dim=64, dtype=torch.float16, heads=1):
    case = checks.AttentionCase(1, heads, 1, query_length, key_length, head_dim, False, "normal")
    return checks.make_inputs(case, dtype=dtype, seed=0)[:3]


@STEPS
@pytest.mark.parametrize("dtype", DTYPES)
def test_correct_at_every_length(device, step, dtype, request, thinned):
    whole = device.type == "cuda" or request.config.getoption("--exhaustive")  # slow on the emulator
    chosen = thinned(cases(step, dtype, whole=whole), 3, LADDER.index(step) % 3)
    checks.check_attention(operator(step), device=device, dtype=dtype, lse=True, cases=chosen)


@STEPS
@pytest.mark.parametrize(("head_dim", "of_bf16"), [HEAD_DIMS, pytest.param(*HEAD_DIMS[::-1], marks=OTHER)])
def test_the_sanitizer_finds_nothing(step, head_dim, of_bf16):
    with sanitize() as report:
        launch(step, *inputs(70, 130, head_dim, heads=2), is_causal=True)
        launch(step, *inputs(130, 70, head_dim), is_causal=True)  # rows that see no key
        launch(step, *inputs(65, 129, of_bf16, torch.bfloat16))
    assert report.launches == 3 and not report.findings, str(report)


# ---------------------------------------------------------------------------------------------- what a step changes


def ldmatrix_conflicts(step):
    """Bank conflicts and requests of all lines with ldmatrix, over two tiles of keys."""
    with profile() as counters:
        launch(step, *inputs(64, 128))
    rows = [row for row in counters.select("shared", "load") if "ldmatrix" in row.source]
    return sum(row.bank_conflicts for row in rows), sum(row.requests for row in rows)


def test_the_swizzle_ends_the_bank_conflicts_of_ldmatrix():
    conflicts, requests = ldmatrix_conflicts(step_named("step2_"))
    assert conflicts == 28 * requests > 0  # four matrices of eight rows each, eight turns for one
    assert ldmatrix_conflicts(step_named("step3_")) == (0, requests)
    for step in LADDER[3:]:
        assert ldmatrix_conflicts(step)[0] == 0, step.kernel


def barriers_of_the_loop(file):
    """__syncthreads() in a kernel's loop over tiles of keys."""
    lines = read_kernel(file).splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith(("    for (int j0", "    for (; j >= 0")))
    return sum("__syncthreads()" in line for line in lines[start : lines.index("    }", start)])


def test_the_first_step_asks_shared_memory_what_chapter_02s_kernel_asks():
    query, key, value = inputs(256, 256)
    with profile() as ours:
        launch(LADDER[0], query, key, value)
    with profile() as chapter_02:
        flash_attention_minimal(query.float(), key.float(), value.float())
    loads = [sum(row.requests for row in counters.select("shared", "load")) for counters in (ours, chapter_02)]
    assert loads[0] == loads[1] > 0
    assert [counters.total("bank_conflicts", "shared") for counters in (ours, chapter_02)] == [0, 0]
    files = LADDER[0].file, "02_flash_attention_minimal/forward.cu"
    assert [barriers_of_the_loop(file) for file in files] == [2, 2]


def test_each_step_but_the_last_changes_few_lines_of_the_one_before():
    for before, after in itertools.pairwise(LADDER[1:-1]):
        texts = [skipped_header(read_kernel(step.file)).replace(step.kernel, "step") for step in (before, after)]
        changed = [
            line for line in difflib.ndiff(*(text.splitlines() for text in texts)) if line.startswith("+ ") and line[2:]
        ]
        assert 0 < len(changed) <= 20, (after.kernel, changed)


def skipped_header(text):
    return text[text.index("\nconstexpr int THREADS") :]


def global_bytes_read(step, length):
    with profile() as counters:
        launch(step, *inputs(length, length), is_causal=True)
    return counters.total("bytes", "global", "load")


def test_causal_skipping_reads_about_half_of_the_keys():
    tile, tiles = 64 * 64 * 2, 4
    visited = {"step5b_": tiles * tiles, "step6_": tiles * (tiles + 1) // 2}
    for name, count in visited.items():
        assert global_bytes_read(step_named(name), 64 * tiles) == tile * (tiles + 2 * count), name


# ---------------------------------------------------------------------------------------------- the table


@STEPS
def test_the_table_agrees_with_the_header(step):
    source = read_kernel(step.file)
    formula = re.search(r"^// shared (.*?) bytes, dynamic", source, flags=re.MULTILINE)[1].replace("·", "*")
    options = {frozenset(step.options(d, dtype)) for d in HEAD_DIMS for dtype in DTYPES}
    listed = map(frozenset, compile_options(source))
    assert options == {of_header for of_header in listed if "-DPACKED=1" not in of_header}  # the operator's, with GQA
    for d in HEAD_DIMS:
        sizes = {"D": d, **step.tiles[d]}
        assert eval(formula, {}, sizes) == step.shared_bytes(d)
        assert step.shared_bytes(d) <= 99 * 1024  # what a block can have on sm_86 and sm_89


def test_what_launch_does_not_take():
    query, key, value = inputs(8, 8)
    with pytest.raises(ValueError, match="head_dim is 32; .*step1_cuda_cores.cu takes 64 and 128"):
        launch(LADDER[0], *(tensor[..., :32].contiguous() for tensor in (query, key, value)))
    with pytest.raises(ValueError, match="dtype is torch.float32; .* takes torch.float16 and torch.bfloat16"):
        launch(LADDER[0], query.float(), key.float(), value.float())
    with pytest.raises(ValueError, match="query has 3 heads, key 2"):
        launch(LADDER[0], query.repeat(1, 3, 1, 1), key.repeat(1, 2, 1, 1), value.repeat(1, 2, 1, 1))
    with pytest.raises(ValueError, match="key and value .H_kv, L_k, D.|got query"):
        launch(LADDER[0], query, key, value[:, :, :4].contiguous())
    with pytest.raises(ValueError, match="scale is 0; it must be positive"):
        launch(LADDER[0], query, key, value, scale=0)


# ---------------------------------------------------------------------------------------------- tests that can fail

CHANGES = [
    ("step1_", "S[r][c] = add_dot(S[r][c], q[r], k)", "S[r][c] = add_dot(0, q[r], k)"),
    ("step1_", "O_i[r][c] = scaled(rescale, O_i[r][c])", ""),
    ("step1_", "tile.K[column() + c * TX][d]", "tile.K[column() + c][d]"),
    ("step2_", "8 * n + lane % 8 + lane / 16 * 8", "8 * n + lane % 16"),
    ("step2_", "key > query + shift", "key > query"),
    ("step2_", "P + place(16 * i + 8 * r + lane / 4, n)", "P + place(16 * i + lane / 4, n)"),
    ("step3_", "scale_row(O[i], r, rescale)", "scale_row(O[i], r, 1)"),
    ("step3b_", "load_tile_async<B_C>(V_tile, V + (long long)j0 * D", "load_tile_async<B_C>(V_tile, V"),
    ("step4_", "next = B_C * D - now", "next = now"),
    ("step4_", "m_new == NEG_INF ? 0 : m_new", "m_new"),
    ("step5_", "key >= L_k || ", ""),
    ("step5_", "l[i][r] *= rescale", "l[i][r] *= 1"),
    ("step5b_", "(m[i][r] + log2f(sum)) * LN_2", "m[i][r] + log2f(sum)"),
    ("step5b_", "fmaxf(m[i][r], high * factor)", "fmaxf(m[i][r], high)"),
    ("step6_", "min(L_k, i0 + B_R + shift)", "min(L_k, i0 + shift)"),
    ("step6_", "head / group * L_k * D, V", "head * L_k * D, V"),
    ("step6b_", "j0 + B_C - 1 > i_warp + shift", "j0 > i_warp + shift"),
]


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        pytest.param(*change, marks=PLANTED_ELSEWHERE if before[0] == change[0] else ())
        for before, change in itertools.pairwise([("",), *CHANGES])
    ],
)
def test_a_broken_step_fails_the_check(name, right, wrong):
    step = dataclasses.replace(step_named(name), changes=((right, wrong),))
    chosen = [
        checks.AttentionCase(1, 4, 2, *pair, 64, is_causal, "normal")
        for pair, is_causal in [((129, 200), True), ((200, 65), True), ((70, 130), False)]
    ]
    with pytest.raises((AssertionError, KernelError), match="max error|NaN|finite|inf|past the end"):
        checks.check_attention(operator(step), dtype=torch.float16, lse=True, cases=chosen, seed=0)


@pytest.mark.parametrize("step", TUNING, ids=lambda step: step.title)
def test_the_final_kernel_without_one_of_its_ideas_is_right(device, step, thinned):
    chosen = [checks.AttentionCase(1, 2, 1, 150, 200, head_dim, True, "planted") for head_dim in HEAD_DIMS]
    chosen = thinned(chosen, 2, TUNING.index(step) % 2)
    checks.check_attention(operator(step), device=device, dtype=torch.float16, lse=True, cases=chosen)


def test_a_change_of_text_that_is_not_there_is_refused():
    step = dataclasses.replace(FORWARD, changes=(("no such text", ""),))
    with pytest.raises(ValueError, match="must stand in the kernel once; it does 0 times"):
        step.source  # noqa: B018
