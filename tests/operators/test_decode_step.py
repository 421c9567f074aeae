"""append_paged, decode_step and cascade_attention: right, the same as the operators that they stand for."""

from functools import partial

import pytest
import torch

from course_utils import checks, reference
from course_utils.operators import (
    append_paged,
    cascade_attention,
    decode_step,
    paged_attention,
    serving_choice,
    serving_launch,
)
from tests.helpers import tensors

HALF, BF16, E4M3 = torch.float16, torch.bfloat16, serving_choice.E4M3
JUNK = 2**31 - 1


def ints(*values, device="cpu"):
    return torch.tensor(values, dtype=torch.int32, device=device)


def pages_of(device, dtype, lengths, new, *, page_size=5, kv_heads=2, head_dim=64, layers=()):
    """Keys and values in pages at random places, those of the last `new` tokens and all that nobody has NaN; the table,
    with junk past the ends; the lengths."""
    of_one = -(-max(lengths) // page_size) + 1
    pages = len(lengths) * of_one + 2
    table = torch.randperm(pages, generator=torch.Generator().manual_seed(page_size))[:-2].view(len(lengths), of_one)
    made = [tensors.random(*layers, pages, page_size, kv_heads, head_dim, dtype=torch.float32, seed=s) for s in (5, 6)]
    held = torch.zeros(pages, page_size, dtype=torch.bool)
    for b, length in enumerate(lengths):
        j = torch.arange(max(length - new, 0))
        held[table[b, j // page_size], j % page_size] = True
    made = [tensor.masked_fill(~held[..., None, None], torch.nan).to(dtype).to(device) for tensor in made]
    seq_lens = ints(*lengths)
    table[torch.arange(of_one) * page_size >= seq_lens[:, None]] = JUNK
    return *made, table.int().to(device), seq_lens.to(device)


def bits(tensor):
    """For a comparison in which NaN is NaN."""
    return tensor.view({1: torch.uint8, 2: torch.int16}[tensor.element_size()])


def scales_of(*shape, device):
    return {
        name: tensors.random(*shape, device=device, seed=seed).abs() / 4 + 0.1
        for seed, name in ((7, "k_scale"), (8, "v_scale"))
    }


# ---------------------------------------------------------------------------------------------- append


@pytest.mark.parametrize(
    ("dtype", "cache", "page_size", "new", "head_dim"),
    [
        (HALF, HALF, 1, 1, 64),
        (BF16, BF16, 5, 3, 40),
        (HALF, HALF, 256, 16, 128),
        (HALF, E4M3, 16, 2, 64),
        (BF16, E4M3, 5, 7, 128),
    ],
)
def test_new_tokens_go_to_their_places_and_nowhere_else(device, dtype, cache, page_size, new, head_dim):
    lengths = (new + 4, 0, max(new - 1, 1), page_size + 2)
    key_pages, value_pages, table, seq_lens = pages_of(
        device, cache, lengths, new, page_size=page_size, head_dim=head_dim
    )
    key, value = (10 * tensors.random(4, new, 2, head_dim, device=device, dtype=dtype, seed=s) for s in (1, 2))
    scales = scales_of(4, 2, device=device) if cache == E4M3 else {}
    expected = reference.append_paged(key, value, key_pages, value_pages, table, seq_lens, **scales)
    versions = key_pages._version, value_pages._version
    strided = key.transpose(1, 2).contiguous().transpose(1, 2)
    assert append_paged(strided, value, key_pages, value_pages, table, seq_lens, **scales) is None
    assert (key_pages._version, value_pages._version) > versions
    for found, wanted in zip((key_pages, value_pages), expected, strict=True):
        assert torch.equal(bits(found), bits(wanted))


def test_numbers_are_rounded_to_e4m3_as_torch_does_and_kept_within_it(device):
    """Each number that E4M3 has, what lies halfway to the next, what is beyond the largest, and NaN."""
    every = torch.arange(127, dtype=torch.uint8).view(E4M3).float()
    numbers = torch.cat((every, (every[1:] + every[:-1]) / 2, torch.tensor([464.0, 500.0, 6e4, torch.inf])))
    numbers = torch.cat((numbers, -numbers, torch.tensor([torch.nan]), torch.zeros(5))).to(HALF)  # all are fp16's
    key = numbers.view(1, 1, 1, -1).to(device)
    pages = torch.zeros(1, 1, 1, numbers.numel(), device=device).to(E4M3)
    one = torch.ones(1, 1, device=device)
    append_paged(
        key, key, pages, pages.clone(), ints([0], device=device), ints(1, device=device), k_scale=one, v_scale=one
    )
    expected = numbers.float().clamp(-448, 448).to(E4M3)
    assert torch.equal(bits(pages.cpu().flatten()), bits(expected))


@pytest.mark.gpu
def test_new_tokens_have_offsets_beyond_32_bits():
    pages = 2**31 // (8 * 128 * 256) + 2
    if torch.cuda.mem_get_info()[0] < 10 << 30:
        pytest.skip("needs 10 GiB of free GPU memory")
    key_pages = torch.zeros(pages, 256, 8, 128, device="cuda", dtype=HALF)
    value_pages = torch.zeros_like(key_pages)
    key = torch.full((1, 2, 8, 128), 3.0, device="cuda", dtype=HALF)
    append_paged(key, key, key_pages, value_pages, ints([pages - 1], device="cuda"), ints(256, device="cuda"))
    for cache in (key_pages, value_pages):
        assert (cache[-1, -2:] == 3).all() and (cache[-1, :-2] == 0).all() and not cache[:-1].any()
    query = torch.ones(1, 1, 8, 2, 128, device="cuda", dtype=HALF)
    table, seq_lens = ints([pages - 1], device="cuda"), ints(100, device="cuda")
    decode_step(query, key[None], key[None], key_pages[None], value_pages[None], table, seq_lens)
    assert (key_pages[-1, 98:100] == 3).all() and (value_pages[-1, 98:100] == 3).all()


# ---------------------------------------------------------------------------------------------- a step in one launch


def step_inputs(device, dtype, lengths, queries, *, heads=4, cache=None, **sizes):
    """Arguments of decode_step for two layers and 2 key heads."""
    sizes = {"head_dim": 64, **sizes}
    batch, head_dim = len(lengths), sizes["head_dim"]
    pages = pages_of(device, cache or dtype, lengths, queries, layers=(2,), **sizes)
    query = tensors.random(2, batch, heads, queries, head_dim, device=device, dtype=dtype, seed=1)
    key, value = (tensors.random(2, batch, queries, 2, head_dim, device=device, dtype=dtype, seed=s) for s in (2, 3))
    return query, key, value, *pages


def layer_by_layer(query, key, value, key_pages, value_pages, block_table, seq_lens, **options):
    """The same by a launch for each part of each layer."""
    outs = []
    for n in range(len(query)):
        scales = {name: options.pop(name) for name in ("k_scale", "v_scale") if name in options}
        own = {name: scale[n] for name, scale in scales.items()}
        append_paged(key[n], value[n], key_pages[n], value_pages[n], block_table, seq_lens, **own)
        pages = key_pages[n], value_pages[n]
        outs.append(paged_attention(query[n], *pages, block_table, seq_lens, return_lse=True, **options, **own))
        options |= scales
    out, lse = map(torch.stack, zip(*outs, strict=True))
    return out, lse, key_pages, value_pages


def assert_equal_to_launches(arguments, **options):
    """Whether a step in one launch, on poisoned memory, has the bits that layer by layer gives; it leaves its workspace
    as it was."""
    copies = [tensor.clone() for tensor in arguments]
    expected = layer_by_layer(*copies, **options)
    batch, kv_heads = arguments[1].shape[1], arguments[1].shape[3]
    workspace = torch.zeros(
        serving_choice.step_workspace(batch, kv_heads), dtype=torch.int32, device=arguments[0].device
    )
    for _ in range(2):
        copies = [tensor.clone() for tensor in arguments]
        with checks.poisoned_outputs():
            found = *decode_step(*copies, workspace=workspace, return_lse=True, **options), *copies[3:5]
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other) if one.dtype == torch.float32 else torch.equal(bits(one), bits(other))
        assert not workspace.any()
    assert found[0].isfinite().all()


@pytest.mark.parametrize(
    ("lengths", "queries", "heads", "options"),
    [
        ((70, 0, 1), 1, 2, {"num_splits": 3}),  # pieces, of which one is new and one empty
        ((100, 2, 33), 3, 4, {"split_size": 33}),  # new tokens in two pieces, and fewer tokens than new ones
        ((450,), 4, 4, {"num_splits": 1}),  # more tiles than stages
        ((40, 90), 16, 8, {"split_size": 37, "scale": -0.3}),  # two tiles of rows
    ],
)
def test_a_step_in_one_launch_is_equal_to_a_launch_for_each_part(device, lengths, queries, heads, options):
    assert_equal_to_launches(step_inputs(device, HALF, lengths, queries, heads=heads), **options)


def test_a_step_of_wide_heads_in_e4m3_with_a_tree(device):
    arguments = step_inputs(device, BF16, (130, 9), 3, cache=E4M3, head_dim=128, page_size=16)
    parents = ints([-1, 0, 0], [-1, -1, 1], device=device)
    assert_equal_to_launches(arguments, parents=parents, split_size=48, **scales_of(2, 2, 2, device=device))


@pytest.mark.parametrize("blocks", [1, 2, 7])
def test_a_step_works_with_any_number_of_blocks(device, blocks, monkeypatch, nothing_ready):
    for module in (serving_choice, serving_launch):
        monkeypatch.setattr(module, "places", lambda tile, device: blocks)
    assert_equal_to_launches(step_inputs(device, HALF, (70, 20), 1), split_size=25)


# ---------------------------------------------------------------------------------------------- a shared prefix


@pytest.mark.parametrize(("dtype", "queries", "heads"), [(HALF, 1, 4), (BF16, 3, 8)])
def test_a_shared_prefix_is_part_of_each_sequence(device, dtype, queries, heads):
    lengths = (20, queries, 7)
    pages = pages_of(device, dtype, lengths, 0, page_size=4)
    query = tensors.random(3, heads, queries, 64, device=device, dtype=dtype, seed=1)
    prefix = [tensors.random(2, 50, 64, device=device, dtype=dtype, seed=seed) for seed in (2, 3)]
    out, lse = cascade_attention(query, *prefix, *pages, return_lse=True, split_size=16)
    expected, expected_lse = reference.cascade_attention(query, *prefix, *pages, return_lse=True)
    for report in (checks.error_report(out, expected), checks.lse_report(lse, expected_lse)):
        assert report.passed, report
    assert torch.equal(out, cascade_attention(query, *prefix, *pages, split_size=16))


# ---------------------------------------------------------------------------------------------- compiled, captured


def test_a_model_with_the_operators_compiles_in_one_graph(device):
    """It writes to the pages that it is given."""

    def model(query, key, value, key_pages, value_pages, block_table, seq_lens):
        append_paged(key[0], value[0], key_pages[0], value_pages[0], block_table, seq_lens)
        return decode_step(query, key, value, key_pages, value_pages, block_table, seq_lens, split_size=25)

    arguments = step_inputs(device, HALF, (30, 2), 2)
    found, expected = ([tensor.clone() for tensor in arguments] for _ in range(2))
    out = torch.compile(model, fullgraph=True, backend="aot_eager")(*found)
    assert torch.equal(out, model(*expected))
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(found[3:5], expected[3:5], strict=True))


@pytest.mark.gpu
@pytest.mark.parametrize("cache", [HALF, E4M3])
def test_a_captured_step_follows_its_lengths(cache):
    """Long and short sequences, pages of 16, and as many blocks as the GPU has places for."""
    arguments = step_inputs("cuda", HALF, (4000, 3, 0, 777), 1, heads=8, cache=cache, head_dim=128, page_size=16)
    query, key, value, key_pages, value_pages, table, seq_lens = arguments
    for pages in (key_pages, value_pages):
        bits(pages).masked_fill_(pages.isnan(), 0)  # what shorter lengths leave behind
    table = torch.arange(table.numel(), dtype=torch.int32, device="cuda").flip(0).view_as(table)  # no junk
    arguments = query, key, value, key_pages, value_pages, table, seq_lens
    options = scales_of(2, 4, 2, device="cuda") if cache == E4M3 else {}
    graph = torch.cuda.CUDAGraph()
    workspace = torch.zeros(serving_choice.step_workspace(4, 2), dtype=torch.int32, device="cuda")
    decode_step(*arguments, workspace=workspace, **options)
    with torch.cuda.graph(graph):
        out, lse = decode_step(*arguments, workspace=workspace, return_lse=True, **options)
    for lengths in ((4000, 3, 0, 777), (10, 4000, 1000, 1), (0, 0, 0, 4016)):
        seq_lens.copy_(torch.tensor(lengths))
        for _ in range(50):
            graph.replay()
        expected = layer_by_layer(*[tensor.clone() for tensor in arguments], **options)
        assert torch.equal(out, expected[0]) and torch.equal(lse, expected[1]) and not workspace.any()
        assert torch.equal(bits(key_pages), bits(expected[2])) and torch.equal(bits(value_pages), bits(expected[3]))


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "head_dim"), [(HALF, 64), (BF16, 128)])
def test_triton_gives_the_same(dtype, head_dim):
    pytest.importorskip("triton", reason="Triton is not installed")
    from course_utils.bench import serving_triton

    query = tensors.random(3, 16, 1, head_dim, device="cuda", dtype=dtype)
    cache = [tensors.random(3, 2, 1000, head_dim, device="cuda", dtype=dtype, seed=seed) for seed in (1, 2)]
    expected, expected_lse = reference.decode_attention(query, *cache, return_lse=True)
    calls = [
        serving_triton.first_rung,
        serving_triton.decode_attention,
        partial(serving_triton.decode_attention, splits=7),
    ]
    for call in calls:
        out, lse = call(query, *cache)
        assert checks.error_report(out, expected).passed and checks.lse_report(lse, expected_lse).passed

    arguments = step_inputs("cuda", dtype, (1000, 1, 0, 333), 1, heads=8, head_dim=head_dim, page_size=16)
    copies = [tensor.clone() for tensor in arguments]
    expected, expected_lse = decode_step(*copies, return_lse=True)
    workspace = torch.zeros(serving_choice.step_workspace(4, 2), dtype=torch.int32, device="cuda")
    for _ in range(3):
        out, lse = serving_triton.decode_step(*arguments, workspace, split_size=128)
        assert (
            checks.error_report(out, expected.double()).passed and checks.lse_report(lse, expected_lse.double()).passed
        )
        assert not workspace.any()
    assert all(torch.equal(bits(one), bits(other)) for one, other in zip(arguments[3:5], copies[3:5], strict=True))


# ---------------------------------------------------------------------------------------------- bad arguments


def append(**changes):
    key = torch.zeros(2, 1, 2, 64, dtype=HALF)
    pages = {name: torch.zeros(4, 3, 2, 64, dtype=HALF) for name in ("key_pages", "value_pages")}
    given = {"key": key, "value": key, **pages, "block_table": ints([0, 1], [2, 3]), "seq_lens": ints(5, 4)}
    append_paged(**{**given, **changes})


def step(**changes):
    names = "query", "key", "value", "key_pages", "value_pages", "block_table", "seq_lens"
    given = dict(zip(names, step_inputs("cpu", HALF, (5, 4), 1), strict=True))
    return decode_step(**{**given, **changes})


@pytest.mark.parametrize("name", ["key", "value"])
def test_a_token_that_is_written_to_the_pages_has_no_gradient(name):
    token = torch.zeros(2, 2, 1, 2, 64, dtype=HALF, requires_grad=True)
    with pytest.raises(NotImplementedError, match="decode_step has no gradient; take flash_attention_v2"):
        step(**{name: token})
    with torch.no_grad():
        step(**{name: token})


PAGES = torch.zeros(4, 3, 2, 64, dtype=HALF)
EIGHT, ONES = PAGES.to(E4M3), torch.ones(2, 2)


@pytest.mark.parametrize(
    ("call", "changes", "error", "message"),
    [
        (append, {"value": torch.zeros(2, 1, 2, 8)}, TypeError, "value has dtype torch.float32; it must be"),
        (append, {"key_pages": PAGES.bfloat16()}, TypeError, "key_pages has dtype torch.bfloat16; it must be"),
        (
            append,
            {"key_pages": PAGES[:, :, :1]},
            ValueError,
            r"key_pages has shape \[4, 3, 1, 64\]; it must be \[pages, ",
        ),
        (append, {"key_pages": PAGES.mT.contiguous().mT}, ValueError, "key_pages has strides .* must be contiguous"),
        (append, {"value_pages": PAGES.clone().requires_grad_()}, ValueError, "value_pages requires a gradient"),
        (
            append,
            {"block_table": ints([0, 1], [2, 4])},
            ValueError,
            r"block_table\[1, 1\] is 4; key_pages has pages 0 to 3",
        ),
        (append, {"seq_lens": ints(5, 7)}, ValueError, r"seq_lens is \[5, 7\]; each must be from 0 to 6"),
        (
            append,
            {"key_pages": EIGHT, "value_pages": EIGHT, "k_scale": ONES, "v_scale": 0 * ONES},
            ValueError,
            "v_scale goes down to 0.0; it must be positive",
        ),
        (append, {"v_scale": ONES}, ValueError, "v_scale is given, and key_pages is torch.float16"),
        (
            step,
            {"query": torch.zeros(2, 2, 4, 1, 40, dtype=HALF)},
            ValueError,
            "query has head dimension 40; it must be 64",
        ),
        (
            step,
            {"key": torch.zeros(2, 2, 2, 2, 64, dtype=HALF)},
            ValueError,
            r"key has shape .*; it must be \[2, 2, 1, H_kv",
        ),
        (step, {"workspace": ints(0, 0)}, ValueError, r"workspace has shape \[2\] .* of at least 8 numbers"),
        (step, {"workspace": ints(*range(8))}, ValueError, "workspace is not zeros"),
        (step, {"seq_lens": ints(1)}, ValueError, r"seq_lens has shape \[1\]; it must be \[2\]"),
    ],
)
def test_what_does_not_fit_is_named(call, changes, error, message):
    with pytest.raises(error, match=message):
        call(**changes)


def test_pages_at_an_odd_address_are_refused():
    at_odd = torch.zeros(PAGES.numel() + 1, dtype=HALF)[1:].view_as(PAGES)
    with pytest.raises(ValueError, match="key_pages begins at an address that is no multiple of 16"):
        append(key_pages=at_odd)


def test_a_negated_view_is_read_as_its_numbers():
    key, pages = torch.randn(2, 1, 2, 64).half(), torch.zeros_like(PAGES)
    append(key=torch._neg_view(key), key_pages=pages)
    assert torch.equal(pages[[1, 3], [1, 0]], -key[:, 0])


def test_a_prefix_that_does_not_fit_is_named():
    pages = pages_of("cpu", HALF, (5, 4), 0)
    query, prefix = torch.zeros(2, 4, 1, 64, dtype=HALF), torch.zeros(2, 9, 64, dtype=HALF)
    with pytest.raises(ValueError, match=r"prefix_key has shape \[1, 9, 64\]; it must be \[2, P, 64\]"):
        cascade_attention(query, prefix[:1], prefix, *pages)
    with pytest.raises(ValueError, match=r"prefix_value has shape \[2, 3, 64\]; it must be \[2, 9, 64\]"):
        cascade_attention(query, prefix, prefix[:, :3], *pages)
