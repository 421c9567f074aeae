"""Queries of sequences that bring different numbers of them, in groups of equally many, as the kernels take them.

For a kernel a group is a sequence of its own, whose keys end with the group's last query: its length is less than that
of its sequence, and its row of the block table is the same. Only the first group of a sequence may have unused queries,
in front; they are zeros. All is worked out on the device: there are as many groups as there can be, and those that no
sequence needs have no keys.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from course_utils.costs import ceil_div


class Groups(NamedTuple):
    """Where the queries of packed sequences are in groups."""

    width: int  # queries of a group
    places: tuple[Tensor, Tensor]  # int64 `[total_q]` each: group and place in it of each query
    sequences: Tensor  # int64 `[groups]`: whose group; anything for one that no sequence needs
    seq_lens: Tensor  # int32 `[groups]`; less than 0 where queries have no keys

    def queries(self, query: Tensor) -> Tensor:
        """`[total_q, H, d]` as `[groups, H, width, d]`."""
        _, heads, head_dim = query.shape
        made = query.new_zeros(len(self.sequences), heads, self.width, head_dim)
        made.transpose(1, 2)[self.places] = query
        return made

    def of_sequences(self, tensor: Tensor | None) -> Tensor | None:
        """`[B, ...]` as `[groups, ...]`."""
        return None if tensor is None else tensor[self.sequences]

    def rows(self, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
        """Out as `[total_q, H, d]` and the log-sum-exp as `[H, total_q]`."""
        return out.transpose(1, 2)[self.places].contiguous(), lse.transpose(1, 2)[self.places].T.contiguous()


def groups_of(cu_seq_q: Tensor, seq_lens: Tensor, total_q: int, width: int) -> Groups:
    """cu_seq_q, seq_lens: as for `paged_attention`, but no length is above the capacity."""
    starts, ends = cu_seq_q[:-1], cu_seq_q[1:].contiguous()
    batch, groups = len(ends), ceil_div(total_q, width) + len(ends)
    # Sequence b has the groups up to this one, which are enough: at most one of its own stays unused.
    past = ends // width + torch.arange(1, batch + 1, device=ends.device)
    row = torch.arange(total_q, dtype=torch.int32, device=ends.device)
    # Rows behind the last sequence are in groups behind its last, which have no keys.
    of_row = torch.searchsorted(ends, row, right=True).clamp(max=batch - 1)
    place = (row + (past * width - ends)[of_row]).clamp(0, groups * width - 1)  # wrong ends reach nothing else
    group = torch.arange(groups, device=ends.device)
    sequence = torch.searchsorted(past, group, right=True).clamp(max=batch - 1)
    behind = (past[sequence] - 1 - group) * width  # queries of the sequence after those of the group
    is_used = (behind >= 0) & (behind < (ends - starts)[sequence])
    lengths = torch.where(is_used, seq_lens[sequence] - behind, 0).int()
    return Groups(width, (place // width, place % width), sequence, lengths)
