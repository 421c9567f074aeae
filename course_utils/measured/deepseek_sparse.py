"""Names of the rows and sizes of what was measured in 05_deepseek_sparse.json.

`bench` writes them, chapters read them.
"""

CORE, CORE_PORTABLE, CORE_TORCH = "sparse_mla", "sparse_mla, mma.sync", "torch, gather and einsum"
BACKWARD, BACKWARD_TILELANG = "sparse_mla, backward", "TileLang, backward"
DENSE, DENSE_PORTABLE = "mla_attention", "mla_attention, mma.sync"
DENSE_MHA, DENSE_MHA_CUDNN = "torch SDPA, MHA mode", "torch cuDNN, MHA mode, merged"
UNPACKING = "torch, unpacking K and V"
INDEXER, INDEXER_FP8 = "lightning_indexer, bf16", "lightning_indexer, FP8"
TOPK, TOPK_TORCH, TOPK_UNSORTED = "select_topk", "torch.topk", "torch.topk, unsorted"
TOPK_TILELANG = "TileLang, topk_selector"
STEP, STEP_BF16 = "DSA, indexer in FP8", "DSA, indexer in bf16"
SPARSE_LAYER, DENSE_LAYER = "deepseek_sparse_attention", "deepseek_mla"
INDEX_VECTORS = "torch, the indexer's queries and keys"
QUERIES = 4096  # of a chunk of a prefill
LENGTHS = tuple(2**n for n in range(13, 18))  # 8 K to 128 K
