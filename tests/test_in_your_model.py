"""docs/in_your_model.md: its code runs, and a model with the course's attention computes what it computes with SDPA."""

import copy
import re
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from course_utils import checks, measured
from course_utils.bench.flex import FLEX_128
from course_utils.bench.host import BACKWARD, FORWARD
from course_utils.integrations.transformers import course_attention
from tests.helpers import tensors
from tests.helpers.in_your_model import MODEL, PAGE, PATTERN, run_block
from tests.helpers.small_llama import SmallLlama

ROOT = Path(__file__).parents[1]
FEATURES = ROOT / "tests" / "operators" / "test_torch_features.py"
LOSS_SCALE = 2.0**10  # else the gradients would be below the floor of what is allowed


def sdpa(module, query, key, value, attention_mask, scaling=None, **_):
    out = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scaling, enable_gqa=True)
    return out.transpose(1, 2), None


class OwnModel:
    """The small model of tests/helpers."""

    def __init__(self):
        self.module = SmallLlama()

    def take(self, way):
        self.module.set_attention({"course": course_attention, "sdpa": sdpa}[way])

    def logits(self, tokens):
        return self.module(tokens)


class TransformersModel:
    """A Llama of transformers, as small, made as on the page."""

    def __init__(self):
        from transformers import LlamaConfig

        sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
        config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.2)
        names = {"config": config}
        run_block(MODEL, names)
        self.module = names["model"]

    def take(self, way):
        self.module.set_attn_implementation(way)

    def logits(self, tokens):
        return self.module(tokens, use_cache=False).logits


@pytest.fixture(params=[OwnModel, TransformersModel])
def model(request, device):
    torch.manual_seed(0)
    made = request.param()
    made.module.to(device, torch.float16)
    return made


@pytest.fixture
def tokens(device):
    return torch.randint(64, (2, 13), generator=torch.Generator().manual_seed(1)).to(device)


def loss_of(logits, tokens):
    """In fp32, or in float64."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def run(model, way, tokens, dtype=torch.float16):
    """Logits and gradients of all parameters, of a training step; the model itself stays as it is."""
    copied = copy.copy(model)
    copied.module = copy.deepcopy(model.module).to(dtype)
    copied.take(way)
    logits = copied.logits(tokens)
    (LOSS_SCALE * loss_of(logits, tokens)).backward()
    return logits.detach(), {name: parameter.grad for name, parameter in copied.module.named_parameters()}


def test_logits_and_gradients_are_as_near_to_float64_as_those_of_sdpa(model, tokens):
    expected, expected_gradients = run(model, "sdpa", tokens, torch.float64)
    of_sdpa, gradients_of_sdpa = run(model, "sdpa", tokens)
    found, gradients = run(model, "course", tokens)
    reports = [checks.error_report(found, expected, of_sdpa, name="logits")]
    for name, expected_one in expected_gradients.items():
        same_dtype, factor = gradients_of_sdpa[name], checks.GRADIENT_FACTOR
        reports.append(checks.error_report(gradients[name], expected_one, same_dtype, factor=factor, name=name))
    assert all(report.passed for report in reports), "\n".join(map(str, reports))
    assert found.abs().max() > 1 and max(one.abs().max() for one in gradients.values()) > 1  # well above the floor


def test_a_step_of_training_brings_the_loss_down(model, tokens):
    model.take("course")
    optimizer = torch.optim.SGD(model.module.parameters(), lr=1e-2)
    losses = []
    for _ in range(3):
        loss = loss_of(model.logits(tokens), tokens)
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert losses == sorted(losses, reverse=True) and losses[-1] < losses[0]


@torch.no_grad()
def test_the_tokens_chosen_are_those_of_sdpa(model, tokens):
    chosen = {}
    for way in ("sdpa", "course"):
        model.take(way)
        sequence = tokens
        for _ in range(5):
            sequence = torch.cat([sequence, model.logits(sequence)[:, -1:].argmax(-1)], dim=1)
        chosen[way] = sequence
    assert torch.equal(chosen["course"], chosen["sdpa"])


def test_a_compiled_model_gives_the_same_logits(model, tokens):
    model.take("course")
    with torch.no_grad():
        expected = model.logits(tokens)
        found = torch.compile(model.logits, fullgraph=True, backend="aot_eager")(tokens)
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=1e-2)


def test_the_pattern_of_the_page(device):
    query, key, value = (tensors.random(1, heads, 9, 8, device=device, dtype=torch.float16) for heads in (4, 2, 2))
    found = {"query": query, "key": key, "value": value}
    run_block(PATTERN, found)
    assert found["out"].shape == query.shape


def test_each_row_of_the_table_is_a_test():
    named = re.findall(r"\| `(test_\w+)` \|$", PAGE, re.MULTILINE)
    there = re.findall(r"^def (test_\w+)", FEATURES.read_text(encoding="utf-8"), re.MULTILINE)
    section = PAGE.partition("## What torch does with the operators")[2].partition("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ") and "| test |" not in line]
    assert named and len(named) == len(rows) and set(named) <= set(there)


def test_the_host_takes_no_longer_than_the_page_says():
    """Microseconds, and times SDPA's."""
    host = measured.load("host")
    assert all(row["host_us"] <= 15 for row in host.select(part="launch"))
    for part, name, most in (("dense", "flash_attention_v2", 40), ("sparse", "sparse_attention", 45)):
        for pass_name in (FORWARD, BACKWARD):
            rows = host.select(part=part, name=name, **{"pass": pass_name})
            assert rows and all(row["times_sdpa"] <= 2.5 for row in rows)
            assert pass_name == BACKWARD or all(row["host_us"] <= most for row in rows)
    sparse = {"part": "sparse", "pass": FORWARD}
    ours, flex = (host.select(**sparse, name=name) for name in ("sparse_attention", FLEX_128))
    assert all(one["host_us"] < other["host_us"] for one, other in zip(ours, flex, strict=True))
