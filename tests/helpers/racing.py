"""Two launches, of which the second has a race in its second block: for the widget that shows findings."""

import torch

from course_utils.cuda import RawModule

SOURCE = """extern "C" __global__ void fill(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void late(float* x) {
    __shared__ float row[64];
    const float mine = x[threadIdx.x];
    row[threadIdx.x] = mine;
    if (blockIdx.x == 1)
        x[threadIdx.x] = row[63 - threadIdx.x];
}
"""


def racing() -> None:
    module, x = RawModule(code=SOURCE), torch.zeros(64)
    module.get_function("fill")((1,), (64,), (x,))
    module.get_function("late")((2,), (64,), (x,))
