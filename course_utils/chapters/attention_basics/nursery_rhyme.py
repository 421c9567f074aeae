"""Chapter 01's language model of one attention layer, which learns a nursery rhyme (Jane Taylor, 1806) by letters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_utils import plots
from course_utils.operators import naive_attention
from course_utils.studies.on_cpu import one_thread

VERSE = """
twinkle, twinkle, little star, how i wonder what you are! up above the world so high,
like a diamond in the sky. when the blazing sun is gone, when he nothing shines upon,
then you show your little light, twinkle, twinkle, all the night. then the traveller in
the dark thanks you for your tiny spark; he could not see which way to go, if you did not
twinkle so. in the dark blue sky you keep, and often through my curtains peep, for you
never shut your eye till the sun is in the sky. as your bright and tiny spark lights the
traveller in the dark, though i know not what you are, twinkle, twinkle, little star.
"""
TEXT = " ".join(VERSE.split())
LETTERS = sorted(set(TEXT))
DATA = torch.tensor([LETTERS.index(letter) for letter in TEXT])
BLIND = math.log(len(LETTERS))  # loss of guessing among all letters, nats
CONTEXT, WIDTH, HEADS = 32, 64, 4


class TinyModel(nn.Module):
    """One attention layer, one MLP: letters `[B, L]` to logits of the next letter `[B, L, letters]`."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.is_causal = is_causal
        self.letter = nn.Embedding(len(LETTERS), WIDTH)
        self.position = nn.Embedding(CONTEXT, WIDTH)
        self.norm, self.mlp_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.project, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 256), nn.GELU(), nn.Linear(256, WIDTH))
        self.predict = nn.Linear(WIDTH, len(LETTERS))

    def embedded(self, numbers: Tensor) -> Tensor:
        """`[B, L, WIDTH]`, before attention."""
        return self.letter(numbers) + self.position.weight[: numbers.shape[1]]

    def queries_keys_values(self, x: Tensor) -> Iterator[Tensor]:
        """Q, K and V of all heads, each `[B, HEADS, L, WIDTH / HEADS]`."""
        return (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.project(self.norm(x)).chunk(3, dim=-1))

    def forward(self, numbers: Tensor, attend: Callable[..., Tensor] = F.scaled_dot_product_attention) -> Tensor:
        x = self.embedded(numbers)
        x = x + self.mix(attend(*self.queries_keys_values(x), is_causal=self.is_causal).transpose(1, 2).flatten(2))
        return self.predict(x + self.mlp(self.mlp_norm(x)))


def train(is_causal: bool, steps: int = 400) -> tuple[TinyModel, list[float]]:
    """A trained model, always from the same start and on the same pieces, and its loss at each step, nats."""
    with one_thread():
        torch.manual_seed(0)
        model, losses = TinyModel(is_causal), []
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
        for _ in range(steps):
            start = torch.randint(len(DATA) - CONTEXT, (16, 1))
            piece = DATA[start + torch.arange(CONTEXT + 1)]
            loss = F.cross_entropy(model(piece[:, :-1]).flatten(0, 1), piece[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return model, losses


@torch.no_grad()
def continued(model: TinyModel, prompt: str, device: torch.device, count: int = 26) -> str:
    """The prompt and `count` more letters, always the most probable one. The chapter's kernels compute the
    attention."""

    def attend(query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
        last = query[:, :, -1:]  # the next letter follows from this one's output alone; it is added to all positions
        return naive_attention(*(tensor.to(device) for tensor in (last, key, value)), is_causal=is_causal).cpu()

    numbers = [LETTERS.index(letter) for letter in prompt]
    for _ in range(count):
        logits = model(torch.tensor([numbers[-CONTEXT:]]), attend)
        numbers.append(int(logits[0, -1].argmax()))
    return "".join(LETTERS[number] for number in numbers)


@torch.no_grad()
def loss_in_use(model: TinyModel) -> float:
    """Mean loss of the next letter, in nats, after prefixes of 8 to 31 letters. The letter to predict is not in the
    prefix."""
    pieces = DATA[torch.arange(0, 512, 4)[:, None] + torch.arange(CONTEXT)]
    losses = [F.cross_entropy(model(pieces[:, :n])[:, -1], pieces[:, n]).item() for n in range(8, CONTEXT)]
    return sum(losses) / len(losses)


@torch.no_grad()
def looks_at(model: TinyModel, text: str) -> Tensor:
    """Attention weights `[L, L]` over a text of at most CONTEXT letters, the mean over the heads."""
    numbers = torch.tensor([[LETTERS.index(letter) for letter in text]])
    query, key, _ = model.queries_keys_values(model.embedded(numbers))
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if model.is_causal:
        scores = scores.masked_fill(~torch.ones_like(scores).tril().bool(), -torch.inf)
    return torch.softmax(scores, dim=-1)[0].mean(dim=0)


def show_losses(with_mask: list[float], without: list[float]) -> None:
    """Draws the training losses of both models, and the loss of a blind guess."""
    plots.two_losses({"with the causal mask": with_mask, "without": without}, BLIND)
    plt.show()


def show_looks(with_mask: TinyModel, without: TinyModel, text: str = "twinkle, twinkle") -> None:
    """Draws the attention weights of both models over a text."""
    panels = {"with the causal mask": looks_at(with_mask, text), "without": looks_at(without, text)}
    plots.weight_maps(panels, list(text))
    plt.show()
