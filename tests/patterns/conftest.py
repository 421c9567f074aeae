"""What the lists of a pattern must be, given its dense mask."""

import pytest
import torch

from course_utils.patterns.lists import unpack
from tests.helpers.one_thread import one_thread  # noqa: F401


@pytest.fixture(scope="session")
def check_lists():
    """check_lists(pattern, L_q, L_k, mask): block_lists, csr, row ranges, pairs and density of a pattern say what its
    mask says."""
    return _check_lists


def _check_lists(pattern, L_q, L_k, mask):
    """block_lists, csr and pairs of a pattern, held against its dense mask."""
    for block in (64, 128):
        lists = pattern.block_lists(L_q, L_k, block=block)
        assert (lists.block, lists.L_q, lists.L_k) == (block, L_q, L_k)
        assert {lists.indptr.dtype, lists.indices.dtype, lists.bits_index.dtype, lists.bits.dtype} == {torch.int32}
        rows, columns = -(-L_q // block), -(-L_k // block)
        padded = torch.zeros(rows * block, columns * block, dtype=torch.bool)
        padded[:L_q, :L_k] = mask
        tiles = padded.view(rows, block, columns, block).transpose(1, 2)
        exists = (torch.arange(rows * block) < L_q).view(rows, 1, block, 1)
        full = (tiles | ~exists).all(3).all(2)
        entry = 0
        for row in range(rows):
            listed = tiles[row].any(2).any(1).nonzero()[:, 0].tolist()
            assert lists.indices[lists.indptr[row] : lists.indptr[row + 1]].tolist() == listed
            for column in listed:
                number = int(lists.bits_index[entry])
                assert (number == -1) == bool(full[row, column])
                assert number == -1 or torch.equal(unpack(lists.bits[number]), tiles[row, column])
                entry += 1
        assert entry == len(lists.indices) == lists.indptr[-1]
        assert sorted(lists.bits_index[lists.bits_index >= 0].tolist()) == list(range(len(lists.bits)))
        assert torch.equal(lists.mask(), mask)
        assert lists.pairs() == int(mask.sum())
        _check_csr(lists.csr(), mask)
    _check_csr(pattern.csr(L_q, L_k), mask)
    _check_row_ranges(pattern.row_ranges(L_q, L_k), mask)
    assert pattern.pairs(L_q, L_k) == int(mask.sum())
    assert pattern.density(L_q, L_k) == pytest.approx(float(mask.double().mean()))


def _check_row_ranges(rows, mask):
    if rows is None:
        return
    for ranges, seen in ((rows, mask), (rows.by_key(mask.shape[1]), mask.T)):
        place = torch.arange(seen.shape[1])
        assert torch.equal((ranges.starts[:, None] <= place) & (place < ranges.ends[:, None]), seen)
        assert all((edge.diff() >= 0).all() and edge.dtype == torch.int32 for edge in ranges)
        assert all(((0 <= edge) & (edge <= seen.shape[1])).all() for edge in ranges)


def _check_csr(csr, mask):
    indptr, indices = csr
    assert (indptr.dtype, indices.dtype) == (torch.int64, torch.int32)
    assert indptr[0] == 0 and torch.equal(indptr.diff(), mask.sum(1))
    assert torch.equal(indices.long(), mask.nonzero()[:, 1])
