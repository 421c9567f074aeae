"""The functions of docs/in_your_model.md in models of transformers: the same logits as theirs, or an error by name."""

import pytest
import torch
import transformers
from transformers import StaticCache

from course_utils import checks
from tests.helpers.in_your_model import register

SIZES = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "initializer_range": 0.2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}
OF_BART = {"d_model": 64, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
OF_T5 = {"d_model": 64, "d_kv": 16, "d_ff": 64, "num_layers": 1, "num_heads": 4, "decoder_start_token_id": 0}
LENGTH = 13
TOKENS = torch.randint(64, (2, LENGTH), generator=torch.Generator().manual_seed(1))
RESTARTING = torch.arange(LENGTH).remainder(5).expand(2, -1)
PADDED = torch.ones(2, LENGTH, dtype=torch.int64)
PADDED[0, :3] = 0

pytestmark = pytest.mark.filterwarnings("ignore")
transformers.logging.set_verbosity_error()


def make(kind, model, **sizes):
    """A small model with random weights in fp16, of kind "Llama" and the like, with the course's attention."""
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**sizes)
    made = getattr(transformers, model)(config).half().eval()
    register(made)
    return made


@pytest.fixture(scope="module")
def llama():
    return make("Llama", "LlamaForCausalLM", **SIZES, **HEADS)


@pytest.fixture(scope="module")
def bart():
    return make(
        "Bart",
        "BartForConditionalGeneration",
        vocab_size=64,
        init_std=0.2,
        **OF_BART,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )


@torch.no_grad()
def logits(model, way, *, dtype=torch.float16, **inputs):
    model.set_attn_implementation(way)
    return model.to(dtype)(**{"input_ids": TOKENS, **inputs}).logits


def assert_same_as_eager(model, **inputs):
    """As near to float64 as transformers' own attention in fp16."""
    expected = logits(model, "eager", dtype=torch.float64, **inputs)
    report = checks.error_report(logits(model, "course", **inputs), expected, logits(model, "eager", **inputs))
    assert report.passed, str(report)
    assert expected.abs().max() > 1


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param({}, id="plain"),
        pytest.param({"use_cache": False, "position_ids": torch.arange(LENGTH).expand(2, -1)}, id="positions"),
        pytest.param({"attention_mask": torch.ones(2, LENGTH)}, id="a mask of ones"),
        pytest.param(
            {"output_hidden_states": True, "labels": TOKENS, "num_items_in_batch": torch.tensor(3)}, id="more"
        ),
    ],
)
def test_a_decoder_computes_what_it_computes_in_eager_mode(llama, inputs):
    assert_same_as_eager(llama, **inputs)


def test_another_decoder_too():
    assert_same_as_eager(make("GPTNeoX", "GPTNeoXForCausalLM", **SIZES, num_attention_heads=4))


def test_an_encoder_and_its_decoder_too(bart):
    assert_same_as_eager(bart, decoder_input_ids=TOKENS[:, :7])


@torch.no_grad()
@pytest.mark.parametrize("which", ["llama", "bart"])
def test_step_by_step_with_a_cache_it_computes_what_it_computes_at_once(which, request):
    model = request.getfixturevalue(which).to(torch.float16)
    model.set_attn_implementation("course")
    name = "input_ids" if which == "llama" else "decoder_input_ids"
    whole = {} if which == "llama" else {"encoder_outputs": model.get_encoder()(TOKENS)}
    expected, cache, steps = model(**whole, **{name: TOKENS[:, :7]}).logits, None, []
    for piece in (TOKENS[:, :4], TOKENS[:, 4:5], TOKENS[:, 5:7]):
        out = model(**whole, **{name: piece}, past_key_values=cache, use_cache=True)
        cache = out.past_key_values
        steps.append(out.logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=2e-2, rtol=2e-2)


FULL, CHUNKED = {"layer_types": ["full_attention"]}, {"layer_types": ["chunked_attention"], "attention_chunk_size": 4}
OF_LLAMA_4 = {**EXPERTS, **CHUNKED, "intermediate_size_mlp": 64, "pad_token_id": 0}
OF_QWEN_2 = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0}


@pytest.mark.parametrize(
    ("kind", "model", "sizes", "words"),
    [
        pytest.param("Gemma2", "Gemma2ForCausalLM", {**FULL, "head_dim": 16}, "softcap", id="softcap"),
        pytest.param("GptOss", "GptOssForCausalLM", {**FULL, **EXPERTS}, "s_aux", id="sinks"),
        pytest.param("Llama4Text", "Llama4ForCausalLM", OF_LLAMA_4, "chunks", id="chunks"),
        pytest.param("Mistral", "MistralForCausalLM", {"sliding_window": 4}, "window", id="window"),
        pytest.param("Mistral", "MistralForCausalLM", {"sliding_window": 40}, "sliding_window", id="longer window"),
        pytest.param("Qwen2", "Qwen2ForCausalLM", OF_QWEN_2, "window", id="window of some layers"),
    ],
)
def test_what_a_model_asks_for_beyond_that_is_refused(kind, model, sizes, words):
    with pytest.raises(ValueError, match=words):
        logits(make(kind, model, **SIZES, **HEADS, **sizes), "course")


def test_a_position_bias_is_refused():
    model = make("T5", "T5ForConditionalGeneration", vocab_size=64, **OF_T5)
    with pytest.raises(ValueError, match="position_bias"):
        logits(model, "course", decoder_input_ids=TOKENS)


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        pytest.param({"position_ids": RESTARTING, "use_cache": False}, "packed sequences", id="packed"),
        pytest.param({"attention_mask": PADDED}, "padding", id="padded"),
        pytest.param({"is_causal": False}, "is_causal", id="not causal"),
        pytest.param({"output_attentions": True}, "output_attentions", id="the weights"),
        pytest.param({"attention_mask": torch.ones(2, 1, LENGTH, LENGTH).tril()}, "attention_mask", id="of four axes"),
    ],
)
def test_what_a_call_asks_for_beyond_that_is_refused(llama, inputs, words):
    with pytest.raises(ValueError, match=words):
        logits(llama, "course", **inputs)


def test_a_static_cache_is_refused(llama):
    with pytest.raises(ValueError, match="static cache"):
        logits(llama, "course", past_key_values=StaticCache(config=llama.config, max_cache_len=20))


def test_padding_of_an_encoder_is_refused(bart):
    with pytest.raises(ValueError, match="padding"):
        logits(bart, "course", decoder_input_ids=TOKENS, attention_mask=PADDED)


@torch.no_grad()
def test_a_compiled_model_refuses_them_too(llama):
    """What it keeps is in tests/test_in_your_model.py, too, where nothing is given besides the tokens."""
    expected = logits(llama, "course")
    compiled = torch.compile(
        lambda **inputs: llama(TOKENS, use_cache=False, **inputs).logits, fullgraph=True, backend="aot_eager"
    )
    same = {"position_ids": torch.arange(LENGTH).expand(2, -1).clone(), "attention_mask": torch.ones_like(PADDED)}
    others = {"position_ids": RESTARTING.clone(), "attention_mask": PADDED}
    for name in same:
        torch.testing.assert_close(compiled(**{name: same[name]}), expected, atol=1e-2, rtol=1e-2)
        with pytest.raises(RuntimeError, match="no padding, window, chunks, packed sequences or static cache"):
            compiled(**{name: others[name]})
