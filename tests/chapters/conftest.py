"""What the tests of the chapters' cells share."""

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def drawn(monkeypatch):
    """The figures that are shown, instead of a window for them."""
    found = []
    monkeypatch.setattr(plt, "show", lambda: found.append(plt.gcf()))
    yield found
    plt.close("all")
