"""The small language model of chapter 06 learns the course's own prose, byte by byte.

    python -m course_utils.studies.prose      # trains for minutes on one thread, writes the weights and the record

The text is what the notebooks and guides of this tree say, without tables, code and formulas. The model is
`serving.plain_logits`; its matrices are rounded to 8 bits at the end, and both losses are recorded.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from course_utils import measured
from course_utils.course import ROOT
from course_utils.serving.model import SHAPES, VOCABULARY, WEIGHTS, as_tokens, plain_logits, quantised, save_weights
from course_utils.studies.on_cpu import one_thread, record

NAME = "06_prose_study"
LENGTH, BATCH, STEPS, RATE = 256, 8, 1400, 4e-3
HELD_OUT = 20  # one paragraph in so many


def text(root: Path = ROOT) -> tuple[str, str]:
    """The training text and the held-out text: paragraphs of the notebooks and guides of a tree."""
    pages = [path.read_text(encoding="utf-8") for path in sorted((root / "docs").rglob("*.md")) + [root / "README.md"]]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        pages.append("\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"))
    paragraphs = [
        p for page in pages for p in map(_plain, re.sub(r"(?s)```.*?```", "", page).split("\n\n")) if len(p) > 60
    ]
    return "\n".join(p for n, p in enumerate(paragraphs) if n % HELD_OUT), "\n".join(paragraphs[::HELD_OUT])


def _plain(paragraph: str) -> str:
    """A paragraph on one line without marks and links; empty for a heading, list, table, formula or tag."""
    if re.search(r"(?m)^\s*([#|<$-]|\d+\.)|\$\$", paragraph):
        return ""
    paragraph = re.sub(r"!?\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
    paragraph = re.sub(r"[*`#$\\]|<[^>]*>", "", paragraph)
    return " ".join(paragraph.split())


def new_matrices(seed: int = 0) -> dict[str, Tensor]:
    """Untrained matrices, float32: normal numbers scaled to keep the length of a vector about the same."""
    torch.manual_seed(seed)
    return {name: (torch.randn(shape) / math.sqrt(shape[-1])).requires_grad_() for name, shape in SHAPES.items()}


def draw(data: Tensor, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pieces of the text, int64 `[size, LENGTH]`, and the token after each of their tokens."""
    starts = torch.randint(len(data) - LENGTH, (size, 1), generator=generator)
    places = starts + torch.arange(LENGTH + 1)
    return data[places[:, :-1]], data[places[:, 1:]]


@one_thread()
def train(words: str, *, steps: int = STEPS, batch: int = BATCH, seed: int = 0) -> dict[str, Tensor]:
    """Matrices trained on `steps` times `batch` pieces of the text."""
    data, matrices = torch.tensor(as_tokens(words)), new_matrices(seed)
    generator = torch.Generator().manual_seed(seed + 1)
    optimizer = torch.optim.AdamW(matrices.values(), lr=RATE, betas=(0.9, 0.98), weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        tokens, following = draw(data, batch, generator)
        value = cross_entropy(plain_logits(matrices, tokens).flatten(0, 1), following.flatten())
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(matrices.values(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 50 == 49:
            print(f"step {step + 1}: {value.item():.3f} nats a byte", flush=True)
    return {name: matrix.detach() for name, matrix in matrices.items()}


@one_thread()
@torch.no_grad()
def loss(matrices: Mapping[str, Tensor], words: str, *, pieces: int = 64) -> float:
    """Nats a byte, mean over pieces of a text."""
    tokens, following = draw(torch.tensor(as_tokens(words)), pieces, torch.Generator().manual_seed(0))
    return cross_entropy(plain_logits(matrices, tokens).flatten(0, 1), following.flatten()).item()


def main() -> None:
    learned, held_out = text()
    start = time.process_time()
    matrices = train(learned)
    seconds = round(time.process_time() - start, 1)
    weights = {name: quantised(matrix) for name, matrix in matrices.items()}
    save_weights(weights)
    rounded = {name: matrix.floats() for name, matrix in weights.items()}
    row: measured.Row = {"name": "prose", "parameters": sum(map(Tensor.numel, matrices.values()))}
    row |= {"file_bytes": WEIGHTS.stat().st_size, "text_bytes": len(learned.encode())}
    row |= {"steps": STEPS, "tokens_seen": STEPS * BATCH * LENGTH, "cpu_seconds": seconds}
    row |= {"loss_uniform": math.log(VOCABULARY), "loss": loss(matrices, learned)}
    row |= {"loss_held_out": loss(matrices, held_out), "loss_held_out_8_bits": loss(rounded, held_out)}
    print(row, record(NAME, [row], "python -m course_utils.studies.prose"), sep="\n")


if __name__ == "__main__":
    main()
