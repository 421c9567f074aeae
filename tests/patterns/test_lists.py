"""Block lists and CSR say the same as the dense mask, for every pattern; FlexAttention's BlockMask goes in and out."""

import dataclasses
import random

import pytest
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from course_utils import patterns
from course_utils.patterns.lists import pack, popcount, unpack

EASIER = pytest.mark.exhaustive("`make test` has a block, a block and one more, and fewer queries than keys and more")
LENGTHS = [(64, 64), (65, 65), (70, 200), (200, 70)]
LENGTHS += [pytest.param(length, length, marks=EASIER) for length in (1, 63, 200)]


def every_kind(L_q, L_k):
    """A pattern of each constructor for these lengths, and some combinations."""
    draw = random.Random(L_q * 1000 + L_k)
    lengths = []
    while sum(lengths) < L_k:
        lengths.append(min(draw.randrange(1, 90), L_k - sum(lengths)))
    width = next(width for width in (10, 8, 7, 5, 3, 1) if L_k % width == 0)
    kept = torch.rand(L_q, L_k, generator=torch.Generator().manual_seed(L_q)) < 0.05
    kept[::7] = False
    indptr = torch.cat([torch.zeros(1, dtype=torch.long), kept.sum(1).cumsum(0)])
    simple = [
        patterns.causal(),
        patterns.full(),
        patterns.sliding_window(1),
        patterns.sliding_window(30),
        patterns.sliding_window(L_k),
        patterns.sliding_window(L_k + 7),
        patterns.dilated(40, 7),
        patterns.power_of_two(),
        patterns.strided(13),
        patterns.fixed(16, 3),
        patterns.streaming(4, 20),
        patterns.streaming(70, 80),
        patterns.tree([-1] + [draw.randrange(-1, n) for n in range(1, L_k)]),
        patterns.tree(range(-1, L_k - 1)),
        patterns.local(20),
        patterns.local_2d(L_k // width, width, 2),
        patterns.block_diagonal(16),
        patterns.block_diagonal(100),
        patterns.document(lengths),
        patterns.global_tokens([0, 3, 77, 150, 9999]),
        patterns.random_blocks(16, 3, 1),
        patterns.random_blocks(64, 2, 5),
        patterns.bigbird(),
        patterns.bigbird(24, 1, 3, 2),
        patterns.from_csr(indptr, kept.nonzero()[:, 1]),
        patterns.from_mask_mod(lambda b, h, i, j: (i - j) % 5 == 0),
    ]
    window, tree, document, tokens, csr, mod = (simple[n] for n in (3, 13, 18, 19, 24, 25))
    combined = [
        document & patterns.causal(),
        window | tokens,
        csr & window,
        csr | document,
        (mod & window) | patterns.power_of_two(),
        (mod | csr) & tree,
        simple[8] & simple[7],
        simple[8] | simple[9],
        simple[23] & patterns.strided(5),
    ]
    return simple + combined


@pytest.mark.parametrize("L_q, L_k", LENGTHS)
def test_lists_csr_and_pairs_agree_with_the_mask(check_lists, L_q, L_k):
    for pattern in every_kind(L_q, L_k):
        check_lists(pattern, L_q, L_k, pattern.mask(L_q, L_k))


def test_lists_by_key_are_the_same_entries_column_by_column():
    for pattern in every_kind(200, 330):
        lists = pattern.block_lists(200, 330)
        rows = torch.repeat_interleave(torch.arange(lists.rows), lists.indptr.diff().long())
        entries = zip(lists.indices.tolist(), rows.tolist(), lists.bits_index.tolist(), strict=True)
        indptr, key_rows, bits_index = lists.by_key()
        assert {indptr.dtype, key_rows.dtype, bits_index.dtype} == {torch.int32}
        columns = torch.repeat_interleave(torch.arange(6), indptr.diff().long())
        assert list(zip(columns.tolist(), key_rows.tolist(), bits_index.tolist(), strict=True)) == sorted(entries)


def test_lists_are_kept_for_the_next_call():
    pattern = patterns.bigbird()
    assert pattern.block_lists(500) is pattern.block_lists(500, 500, block=64)
    assert pattern.block_lists(500) is not pattern.block_lists(500, block=128)
    assert pattern.block_lists(500) is not pattern.block_lists(499)


def test_bits_count_from_the_lowest_of_each_word():
    dense = torch.rand(3, 5, 64) < 0.5
    words = [sum(int(dense[2, 4, 32 * word + k]) << k for k in range(32)) for word in (0, 1)]
    assert [number % 2**32 for number in pack(dense)[2, 4].tolist()] == words
    assert torch.equal(unpack(pack(dense)), dense)
    assert torch.equal(popcount(pack(dense)), dense.sum(-1).int())


# ---- FlexAttention


def with_junk(block_mask):
    """The same BlockMask; what stands past each row's count is overwritten."""
    for counts, indices in (
        (block_mask.kv_num_blocks, block_mask.kv_indices),
        (block_mask.full_kv_num_blocks, block_mask.full_kv_indices),
    ):
        past = torch.arange(indices.shape[-1]) >= counts[..., None]
        indices[past] = 1_000_000_007
    return block_mask


@pytest.mark.parametrize("block", [64, 128])
@pytest.mark.parametrize("L_q, L_k", [(128, 128), (200, 200), (70, 333), (333, 130)])
def test_a_block_mask_gives_the_same_lists_and_comes_back(block, L_q, L_k):
    for pattern in (patterns.sliding_window(100), patterns.global_tokens([5]), patterns.full(), patterns.bigbird(32)):
        mask_mod = pattern.flex_mask_mod(L_q, L_k)
        block_mask = create_block_mask(mask_mod, None, None, L_q, L_k, device="cpu", BLOCK_SIZE=block)
        expected = pattern.block_lists(L_q, L_k, block=block)
        for given in (block_mask, expected.to_block_mask(mask_mod), expected.to_block_mask()):
            lists = patterns.BlockLists.from_block_mask(with_junk(given))
            for field in dataclasses.fields(lists):
                got, wanted = getattr(lists, field.name), getattr(expected, field.name)
                same = torch.equal(got, wanted) if isinstance(got, torch.Tensor) else got == wanted
                assert same, (pattern, field.name)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_runs_on_the_lists():
    pattern = patterns.streaming(3, 50)
    query, key, value = torch.randn(3, 1, 2, 200, 16, generator=torch.Generator().manual_seed(0))
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=pattern.mask(200))
    for mask_mod in (None, pattern.flex_mask_mod(200)):
        block_mask = pattern.block_lists(200, block=128).to_block_mask(mask_mod)
        torch.testing.assert_close(flex_attention(query, key, value, block_mask=block_mask), expected)


def test_a_block_mask_that_does_not_fit_is_refused():
    def by_head(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx + h

    make = patterns.BlockLists.from_block_mask
    with pytest.raises(ValueError, match=r"B, H = \(1, 2\)"):
        make(create_block_mask(by_head, 1, 2, 128, 128, device="cpu"))
    with pytest.raises(ValueError, match=r"BLOCK_SIZE \(32, 32\)"):
        make(create_block_mask(by_head, 1, 1, 128, 128, device="cpu", BLOCK_SIZE=32))
    good = create_block_mask(by_head, 1, 1, 256, 256, device="cpu")
    with pytest.raises(ValueError, match="2 blocks of 128 queries; L_q = 128 takes 1"):
        make(good, 128)
    with pytest.raises(TypeError, match="block_mask is 3"):
        make(3)
    good.kv_indices[0, 0, 0, 0] = 5
    with pytest.raises(ValueError, match="blocks of keys"):
        make(good)


# ---- mask_mod in FlexAttention's hands


@pytest.mark.parametrize("L", [65, pytest.param(200, marks=pytest.mark.exhaustive("another length of the same masks"))])
def test_create_block_mask_traces_every_mask_mod(L):
    for pattern in every_kind(L, L):
        mask_mod = pattern.flex_mask_mod(L)
        block_mask = create_block_mask(mask_mod, None, None, L, L, device="cpu", BLOCK_SIZE=64)
        assert torch.equal(patterns.BlockLists.from_block_mask(block_mask).mask(), pattern.mask(L)), pattern
        if pattern._mask and pattern.kind not in ("and", "or"):
            create_block_mask(pattern.mask_mod, None, None, L, L, device="cpu")


def test_flex_mask_mod_counts_queries_from_0():
    for L_q, L_k in [(70, 200), (200, 70), (90, 90)]:
        for pattern in every_kind(L_q, L_k):
            r, j = torch.arange(L_q)[:, None], torch.arange(L_k)[None, :]
            got = pattern.flex_mask_mod(L_q, L_k)(None, None, r, j)
            assert torch.equal(got.expand(L_q, L_k), pattern.mask(L_q, L_k)), pattern


def test_mask_mod_can_be_compiled():
    i, j = torch.arange(65)[:, None], torch.arange(65)[None, :]
    documents = patterns.document([60, 5]) & patterns.causal()
    for pattern in (patterns.streaming(4, 9), patterns.bigbird(8), documents):
        mask_mod = pattern.mask_mod if pattern._mask else pattern.flex_mask_mod(65)
        compiled = torch.compile(mask_mod, backend="eager", fullgraph=True)
        assert torch.equal(compiled(torch.tensor(0), torch.tensor(0), i, j), pattern.mask(65))


def test_a_mask_mod_that_depends_on_the_lengths_asks_for_them():
    pattern = patterns.bigbird(16)
    i, j = torch.arange(100)[:, None], torch.arange(100)[None, :]
    assert torch.equal(pattern.mask_mod(0, 0, i, j), pattern.mask(100))
    for keys in (j[:, 1:], j[0, 5], j.flip(1)):
        with pytest.raises(ValueError, match=r"use flex_mask_mod\(L_q, L_k\)"):
            pattern.mask_mod(0, 0, i, keys)
    assert torch.equal(pattern.flex_mask_mod(100)(0, 0, i, j[:, 1:]), pattern.mask(100)[:, 1:])


def test_the_estimated_work_of_a_stride_that_is_a_power_of_two_is_near_the_exact_one(monkeypatch):
    fixed, length = patterns.fixed(512, 8), 16384
    estimated = fixed.work(length)
    monkeypatch.setattr("course_utils.patterns.pattern.SAMPLED_ROWS", length // 64)  # all
    assert estimated == pytest.approx(fixed.work(length), rel=0.03)
