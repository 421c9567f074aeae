"""The course's attention operators: torch tensors in and out, on the GPU or on the CPU emulator.

The way of a call of `sparse_attention`; the others have the same stops, or fewer:

1. the public function: arguments and docstring (`sparse`)
2. autocast and the checks of the arguments (`attention`, `prepare`)
3. torch's dispatcher, which finds the operator by its schema (`library`)
4. the tensors as kernels take them, and empty results (`attention`, `prepare`)
5. which kernel, from lengths, device and pattern alone (`sparse_choice`)
6. the launch of that kernel: tile, grid, lists, kept with the pattern (`sparse_launch`, `sparse_work`; on a Hopper GPU
   `sparse_hopper`, `sparse_hopper_lists`)
7. the launch with the tensors of this call (`cuda.ReadyLaunch`)
8. the CUDA driver, or the emulator

After the first call with a pattern and its lengths, stops 5 and 6 are one look-up.

NaN or infinity in a key that a row must not see, causal or by a pattern, leaves the row as it is. In the value of that
key it makes the row NaN, as in PyTorch: its weight is 0, and 0 × NaN is NaN. So it does wherever the row's tile of
keys holds it, which of block lists on a Hopper GPU can be a second one that other rows see; tiles of which no row of a
tile sees a key are skipped. `naive_attention` skips none. A row that does see
NaN is NaN; `flash_plain` and `flash_fa1_order` make it 0 where the NaN is in a key.

To add an operator:

1. Write the function that launches the kernel, and make it an operator of torch by the decorator `library.operator`,
   whose docstring explains the arguments. On query, key and value `attention.Attention` does the rest. It takes tensors
   with any strides and returns new, contiguous ones; a size or number that changes from call to call is a `SymInt`.
2. The public function casts (`prepare.autocast`) and checks its arguments with checks that torch.compile can trace:
   sizes, dtypes and devices, no numbers inside of tensors. Then it calls the operator.
3. Where the host's time counts, what depends on shapes alone is a `cuda.ReadyLaunch`, made once for them, as in
   `tensor_core.dense_forward`; else a `Kernel` is launched.
4. An operator imports no other; what several share is in `attention`, `library`, `prepare` and `tensor_core`. Only
   `windowed` sends calls of the dense operators on, to `sparse`.
5. A float64 reference in `course_utils.reference`; a test with `course_utils.checks` on the `device` fixture, which is
   the emulator and, where there is one, the GPU; a line in `EXAMPLES` of tests/operators/test_torch_features.py, which
   runs `torch.library.opcheck`. Break the kernel once and see the test fail.
6. The launch goes into the chapter's module of `course_utils.launches`: the sanitizer must find nothing in it, and its
   counters are compared with ncu's.
"""

from course_utils.operators.deepseek import deepseek_mla, deepseek_sparse_attention
from course_utils.operators.flash_v2 import flash_attention_v2
from course_utils.operators.hopper import flash_attention_hopper
from course_utils.operators.indexer import lightning_indexer, quantize_e4m3
from course_utils.operators.loop_orders import flash_fa1_order, flash_plain
from course_utils.operators.minimal import flash_attention_minimal
from course_utils.operators.mla import mla_attention, sparse_mla
from course_utils.operators.naive import naive_attention
from course_utils.operators.serving import (
    append_paged,
    cascade_attention,
    decode_attention,
    decode_step,
    merge_attention,
    paged_attention,
)
from course_utils.operators.sparse import (
    block_sparse_attention,
    csr_attention,
    sparse_attention,
)
from course_utils.operators.sparse_choice import choose_kernel
from course_utils.operators.topk import select_topk
from course_utils.operators.varlen import varlen_attention
from course_utils.reference import DeepSeekConfig, DeepSeekWeights

__all__ = [
    "DeepSeekConfig",
    "DeepSeekWeights",
    "append_paged",
    "block_sparse_attention",
    "cascade_attention",
    "choose_kernel",
    "csr_attention",
    "decode_attention",
    "decode_step",
    "deepseek_mla",
    "deepseek_sparse_attention",
    "flash_attention_hopper",
    "flash_attention_minimal",
    "flash_attention_v2",
    "flash_fa1_order",
    "flash_plain",
    "lightning_indexer",
    "merge_attention",
    "mla_attention",
    "naive_attention",
    "paged_attention",
    "quantize_e4m3",
    "select_topk",
    "sparse_attention",
    "sparse_mla",
    "varlen_attention",
]
