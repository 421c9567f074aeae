"""Serving many sequences at once: a cache in pages, a loop that batches continuously, and a small model to run."""

from course_utils.serving.batch_invariance import TIED, alone_and_batched, nearly_tied
from course_utils.serving.loop import Loop, Request, Step
from course_utils.serving.model import Model, as_text, as_tokens, load_weights, plain_logits
from course_utils.serving.pages import CacheFull, PagedCache, Usage
from course_utils.serving.trace import Lengths, lengths, prompts, simulate, summary

__all__ = [
    "TIED",
    "CacheFull",
    "Lengths",
    "Loop",
    "Model",
    "PagedCache",
    "Request",
    "Step",
    "Usage",
    "alone_and_batched",
    "as_text",
    "as_tokens",
    "lengths",
    "load_weights",
    "nearly_tied",
    "plain_logits",
    "prompts",
    "simulate",
    "summary",
]
