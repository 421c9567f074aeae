"""A language model shaped like Llama, as small as can be: it asks a function for its attention, as transformers do."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Attention(nn.Module):
    """Grouped heads with rotary positions."""

    is_causal = True

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.head_dim, self.attend = dim // heads, None
        self.q, self.out = nn.Linear(dim, dim, bias=False), nn.Linear(dim, dim, bias=False)
        self.k, self.v = (nn.Linear(dim, kv_heads * self.head_dim, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:  # [B, L, dim]
        query, key, value = (
            project(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for project in (self.q, self.k, self.v)
        )
        query, key = turned(query), turned(key)
        out, _ = self.attend(self, query, key, value, None, scaling=self.head_dim**-0.5)
        return self.out(out.flatten(2))


def turned(x: Tensor) -> Tensor:
    """Vectors [B, H, L, d], each pair (i, i + d/2) turned by its position."""
    half = x.shape[-1] // 2
    frequencies = 10000 ** (-torch.arange(half, device=x.device, dtype=torch.float64) / half)
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * frequencies
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Layer(nn.Module):
    """Attention, then a gated network of each token."""

    def __init__(self, dim: int, heads: int, kv_heads: int) -> None:
        super().__init__()
        self.attention = Attention(dim, heads, kv_heads)
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(2))
        self.gate, self.up, self.down = (nn.Linear(dim, dim, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norms[0](x))
        h = self.norms[1](x)
        return x + self.down(functional.silu(self.gate(h)) * self.up(h))


class SmallLlama(nn.Module):
    """From tokens [B, L] to logits [B, L, words]."""

    def __init__(self, words: int = 64, dim: int = 64, layers: int = 2, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(Layer(dim, heads, kv_heads) for _ in range(layers))
        self.norm, self.head = nn.RMSNorm(dim), nn.Linear(dim, words, bias=False)

    def set_attention(self, attend: Callable[..., tuple[Tensor, None]]) -> None:
        """attend: as transformers' attention functions."""
        for layer in self.layers:
            layer.attention.attend = attend

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))
