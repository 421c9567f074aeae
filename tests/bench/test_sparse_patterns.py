"""Chapter 04's benchmarks, on the emulator: each calls what it says it times."""

import functools
import json

import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from course_utils import patterns, timing
from course_utils.bench import by_hand, flex
from course_utils.bench import sparse_patterns as chapter
from course_utils.bench.flex import FLASH, FLEX_64, FLEX_128, FLEX_TUNED, OURS
from course_utils.bench.sparse_patterns import SDPA_MASK, SDPA_NUMBERS, TORCH_SPARSE
from course_utils.bench.timed import require_right
from course_utils.cuda import RawModule
from course_utils.operators import sparse_choice
from tests.helpers.rows import named

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta:UserWarning"),
]

ANOTHER_TABLE = pytest.mark.exhaustive(
    "another table of the same races: `make test` has those of peers, skipping, lengths and lists"
)


@pytest.fixture
def on_cpu(one_run_each, plain_varlen, monkeypatch):
    """torch's kernels for GPUs are played by its plain one, and FlexAttention is not compiled."""
    for backends in (flex.DENSE, by_hand.BLOCKS):
        for name in backends:
            monkeypatch.setitem(backends, name, SDPBackend.MATH)
    monkeypatch.setattr(flex, "compiled", lambda: flex_attention)
    monkeypatch.setattr("torch.nn.attention.flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)  # no tracing


def test_peers_are_timed_beside_both_block_sizes_of_flex_attention_and_causal_dense_attention(on_cpu, monkeypatch):
    chosen = [patterns.streaming(4, 40), patterns.bigbird(64, random_blocks=1)]
    monkeypatch.setattr(chapter, "peer_patterns", lambda length: {p.name: p for p in chosen})
    rows = chapter.peers(device="cpu", heads=1, lengths=(192,))
    names = [OURS, *flex.FLEX, *flex.DENSE]
    assert [(row["pattern"], row["name"]) for row in rows] == [(p.name, name) for p in chosen for name in names]
    ours, dense = named(rows, OURS), named(rows, FLASH)
    assert ours["useful_tflop_per_s"] == pytest.approx(4 * 128 * chosen[0].pairs(192) / 2e-3 / 1e12)
    assert ours["ratio_to_flex"] == ours["ratio_low"] == ours["ratio_to_dense"] == 1 and ours["kernel"] == "range"
    assert dense["dense_mask"] == "causal" and dense["useful_tflop_per_s"] is None and "ratio_to_flex" not in dense
    json.dumps(rows)


def test_bf16_is_timed_too(on_cpu):
    rows = flex.race(patterns.block_diagonal(8), (1, 1, 64, 64), device="cpu", dtype=torch.bfloat16)
    assert [row["name"] for row in rows] == [OURS, *flex.FLEX, *flex.DENSE]


def test_the_better_block_size_of_flex_attention_is_the_one_that_counts(on_cpu, monkeypatch):
    times = {OURS: 2.0, FLEX_128: 6.0, FLEX_64: 3.0, FLEX_TUNED: 2.5, FLASH: 10.0, "dense cuDNN": 8.0}
    monkeypatch.setattr(timing, "compare", lambda functions, **_: {n: timing.Timing(times[n], 0) for n in functions})
    rows = flex.race(patterns.local(8), (1, 1, 64, 64), device="cpu")
    ratios = {row["name"]: row["ratio_to_flex"] for row in rows if "ratio_to_flex" in row}
    assert ratios == {OURS: 1.5, FLEX_128: 0.5, FLEX_64: 1.0, FLEX_TUNED: 1.2}
    assert named(rows, OURS)["ratio_to_tuned"] == 1.25
    assert named(rows, OURS)["ratio_to_dense"] == 5


@pytest.mark.skipif(torch.__version__ < (2, 10), reason="torch 2.9 runs FlexAttention's backward pass on a CPU")
def test_what_does_not_run_here_is_left_out_and_it_is_said_why(on_cpu, monkeypatch, capsys):
    monkeypatch.setitem(flex.DENSE, "dense cuDNN", SDPBackend.CUDNN_ATTENTION)  # for GPUs only
    rows = flex.race(patterns.sliding_window(40), (1, 1, 96, 64), device="cpu", backward=True, flex=(FLEX_64,))
    assert [row["name"] for row in rows] == [OURS, FLASH]  # FlexAttention has no backward pass on a CPU
    printed = capsys.readouterr().out
    assert f"{FLEX_64} is left out at sliding_window(window=40), L = 96: " in printed and "dense cuDNN is" in printed
    assert rows[0]["pass"] == "backward"


def test_a_wrong_output_is_not_timed(on_cpu):
    pattern, inputs = patterns.sliding_window(8), [torch.randn(1, 1, 40, 64).half() for _ in range(3)]
    right = flex_attention(*inputs, block_mask=create_block_mask(pattern.mask_mod, None, None, 40, 40, device="cpu"))
    require_right("ours", right, *inputs, pattern)
    with pytest.raises(RuntimeError, match="ours, sliding_window.* is off by"):
        require_right("ours", right, *inputs, patterns.sliding_window(9))


def test_blocks_are_those_that_flex_attention_finds(on_cpu, monkeypatch):
    pattern = patterns.streaming(4, 100)
    found = flex.block_mask(pattern, 320, 320, 64, "cpu")
    monkeypatch.setattr(flex, "MOST_PAIRS", 0)
    ours = flex.block_mask(pattern, 320, 320, 64, "cpu")
    assert torch.equal(found.to_dense(), ours.to_dense()) and ours.to_dense().sum() < 25
    monkeypatch.setattr(flex, "MOST_PAIRS", 10**9)
    monkeypatch.setattr(
        flex,
        "create_block_mask",
        lambda mask_mod, *sizes, **options: create_block_mask(patterns.full().mask_mod, *sizes, **options),
    )
    with pytest.raises(RuntimeError, match="the blocks of 64 at L = 320 are not FlexAttention's"):
        flex.block_mask(pattern, 320, 320, 64, "cpu")


def test_everything_is_compiled_ahead_with_skipping_and_without(monkeypatch):
    compiled = []
    monkeypatch.setattr(RawModule, "compile", lambda module, device: compiled.append((module.options, device)))
    chapter.compile_all(device="cpu")
    assert {device for _, device in compiled} == {"cpu"}
    assert sum("-DSKIP=0" in options for options, _ in compiled) == 1 and len(compiled) > 10


def test_skipping_is_timed_beside_masking(on_cpu):
    rows = chapter.skip(device="cpu", heads=1, lengths=(160,), window=40)
    assert [row["name"] for row in rows] == ["tiles skipped", "tiles only masked", SDPA_MASK]


@ANOTHER_TABLE
def test_short_sequences_have_the_time_of_a_call_too(on_cpu):
    rows = chapter.small(device="cpu", heads=1, lengths=(40, 72), flex_lengths=(40,))
    dense = [OURS, *flex.DENSE]
    of_40 = [(40, name) for name in (*dense, FLEX_128, FLEX_TUNED)]
    of_72 = [(72, name) for name in dense]
    assert [(row["length"], row["name"]) for row in rows] == 2 * (of_40 + of_72)
    assert {row["call_ms"] for row in rows} == {0.5}


def test_scaling_has_every_pattern_by_a_name_without_its_length(on_cpu, monkeypatch):
    everything = chapter.scaling_patterns
    assert everything(1024).keys() == everything(2048).keys()
    some = ("power_of_two()", "global_tokens(16) | local(256)")
    monkeypatch.setattr(chapter, "scaling_patterns", lambda length: {name: everything(length)[name] for name in some})
    rows = chapter.scaling(device="cpu", heads=1, lengths=(128,))
    assert [row["pattern"] for row in rows] == [*2 * ["causal, dense"], *some] and rows[0]["name"] == FLASH
    assert rows[2]["density"] == patterns.power_of_two().density(128) and rows[2]["kernel"] == "block_sparse"


BY_HAND = {
    patterns.block_diagonal(32): list(by_hand.BLOCKS),
    patterns.sliding_window(40): [by_hand.WINDOW],
    patterns.dilated(5, 4): [by_hand.CLASSES, *by_hand.STRIDED, *by_hand.SORTED],
    patterns.document([50, 100, 10]): [by_hand.DOCUMENTS],
    patterns.document([50, 100, 10]) & patterns.causal(): [by_hand.DOCUMENTS],
    patterns.streaming(4, 40): [],
    patterns.block_diagonal(48): [],  # does not fill the sequence
}


@pytest.mark.parametrize("pattern", BY_HAND, ids=str)
def test_dense_kernels_on_a_view_give_the_same_and_copy_nothing_but_where_they_say_so(on_cpu, monkeypatch, pattern):
    inputs = [torch.randn(1, 2, 160, 64).half() for _ in range(3)]
    dense = torch.nn.functional.scaled_dot_product_attention
    memory, read = {tensor.untyped_storage().data_ptr() for tensor in inputs}, set()

    def watch(function):
        @functools.wraps(function)
        def watched(*tensors, **options):
            read.update(tensor.untyped_storage().data_ptr() for tensor in tensors[:3])
            return function(*tensors, **options)

        return watched

    monkeypatch.setattr(flex, "compiled", lambda: watch(flex_attention))
    monkeypatch.setattr(by_hand, "varlen_attn", watch(by_hand.varlen_attn))
    monkeypatch.setattr(by_hand, "by_kernel", lambda backend: watch(dense))
    ways = by_hand.by_hand(pattern, 160, "cpu")
    assert list(ways) == BY_HAND[pattern]
    for name, attention in ways.items():
        read.clear()
        require_right(name, attention(*inputs), *inputs, pattern)
        assert (read == memory) == (name not in by_hand.SORTED)


def test_a_wrong_peer_is_an_error(on_cpu):
    others = {"FLASH, wrong": lambda query, key, value: value}
    with pytest.raises(RuntimeError, match="sparse_attention beside FLASH, wrong is off by"):
        flex.race(patterns.local(8), (1, 1, 64, 64), device="cpu", flex=(FLEX_64,), others=others)


def test_the_backward_pass_is_timed_for_each_pattern_at_each_length(monkeypatch):
    def race(pattern, shape, *, label, **options):
        assert options["backward"] and shape == (1, 16, shape[2], 128)
        return [{"pattern": label, "length": shape[2]}]

    monkeypatch.setattr(flex, "race", race)
    rows = chapter.backward(device="cpu")
    kinds = ["sliding_window", "streaming", "block_diagonal", "bigbird", "document"]
    lengths = 4096, 16384, 65536
    assert [(row["pattern"].split("(")[0], row["length"]) for row in rows] == [(k, n) for n in lengths for k in kinds]
    assert all(row["part"] == "backward" for row in rows)


@ANOTHER_TABLE
def test_both_ways_to_equal_blocks_are_timed(on_cpu):
    rows = chapter.dense_way(device="cpu", heads=1, length=256, blocks=(128, 256))
    assert [(row["pattern"], row["length"], row["name"]) for row in rows] == [
        (f"block_diagonal(block={block})", 256, name) for block in (128, 256) for name in ("range", "dense")
    ]
    assert {row["speed_over_range"] for row in rows} == {1}


@pytest.mark.parametrize("length", [100, 1024, 5000, 131072])
def test_documents_fill_the_sequence(length):
    assert sum(chapter.documents(length)) == length and min(chapter.documents(length)) > 0


@ANOTHER_TABLE
def test_break_even_goes_by_density_and_length(on_cpu):
    rows = chapter.break_even(
        device="cpu", heads=1, lengths=(128, 256), densities=(1 / 4, 1 / 2), sparse_lengths=(256,)
    )
    found = [(row["length"], row["per_row"], row["name"]) for row in rows]
    names = [OURS, FLEX_TUNED, *flex.DENSE]
    assert found == [
        *((128, 1, name) for name in names),
        *((256, per_row, name) for per_row in (1, 2) for name in (*names, TORCH_SPARSE)),
    ]
    assert rows[0]["density"] == 1 / 2 and rows[0]["ratio_to_dense"] == 1


def test_a_tree_of_tokens_hangs_on_the_end_of_its_context():
    assert chapter.token_tree(2, 7, children=2) == [-1, 0, 1, 2, 2, 3, 3, 4, 4]
    assert chapter.token_tree(0, 4, children=2) == [-1, 0, 0, 1]


@ANOTHER_TABLE
def test_tree_is_timed_alone_and_behind_a_context(on_cpu):
    rows = chapter.tree(device="cpu", heads=1, contexts=(0, 70), tokens=(33,), flex_tokens=(33,))
    assert [(row["context"], row["name"]) for row in rows] == [
        (context, name) for context in (0, 70) for name in (OURS, SDPA_MASK, SDPA_NUMBERS, FLEX_128, FLEX_TUNED)
    ]
    assert rows[5]["density"] > 70 / 103 > rows[0]["density"] and rows[0]["call_ms"] == 0.5


def test_lists_have_their_bytes_and_the_time_to_build_them(on_cpu, monkeypatch):
    chosen = {"w": patterns.sliding_window(40), "p": patterns.power_of_two()}
    monkeypatch.setattr(chapter, "scaling_patterns", lambda length: chosen)
    monkeypatch.setattr(sparse_choice, "CSR_BLOCK_COST", 10**6)  # so that one pattern goes to csr_gather
    rows = chapter.lists(device="cpu", heads=1, length=192, warm_length=64)
    assert [(row["pattern"], row["kernel"]) for row in rows] == [
        ("w", "range"),
        ("w", "block_sparse"),
        ("p", "csr_gather"),
    ]
    found = patterns.sliding_window(40).block_lists(192)
    assert rows[0]["list_bytes"] == 0 and rows[0]["build_ms"] is None
    assert rows[1]["list_bytes"] == 4 * (4 + 2 * 5) + 512 * len(found.bits) and rows[1]["build_ms"] > 0
    assert rows[2]["list_bytes"] == 8 * 193 + 4 * patterns.power_of_two().pairs(192)


@ANOTHER_TABLE
def test_csr_counts_the_bytes_that_it_gathers(on_cpu):
    rows = chapter.csr(device="cpu", heads=1, length=100, share=0.1)
    assert [row["name"] for row in rows] == ["csr_gather", "block_sparse", *flex.DENSE] * 3
    pairs = patterns.power_of_two().pairs(100)
    assert rows[0]["gbytes_per_s"] == pytest.approx(2 * 128 * 2 * pairs / 2e-3 / 1e9)


def test_torch_sparse_computes_attention():
    pattern, inputs = patterns.random_blocks(64, 1, seed=0), [torch.randn(1, 2, 150, 64).half() for _ in range(3)]
    require_right("torch.sparse", chapter.torch_sparse(pattern, *inputs)(), *inputs, pattern)
