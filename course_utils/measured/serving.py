"""Names of the rows and sizes of what was measured in 06_serving.json.

`bench` writes them, chapters read them.
"""

OURS, OURS_AGAIN = "decode_attention", "decode_attention again"
FLASH, CUDNN = "torch FLASH", "torch cuDNN"
SAME_BYTES = "a sum of as many bytes"
PIECES, IN_TRITON = "keys in pieces", ", Triton"
LAUNCHES, GRAPH, ONE_LAUNCH = "launches", "CUDA graph", "one launch"
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CACHES = ((8, 8192), (8, 65536), (1, 4096), (1, 65536), (64, 4096))  # batch sizes, and keys of each sequence
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 33, 48, 64)
PAGE_SIZES = (1, 16, 64, 256)
LAYERS, STEP_PAGE_SIZE = 32, 16
CHUNK = 256  # tokens of prompts in a step of the loop
