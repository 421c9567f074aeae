"""The one look of all pictures: colours that can be told apart with any colour vision, and matplotlib's settings."""

from __future__ import annotations

import matplotlib as mpl
from cycler import cycler

# Okabe and Ito's colours can be told apart with any colour vision.
BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#F0E442",
    "#666666",
)

mpl.rcParams.update(
    {
        "axes.prop_cycle": cycler(color=[BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY]),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlelocation": "left",
        "figure.constrained_layout.use": True,
        "figure.dpi": 100,
        "figure.figsize": (7.5, 3.6),
        "font.size": 10,
        "legend.frameon": False,
    }
)
