"""Models of transformers with the course's attention: as near to float64 as with their own, or an error by name."""

import functools
from typing import Any, NamedTuple

import pytest
import torch
import transformers
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.functional import cross_entropy
from transformers import CompileConfig, StaticCache, masking_utils

from course_utils import checks
from course_utils.integrations import transformers as integration
from course_utils.integrations.transformers import course_attention, course_mask, register
from tests.helpers import tensors
from tests.helpers.fresh_process import run_without_the_course
from tests.helpers.transformers_masks import kept_by

register()

LENGTH, WINDOW = 13, 4
LOSS_SCALE = 2.0**10  # else the gradients would be below the floor of what is allowed
SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "pad_token_id": 0}
SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "initializer_range": 0.2}
GROUPS = {"num_attention_heads": 2, "num_key_value_heads": 1}
LAYERS = {"num_hidden_layers": 2, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
CHUNKS = {"num_hidden_layers": 2, "attention_chunk_size": 5, "layer_types": ["chunked_attention", "full_attention"]}
OF_BART = {"vocab_size": 64, "d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "init_std": 0.2, "dropout": 0.0}
OF_BART |= {
    f"{part}_{size}": n for part in ("encoder", "decoder") for size, n in (("attention_heads", 2), ("ffn_dim", 64))
}
OF_DEEPSEEK = {"q_lora_rank": 16, "kv_lora_rank": 16, "n_routed_experts": 2, "num_experts_per_tok": 1, "n_group": 1}
OF_DEEPSEEK |= {"topk_group": 1, "first_k_dense_replace": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
OF_T5 = {"vocab_size": 64, "d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4}

TOKENS = torch.randint(3, 64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
RESTARTING = torch.stack([torch.arange(LENGTH) % 5, torch.arange(LENGTH) % 9])
BEHIND_ONE_TOKEN = (torch.arange(LENGTH) - 1).clamp(min=0).expand(2, -1)  # a sequence of one, then one more
LEFT, RIGHT, AMID = (torch.ones(2, LENGTH, dtype=torch.int64) for _ in range(3))
LEFT[0, :3] = RIGHT[0, -4:] = AMID[0, 5:7] = 0

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()


class Family(NamedTuple):
    config: str
    model: str
    sizes: dict[str, Any]


def causal(name: str, *, config: str | None = None, **sizes: Any) -> Family:
    return Family(config or f"{name}Config", f"{name}ForCausalLM", SIZES | GROUPS | sizes)


DECODERS = {
    "Llama": causal("Llama"),
    "Mistral": causal("Mistral", sliding_window=WINDOW),
    "Qwen2": causal("Qwen2", use_sliding_window=True, max_window_layers=0, **LAYERS),
    "Qwen3": causal("Qwen3", head_dim=64),
    "Gemma 2": causal("Gemma2", head_dim=64, attn_logit_softcapping=2.0, final_logit_softcapping=None, **LAYERS),
    "Gemma 3": causal("Gemma3", config="Gemma3TextConfig", head_dim=256, **LAYERS),
    "GPT-OSS": causal(
        "GptOss", head_dim=64, num_local_experts=2, num_experts_per_tok=2, experts_implementation="eager", **LAYERS
    ),
    "Phi-3": causal("Phi3", sliding_window=WINDOW),
    "Cohere2": causal("Cohere2", logit_scale=1.0, **LAYERS),
    "GPT-2": Family(
        "GPT2Config",
        "GPT2LMHeadModel",
        {"n_embd": 64, "n_layer": 1, "n_head": 2, **SIZES, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0},
    ),
    "DeepSeek-V3": causal("DeepseekV3", qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128, **OF_DEEPSEEK),
    "Llama 4": causal(
        "Llama4", config="Llama4TextConfig", head_dim=64, moe_layers=[], intermediate_size_mlp=64, **CHUNKS
    ),
    "GPT-NeoX": causal("GPTNeoX", num_attention_heads=2),
}
OTHERS = {
    "ModernBERT": Family(
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        SIZES
        | {
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "local_attention": 8,
            "initializer_cutoff_factor": 2.0,
            "global_attn_every_n_layers": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
        },
    ),
    "BART": Family("BartConfig", "BartForConditionalGeneration", OF_BART),
}
T5 = Family("T5Config", "T5ForConditionalGeneration", OF_T5 | {"decoder_start_token_id": 0})
WIDE = causal("Llama", head_dim=264)

of_decoders = pytest.mark.parametrize("name", DECODERS)


@functools.cache
def make(family: str) -> torch.nn.Module:
    """A small model with random weights. Its biases and sinks are random, too, so that they matter."""
    return build({**DECODERS, **OTHERS}[family])


def build(family: Family) -> torch.nn.Module:
    torch.manual_seed(0)
    made = getattr(transformers, family.model)(getattr(transformers, family.config)(**family.sizes))
    for parameter in made.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, std=0.5)
    return made.half().eval()


def run(
    model,
    way: str,
    dtype: torch.dtype = torch.float16,
    *,
    mask: Tensor | None = None,
    alone: bool = False,
    **inputs: Any,
) -> Tensor:
    """The logits `[tokens, words]`, without those of padding. alone: each text by itself, without its padding."""
    model.set_attn_implementation(way)
    model.to(dtype)
    if not alone:
        found = model(**{"input_ids": TOKENS, "attention_mask": mask, **inputs}).logits
        return found.flatten(0, 1) if mask is None else found[mask.bool()]
    places = [torch.arange(LENGTH)[row.bool()] for row in mask]
    found = [
        model(tokens[place][None], position_ids=place[None], **inputs).logits[0]
        for tokens, place in zip(TOKENS, places, strict=True)
    ]
    return torch.cat(found)


# Where a query of padding sees no key, transformers' own attention may give NaN: the texts are run by themselves.
REFERENCES = ("eager", torch.float64), ("eager", torch.float16)


@torch.no_grad()
def assert_as_near_as_eager(model, *, mask: Tensor | None = None, **inputs: Any) -> None:
    """As near to float64 as transformers' own attention in fp16."""
    found = run(model, "course", mask=mask, **inputs)
    exact, eager = (run(model, *way, mask=mask, alone=mask is not None, **inputs) for way in REFERENCES)
    report = checks.error_report(found, exact, eager)
    assert report.passed, str(report)
    assert exact.abs().max() > 1


# ---------------------------------------------------------------------------------------------- decoders, a family each


@of_decoders
def test_a_decoder_computes_what_it_computes_in_eager_mode(name):
    assert_as_near_as_eager(make(name))


@of_decoders
@pytest.mark.parametrize("mask", [pytest.param(LEFT, id="left"), pytest.param(RIGHT, id="right")])
def test_a_decoder_does_not_see_padding(name, mask):
    assert_as_near_as_eager(make(name), mask=mask)


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "GPT-OSS"])
def test_packed_sequences_do_not_see_each_other(name):
    model = make(name)
    assert_as_near_as_eager(model, position_ids=RESTARTING, use_cache=False)
    packed = run(model, "course", position_ids=RESTARTING, use_cache=False)
    alone = run(model, "course", input_ids=TOKENS[:, 5:10])
    torch.testing.assert_close(packed[5:10], alone[:5], atol=2e-2, rtol=2e-2)


def generate(model, way: str, **more: Any) -> Tensor:
    model.set_attn_implementation(way)
    with torch.no_grad():
        return model.half().generate(
            TOKENS, attention_mask=LEFT, max_new_tokens=5, min_new_tokens=5, do_sample=False, **more
        )


ALIKE = pytest.mark.exhaustive(
    "`make test` generates with each kind of mask and of heads; this family's are tested above"
)
GENERATE = ("Llama", "Mistral", "Gemma 2", "GPT-OSS", "DeepSeek-V3", "Llama 4")


@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in GENERATE else ALIKE) for name in DECODERS])
def test_generation_from_padded_prompts_chooses_the_same_tokens(name):
    model = make(name)
    expected = generate(model, "eager")
    found = {cache: generate(model, "course", cache_implementation=cache) for cache in ("dynamic", "static")}
    found["none"] = generate(model, "course", use_cache=False)
    assert all(torch.equal(tokens, expected) for tokens in found.values()), (expected, found)


@of_decoders
def test_a_training_step_has_the_gradients_of_float64(name):
    model, gradients, targets = make(name), [], TOKENS.roll(-1, 1)[RIGHT.bool()]
    names, parameters = zip(*model.named_parameters(), strict=True)
    for way in (*REFERENCES, ("course", torch.float16)):
        logits = run(model, *way, mask=RIGHT, alone=way in REFERENCES, use_cache=False)
        loss = cross_entropy(logits.to(torch.promote_types(logits.dtype, torch.float32)), targets)
        gradients.append(torch.autograd.grad(LOSS_SCALE * loss, parameters, allow_unused=True))
    reports = [
        checks.error_report(found, exact, eager, factor=checks.GRADIENT_FACTOR, name=parameter)
        for parameter, exact, eager, found in zip(names, *gradients, strict=True)
        if exact is not None
    ]
    assert len(reports) > 5 and all(report.passed for report in reports), "\n".join(map(str, reports))


# ------------------------------------------------------------------------------------------------------- other models


def test_an_encoder_with_windows_to_both_sides():
    assert_as_near_as_eager(make("ModernBERT"))


@torch.no_grad()
def test_an_encoder_does_not_see_padding():
    """Where its windows hold all tokens."""
    model, padded = make("ModernBERT"), torch.tensor([[1, 1, 1, 0]])
    found, expected = (
        run(model, "course", input_ids=TOKENS[:1, :length], attention_mask=padded[:, :length]) for length in (4, 3)
    )
    torch.testing.assert_close(found[:3], expected, atol=2e-2, rtol=2e-2)


def test_an_encoder_and_its_decoder():
    model = make("BART")
    assert_as_near_as_eager(model, decoder_input_ids=TOKENS[:, :7])
    assert_as_near_as_eager(model, decoder_input_ids=TOKENS[:, :7], attention_mask=RIGHT)


def test_an_encoder_and_its_decoder_generate():
    model = make("BART")
    assert torch.equal(generate(model, "course", num_beams=2), generate(model, "eager", num_beams=2))


# ------------------------------------------------------------------------------------------------------- a call's ways


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param({"use_cache": False, "position_ids": torch.arange(LENGTH).expand(2, -1)}, id="positions"),
        pytest.param({"attention_mask": torch.ones(2, LENGTH)}, id="a mask of ones"),
        pytest.param(
            {"output_hidden_states": True, "labels": TOKENS, "num_items_in_batch": torch.tensor(3)}, id="more"
        ),
        pytest.param({"is_causal": False}, id="not causal, which makes another mask"),
    ],
)
def test_a_call_that_asks_for_more_computes_what_it_computes_in_eager_mode(inputs):
    assert_as_near_as_eager(make("Llama"), **inputs)


@torch.no_grad()
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Gemma 2"])
def test_piece_by_piece_with_a_cache_it_computes_what_it_computes_at_once(name, cache):
    model = make(name)
    expected, steps = run(model, "course"), []
    kept = StaticCache(config=model.config, max_cache_len=20) if cache == "static" else None
    for piece in (TOKENS[:, :7], TOKENS[:, 7:8], TOKENS[:, 8:]):
        out = model(piece, past_key_values=kept, use_cache=True)
        kept = out.past_key_values
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1).flatten(0, 1), expected, atol=2e-2, rtol=2e-2)


def test_prompt_lookup_chooses_the_same_tokens():
    model = make("Llama")
    model.set_attn_implementation("course")
    prompt = TOKENS[:1, :4].repeat(1, 3)
    with torch.no_grad():
        plain, looked_up = (
            model.half().generate(prompt, max_new_tokens=6, do_sample=False, **more)
            for more in ({}, {"prompt_lookup_num_tokens": 2})
        )
    assert torch.equal(plain, looked_up)


def test_checkpointed_layers_give_the_same_gradients():
    found = []
    for checkpointed in (False, True):
        model = build(DECODERS["Gemma 2"]).train()
        if checkpointed:
            model.gradient_checkpointing_enable()
        run(model, "course", position_ids=RESTARTING, use_cache=False).float().square().sum().backward()
        found.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*found, atol=1e-2, rtol=1e-2)


def compiled(model):
    """The logits of TOKENS by a model in one graph."""
    model.half().set_attn_implementation("course")
    torch.compiler.reset()
    return torch.compile(
        lambda **given: model(TOKENS, use_cache=False, **given).logits, fullgraph=True, backend="aot_eager"
    )


@torch.no_grad()
def test_a_compiled_model_computes_and_refuses_the_same():
    """Windows, a softcap and padding: one graph takes the masks that it has, and not those that it has not."""
    model = make("Gemma 2")
    run_compiled = compiled(model)
    for mask in (torch.ones_like(LEFT), LEFT.clone()):
        expected = model(TOKENS, use_cache=False, attention_mask=mask).logits
        found = run_compiled(attention_mask=mask)
        torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-2, rtol=1e-2)
    with pytest.raises(ValueError, match="padding at either end of a row, but not amid it"):
        run_compiled(attention_mask=AMID.clone())
    with pytest.raises(ValueError, match="begin anew where no sequence"):
        run_compiled(position_ids=RESTARTING.clone(), attention_mask=torch.ones_like(LEFT))
    with pytest.raises(Exception, match="does not have what_comes_next_year"):
        run_compiled(what_comes_next_year=0)


def test_a_compiled_training_step_has_the_same_logits_and_gradients():
    """Windows, a softcap and packed sequences."""
    model, packed = make("Gemma 2"), {"position_ids": RESTARTING.clone()}
    in_one_graph = compiled(model)
    found = []
    for logits in (model(TOKENS, use_cache=False, **packed).logits, in_one_graph(**packed)):
        gradients = torch.autograd.grad(logits.float().square().mean(), list(model.parameters()))
        found.append((logits, *gradients))
    torch.testing.assert_close(*found, atol=1e-2, rtol=1e-2)


@pytest.mark.exhaustive("`make test` compiles masks for one length, and the operators for any")
@torch.no_grad()
def test_a_second_length_compiles_no_graph_of_its_own():
    model = make("Llama")
    model.half().set_attn_implementation("course")
    torch.compiler.reset()
    counters.clear()
    in_one_graph = torch.compile(
        lambda tokens, mask: model(tokens, attention_mask=mask, use_cache=False).logits,
        fullgraph=True,
        dynamic=True,
        backend="aot_eager",
    )
    for length in (LENGTH, 9):
        tokens, mask = TOKENS[:, :length].clone(), LEFT[:, :length].clone()
        found, expected = in_one_graph(tokens, mask), run(model, "course", input_ids=tokens, mask=mask, use_cache=False)
        torch.testing.assert_close(found[mask.bool()], expected, atol=1e-2, rtol=1e-2)
    assert counters["stats"]["unique_graphs"] == 1


def test_generation_by_a_compiled_step_chooses_the_same_tokens():
    model, config = make("Llama"), CompileConfig(backend="aot_eager", mode=None, fullgraph=True)
    config._compile_all_devices = True
    expected = generate(model, "eager")
    torch.compiler.reset()
    found = generate(model, "course", cache_implementation="static", compile_config=config)
    assert torch.equal(found, expected)


# ------------------------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("name", "inputs", "words"),
    [
        pytest.param("Llama", {"output_attentions": True}, "output_attentions", id="the weights"),
        pytest.param("Llama", {"position_ids": RESTARTING}, "begin anew", id="packed, with a cache"),
        pytest.param("Llama", {"position_ids": BEHIND_ONE_TOKEN}, "begin anew", id="packed, the first has one token"),
        pytest.param(
            "GPT-OSS", {"position_ids": RESTARTING, "use_cache": False}, "begin anew", id="packed, not in masks"
        ),
        pytest.param("Llama", {"cu_seq_lens_q": torch.tensor([0, 13])}, "cu_seq_lens_q", id="sequences of flash-attn"),
        pytest.param("Llama", {"attention_mask": torch.ones(2, 1, LENGTH, LENGTH).tril()}, "of pairs", id="of pairs"),
        pytest.param("Llama", {"attention_mask": AMID}, "not amid it", id="padding amid a row"),
        pytest.param("ModernBERT", {"attention_mask": RIGHT}, "no mask like", id="padding with a window to both sides"),
        pytest.param("BART", {"attention_mask": AMID, "decoder_input_ids": TOKENS}, "not amid it", id="of an encoder"),
    ],
)
def test_what_a_call_asks_for_beyond_that_is_refused(name, inputs, words):
    with pytest.raises(ValueError, match=words), torch.no_grad():
        run(make(name), "course", **inputs)


@pytest.mark.parametrize(
    ("family", "words"),
    [
        pytest.param(T5, "position_bias", id="a position bias"),
        pytest.param(WIDE, "query", id="wide heads"),
    ],
)
def test_what_a_model_asks_for_beyond_that_is_refused(family, words):
    inputs = {"decoder_input_ids": TOKENS} if family is T5 else {}
    with pytest.raises(ValueError, match=words), torch.no_grad():
        run(build(family), "course", **inputs)


def test_dropout_is_refused():
    model = build(causal("Llama", attention_dropout=0.1)).train()
    with pytest.raises(ValueError, match="dropout"):
        run(model, "course")


def layer(**attributes: Any) -> torch.nn.Module:
    made = torch.nn.Module()
    made.is_causal = True
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def attend(query: Tensor, **more: Any) -> Tensor:
    return course_attention(layer(), query, query, query, **{"attention_mask": None, **more})[0]


def test_a_graph_refuses_a_keyword_by_name(device):
    query = tensors.random(1, 2, 5, 8, device=device, dtype=torch.float16)
    with pytest.raises(Exception, match="does not have position_bias"):
        torch.compile(attend, fullgraph=True, backend="aot_eager")(query, position_bias=query)


@pytest.mark.parametrize("asked", [{}, {"attention_mask": torch.tensor([[0, 1, 1, 1, 1]])}])
def test_a_description_that_a_model_changes_is_refused(asked, device):
    """As DeepSeek-V4 does, which adds keys, and columns of the mask for them."""
    query = tensors.random(1, 2, 5, 8, device=device, dtype=torch.float16)
    made = course_mask(1, 5, 5, **asked, device=device)
    for changed in (made[..., :5], torch.nn.functional.pad(made, (0, 2))):
        with pytest.raises(ValueError, match="attention_mask was made for"):
            attend(query, attention_mask=changed)


def test_a_causal_flag_against_the_mask_is_refused(device):
    query = tensors.random(1, 2, 5, 8, device=device, dtype=torch.float16)
    with pytest.raises(ValueError, match="is_causal is False"):
        attend(query, attention_mask=course_mask(1, 5, 5), is_causal=False)


def test_without_a_mask_fewer_causal_queries_than_keys_have_no_place(device):
    query, key = (tensors.random(1, 2, length, 8, device=device, dtype=torch.float16) for length in (3, 5))
    with pytest.raises(ValueError, match="where the queries stand"):
        course_attention(layer(), query, key, key, None)
    assert course_attention(layer(is_causal=False), query, key, key, None)[0].shape == (1, 3, 2, 8)


# --------------------------------------------------------------------------------------------------- masks as they are


PLAIN = {"batch_size": 2, "q_length": 8, "kv_length": 8}
PACKED = torch.tensor([[0, 1, 2, 0, 1, 0, 1, 2], [0, 1, 2, 3, 4, 5, 6, 7]])
SLIDING = masking_utils.sliding_window_causal_mask_function(3)
LOCAL = masking_utils.sliding_window_bidirectional_mask_function(2)
OF_PACKED = masking_utils.and_masks(
    masking_utils.remap_positions_for_packed_sequence(SLIDING, PACKED),
    masking_utils.packed_sequence_mask_function(masking_utils.find_packed_sequence_indices(PACKED)),
)
CHUNKED = masking_utils.chunked_causal_mask_function(3, torch.tensor([0, 2]))
TO_BOTH_SIDES = {"mask_function": masking_utils.bidirectional_mask_function, "allow_is_bidirectional_skip": True}
PADDED = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1, 1, 0]]).bool()


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({}, id="causal"),
        pytest.param({"q_length": 3, "q_offset": 5}, id="causal with a cache"),
        pytest.param({"q_length": 3, "q_offset": torch.tensor(2)}, id="causal with a static cache"),
        pytest.param({"attention_mask": PADDED}, id="causal and padded"),
        pytest.param({"mask_function": SLIDING, "local_size": 3}, id="a window"),
        pytest.param({"mask_function": SLIDING, "local_size": 3, "attention_mask": PADDED}, id="a window, padded"),
        pytest.param(
            {"mask_function": SLIDING, "local_size": 3, "q_length": 2, "kv_length": 4, "q_offset": 9, "kv_offset": 7},
            id="a window with a cache of it",
        ),
        pytest.param({"mask_function": OF_PACKED, "local_size": 3}, id="packed with a window"),
        pytest.param({"mask_function": CHUNKED, "local_size": 3}, id="chunks"),
        pytest.param(
            {"mask_function": CHUNKED, "local_size": 3, "q_length": 2, "q_offset": 6}, id="chunks and a cache"
        ),
        pytest.param(TO_BOTH_SIDES, id="all"),
        pytest.param({**TO_BOTH_SIDES, "q_length": 3, "attention_mask": PADDED}, id="all of another text, padded"),
        pytest.param(
            {"mask_function": LOCAL, "local_size": 2, "allow_is_bidirectional_skip": True}, id="a window to both sides"
        ),
    ],
)
def test_a_description_keeps_the_pairs_of_transformers_own_mask(asked):
    asked = PLAIN | asked
    found = kept_by(course_mask(**asked), *(asked[name] for name in PLAIN))
    expected = masking_utils.sdpa_mask(**{**asked, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})
    reads = torch.ones(2, asked["q_length"], 1, dtype=torch.bool)
    if "attention_mask" in asked and "allow_is_bidirectional_skip" not in asked:
        reads = PADDED[:, :, None]
    assert torch.equal(found & reads, expected[:, 0] & reads)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"mask_function": SLIDING, "local_size": 4}, id="another window than it says"),
        pytest.param({"mask_function": SLIDING}, id="a window that it does not name"),
        pytest.param({"mask_function": lambda b, h, q, k: (k <= q) & ((q - k) % 3 != 2)}, id="dilated"),
        pytest.param({"mask_function": lambda b, h, q, k: (k <= q) | (k < 3)}, id="a prefix"),
        pytest.param({"use_vmap": True}, id="a function of the caller's"),
    ],
)
def test_a_mask_of_another_form_is_refused(asked):
    with pytest.raises(ValueError, match="no mask like|and_mask_function"):
        course_mask(**PLAIN, **asked)


def test_of_a_large_mask_a_part_of_the_rows_is_compared_at_a_time(monkeypatch):
    seen = []

    def all_but_one(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen.append(query.numel())
        return (key <= query) & ~((query == 5) & (key == 2))

    monkeypatch.setattr(integration, "MOST_PAIRS", 40)
    with pytest.raises(ValueError, match="no mask like"):
        course_mask(**PLAIN, mask_function=all_but_one)
    assert sum(seen[-4:]) == 8 and max(seen[-4:]) == 2


def test_the_operators_that_refuse_are_as_torch_wants_them():
    sequences = torch.arange(6, dtype=torch.int32).view(2, 3)
    torch.library.opcheck(torch.ops.course_transformers.hold.default, (sequences, torch.tensor(True)))
    torch.library.opcheck(torch.ops.course_transformers.refuse.default, (torch.tensor(False),))


# ----------------------------------------------------------------------------------------------------------- the import


def test_transformers_is_imported_by_its_module_alone():
    run_without_the_course(
        "import sys, course_utils.operators, course_utils.integrations; assert 'transformers' not in sys.modules"
    )


def test_without_transformers_an_error_says_what_to_install():
    run_without_the_course(
        "import sys; sys.modules['transformers'] = None\n"
        "try: import course_utils.integrations.transformers\n"
        "except ImportError as error: assert 'pip install' in str(error)\n"
        "else: raise AssertionError"
    )
