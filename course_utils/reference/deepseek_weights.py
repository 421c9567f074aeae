"""Sizes and weights of one attention layer of DeepSeek-V3.2, under the names of its published inference code."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from course_utils.arguments import check_tensor
from course_utils.costs import TOP_K, V3_2


@dataclass(frozen=True, kw_only=True)
class DeepSeekConfig:
    """Sizes of the layer; the fields from rope_theta on are RoPE's, and have the values of V3.2.

    dim: of a hidden state. n_heads: query heads. q_lora_rank, kv_lora_rank: of the latents from which queries, and keys
    and values, are made. qk_nope_head_dim, qk_rope_head_dim: parts of a head's query without and with RoPE.
    v_head_dim: of a head's value. index_n_heads, index_head_dim: of the lightning indexer. index_topk: keys per query
    that the model was trained for (an operator is told by its own `top_k`). max_seq_len: the longest sequence; beyond
    original_seq_len the context counts as extended, by YaRN.
    """

    dim: int
    n_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    index_n_heads: int
    index_head_dim: int
    index_topk: int
    max_seq_len: int
    original_seq_len: int = 4096
    rope_theta: float = 10000.0
    rope_factor: float = 40.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float = 1.0

    def __post_init__(self) -> None:
        for field in fields(self)[:12]:  # the sizes
            size = getattr(self, field.name)
            if not isinstance(size, int) or isinstance(size, bool) or size < 1:
                raise ValueError(f"{field.name} is {size!r}; it must be a positive integer")
        for field in fields(self)[12:]:
            number, least = getattr(self, field.name), {"rope_theta": 1.0, "mscale": -math.inf}.get(field.name, 0.0)
            is_number = isinstance(number, (int, float)) and not isinstance(number, bool)
            if not is_number or not math.isfinite(number) or not number > least:
                limit = "" if least == -math.inf else f" above {least:g}"
                raise ValueError(f"{field.name} is {number!r}; it must be a finite number{limit}")
        # The kernels hold a latent row and the indexer's heads of V3.2, and no larger ones.
        limits = {name: getattr(V3_2, name) for name in ("kv_lora_rank", "index_n_heads", "index_head_dim")}
        limits["qk_rope_head_dim"] = V3_2.kv_lora_rank + V3_2.qk_rope_head_dim - self.kv_lora_rank
        for name, most in limits.items():
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at most {most}, for the kernels")
        if self.qk_rope_head_dim % 2:
            raise ValueError(f"qk_rope_head_dim is {self.qk_rope_head_dim}; it must be even")
        if self.index_head_dim & (self.index_head_dim - 1) or self.index_head_dim < self.qk_rope_head_dim:
            raise ValueError(
                f"index_head_dim is {self.index_head_dim}; it must be a power of two, for the Hadamard transform, "
                f"and at least qk_rope_head_dim = {self.qk_rope_head_dim}"
            )

    @property
    def extended(self) -> bool:
        """Whether positions reach beyond the context that the model was first trained with."""
        return self.max_seq_len > self.original_seq_len

    @property
    def softmax_scale(self) -> float:
        """Factor of the attention scores: `(nope + rope)^-1/2`, times `(0.1 · mscale · ln(rope_factor) + 1)²` in an
        extended context (YaRN, arXiv 2309.00071 §3.4)."""
        scale = (self.qk_nope_head_dim + self.qk_rope_head_dim) ** -0.5
        return scale * (0.1 * self.mscale * math.log(self.rope_factor) + 1) ** 2 if self.extended else scale

    @classmethod
    def v3_2(cls) -> DeepSeekConfig:
        """DeepSeek-V3.2: 201 M weights a layer's attention, context extended from 4 K to 160 K."""
        return cls(**V3_2._asdict(), index_topk=TOP_K, max_seq_len=163840)

    @classmethod
    def small(cls) -> DeepSeekConfig:
        """The same layer at a size for the emulator: 100 tokens take about a second."""
        return cls(
            dim=256,
            n_heads=4,
            q_lora_rank=96,
            kv_lora_rank=64,
            qk_nope_head_dim=32,
            qk_rope_head_dim=64,
            v_head_dim=32,
            index_n_heads=4,
            index_head_dim=128,
            index_topk=16,
            max_seq_len=4096,
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class DeepSeekWeights:
    """Weights of the layer. A projection `[out, in]` is applied as `x @ w.T`, as in torch.nn.Linear.

    Projections are of one 16-bit dtype, which is that of the layer; what V3.2 keeps in fp32 is fp32 here too: the
    norms, and indexer_weights_proj. All on one device.
    """

    config: DeepSeekConfig
    wq_a: Tensor  # [q_lora_rank, dim]
    q_norm: Tensor  # [q_lora_rank]
    wq_b: Tensor  # [n_heads (nope + rope), q_lora_rank], of each head nope, then rope
    wkv_a: Tensor  # [kv_lora_rank + rope, dim]
    kv_norm: Tensor  # [kv_lora_rank]
    wkv_b: Tensor  # [n_heads (nope + v), kv_lora_rank], of each head W_UK, then W_UV
    wo: Tensor  # [dim, n_heads v]
    indexer_wq_b: Tensor  # [index_n_heads index_head_dim, q_lora_rank]
    indexer_wk: Tensor  # [index_head_dim, dim]
    indexer_k_norm_weight: Tensor  # [index_head_dim]
    indexer_k_norm_bias: Tensor  # [index_head_dim]
    indexer_weights_proj: Tensor  # [index_n_heads, dim]

    def __post_init__(self) -> None:
        if not isinstance(self.config, DeepSeekConfig):
            raise TypeError(f"config is a {type(self.config).__name__}; it must be a DeepSeekConfig")
        shapes = weight_shapes(self.config)
        check_tensor("wq_a", self.wq_a, shapes.pop("wq_a"), (torch.bfloat16, torch.float16))
        for name, shape in shapes.items():
            dtypes = (torch.float32,) if name in FP32 else None
            check_tensor(name, getattr(self, name), shape, dtypes, like=("wq_a", self.wq_a))

    @property
    def dtype(self) -> torch.dtype:
        return self.wq_a.dtype

    @property
    def device(self) -> torch.device:
        return self.wq_a.device

    @property
    def w_uk(self) -> Tensor:
        """W_UK of each head, `[n_heads, nope, kv_lora_rank]`: makes the head's key of a latent. A view of wkv_b."""
        return self._per_head()[:, : self.config.qk_nope_head_dim]

    @property
    def w_uv(self) -> Tensor:
        """W_UV of each head, `[n_heads, v, kv_lora_rank]`: makes the head's value of a latent. A view of wkv_b."""
        return self._per_head()[:, self.config.qk_nope_head_dim :]

    def _per_head(self) -> Tensor:
        return self.wkv_b.unflatten(0, (self.config.n_heads, -1))

    @classmethod
    def random(
        cls,
        config: DeepSeekConfig,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
    ) -> DeepSeekWeights:
        """Random weights under which hidden states N(0, 1) give queries, keys and values of about N(0, 1).

        Projections are N(0, 1 / inputs), but W_Q twice that large, so that the softmax has something to choose; norm
        weights are near 1, the bias is near 0. The numbers depend on seed and on the kind of device.
        """
        generator = torch.Generator(device).manual_seed(seed)
        tensors = {}
        for name, shape in weight_shapes(config).items():
            x = torch.randn(shape, generator=generator, device=device)
            if len(shape) == 2:
                x *= (2 if name in ("wq_b", "indexer_wq_b") else 1) * shape[1] ** -0.5
            else:
                x = 0.1 * x + (name != "indexer_k_norm_bias")
            tensors[name] = x if name in FP32 else x.to(dtype)
        return cls(config=config, **tensors)


FP32 = ("q_norm", "kv_norm", "indexer_k_norm_weight", "indexer_k_norm_bias", "indexer_weights_proj")


def weight_shapes(config: DeepSeekConfig) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of DeepSeekWeights, by its name."""
    c = config
    return {
        "wq_a": (c.q_lora_rank, c.dim),
        "q_norm": (c.q_lora_rank,),
        "wq_b": (c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim), c.q_lora_rank),
        "wkv_a": (c.kv_lora_rank + c.qk_rope_head_dim, c.dim),
        "kv_norm": (c.kv_lora_rank,),
        "wkv_b": (c.n_heads * (c.qk_nope_head_dim + c.v_head_dim), c.kv_lora_rank),
        "wo": (c.dim, c.n_heads * c.v_head_dim),
        "indexer_wq_b": (c.index_n_heads * c.index_head_dim, c.q_lora_rank),
        "indexer_wk": (c.index_head_dim, c.dim),
        "indexer_k_norm_weight": (c.index_head_dim,),
        "indexer_k_norm_bias": (c.index_head_dim,),
        "indexer_weights_proj": (c.index_n_heads, c.dim),
    }
