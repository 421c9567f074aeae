"""Random combinations of random patterns: all that a pattern says of itself agrees with its dense mask."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from course_utils import patterns

sizes = st.integers(1, 300)


@st.composite
def simple(draw, L_q, L_k):
    """A pattern for these lengths."""
    kind = draw(st.integers(0, 13))
    if kind < 9:
        make, count = [
            (patterns.sliding_window, 1),
            (patterns.dilated, 2),
            (patterns.strided, 1),
            (patterns.streaming, 2),
            (patterns.local, 1),
            (patterns.block_diagonal, 1),
            (patterns.causal, 0),
            (patterns.full, 0),
            (patterns.power_of_two, 0),
        ][kind]
        return make(*(draw(sizes) for _ in range(count)))
    if kind == 9:
        stride = draw(sizes)
        return patterns.fixed(stride, draw(st.integers(1, stride)))
    if kind == 10:
        return patterns.global_tokens(draw(st.lists(st.integers(0, 400), min_size=1, max_size=5)))
    if kind == 11:
        parents = [draw(st.integers(-1, n - 1)) if n % 37 == 0 else n - 1 - n % 3 % n for n in range(L_k)]
        return patterns.tree([-1, *parents[1:]])
    if kind == 12:
        block, window = draw(st.integers(1, 100)), 2 * draw(st.integers(0, 2)) + 1
        return patterns.bigbird(
            block, draw(st.integers(0, 2)), window, draw(st.integers(0, 4)), draw(st.integers(0, 99))
        )
    kept = torch.rand(L_q, L_k, generator=torch.Generator().manual_seed(draw(sizes))) < draw(st.sampled_from([0, 0.03]))
    return patterns.from_csr(torch.cat([torch.zeros(1).long(), kept.sum(1).cumsum(0)]), kept.nonzero()[:, 1])


@st.composite
def combined(draw):
    """Lengths, a combination of one to three patterns, and its mask, combined from theirs."""
    L_q, L_k = draw(sizes), draw(sizes)
    pattern = draw(simple(L_q, L_k))
    mask = pattern.mask(L_q, L_k)
    for _ in range(draw(st.integers(0, 2))):
        other = draw(simple(L_q, L_k))
        if draw(st.booleans()):
            pattern, mask = pattern & other, mask & other.mask(L_q, L_k)
        else:
            pattern, mask = other | pattern, mask | other.mask(L_q, L_k)
    return pattern, L_q, L_k, mask


@settings(max_examples=60, deadline=None, derandomize=True)
@given(combined())
def test_combinations_agree_with_the_masks_of_their_parts(check_lists, case):
    pattern, L_q, L_k, mask = case
    assert torch.equal(pattern.mask(L_q, L_k), mask)
    check_lists(pattern, L_q, L_k, mask)
