"""The picture of a mask. `Pattern.draw` imports this module when it is called, and with it matplotlib."""

from __future__ import annotations

import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor

BLUE, GREY = "#0072b2", "#666666"  # of plots/look.py, which says what they become on a dark page


def draw_mask(mask: Tensor, tile: int, title: str) -> Figure:
    """A dense mask with a grid of tiles."""
    L_q, L_k = mask.shape
    figure, ax = plt.subplots(figsize=(5.2, 5.0))
    ax.imshow(mask.numpy(), cmap=ListedColormap(["none", BLUE]), vmin=0, vmax=1, extent=(0, L_k, L_q, 0))
    ax.vlines(range(tile, L_k, tile), 0, L_q, color=GREY, linewidth=0.6)
    ax.hlines(range(tile, L_q, tile), 0, L_k, color=GREY, linewidth=0.6)
    ax.set(xlabel="key", ylabel="query")
    ax.set_title(title, loc="left")
    return figure
