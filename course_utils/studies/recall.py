"""What a sparse pattern costs in quality: small transformers learn to recall facts, each through another pattern.

The task is associative recall. A sequence is `FACTS` tokens, each a fact "key = value", then `QUESTIONS` tokens, each a
question "key = ?" about one of the facts. Each sequence is drawn afresh, so nothing can be memorised: the
answer must be fetched through attention. What one layer can answer follows from the pattern alone: `expected_accuracy`.

    python -m course_utils.studies.recall            # trains all cases on the CPU and records the table of chapter 04
    python -m course_utils.studies.recall longer     # one of them with four times the steps
"""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from course_utils import measured, patterns
from course_utils.patterns import Pattern
from course_utils.studies.on_cpu import one_thread, record

FACTS, QUESTIONS, VALUES = 32, 32, 4  # there are as many keys as facts, and each is in a sequence once
LENGTH, WIDTH, HEADS = FACTS + QUESTIONS, 64, 4
STEPS = {1: 500, 2: 1500}  # of training, by the number of layers
LONGER = 6000  # steps for one of the cases, to see whether the others would gain, too
NAME, LONGER_NAME = "04_recall_study", "04_recall_longer"


@dataclass(frozen=True)
class Case:
    """A pattern, the model's number of layers, the number of keys that each query keeps by score (None: all it sees),
    and the number of training steps (None: STEPS)."""

    name: str
    pattern: Pattern
    layers: int = 1
    top_k: int | None = None
    steps: int | None = None


def cases() -> list[Case]:
    """The cases of the recorded study. All are causal."""
    causal, window = patterns.causal(), patterns.sliding_window
    every = {step: patterns.global_tokens(range(step - 1, FACTS, step)) for step in (2, 4, 8)}
    questions = patterns.global_tokens(range(FACTS, LENGTH))
    found = [Case("dense", causal)]
    found += [Case(f"window {size}", window(size)) for size in (8, 16, 32, 48)]
    found += [Case(f"window {size}", window(size), layers=2) for size in (16, 32)]
    found += [
        Case("4 sinks, window 16", patterns.streaming(4, 16)),
        Case("every 8th key, 8 of them", patterns.dilated(8, 8)),
        Case("window 8, 2 random blocks of 8", (window(8) | patterns.random_blocks(8, 2, seed=0)) & causal),
        Case("strided 8", patterns.strided(8)),
        Case("strided 8", patterns.strided(8), layers=2),
        Case("window 8, the first 4 tokens global", (window(8) | patterns.global_tokens(range(4))) & causal),
        Case("window 8, the questions global", (window(8) | questions) & causal),
    ]
    for step, tokens in every.items():
        found.append(Case(f"window 8, 1 of {step} facts global", (window(8) | tokens) & causal, layers=2))
    return found + [Case(f"the {k} highest scores", causal, top_k=k) for k in (1, 2, 4)]


def longer_cases() -> list[Case]:
    """One of the cases with two layers, trained longer."""
    return [Case("strided 8", patterns.strided(8), layers=2, steps=LONGER)]


# ---------------------------------------------------------------------------------------------- what must come out


def visible_facts(case: Case) -> float:
    """Share of the pairs (question, fact) that the pattern keeps: the facts that one layer can fetch directly."""
    return case.pattern.mask(LENGTH)[FACTS:, :FACTS].float().mean().item()


def reachable_facts(case: Case) -> float:
    """Share of the pairs (question, fact) joined by a path of at most `case.layers` kept pairs."""
    mask = case.pattern.mask(LENGTH).float()
    reach = torch.linalg.matrix_power(mask, case.layers) > 0
    return reach[FACTS:, :FACTS].float().mean().item()


def expected_accuracy(visible: float) -> float:
    """Accuracy of a model that answers what it sees and guesses the rest."""
    return visible + (1 - visible) / VALUES


# ---------------------------------------------------------------------------------------------- task and model


def make_batch(size: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Sequences of facts and questions: keys and values, int64 `[size, LENGTH]` (a question has the value VALUES), and
    the right answers, int64 `[size, QUESTIONS]`."""
    keys = torch.rand(size, FACTS, generator=generator).argsort(dim=1)
    values = torch.randint(VALUES, (size, FACTS), generator=generator)
    asked = torch.randint(FACTS, (size, QUESTIONS), generator=generator)
    keys = torch.cat([keys, keys.gather(1, asked)], dim=1)
    return keys, torch.cat([values, torch.full((size, QUESTIONS), VALUES)], dim=1), values.gather(1, asked)


class Layer(nn.Module):
    """Attention through a mask, then a two-layer network, each behind a layer norm and added to its input."""

    def __init__(self, mask: Tensor, top_k: int | None) -> None:
        super().__init__()
        self.mask, self.top_k = mask, top_k
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.network = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """x: `[B, L, WIDTH]`, and so is the result."""
        query, key, value = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        scores = (query @ key.mT / math.sqrt(WIDTH // HEADS)).masked_fill(~self.mask, -torch.inf)
        if self.top_k:
            least = scores.topk(self.top_k, dim=-1).values[..., -1:]  # query by query and head by head
            scores = scores.masked_fill(scores < least, -torch.inf)
        x = x + self.out((scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2))
        return x + self.network(self.norm_2(x))


class Recall(nn.Module):
    """The model of a case: the embeddings of key, value and position are added up; logits `[B, QUESTIONS, VALUES]`."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        mask = case.pattern.mask(LENGTH)
        self.key, self.value = nn.Embedding(FACTS, WIDTH), nn.Embedding(VALUES + 1, WIDTH)
        self.position = nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.layers = nn.Sequential(*(Layer(mask, case.top_k) for _ in range(case.layers)))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VALUES))

    def forward(self, keys: Tensor, values: Tensor) -> Tensor:
        """keys, values: as from `make_batch`."""
        x = self.layers(self.key(keys) + self.value(values) + self.position)
        return self.head(x[:, FACTS:])


@one_thread()
def train(case: Case, *, steps: int | None = None, batch: int = 32, rate: float = 3e-3, seed: int = 0) -> float:
    """Trains a case's model from scratch (steps None: the case's); its share of right answers on 512 new sequences."""
    steps = steps or case.steps or STEPS[case.layers]
    torch.manual_seed(seed)
    model, generator = Recall(case), torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        keys, values, answers = make_batch(batch, generator)
        loss = nn.functional.cross_entropy(model(keys, values).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    keys, values, answers = make_batch(512, torch.Generator().manual_seed(seed + 2))
    with torch.no_grad():
        return (model(keys, values).argmax(dim=-1) == answers).float().mean().item()


# ---------------------------------------------------------------------------------------------- the record


def study(cases: list[Case]) -> list[measured.Row]:
    """A row per case: name, pattern, layers, keys per question, visible and reachable facts, and the accuracies."""
    rows: list[measured.Row] = []
    for case in cases:
        start = time.process_time()
        accuracy = train(case)
        visible = visible_facts(case)
        row = {"name": case.name, "pattern": case.pattern.name, "layers": case.layers}
        row["steps"] = case.steps or STEPS[case.layers]
        row["keys_per_question"] = case.top_k or case.pattern.mask(LENGTH)[FACTS:].sum(dim=1).float().mean().item()
        row |= {"visible_facts": visible, "reachable_facts": reachable_facts(case)}
        row |= {"expected_accuracy": expected_accuracy(visible), "accuracy": accuracy}
        rows.append(row | {"cpu_seconds": round(time.process_time() - start, 1)})
        print(
            f"{case.name}, {case.layers} layers: {accuracy:.1%}, {expected_accuracy(visible):.1%} in one layer",
            flush=True,
        )
    return rows


def main(which: str = "") -> None:
    name, chosen = (LONGER_NAME, longer_cases()) if which == "longer" else (NAME, cases())
    rows = study(chosen)
    print(record(name, rows, f"python -m course_utils.studies.recall {which}".strip()))


if __name__ == "__main__":
    main(*sys.argv[1:])
