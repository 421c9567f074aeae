"""What attention should return: plain torch in float64, written for reading rather than for speed."""

from course_utils.reference.deepseek import (
    deepseek_attention,
    deepseek_mla,
    deepseek_sparse_attention,
    index_scores,
    lightning_indexer,
    mla_attention,
    select_topk,
    sparse_mla,
)
from course_utils.reference.deepseek_weights import DeepSeekConfig, DeepSeekWeights
from course_utils.reference.dense import (
    attention,
    attention_gradients,
    causal_mask,
    flash_attention_minimal,
    flash_attention_v2,
    full_float32,
    naive_attention,
    sparse_attention,
    torch_attention,
    varlen_attention,
)
from course_utils.reference.e4m3 import dequantize_heads, e4m3_attention, quantize_heads, rounded_e4m3_attention
from course_utils.reference.serving import (
    append_paged,
    cascade_attention,
    decode_attention,
    merge_attention,
    paged_attention,
)

__all__ = [
    "DeepSeekConfig",
    "DeepSeekWeights",
    "append_paged",
    "attention",
    "attention_gradients",
    "cascade_attention",
    "causal_mask",
    "decode_attention",
    "deepseek_attention",
    "deepseek_mla",
    "deepseek_sparse_attention",
    "dequantize_heads",
    "e4m3_attention",
    "flash_attention_minimal",
    "flash_attention_v2",
    "full_float32",
    "index_scores",
    "lightning_indexer",
    "merge_attention",
    "mla_attention",
    "naive_attention",
    "paged_attention",
    "quantize_heads",
    "rounded_e4m3_attention",
    "select_topk",
    "sparse_attention",
    "sparse_mla",
    "torch_attention",
    "varlen_attention",
]
