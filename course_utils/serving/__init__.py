"""Serving many sequences at once: a cache in pages, a loop that batches continuously, and a small model to run."""

from course_utils.serving.company import TIED, in_company, nearly_tied
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
    "as_text",
    "as_tokens",
    "in_company",
    "lengths",
    "load_weights",
    "nearly_tied",
    "plain_logits",
    "prompts",
    "simulate",
    "summary",
]
