import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from course_utils import timing
from course_utils.bench import by_hand


@pytest.fixture
def one_run_each(monkeypatch):
    """Timing without a clock: every function runs once, on the emulator, and is said to take 2 ms and 3 MB."""

    def compare(functions, **options):
        for fn in functions.values():
            fn()
        return dict.fromkeys(functions, timing.Timing(2.0, 0.1))

    monkeypatch.setattr(timing, "compare", compare)
    monkeypatch.setattr(timing, "peak_memory", lambda fn: 3_000_000)
    monkeypatch.setattr(timing, "time_calls", lambda fn: 0.5 if fn() is not None else None)


@pytest.fixture
def plain_varlen(monkeypatch):
    """torch's packed attention, which is for GPUs, is played by its plain one, sequence by sequence."""

    def varlen_attn(query, key, value, ends, ends_k, longest, longest_k, *, window_size=(-1, -1)):
        found = []
        for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            assert end - start <= longest
            q, k, v = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
            behind = torch.arange(end - start)[:, None] - torch.arange(end - start)
            left, right = (length if n < 0 else n for n, length in zip(window_size, (end, end), strict=True))
            keep = (behind <= left) & (behind >= -right)
            found.append(scaled_dot_product_attention(q, k, v, attn_mask=keep).transpose(0, 1))
        return torch.cat(found)

    monkeypatch.setattr(by_hand, "varlen_attn", varlen_attn)
