"""The layer of chapter 04 by torch.compile: the number of its pattern in the graph, and how many graphs are made."""

import pytest
import torch

from course_utils import patterns
from course_utils.chapters.sparse_patterns import compiled
from course_utils.chapters.sparse_patterns.runs import inputs


@pytest.fixture(autouse=True)
def nothing_compiled():
    yield
    torch.compiler.reset()


def test_the_graph_has_the_number_of_the_pattern():
    layer, graphs = compiled.layer(window := patterns.sliding_window(7)), []
    x = inputs(20)[0][0]
    out = compiled.by_graphs(layer, graphs)(x)
    assert torch.equal(out, layer(x)) and len(graphs) == 1
    (call,) = (node for node in graphs[0].graph.nodes if node.name.startswith("sparse_attention"))
    assert window.number in call.args


@pytest.mark.exhaustive(
    "a dozen compiles: `make test` has one above, and these in chapter 04, which draws their number"
)
def test_graphs_are_counted_and_the_layer_keeps_its_pattern(drawn):
    window = patterns.sliding_window(7)
    assert compiled.count_graphs(layer := compiled.layer(window)) == 2
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
