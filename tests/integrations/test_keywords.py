"""No keyword of transformers is swallowed: each changes the result as it should, or is refused by name."""

import ast
import functools
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import transformers
from hypothesis import given, settings
from torch import Tensor, nn
from transformers import masking_utils
from transformers.integrations import eager_paged, flash_attention, flash_paged, flex_attention, sdpa_attention
from transformers.modeling_flash_attention_utils import FlashAttentionKwargs
from transformers.utils.generic import TransformersKwargs

from course_utils import checks
from course_utils.integrations.transformers import course_attention, course_mask
from tests.helpers import tensors
from tests.helpers.all_of import all_of
from tests.helpers.transformers_masks import kept_by

CALL = re.compile(r"^( *)[^\n]*attention_interface\((\n.*?\n)\1\)", re.DOTALL | re.MULTILINE)
MODELS = Path(transformers.__file__).parent / "models"
FUNCTIONS = eager_paged, flash_attention, flash_paged, flex_attention, sdpa_attention
TENSORS = {"module", "query", "key", "value"}
WITHOUT_MEANING = {"cache_position", "num_items_in_batch", "output_hidden_states", "output_router_logits", "use_cache"}

# ---------------------------------------------------------------------------------------------------- the keywords


def of_signature(function: Callable) -> set[str]:
    parameters = inspect.signature(function).parameters.values()
    return {one.name for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)}


def keywords_of_models() -> set[str]:
    """Of the calls of attention functions in all models of transformers."""
    found = set()
    for path in MODELS.glob("*/modeling_*.py"):
        for _, arguments in CALL.findall(path.read_text(encoding="utf-8")):
            found |= {keyword.arg for keyword in ast.parse(f"call({arguments})").body[0].value.keywords if keyword.arg}
    return found


def keywords_of_functions() -> set[str]:
    """Of the attention functions of transformers, and what they take out of **kwargs."""
    found = set(TransformersKwargs.__annotations__) | set(FlashAttentionKwargs.__annotations__)
    for module in FUNCTIONS:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if name.endswith("attention_forward") and function.__module__ == module.__name__:
                found |= of_signature(function)
                found |= set(re.findall(r"kwargs\.(?:get|pop)\(\"(\w+)\"", inspect.getsource(function)))
    return found


ATTENTION = (keywords_of_models() | keywords_of_functions()) - TENSORS
MASK = of_signature(masking_utils.sdpa_mask) | of_signature(masking_utils.eager_mask)
MASK |= of_signature(masking_utils.flex_attention_mask) | of_signature(masking_utils.flash_attention_mask)
MASK |= set(re.findall(r"^        (\w+)=\w+,", inspect.getsource(masking_utils), re.MULTILINE))


def test_the_keywords_are_found():
    assert ATTENTION >= {"dropout", "softcap", "s_aux", "sinks", "indices", "block_indices", "position_bias", "seq_idx"}
    assert MASK >= {"mask_function", "local_size", "allow_is_causal_skip", "dtype", "config", "use_vmap"}


# ------------------------------------------------------------------------------------------ the attention function

BATCH, HEADS, LENGTH, DIM = 2, 2, 7, 8
WINDOW, PADDED = 3, torch.tensor([[0, 0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0]]).bool()
ANEW = torch.tensor([[0, 1, 2, 0, 1, 2, 3]]).expand(BATCH, -1)
PACKED = masking_utils.and_masks(
    masking_utils.causal_mask_function,
    masking_utils.packed_sequence_mask_function(masking_utils.find_packed_sequence_indices(ANEW)),
)
SLIDING = masking_utils.sliding_window_causal_mask_function(WINDOW)
BOTH_SIDES = {"mask_function": masking_utils.bidirectional_mask_function, "allow_is_bidirectional_skip": True}
MASKS: dict[str, dict[str, Any]] = {
    "causal": {},
    "window": {"mask_function": SLIDING, "local_size": WINDOW},
    "padded": {"attention_mask": PADDED},
    "packed": {"mask_function": PACKED},
    "both sides": BOTH_SIDES,
    "both sides, padded": BOTH_SIDES | {"attention_mask": PADDED},
}
WITHOUT_SKIPS = {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
OF_PAIRS = torch.ones(BATCH, 1, LENGTH, LENGTH, dtype=torch.bool)
VALUES = [0, 1, 0.5, True, "text", torch.ones(2), torch.ones(BATCH, HEADS, LENGTH, LENGTH)]
MEANING: dict[str, list] = {
    "attention_mask": [*MASKS, "of pairs"],
    "dropout": [0.0, 0.1],
    "is_causal": [False, True],
    "output_attentions": [False, True],
    "deterministic": [False, True],
    "position_ids": [torch.arange(LENGTH), torch.arange(LENGTH).expand(BATCH, -1), ANEW, ANEW[0]],
    "s_aux": [torch.tensor([1.0, -1.0]), torch.tensor([2.0, 0.5]).half()],
    "scaling": [0.1, 1.0, 2.0],
    "sliding_window": [2, WINDOW, WINDOW - 1, LENGTH, 4096],
    "softcap": [0.5, 2.0],
}


class Layer(nn.Module):
    is_causal = True


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    return tuple(tensors.random(BATCH, heads, LENGTH, DIM, dtype=torch.float16) * 2 for heads in (HEADS, 1, 1))


def pairs(asked: dict[str, Any]) -> Tensor:
    """bool [B, L, L]: what may be seen, from transformers' own masks."""
    name = asked.get("attention_mask")
    if name is None:
        is_causal = asked.get("is_causal", Layer.is_causal)
        return torch.ones(BATCH, LENGTH, LENGTH).tril(diagonal=0 if is_causal else LENGTH).bool()
    return masking_utils.sdpa_mask(BATCH, LENGTH, LENGTH, **MASKS[name] | WITHOUT_SKIPS)[:, 0]


def stated(asked: dict[str, Any], dtype: torch.dtype) -> Tensor:
    """Attention in plain torch, [B, L, H, d], by the keywords that have a meaning."""
    query, key, value = (one.to(dtype) for one in inputs())
    scores = query @ key.mT * asked.get("scaling", DIM**-0.5)
    if "softcap" in asked:
        scores = asked["softcap"] * torch.tanh(scores / asked["softcap"])
    scores = scores.masked_fill(~pairs(asked)[:, None], -torch.inf)
    sinks = asked.get("s_aux", torch.full((HEADS,), -torch.inf)).to(dtype)
    scores = torch.cat([scores, sinks[:, None, None].expand(BATCH, HEADS, LENGTH, 1)], dim=-1)
    return (scores.softmax(-1)[..., :-1] @ value).transpose(1, 2)


def to_refuse(asked: dict[str, Any]) -> set[str]:
    """The keywords that are refused. The error names at least one."""
    mask, window = asked.get("attention_mask"), asked.get("sliding_window", LENGTH)
    if mask == "of pairs":
        return {"attention_mask"} | to_refuse({name: asked[name] for name in asked.keys() - {"attention_mask"}})
    refused = asked.keys() - MEANING.keys() - WITHOUT_MEANING
    refused |= {name for name in ("dropout", "output_attentions", "deterministic") if asked.get(name)}
    is_causal = asked.get("is_causal", Layer.is_causal) if mask is None else not mask.startswith("both")
    if mask is not None and asked.get("is_causal", is_causal) != is_causal:
        refused.add("is_causal")
    if window < LENGTH and not (mask == "window" and window == WINDOW):
        refused.add("sliding_window")
    anew = "position_ids" in asked and (asked["position_ids"].diff() < 0).any()
    if is_causal and anew and mask != "packed":
        refused.add("position_ids")
    return refused


def check(attention: Callable, asked: dict[str, Any]) -> None:
    """Fails where a keyword is swallowed."""
    given_on, name = dict(asked), asked.get("attention_mask")
    if name == "of pairs":
        given_on["attention_mask"] = OF_PAIRS
    elif name is not None:
        given_on["attention_mask"] = course_mask(BATCH, LENGTH, LENGTH, **MASKS[name])
    refused, call = to_refuse(asked), {"attention_mask": None, **given_on}
    if refused:
        with pytest.raises(ValueError, match="|".join(sorted(refused))):
            attention(Layer(), *inputs(), **call)
        return
    found = attention(Layer(), *inputs(), **call)[0]
    reads = (
        pairs(asked).diagonal(dim1=1, dim2=2) if name is not None and "padded" in name else torch.ones(BATCH, LENGTH)
    )
    exact, same_dtype = (stated(asked, dtype)[reads.bool()] for dtype in (torch.float64, torch.float16))
    report = checks.error_report(found[reads.bool()], exact, same_dtype)
    assert report.passed, str(report)


@all_of("keyword", sorted(ATTENTION))
def test_no_keyword_of_an_attention_function_is_swallowed(keyword):
    for value in MEANING.get(keyword, VALUES):
        check(course_attention, {keyword: value})


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_keyword_is_swallowed_beside_others(data):
    names = data.draw(st.lists(st.sampled_from(sorted(ATTENTION)), min_size=2, max_size=4, unique=True))
    check(course_attention, {name: data.draw(st.sampled_from(MEANING.get(name, VALUES))) for name in names})


def test_a_keyword_that_says_nothing_changes_nothing():
    plain = course_attention(Layer(), *inputs(), attention_mask=None)[0]
    assert torch.equal(course_attention(Layer(), *inputs(), **dict.fromkeys(ATTENTION))[0], plain)


def swallowing(function: Callable, keyword: str) -> Callable:
    def swallow(*tensors: Any, **asked: Any) -> Any:
        asked.pop(keyword)
        return function(*tensors, **{"attention_mask": None} | asked)

    return swallow


def is_seen(broken: Callable, check: Callable, asked: dict[str, Any]) -> bool:
    try:
        check(broken, asked)
    except (AssertionError, pytest.fail.Exception):
        return True
    return False


@all_of("keyword", sorted(ATTENTION - WITHOUT_MEANING))
def test_a_swallowed_keyword_is_seen(keyword):
    broken = swallowing(course_attention, keyword)
    assert any(is_seen(broken, check, {keyword: value}) for value in MEANING.get(keyword, VALUES))


# ------------------------------------------------------------------------------------------------ the mask function


FORMS = {
    "causal": lambda size: {"mask_function": masking_utils.causal_mask_function},
    "window": lambda size: {
        "mask_function": masking_utils.sliding_window_causal_mask_function(size),
        "local_size": size,
    },
    "chunks": lambda size: {
        "mask_function": masking_utils.chunked_causal_mask_function(size, torch.zeros(3, dtype=torch.long)),
        "local_size": size,
    },
    "both sides": lambda size: BOTH_SIDES,
    "windows to both sides": lambda size: {
        "mask_function": masking_utils.sliding_window_bidirectional_mask_function(size),
        "local_size": size,
        "allow_is_bidirectional_skip": True,
    },
}
UNKNOWN = "what_comes_next_year"
MORE = {"local_size": [2, None], "use_vmap": [False, True], "dtype": [torch.float16], "config": [object()]}
MORE |= {"allow_is_causal_skip": [False, True], UNKNOWN: [0, None]}


@st.composite
def masks(draw: st.DrawFn, form: str) -> dict[str, Any]:
    """Keywords of a mask function: of one form, with and without padding and a cache, and more that may be odd."""
    batch, keys, first = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.sampled_from([0, 3]))
    queries = draw(st.integers(1, keys))
    place = max(0, first + draw(st.integers(-2, keys - queries + 2)))
    asked = {"batch_size": batch, "q_length": queries, "kv_length": keys, "kv_offset": first}
    asked["q_offset"] = draw(st.sampled_from([place, torch.tensor(place), first + keys - queries]))
    asked |= FORMS[form](draw(st.integers(1, 5)))
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=first + keys + 2, max_size=first + keys + 2)
        asked["attention_mask"] = torch.tensor(draw(st.lists(rows, min_size=batch, max_size=batch)))
    for name in draw(st.lists(st.sampled_from(sorted(MORE)), max_size=2, unique=True)):
        asked[name] = draw(st.sampled_from(MORE[name]))
    return asked


def check_mask(mask: Callable, asked: dict[str, Any], *, is_documented: bool = False) -> None:
    """Fails where the pairs are others than those of transformers' own mask, without an error; and where what the page
    says that there is has an error."""
    sizes = [asked[name] for name in ("batch_size", "q_length", "kv_length")]
    try:
        found = kept_by(mask(**asked), *sizes)
    except ValueError as error:
        assert not is_documented, error
        assert asked.get(UNKNOWN) is None or UNKNOWN in str(error)
        return
    assert asked.get(UNKNOWN) is None and not asked.get("use_vmap")
    known = {name: asked[name] for name in asked.keys() & of_signature(masking_utils.sdpa_mask)}
    expected = masking_utils.sdpa_mask(**known | WITHOUT_SKIPS)[:, 0]
    if "attention_mask" in asked and "allow_is_bidirectional_skip" not in asked:
        places = torch.arange(sizes[1]) + asked["q_offset"]
        expected, found = (one & asked["attention_mask"][:, places, None] for one in (expected, found))
    assert torch.equal(found, expected)


@all_of("form", FORMS)
def test_no_keyword_of_a_mask_function_is_swallowed(form):
    @settings(max_examples=100, deadline=None)
    @given(masks(form))
    def each(asked: dict[str, Any]) -> None:
        check_mask(course_mask, asked)

    each()


PART = {"batch_size": 2, "q_length": 2, "kv_length": 4, "q_offset": 5, "kv_offset": 3}
MASK_CALLS = {
    "attention_mask": PART | {"attention_mask": torch.arange(7).expand(2, -1) > 3},
    "kv_offset": PART | {"q_offset": 3, "kv_offset": 1},
    "mask_function": PART | MASKS["window"],
    "q_offset": PART | {"q_offset": 2, "kv_offset": 0},
    "use_vmap": PART | {"use_vmap": True},
    UNKNOWN: PART | {UNKNOWN: 0},
}


@all_of("keyword", MASK_CALLS)
def test_a_swallowed_keyword_of_a_mask_function_is_seen(keyword):
    check = functools.partial(check_mask, is_documented=keyword not in ("use_vmap", UNKNOWN))
    check(course_mask, MASK_CALLS[keyword])
    assert is_seen(swallowing(course_mask, keyword), check, MASK_CALLS[keyword])
