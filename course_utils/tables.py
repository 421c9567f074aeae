"""Figures and tables as plain text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def aligned(table: Sequence[Sequence[str]]) -> str:
    """Rows of text with columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in table)


def figure(value: Any, decimals: int | None = None) -> str:
    """A figure as tables show it: whole numbers with commas, others to three digits, or to so many `decimals`; anything
    else as it is."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float) and decimals is not None:
        return f"{value:,.{decimals}f}"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
