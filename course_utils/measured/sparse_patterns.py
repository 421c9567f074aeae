"""Names of the rows and sizes of what was measured in 04_sparse_patterns.json.

`bench` writes them, chapters read them.
"""

SDPA_MASK, SDPA_NUMBERS, TORCH_SPARSE = "SDPA, dense mask", "SDPA, mask as numbers", "torch.sparse, fp32"
HEADS, HEAD_DIM = 16, 128
LENGTHS = tuple(2**n for n in range(10, 18))  # 1 K to 128 K
OURS = "sparse_attention"
DENSE = FLASH, CUDNN = "dense FLASH", "dense cuDNN"
FLEX_128, FLEX_64, FLEX_TUNED = "FlexAttention 128", "FlexAttention 64", "FlexAttention 64, 4 warps"
