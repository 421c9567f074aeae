"""What `bench 01_attention_basics` measures: the three passes of naive attention beside torch's."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.bench.timed import (
    BATCH,
    HEAD_DIM,
    HEADS,
    Function,
    build_kernel,
    columns,
    fitting,
    random_inputs,
    require_close,
)
from course_utils.cuda import Kernel, RawModule, read_kernel
from course_utils.measured import Row
from course_utils.operators import naive_attention

LENGTHS = (512, 1024, 2048)
WHOLE = ("naive_attention", "naive torch", "SDPA")  # all three passes


def naive_steps(
    *, device: str = "cuda", batch: int = BATCH, heads: int = HEADS, lengths: tuple[int, ...] = LENGTHS
) -> list[Row]:
    """The three passes of naive attention, ours beside torch's, each alone and all together, fp32; SDPA beside them.
    Lengths whose score matrices do not fit the GPU are left out."""
    rows: list[Row] = []
    for length in fitting(lengths, batch, heads, device):
        inputs = random_inputs((batch, heads, length, HEAD_DIM), device, torch.float32)
        functions = _naive_step_functions(*inputs)
        with reference.full_float32():
            require_close("naive_attention", naive_attention(*inputs), reference.torch_attention(*inputs))
            times = timing.compare(functions)
            for name, function in functions.items():
                row = {"name": name, "length": length} | columns(times[name])
                if name in WHOLE:
                    row["peak_mb"] = timing.peak_memory(function) / 1e6
                rows.append(row)
    return rows


def _naive_step_functions(query: Tensor, key: Tensor, value: Tensor) -> dict[str, Function]:
    """By name what is timed on these inputs: each pass, and `WHOLE`."""
    batch, heads, length, head_dim = query.shape
    scale = head_dim**-0.5
    weights = torch.softmax(query @ key.mT * scale, dim=-1)
    scores, out = torch.randn_like(weights), torch.empty_like(query)
    sizes = np.int32(length), np.int32(length), np.int32(head_dim)
    tiles = costs.ceil_div(length, 32)
    column_tiles = costs.ceil_div(head_dim, 32)
    result = torch.empty_like(weights)

    def launch(
        kernel: Kernel, grid: int, block: tuple[int, ...], arguments: tuple[object, ...], out: Tensor
    ) -> Function:
        def function() -> Tensor:
            kernel((grid, heads, batch), block, arguments)
            return out

        return function

    def score(kernel: Kernel, key: Tensor) -> Function:
        arguments = query, key, result, *sizes, np.float32(scale), np.int32(0)
        return launch(kernel, tiles * tiles, (32, 32), arguments, result)

    def kernel(name: str) -> Kernel:
        return build_kernel(f"01_attention_basics/{name}.cu", name)

    # The same kernel for K stored as [d, L]: as many loads, at other addresses.
    code = read_kernel("01_attention_basics/scores_uncoalesced.cu")
    code = code.replace("K[(long long)j * d + c]", "K[(long long)c * L_k + j]")
    transposed = RawModule(code=code).get_function("scores_uncoalesced")

    softmax_arguments = scores, result, np.int32(length)
    output_arguments = weights, value, out, *sizes
    return {
        "scores_uncoalesced.cu": score(kernel("scores_uncoalesced"), key),
        "scores_uncoalesced.cu, K transposed": score(transposed, key.mT.contiguous()),
        "scores.cu": score(kernel("scores"), key),
        "torch Q @ K.mT": lambda: torch.matmul(query, key.mT, out=result),
        "softmax.cu": launch(kernel("softmax"), length, (256,), softmax_arguments, result),
        "torch softmax": lambda: torch.softmax(scores, dim=-1),
        "output.cu": launch(kernel("output"), column_tiles * tiles, (32, 32), output_arguments, out),
        "torch P @ V": lambda: torch.matmul(weights, value, out=out),
        "naive_attention": lambda: naive_attention(query, key, value),
        "naive torch": lambda: reference.torch_attention(query, key, value),
        "SDPA": lambda: scaled_dot_product_attention(query, key, value),
    }
