"""The course beside the best peers: each pair is of what it says, and only what is right is timed."""

import functools
import json
import sys
from dataclasses import asdict
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from course_utils import measured, reference, timing
from course_utils.bench import best_peers as bench
from course_utils.bench import by_hand, flex, installed_peers
from course_utils.bench.best_peers import BIGBIRD_WORK, DILATED_WORK, DOCUMENTS_WORK, STREAMING_WORK
from course_utils.bench.by_hand import TUNED_VIEW
from course_utils.bench.flex import FLEX_128, FLEX_TUNED
from course_utils.costs import DeepSeekDims
from course_utils.measured.best_peers import (
    BLOCKS,
    CORE,
    CUDNN_VIEW,
    DENSE,
    DENSE_BACKWARD,
    DILATED,
    DOCUMENTS,
    FLASH_4,
    FLASH_MLA,
    FLEX_BY_FLASH,
    NARROW,
    NARROW_WINDOWS,
    OTHERS_BACKWARD,
    WINDOWS,
    WINDOWS_BACKWARD,
    Pair,
    pairs,
)

pytestmark = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")

SMALL = DeepSeekDims(
    n_heads=3, kv_lora_rank=64, qk_nope_head_dim=32, qk_rope_head_dim=64, v_head_dim=32, index_n_heads=3
)
DENSE_SMALL = {"device": "cpu", "tokens": 40, "width": 64, "lengths": (40,), "head_dims": (64,)}


def flash_attn_func(query, key, value, *, causal, window_size):
    """flash-attn-4 on `[B, L, H, d]`, by plain torch; it returns the log-sum-exp, too."""
    behind = torch.arange(query.shape[1])[:, None] - torch.arange(key.shape[1])
    keep = behind >= (0 if causal else -query.shape[1])
    if window_size[0] is not None:
        keep &= behind <= window_size[0]
    inputs = (tensor.transpose(1, 2) for tensor in (query, key, value))
    return scaled_dot_product_attention(*inputs, attn_mask=keep).transpose(1, 2), None


def flash_attn_varlen_func(query, key, value, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal):
    """The same on `[tokens, H, d]`, sequence by sequence."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q.dtype == torch.int32
    sizes = cu_seqlens_q.diff().tolist()
    assert max_seqlen_q == max_seqlen_k == max(sizes)
    sequences = zip(*(tensor[None].split(sizes, dim=1) for tensor in (query, key, value)), strict=True)
    outs = [flash_attn_func(*one, causal=causal, window_size=(None, None))[0][0] for one in sequences]
    return torch.cat(outs), None


def flash_mla_sparse_fwd(query, latent, indices, scale, value_dim, *, use_legacy):
    """FlashMLA on latents `[T, 1, d]` and indices `[S, 1, k]`."""
    assert use_legacy
    out, lse = reference.sparse_mla(query, latent[:, 0], indices[:, 0], scale=scale, value_dim=value_dim)
    return out.to(query.dtype), lse, lse


@pytest.fixture
def played(monkeypatch):
    """The packages, played by plain torch."""
    modules = {
        installed_peers.FLASH_4: SimpleNamespace(
            flash_attn_func=flash_attn_func, flash_attn_varlen_func=flash_attn_varlen_func
        ),
        installed_peers.FLASH_MLA: SimpleNamespace(flash_mla_sparse_fwd=flash_mla_sparse_fwd),
    }
    monkeypatch.setattr(installed_peers, "load", modules.__getitem__)
    monkeypatch.setitem(by_hand.BLOCKS, CUDNN_VIEW, SDPBackend.MATH)
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # no tracing
    monkeypatch.setattr(bench, "DILATED_SIZES", {"window": 5, "dilation": 8})
    monkeypatch.setattr(bench, "STREAMING_SIZES", {"sinks": 4, "window": 24})
    monkeypatch.setattr(bench, "ROWS", 100)
    torch.manual_seed(0)
    return modules


@pytest.fixture
def timed(played, monkeypatch):
    """Timing without a clock: ours is said to take 3 ms, and every peer 2 ms."""

    def compare(functions, **options):
        ours, *_ = functions
        return {name: timing.Timing(3.0 if name == ours else 2.0, 0.1) for name in functions}

    monkeypatch.setattr(timing, "compare", compare)


def names(rows):
    """The columns of the rows that say what was timed; every row can be read and written."""
    json.dumps(rows)
    assert all(row == asdict(Pair(**row)) for row in rows)
    return [(row["work"], row["length"], row["ours"], row["kernel"], row["peer"]) for row in rows]


def test_dense_attention_is_timed_full_and_causal_and_its_speed_is_ours_over_the_peers(timed):
    rows = bench.dense(**DENSE_SMALL)
    works = "full, d = 64", "causal, d = 64"
    assert names(rows) == [(work, 40, "flash_attention_hopper", None, FLASH_4) for work in works]
    for row in rows:
        assert (row["our_ms"], row["peer_ms"]) == (3, 2)
        assert row["speed"] == row["low"] == row["high"] == pytest.approx(2 / 3), "slower than the peer is below 1"


def test_gradients_are_timed_beside_the_peers(timed):
    (dense,) = names(bench.dense_backward(**DENSE_SMALL))
    assert dense == ("causal, d = 64", 40, "flash_attention_hopper", None, FLASH_4)
    (window,) = names(bench.windows_backward(device="cpu", heads=1, lengths=(80,), sizes=(24,)))
    assert window == ("window of 24", 80, "sparse_attention", "range", FLASH_4)


def test_patterns_are_timed_beside_the_peers_with_the_kernel_that_the_operator_chooses(timed):
    one = {"device": "cpu", "heads": 1}
    (window,) = names(bench.windows(**one, lengths=(80,), sizes=(24,)))
    assert window == ("window of 24", 80, "sparse_attention", "range", FLASH_4)
    narrow = bench.narrow_windows(**one, lengths=(80,))
    assert [row["work"] for row in narrow] == [f"window of {size}" for size in bench.WINDOW_SIZES]
    (packed,) = names(bench.documents_packed(**one, lengths=(1040,)))
    assert packed == ("documents of 512 to 3072, causal", 1040, "sparse_attention", "range", FLASH_4)
    found = names(bench.blocks(**one, lengths=(256,), sizes=(128,)))
    assert found == [("blocks of 128", 256, "sparse_attention", "dense", peer) for peer in (CUDNN_VIEW, FLASH_4)]
    found = names(bench.dilated(**one, lengths=(128,)))
    assert found == [(DILATED_WORK, 128, "sparse_attention", "range", peer) for peer in (FLASH_4, TUNED_VIEW)]


def test_every_other_pattern_is_timed_backwards_and_with_64_columns(timed, monkeypatch):
    def attentions(pattern, length, _, names, device):
        mask = pattern.mask(length, device=device)
        return {name: functools.partial(scaled_dot_product_attention, attn_mask=mask) for name in names}

    monkeypatch.setattr(flex, "attentions", attentions)  # FlexAttention has no backward pass on a CPU
    monkeypatch.setattr(bench, "documents", lambda length: [70, length - 70])
    one = {"device": "cpu", "heads": 1, "sizes": (128,)}
    columns = [
        (DOCUMENTS_WORK, "range", FLASH_4),
        (DILATED_WORK, "range", FLASH_4),
        ("blocks of 128", "dense", CUDNN_VIEW),
        (STREAMING_WORK, "range", FLEX_128),
    ]
    found = names(bench.others_backward(**one, lengths=(256, 512), flex_lengths=(512,)))
    right = [(work, n, "sparse_attention", kernel, peer) for n in (256, 512) for work, kernel, peer in columns]
    assert found == [row for row in right if row[0] != STREAMING_WORK or row[1] == 512]
    found = names(bench.narrow(**one, length=256))
    works = DOCUMENTS_WORK, "blocks of 128", "blocks of 128", DILATED_WORK, STREAMING_WORK, BIGBIRD_WORK
    assert [work for work, *_ in found] == list(works)
    assert [peer for *_, peer in found] == [FLASH_4, CUDNN_VIEW, FLASH_4, FLASH_4, FLEX_TUNED, FLEX_TUNED]


def test_flex_attention_by_flash_attention_is_left_out_where_it_is_refused_or_wrong(timed, monkeypatch, capsys):
    def attend(*inputs, kernel_options, **options):
        if wrong is None:
            raise RuntimeError("no BACKEND = FLASH here")
        return wrong * flex_attention(*inputs, **options)

    monkeypatch.setattr(flex, "compiled", lambda: attend)
    small, works = {"device": "cpu", "heads": 1, "length": 128, "window": 24}, ["window of 24", DOCUMENTS_WORK]
    wrong = 1.0
    assert [row["work"] for row in bench.flex_by_flash(**small)] == works
    wrong = 1.1
    assert bench.flex_by_flash(**small) == []
    assert capsys.readouterr().out.count(f"{FLEX_BY_FLASH}, window of 24 is off by") == 1
    wrong = None
    assert bench.flex_by_flash(**small) == [] and "no BACKEND = FLASH here" in capsys.readouterr().out


def test_the_core_is_timed_for_a_chunk_and_for_one_query(timed):
    found = names(bench.core(device="cpu", queries=(5, 1), length=40, top_k=16, config=SMALL))
    assert found == [(work, 40, "sparse_mla", None, FLASH_MLA) for work in ("5 queries", "1 query")]


def test_a_peer_with_another_output_is_an_error(timed, played):
    packed = played[installed_peers.FLASH_4]
    packed.flash_attn_func = lambda *inputs, causal, window_size: flash_attn_func(
        *inputs, causal=causal, window_size=(window_size[0] + 1, 0)
    )
    with pytest.raises(RuntimeError, match="flash-attn-4, window of 24, L = 80 is off by"):
        bench.windows(device="cpu", heads=1, lengths=(80,), sizes=(24,))
    played[installed_peers.FLASH_MLA].flash_mla_sparse_fwd = lambda *tensors, use_legacy: [
        1.01 * flash_mla_sparse_fwd(*tensors, use_legacy=use_legacy)[0]
    ]
    with pytest.raises(RuntimeError, match="FlashMLA, 5 queries is off by"):
        bench.core(device="cpu", queries=(5,), length=40, top_k=16, config=SMALL)


def test_a_peer_with_another_gradient_is_an_error(timed, played):
    def without_the_gradient_of_key(query, key, value, **options):
        return flash_attn_func(query, key.detach() + 0.5 * (key - key.detach()), value, **options)

    played[installed_peers.FLASH_4].flash_attn_func = without_the_gradient_of_key
    with pytest.raises(RuntimeError, match="dk of flash-attn-4, causal, d = 64 is off by"):
        bench.dense_backward(**DENSE_SMALL)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "flash_attn.cute", None)
    with pytest.raises(RuntimeError, match="flash_attn.cute cannot be imported .*pip install 'flash-attn-4"):
        bench.best_peers()
    monkeypatch.setitem(sys.modules, "flash_attn.cute", ModuleType("flash_attn.cute"))
    monkeypatch.setitem(sys.modules, "flash_mla", None)
    with pytest.raises(RuntimeError, match="flash_mla cannot be imported .*pip install --no-deps sgl-flash-mla"):
        bench.best_peers()


def test_the_record_of_the_course_has_every_part():
    record = measured.load("best_peers")
    of_patterns = {WINDOWS, NARROW_WINDOWS, WINDOWS_BACKWARD, DOCUMENTS, BLOCKS, DILATED, NARROW, OTHERS_BACKWARD}
    parts = of_patterns | {DENSE, DENSE_BACKWARD, FLEX_BY_FLASH, CORE}
    found = pairs(record, parts)
    assert len(found) == len(record.rows) and "H200" in record.device and record.date >= "2026-11-29"
    assert "none" not in (record.versions["flash-attn-4"], record.versions["sgl-flash-mla"])
    for one in found:
        assert one.low <= one.speed <= one.high
        assert one.speed == pytest.approx(one.peer_ms / one.our_ms, rel=0.1)
