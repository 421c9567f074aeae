"""An operator as a compiled graph calls it, and as a CUDA graph replays it."""

import torch


def compiled(attend):
    """In one graph for all lengths."""
    return torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")


def replayed(attend):
    """Captured anew by each call, and replayed once."""

    def call(*inputs, **options):
        with torch.no_grad():
            attend(*inputs, **options)  # compiles the kernel, and makes lists
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                results = attend(*inputs, **options)
        graph.replay()
        torch.cuda.synchronize()
        return results

    return call
