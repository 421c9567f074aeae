"""The layer of chapter 04 by torch.compile: what its cells show of the graphs."""

import pytest
import torch

from course_utils import patterns
from course_utils.chapters.sparse_patterns import compiled
from course_utils.chapters.sparse_patterns.runs import inputs
from course_utils.operators import sparse_attention


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    torch._dynamo.reset()


class Layer(torch.nn.Module):
    def __init__(self, pattern):
        super().__init__()
        self.pattern = pattern

    def forward(self, x):
        return sparse_attention(x[:, None], x[:, None], x[:, None], self.pattern)


def test_the_graph_has_the_number_of_the_pattern(capsys):
    window, graphs = patterns.sliding_window(7), []
    x = inputs(20)[0][0]
    out = compiled.by_graphs(Layer(window), graphs)(x)
    assert torch.equal(out, Layer(window)(x)) and len(graphs) == 1
    compiled.show_graph(graphs[0])
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("sparse_attention"))
    assert line.split(", ")[3] == str(window.number)


@pytest.mark.exhaustive(
    "a dozen compiles: `make test` has one above, and these in chapter 04, which draws their number"
)
def test_graphs_are_counted_and_the_layer_keeps_its_pattern(drawn):
    window = patterns.sliding_window(7)
    assert compiled.count_graphs(layer := Layer(window)) == 2
    assert layer.pattern is window
    (ax,) = drawn[0].axes
    names = [label.get_text() for label in ax.get_yticklabels()]
    assert dict(zip(names, (text.get_text().strip() for text in ax.texts), strict=True)) == {
        "three lengths, dynamic=False": "3",
        "three lengths, as it is": "2",
        "three lengths, dynamic=True": "1",
        "three patterns, an attribute": "3",
        "three patterns, an argument": "1",
    }
