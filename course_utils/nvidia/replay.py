"""`python -m course_utils.nvidia.replay FILE [SECONDS]`: runs saved launches on the GPU; what NVIDIA's tools watch."""

from __future__ import annotations

import os
import re
import sys
import threading

import torch

from course_utils.cuda import RawModule, read_kernel
from course_utils.nvidia import output


def replay(file: str, kernel_timeout: int = 0) -> None:
    """Runs saved launches on the GPU, one after the other.

    A kernel that fails, or takes more than `kernel_timeout` seconds (0: no limit), ends the process at once: nothing
    else stops one that hangs, and after a failure torch aborts as soon as it frees a tensor.
    """
    torch.cuda.synchronize()  # starts CUDA, which takes seconds under a tool: outside of the time limit
    for launch in torch.load(file, weights_only=False):
        RawModule(code=read_kernel(launch.source), options=launch.options).compile("cuda")
        print(output.begins(launch), flush=True)
        watch = threading.Timer(kernel_timeout, _give_up, [output.hangs(kernel_timeout)])
        watch.daemon = True
        if kernel_timeout:
            watch.start()
        try:
            tensors = launch.run("cuda")
            torch.cuda.synchronize()
        except RuntimeError as error:
            reason = re.search(r"(?:CUDA error|cudaError\w+|CUDA_ERROR_\w+): (.+)", str(error))
            if not reason:
                raise
            _give_up(output.crashed(reason[1]))
        watch.cancel()
        print(output.ended(launch), flush=True)
        del tensors  # not before: see above


def _give_up(why: str) -> None:
    print(why, flush=True)
    os._exit(1)


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python -m course_utils.nvidia.replay FILE [SECONDS]")
    replay(sys.argv[1], *map(int, sys.argv[2:]))
