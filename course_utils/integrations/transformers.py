"""The course's attention for the models of `transformers`, by one line: `register()`.

`transformers` asks twice. A mask function is asked once a forward pass for what the queries of each kind of layer see.
What it returns goes to these layers, whose attention function takes it together with the tensors. Only a tensor of four
axes passes through every model, and through `generate`, unchanged. So the mask function returns a description of the
operators' arguments as a tensor of four axes (`_describe`), and never a mask of all pairs.

Padding, packed sequences, chunks and the empty places of a static cache are one thing here: sequences, one behind
another, that do not see each other, for `varlen_attention`. A sequence begins where a query would not see the key
before its own. The pairs that the sequences keep are compared with those that the model asks for, so that a mask of
another form is an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn

try:
    from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig
    from transformers.masking_utils import bidirectional_mask_function, causal_mask_function
except ImportError as error:
    raise ImportError(
        "course_utils.integrations.transformers needs transformers 5.24 or later: pip install 'transformers>=5.24'"
    ) from error

from course_utils import operators
from course_utils.patterns import Pattern, local

# Keywords that reach an attention function and change nothing about attention.
WITHOUT_MEANING = (
    "cache_position",
    "num_items_in_batch",
    "output_hidden_states",
    "output_router_logits",
    "use_cache",
)
WITHOUT_MEANING_IF_FALSE = "deterministic", "output_attentions"
INSTEAD = "choose another attention for this, as by model.set_attn_implementation('sdpa') or 'eager'"
MOST_PAIRS = 2**26  # that are compared at a time


def register(name: str = "course") -> None:
    """Makes the course's attention known to transformers under a name: `model.set_attn_implementation(name)`."""
    AttentionInterface.register(name, course_attention)
    AttentionMaskInterface.register(name, course_mask)


# ------------------------------------------------------------------------------------------ the attention function


def course_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_ids: Tensor | None = None,
    **more: object,
) -> tuple[Tensor, None]:
    """Attention as a layer of transformers asks for it.

    Args:
        module: the layer; its `is_causal` counts where the model makes no mask.
        query, key, value: `[B, H, L, d]` and `[B, H_k, L_k, d]`, as for `flash_attention_v2`.
        attention_mask: what `course_mask` returned, or None.
        scaling: factor of the scores; None means `1 / sqrt(d)`.
        dropout: must be 0.
        is_causal: None, or what the mask says, too.
        sliding_window: None, or what the mask says, too; without a mask it must hold all keys.
        softcap: cap · tanh(S / cap) in place of the scores.
        s_aux: `[H]`, the sinks.
        position_ids: `[L]` or `[B, L]`; with a causal mask they must begin anew only where a sequence of the mask
            begins. Those with more axes, as of images, say nothing about sequences.
        more: refused by name, unless it has no meaning for attention.

    Returns:
        `[B, L, H, d]`, and None in place of the weights.
    """
    refused = [name for name, given in more.items() if not _says_nothing(name, given)]
    if dropout:
        refused.append("dropout")
    if refused:
        raise ValueError(f"the course's attention does not have {', '.join(refused)}: {INSTEAD}")
    if attention_mask is None:
        causal, window, sequences = _without_mask(module, query, key, is_causal), None, None
    else:
        causal, window, sequences = _read(attention_mask, query.shape[0] * key.shape[2])
        if is_causal is not None and is_causal != causal:
            raise ValueError(f"is_causal is {is_causal}, and the model's mask says {causal}: {INSTEAD}")
    _check_window(sliding_window, window, causal, key.shape[2])
    if causal:
        query = _where_positions_fit(query, module, position_ids, sequences)
    extras = {"softcap": softcap, "sinks": None if s_aux is None else s_aux.float()}
    extras |= {"scale": scaling, "enable_gqa": True}
    if window is not None and not causal:
        out = operators.sparse_attention(query, key, value, _local(window), **extras)
    elif sequences is None:
        out = operators.flash_attention_v2(query, key, value, is_causal=causal, window=window, **extras)
    else:
        packed = (tensor.transpose(1, 2).flatten(0, 1) for tensor in (query, key, value))
        out = operators.varlen_attention(*packed, *sequences, is_causal=causal, window=window, **extras)
        return out.unflatten(0, (query.shape[0], query.shape[2])), None
    return out.transpose(1, 2).contiguous(), None


def _says_nothing(name: str, given: object) -> bool:
    if name in WITHOUT_MEANING_IF_FALSE and given is False:
        return True
    return given is None or name in WITHOUT_MEANING


def _without_mask(module: nn.Module, query: Tensor, key: Tensor, is_causal: bool | None) -> bool:
    """Whether attention is causal where the model made no mask."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    if causal and query.shape[2] not in (1, key.shape[2]):
        raise ValueError(f"attention_mask is None, which does not say where the queries stand: {INSTEAD}")
    return causal


def _check_window(sliding_window: int | None, window: int | None, causal: bool, length: int) -> None:
    """A layer that names a window has it in its mask: else one of the two would be dropped."""
    if sliding_window is None or sliding_window >= length:
        return
    of_mask = window if window is None or causal else window + 1  # without direction: keys to each side, and its own
    if sliding_window != of_mask:
        raise ValueError(f"sliding_window is {sliding_window}, and the model's mask has {of_mask}: {INSTEAD}")


def _where_positions_fit(
    query: Tensor, module: nn.Module, position_ids: Tensor | None, sequences: tuple[Tensor, Tensor] | None
) -> Tensor:
    """query, unless position_ids begin anew where the model's mask does not part them: packed sequences, as with a
    cache, would see each other."""
    if position_ids is None or position_ids.ndim > 2 or position_ids.shape[-1] == 1:
        return query
    in_graph = torch.compiler.is_compiling()
    if in_graph and getattr(module, "layer_idx", None):
        return query  # the first layer has waited for the same positions
    steps = position_ids.expand(query.shape[0], -1).diff()
    # Positions of padding, which is a sequence of the mask, may all be the same.
    anew = nn.functional.pad(steps <= 0 if sequences is None else steps < 0, (1, 0))
    if sequences is not None:
        # The last number is the end of all sequences, where no row is.
        begins = anew.new_zeros(anew.numel() + 1).index_fill(0, sequences[0].long(), True)
        anew = anew & ~begins[:-1].view_as(anew)
    nothing = _unless(anew.any())
    return query + nothing.to(query.dtype) if in_graph else query  # a graph leaves out what nobody takes


@torch.library.custom_op("course_transformers::refuse", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _unless(anew: Tensor) -> Tensor:
    """Returns 0, or raises an error; in a graph that happens when it runs."""
    if anew:
        raise ValueError(
            "position_ids begin anew where no sequence of the model's mask begins: packed sequences need "
            "use_cache=False, no attention_mask, and a model that makes its mask of position_ids"
        )
    return torch.zeros_like(anew)


@_unless.register_fake
def _(anew: Tensor) -> Tensor:
    return torch.zeros_like(anew)


@functools.cache  # a pattern keeps its lists
def _local(radius: int) -> Pattern:
    return local(radius)


# ------------------------------------------------------------------------------------------------ the mask function


def course_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Tensor] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    config: PreTrainedConfig | None = None,
    **more: object,
) -> Tensor:
    """A description of the mask that a model asks for.

    Args:
        batch_size, q_length, kv_length: the mask's shape.
        q_offset, kv_offset: positions of the first query and key; a tensor with a static cache.
        mask_function: says of tensors (batch, head, query, key) of positions which pairs are kept.
        attention_mask: bool `[B, at most all positions]`, False for padding.
        local_size: the window or the chunk of mask_function.
        allow_is_causal_skip: without meaning here: a description is returned in every case.
        allow_is_bidirectional_skip: given for masks without direction alone, which tells them apart.
        use_vmap: True for functions that a caller has added to the mask, which are refused.
        device: of the tensors of the model.
        dtype, config: without meaning here.
        more: refused by name.
    """
    refused = [name for name, given in more.items() if given is not None]
    if refused:
        raise ValueError(f"the course's mask does not have {', '.join(refused)}: {INSTEAD}")
    if use_vmap:
        raise ValueError(f"the course's attention has no or_mask_function and no and_mask_function: {INSTEAD}")
    if attention_mask is not None and attention_mask.ndim != 2:
        raise ValueError(f"attention_mask has {attention_mask.ndim} axes; it must have [batch, positions]: {INSTEAD}")
    is_causal = allow_is_bidirectional_skip is None  # a wrong guess is found by comparing
    window = local_size if local_size is not None and local_size < kv_length else None
    in_graph = torch.compiler.is_compiling()
    unpadded = _unpadded_keys(attention_mask, kv_length, kv_offset)
    ends_together = not isinstance(q_offset, Tensor) and q_offset + q_length == kv_offset + kv_length
    if unpadded is None or (not in_graph and unpadded.all()):
        if mask_function is bidirectional_mask_function or (mask_function is causal_mask_function and ends_together):
            one_each = torch.empty(0, batch_size * kv_length + 1, dtype=torch.int32, device=device)
            return _describe(mask_function is causal_mask_function, None, one_each)
    asked = _Asked(mask_function, unpadded, q_offset, kv_offset, (batch_size, q_length, kv_length), device)
    query_ids, key_ids = _sequences(asked, is_causal)
    same = _compare(asked, query_ids, key_ids, is_causal, window)
    is_one = key_ids[-1, -1] == batch_size - 1  # a sequence for each row of the batch
    if window is not None and not is_causal:
        if in_graph:
            raise ValueError(f"the course's attention does not compile a window to both sides: {INSTEAD}")
        same = same & is_one & (asked.queries[-1] == asked.keys[-1])  # the pattern has its last query at its last key
    numbers = torch.arange(batch_size * kv_length + 1, device=device)
    ends = [torch.searchsorted(ids.flatten().contiguous(), numbers, out_int32=True) for ids in (query_ids, key_ids)]
    sequences = _held(torch.stack(ends), same)
    return _describe(is_causal, window, sequences[:0] if not in_graph and is_one else sequences)


def _describe(is_causal: bool, window: int | None, sequences: Tensor) -> Tensor:
    """int32 `[1 + is_causal, 1 + window, 2, n + 1]`: cu_seq_q and cu_seq_k, for as many sequences as there are keys.
    Two numbers are lengths of axes, because a graph and the host know these without waiting; the axes repeat the same
    memory. Where each row of the batch is one sequence, the third axis has length 0."""
    return sequences.expand(1 + is_causal, 1 + (window or 0), -1, -1)


def _read(mask: Tensor, num_keys: int) -> tuple[bool, int | None, tuple[Tensor, Tensor] | None]:
    """is_causal, window and sequences of a description. num_keys: of all rows of the batch."""
    if mask.ndim != 4 or mask.dtype != torch.int32:  # masks of pairs are bool, or numbers to add
        raise ValueError(
            f"attention_mask is {mask.dtype} {list(mask.shape)}, a mask of pairs, which the course's attention does "
            f"not have: give the model a mask [batch, positions], or {INSTEAD}"
        )
    # A model that cuts its mask, or adds keys and columns of the mask for them, would change the description.
    if mask.shape[3] != num_keys + 1:
        raise ValueError(
            f"attention_mask was made for {mask.shape[3] - 1} keys, and there are {num_keys}: the model changes its "
            f"keys or its mask later; {INSTEAD}"
        )
    sequences = mask[0, 0].unbind() if mask.shape[2] else None
    return mask.shape[0] == 2, mask.shape[1] - 1 or None, sequences


def _unpadded_keys(attention_mask: Tensor | None, length: int, offset: int) -> Tensor | None:
    """bool `[B, length]`: which keys are no padding. Those behind the end of the mask are."""
    if attention_mask is None:
        return None
    missing = max(0, offset + length - attention_mask.shape[1])
    return nn.functional.pad(attention_mask.bool(), (0, missing))[:, offset : offset + length]


class _Asked:
    """The mask that a model asks for."""

    def __init__(
        self,
        function: Callable[..., Tensor],
        unpadded: Tensor | None,
        q_offset: int | Tensor,
        kv_offset: int,
        shape: tuple[int, int, int],
        device: torch.device | str,
    ) -> None:
        batch, q_length, kv_length = self.shape = shape
        self.function, self.unpadded = function, unpadded
        self.batch, self.head = torch.arange(batch, device=device), torch.zeros((), dtype=torch.long, device=device)
        self.keys = torch.arange(kv_length, device=device) + kv_offset
        self.queries = torch.arange(q_length, device=device) + q_offset
        places = self.queries - kv_offset
        self.places = places.clamp(0, kv_length - 1)  # of the queries among the keys
        self.each_is_a_key = (places == self.places).all()

    def pairs(self, rows: Tensor) -> Tensor:
        """bool `[B, rows, L_k]`: which keys the queries of these numbers see."""
        queries = self.queries[rows][None, None, :, None]
        found = self.function(self.batch[:, None, None, None], self.head, queries, self.keys[None, None, None])
        found = found.expand(self.shape[0], 1, -1, self.shape[2])[:, 0]
        return found if self.unpadded is None else found & self.unpadded[:, None]

    def sees_its_neighbour(self) -> Tensor:
        """bool `[B, L_k]`: whether a query at the place of a key would see the key before it, if that is no padding."""
        before = (self.keys - 1).clamp(min=0)
        return self.function(self.batch[:, None], self.head, self.keys[None], before[None]).expand(self.shape[0], -1)


def _sequences(asked: _Asked, is_causal: bool) -> tuple[Tensor, Tensor]:
    """For each query and for each key, `[B, L]`, the number of its sequence in the batch."""
    batch, q_length, kv_length = asked.shape
    first = asked.keys == asked.keys[0]
    begins = first.expand(batch, -1)
    if asked.unpadded is not None:
        begins = begins | (asked.unpadded != asked.unpadded.roll(1, -1))
    if is_causal:
        behind_the_queries = asked.keys == asked.queries[-1] + 1
        begins = begins | ~asked.sees_its_neighbour() | behind_the_queries
    key_ids = (begins.flatten().cumsum(0) - 1).view(batch, kv_length)
    if is_causal:
        return key_ids[:, asked.places], key_ids
    unpadded = torch.ones_like(begins) if asked.unpadded is None else asked.unpadded
    return key_ids.gather(1, unpadded.int().argmax(-1, keepdim=True)).expand(-1, q_length), key_ids


def _compare(asked: _Asked, query_ids: Tensor, key_ids: Tensor, is_causal: bool, window: int | None) -> Tensor:
    """Whether the sequences keep the pairs that are asked for, but for the queries of padding, which nobody reads."""
    batch, q_length, kv_length = asked.shape
    parts = 1 + int(batch * q_length * kv_length // MOST_PAIRS)
    same = [asked.each_is_a_key] if is_causal else []
    for rows in torch.arange(q_length, device=asked.keys.device).chunk(parts):
        behind = asked.queries[rows][:, None] - asked.keys
        given = query_ids[:, rows, None] == key_ids[:, None]
        if is_causal:
            given = given & (behind >= 0)
        if window is not None:
            given = given & (behind < window if is_causal else behind.abs() <= window)
        alike = asked.pairs(rows) == given
        if is_causal and asked.unpadded is not None:
            alike = alike | ~asked.unpadded[:, asked.places[rows], None]
        same.append(alike.all())
    return torch.stack(same).all()


# The host waits for `same`, which no CUDA graph can hold.
@torch.library.custom_op("course_transformers::hold", mutates_args=(), tags=(torch.Tag.cudagraph_unsafe,))
def _held(sequences: Tensor, same: Tensor) -> Tensor:
    """Returns the sequences, or raises an error; in a graph that happens when it runs."""
    if not same:
        raise ValueError(
            "the course's attention has no mask like the one that the model asks for: it has causal masks, windows, "
            "chunks, packed sequences, all keys, and padding at either end of a row, but not amid it; "
            f"{INSTEAD}"
        )
    return sequences.clone()


@_held.register_fake
def _(sequences: Tensor, same: Tensor) -> Tensor:
    return torch.empty_like(sequences)
