"""The small model: what plain torch says, with bits that do not depend on batch, pages, chunks and preemption."""

import pytest
import torch

from course_utils import reference
from course_utils.emulator import profile
from course_utils.serving import Loop, Model, as_text, as_tokens, load_weights, plain_logits
from course_utils.serving import model as module

TEXT = as_tokens("A page of the cache is a block of tokens, and a table says where each block is. " * 3)


def logits_of(model, *prompts, chunk=None, page_size=16, scatter=True):
    """After each of some prompts that are taken together, in chunks, from pages in no order."""
    cache = model.cache(64, page_size)
    for pages in (cache.key_pages, cache.value_pages):
        pages.fill_(torch.nan)
    if scatter:
        holes = [cache.allocate(reserve=page_size) for _ in range(40)]
        for hole in holes[::3] + holes[1::3]:
            cache.free(hole)
    sequences = [cache.allocate() for _ in prompts]
    longest = max(map(len, prompts))
    found = {}
    for first in range(0, longest, chunk or longest):
        parts = {n: prompt[first:][:chunk] for n, prompt in enumerate(prompts) if len(prompt) > first}
        for n, part in parts.items():
            cache.extend(sequences[n], len(part))
        found |= zip(parts, model.step(cache, [(sequences[n], part) for n, part in parts.items()]), strict=True)
    return torch.stack([found[n] for n in range(len(prompts))])


@pytest.fixture(scope="module")
def floats():
    return {name: matrix.floats() for name, matrix in load_weights().items()}


def test_a_step_is_the_model_in_plain_torch(device, floats):
    prompts = TEXT[:45], TEXT[5:6], TEXT[9:30]
    found = logits_of(Model(device=str(device)), *prompts).cpu()
    for row, prompt in zip(found, prompts, strict=True):
        expected = plain_logits(floats, torch.tensor([prompt]))[0, -1]
        torch.testing.assert_close(row, expected, atol=0.05, rtol=0)


def test_a_step_with_attention_in_float64_is_nearer_still(floats):
    exact = Model(attend=reference.paged_attention, split_size=None)
    expected = plain_logits(floats, torch.tensor([TEXT[:100]]))[0, -1]
    torch.testing.assert_close(logits_of(exact, TEXT[:100], chunk=40)[0], expected, atol=0.05, rtol=0)


def test_bits_do_not_depend_on_batch_chunks_or_pages(device):
    """Nor on whether a token was decoded or stood in a prompt: so a preempted sequence goes on as it was."""
    model = Model(device=str(device), split_size=16)
    prompts = TEXT[:38], TEXT[3:20], TEXT[11:12]
    alone = torch.cat([logits_of(model, prompt, scatter=False) for prompt in prompts])
    for together in (
        logits_of(model, *prompts),
        logits_of(model, *prompts, chunk=11),
        logits_of(model, *prompts, page_size=5),
    ):
        assert torch.equal(together, alone)
    assert torch.equal(logits_of(model, prompts[1], chunk=1), alone[1:2])


def test_sums_are_exact():
    """In whatever order: the products' numbers, and the squares of the residual stream, have few enough bits."""
    seen = {}

    class Watched(Model):
        def _linear(self, x, name, layer=None):
            numbers, _ = self.matrices[name] if layer is None else (part[layer] for part in self.matrices[name])
            largest = x.half().abs().max().item()
            assert largest * 2**24 * 127 * numbers.shape[1] < 2**53, (name, largest)
            seen[name] = max(seen.get(name, 0), largest)
            return super()._linear(x, name, layer)

        def _norm(self, x):
            units = x / module.GRID
            assert torch.equal(units, units.round()) and units.square().sum(-1).max() < 2**53
            return super()._norm(x)

    logits_of(Watched(attend=reference.paged_attention, split_size=None), TEXT[:60], chunk=60)
    assert set(seen) == set(module.SHAPES)


def test_greedy_tokens_are_the_same_from_the_loop_whatever_happens_in_it(device):
    """Together in a cache that is too small, with small chunks; and one after the other."""
    model, prompts = Model(device=str(device), split_size=8), [TEXT[:7], TEXT[30:33]]

    def served(together, pages, chunk):
        loop = Loop(model.next_tokens, model.cache(pages, 4), chunk=chunk)
        for prompt in together:
            loop.submit(prompt, 8)
        loop.run()
        return loop

    alone = [served([prompt], 5, 64).requests[0].said for prompt in prompts]
    loop = served(prompts, 5, 5)
    assert any(step.preempted for step in loop.history)
    assert [request.said for request in loop.requests] == alone


def test_a_cache_in_e4m3_says_nearly_the_same(device, floats):
    model = Model(device=str(device))
    scales = model.e4m3_scales(TEXT[:60])
    assert scales["k_scale"].shape == (module.LAYERS, module.KV_HEADS)
    cache = model.cache(8, **scales)
    sequence = cache.allocate()
    cache.extend(sequence, 60)
    found = model.step(cache, [(sequence, TEXT[:60])])[0].cpu()
    expected = plain_logits(floats, torch.tensor([TEXT[:60]]))[0, -1]
    assert 1e-3 < (found - expected).abs().max() < 0.6
    slots = torch.tensor(cache.slots(sequence, 0, 60), device=device)
    for pages in (cache.key_pages, cache.value_pages):
        kept = pages.view(torch.uint8).flatten(1, 2)[:, slots].view(pages.dtype).float()
        assert (kept.abs().amax((1, 3)) == 448).all()


def test_a_step_reads_each_key_once_for_a_tile_of_queries():
    """Chunks of a prompt share a tile with other heads' queries: 8 tokens cost the reads of one."""
    model = Model()
    read = []
    for count in (1, 8):
        cache = model.cache(8)
        sequence = cache.allocate()
        cache.extend(sequence, 64 - count)
        model.step(cache, [(sequence, TEXT[: 64 - count])])
        cache.extend(sequence, count)
        with profile() as counters:
            model.step(cache, [(sequence, TEXT[64 - count : 64])])
        read.append(counters.total("bytes", "global", "load"))
    cached = module.LAYERS * 64 * 2 * module.KV_HEADS * module.HEAD_DIM * 2
    assert cached <= read[0] < read[1] < 1.3 * cached


def test_it_has_learned_the_courses_prose(floats):
    words = "The kernel reads each key once, and the softmax is computed in one pass over the tiles."
    tokens = torch.tensor([as_tokens(words)])
    logits = plain_logits(floats, tokens[:, :-1])[0]
    assert torch.nn.functional.cross_entropy(logits, tokens[0, 1:]) < 2.0  # of log 256 = 5.5
    assert module.WEIGHTS.stat().st_size < 2_000_000


def test_text_is_bytes_and_back():
    assert as_text(as_tokens("√d · é")) == "√d · é" and as_text([0x41, 0xFF]) == "A�"


def test_a_position_that_there_is_not_is_named(monkeypatch):
    monkeypatch.setattr(module, "LONGEST", 20)
    with pytest.raises(ValueError, match="batch has a sequence of 21 tokens; the model has 20 positions"):
        logits_of(Model(), TEXT[:21])


@pytest.mark.parametrize("tokens", [[], [(0, [])]])
def test_a_step_without_tokens_is_refused(tokens):
    model = Model()
    cache = model.cache(1)
    cache.allocate()
    with pytest.raises(
        ValueError, match="batch is .*; it must have sequences, and each of them at least one new token"
    ):
        model.step(cache, tokens)
