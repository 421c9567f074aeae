"""Serving many sequences at once: a cache in pages, a loop that batches continuously, and a small model to run."""

from course_utils.serving.model import Model, load_weights, plain_logits
from course_utils.serving.pages import CacheFull, PagedCache, Usage

__all__ = ["CacheFull", "Model", "PagedCache", "Usage", "load_weights", "plain_logits"]
