"""Each pattern against a slow loop over pairs, written from the words of the paper that it comes from."""

import numpy as np
import pytest
import torch

from course_utils import patterns
from course_utils.patterns.random import draw_blocks

LENGTHS = [(1, 1), (63, 63), (64, 64), (65, 65), (200, 200), (40, 130), (130, 40)]


def loop(L_q, L_k, sees):
    """The mask of sees(i, j); i is the query's position, counted so that the last query is at the last key."""
    return torch.tensor([[bool(sees(r + L_k - L_q, j)) for j in range(L_k)] for r in range(L_q)])


def power_of_two(i, j):
    return i == j or i - j in {2**n for n in range(20)}


def strided(stride):
    def sees(i, j):
        return j in range(max(0, i - stride), i + 1) or (j <= i and (i - j) % stride == 0)

    return sees


def fixed(stride, columns):
    def sees(i, j):
        return j <= i and (j // stride == i // stride or j % stride in range(stride - columns, stride))

    return sees


def dilated(window, dilation):
    return lambda i, j: j in range(i, i - window * dilation, -dilation)


def streaming(sinks, window):
    return lambda i, j: j in range(i - window + 1, i + 1) or (j < sinks and j <= i)


ANY_LENGTH = [
    (patterns.causal(), lambda i, j: j <= i),
    (patterns.full(), lambda i, j: True),
    *[(patterns.sliding_window(w), lambda i, j, w=w: j in range(i - w + 1, i + 1)) for w in (1, 7, 65, 200, 1000)],
    *[(patterns.dilated(w, d), dilated(w, d)) for w, d in [(1, 1), (1, 5), (4, 3), (9, 8), (300, 2), (2, 500)]],
    (patterns.power_of_two(), power_of_two),
    *[(patterns.strided(s), strided(s)) for s in (1, 8, 13, 500)],
    *[(patterns.fixed(s, c), fixed(s, c)) for s, c in [(1, 1), (16, 3), (16, 16), (500, 8)]],
    *[(patterns.streaming(s, w), streaming(s, w)) for s, w in [(0, 5), (4, 1), (4, 20), (70, 64), (4, 999)]],
    *[(patterns.local(r), lambda i, j, r=r: abs(i - j) <= r) for r in (0, 1, 40, 500)],
    *[(patterns.block_diagonal(b), lambda i, j, b=b: i // b == j // b) for b in (1, 16, 48, 64, 500)],
    (patterns.global_tokens([0]), lambda i, j: 0 in (i, j)),
    (patterns.global_tokens([70, 3, 3, 5000]), lambda i, j: {i, j} & {3, 70}),
]


@pytest.mark.parametrize("pattern, sees", ANY_LENGTH, ids=lambda value: getattr(value, "name", ""))
def test_a_pattern_is_what_its_paper_says(pattern, sees):
    for L_q, L_k in LENGTHS:
        assert torch.equal(pattern.mask(L_q, L_k), loop(L_q, L_k, sees)), (L_q, L_k)


def test_a_sliding_window_of_1_sees_itself_and_one_of_L_or_more_is_causal():
    assert torch.equal(patterns.sliding_window(1).mask(65), torch.eye(65, dtype=torch.bool))
    for window in (65, 66, 10**6):
        assert torch.equal(patterns.sliding_window(window).mask(65), torch.ones(65, 65).tril().bool())


def test_a_row_of_the_middle_has_as_many_keys_as_its_parameters_say():
    counts = {
        patterns.sliding_window(10): 10,
        patterns.dilated(10, 7): 10,
        patterns.local(10): 21,
        patterns.streaming(4, 10): 14,
        patterns.block_diagonal(16): 16,
        patterns.strided(10): 11 + 9,  # i - 10 to i, and i - 20, i - 30 … down to i - 100
        patterns.power_of_two(): 8,  # 0, 1, 2, 4 … 64
        patterns.bigbird(4, 1, 3, 2): 4 * 6,
        patterns.random_blocks(4, 3, 0): 12,
    }
    for pattern, count in counts.items():
        assert int(pattern.mask(200)[100].sum()) == count, pattern


def test_a_tree_token_sees_its_ancestors_and_itself():
    parents = [-1, 0, 0, 1, 1, 2, -1, 6, 5]
    tree = patterns.tree(parents)
    ancestors = {0: {0}, 1: {0, 1}, 2: {0, 2}, 3: {0, 1, 3}, 4: {0, 1, 4}, 5: {0, 2, 5}, 6: {6}, 7: {6, 7}}
    ancestors[8] = {0, 2, 5, 8}
    assert torch.equal(tree.mask(9), loop(9, 9, lambda i, j: j in ancestors[i]))
    assert torch.equal(tree.mask(2, 9), tree.mask(9)[-2:])
    assert torch.equal(tree.mask(11, 9), loop(11, 9, lambda i, j: i >= 0 and j in ancestors[i]))
    assert torch.equal(patterns.tree(range(-1, 99)).mask(100), patterns.causal().mask(100))


def test_patches_of_an_image_see_a_square_around_them():
    height, width = 6, 11
    for radius in (0, 1, 3, 50):

        def sees(i, j, radius=radius):
            (y, x), (row, column) = divmod(i, width), divmod(j, width)
            return i >= 0 and max(abs(y - row), abs(x - column)) <= radius

        for L_q in (66, 20, 70):
            assert torch.equal(patterns.local_2d(height, width, radius).mask(L_q, 66), loop(L_q, 66, sees))


def test_a_document_sees_itself_only():
    lengths = [3, 1, 60, 7, 29]
    number = [n for n, length in enumerate(lengths) for _ in range(length)]
    for L_q in (100, 37, 103):
        expected = loop(L_q, 100, lambda i, j: i >= 0 and number[i] == number[j])
        assert torch.equal(patterns.document(lengths).mask(L_q, 100), expected)


def hash_in_words(seed, row, n):
    """The documented hash in NumPy's own 32-bit arithmetic."""
    seed, row, n = (np.array([value], dtype=np.uint32) for value in (seed, row, n))
    x = seed ^ (row * np.uint32(0x9E3779B1)) ^ (n * np.uint32(0x85EBCA77))
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return int(x[0])


def test_the_hash_of_random_blocks_keeps_its_values():
    pinned = {
        (0, 0, 0): 0,
        (0, 0, 1): 2612203797,
        (0, 1, 0): 301794027,
        (1, 0, 0): 1364076727,
        (7, 123, 4): 1173193978,
        (2**32 - 1, 2047, 99): 3515500568,
    }
    for arguments, value in pinned.items():
        assert patterns.random_block_hash(*arguments) == hash_in_words(*arguments) == value
    rows = np.arange(2000)
    assert patterns.random_block_hash(7, rows, 3).tolist() == [hash_in_words(7, row, 3) for row in rows]


def drawn_in_words(blocks, per_row, seed, row, kept=()):
    drawn, n = [], 0
    while len(drawn) < min(per_row, blocks - len(kept)):
        block = hash_in_words(seed, row, n) % blocks
        if block not in drawn and block not in kept:
            drawn.append(block)
        n += 1
    return drawn


def test_random_blocks_are_drawn_in_the_order_of_the_hash_without_repetition():
    assert draw_blocks(32, 5, 9).tolist() == [drawn_in_words(32, 5, 9, row) for row in range(32)]
    for L_q, L_k in LENGTHS:
        blocks = -(-L_k // 16)
        drawn = [drawn_in_words(blocks, 3, 1, row) for row in range(blocks)]
        expected = loop(L_q, L_k, lambda i, j, drawn=drawn: i >= 0 and j // 16 in drawn[i // 16])
        assert torch.equal(patterns.random_blocks(16, 3, 1).mask(L_q, L_k), expected), (L_q, L_k)
    assert patterns.random_blocks(16, 100, 1).mask(200).all()  # more draws than blocks: every block


def test_bigbird_has_global_rows_and_columns_a_window_and_draws_among_the_rest():
    for L_q, L_k in [*LENGTHS, (300, 300)]:
        blocks = -(-L_k // 16)

        def sees_always(row, column):
            return column < 2 or 0 <= row < 2 or abs(row - column) <= 1

        drawn = {row: [] for row in range(-20, blocks)}
        for row in range(2, blocks):
            kept = [column for column in range(blocks) if sees_always(row, column)]
            drawn[row] = drawn_in_words(blocks, 3, 5, row, kept)

        def sees(i, j, drawn=drawn, sees_always=sees_always):
            return sees_always(i // 16, j // 16) or j // 16 in drawn[i // 16]

        assert torch.equal(patterns.bigbird(16, 2, 3, 3, 5).mask(L_q, L_k), loop(L_q, L_k, sees)), (L_q, L_k)


def test_csr_gives_the_keys_that_it_lists_in_any_order_and_each_once():
    indptr, indices = [0, 3, 3, 7], [4, 0, 4, 5, 1, 2, 1]
    expected = torch.tensor([[1, 0, 0, 0, 1, 0], [0] * 6, [0, 1, 1, 0, 0, 1]]).bool()
    for dtype in (torch.int32, torch.int64):
        pattern = patterns.from_csr(torch.tensor(indptr, dtype=dtype), torch.tensor(indices, dtype=dtype))
        assert torch.equal(pattern.mask(3, 6), expected)
        assert [part.tolist() for part in pattern.csr(3, 6)] == [[0, 2, 2, 5], [0, 4, 1, 2, 5]]
    assert patterns.from_csr([0, 0, 0], []).mask(2, 5).sum() == 0


def test_ranges_follow_their_formula_for_every_position():
    for pattern in (p for p, _ in ANY_LENGTH if p.ranges):
        sinks, left, right, step, dilation = pattern.ranges

        def sees(i, j, sinks=sinks, left=left, right=right, step=step, dilation=dilation):
            base, key = i // dilation // step * step, j // dilation
            near = base - left <= key < base + right
            return (i - j) % dilation == 0 and (near or (key < sinks and key < base + right))

        for L_q, L_k in [(65, 65), (40, 90), (90, 40)]:
            assert torch.equal(pattern.mask(L_q, L_k), loop(L_q, L_k, sees)), pattern


def test_only_range_patterns_have_ranges_and_two_of_them_share_one():
    assert patterns.strided(4).ranges is patterns.bigbird().ranges is None
    assert patterns.streaming(4, 20).ranges == patterns.Ranges(4, 19, 1)
    assert patterns.dilated(4, 3).ranges == patterns.Ranges(0, 3, 1, dilation=3)
    window = patterns.causal() & patterns.local(9)
    assert window.ranges == patterns.sliding_window(10).ranges
    assert torch.equal(window.mask(65), patterns.sliding_window(10).mask(65))
    assert (patterns.causal() & patterns.block_diagonal(4)).ranges is None
    assert (patterns.causal() | patterns.local(9)).ranges is None


def test_rows_of_documents_are_ranges_alone_and_under_a_window():
    documents = patterns.document([3, 60, 2])
    assert [edge.tolist()[1:5] for edge in documents.row_ranges(65)] == [[0, 0, 3, 3], [3, 3, 63, 63]]
    assert [edge.tolist() for edge in documents.row_ranges(3, 65)] == [[3, 63, 63], [63, 65, 65]]
    for other in (patterns.causal(), patterns.sliding_window(9), patterns.local(4), patterns.block_diagonal(16)):
        assert (documents & other).row_ranges(65) is not None
    for other in (patterns.streaming(2, 9), patterns.dilated(4, 2), patterns.strided(4)):
        assert other.row_ranges(65) is None and (documents & other).row_ranges(65) is None
    assert (documents | patterns.causal()).row_ranges(65) is None


def test_combinations_say_what_they_are():
    parts = patterns.sliding_window(4), patterns.global_tokens([0, 9])
    combination = parts[0] | parts[1]
    assert combination.name == "(sliding_window(window=4) | global_tokens(positions=[0, 9]))"
    assert (combination.kind, combination.parameters) == ("or", {"parts": parts})
    assert torch.equal(combination.mask(50), parts[0].mask(50) | parts[1].mask(50))
    assert torch.equal((parts[0] & parts[1]).mask(50), parts[0].mask(50) & parts[1].mask(50))
