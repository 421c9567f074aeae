"""Names of the rows and sizes of what was measured in 03_flash_attention_v2.json and compiled_step.json.

`bench` writes them, chapters read them.
"""

OURS, FLASH, FLASH_AGAIN, NAIVE = "flash_attention_v2", "torch FLASH", "torch FLASH again", "naive torch"
CUDNN = "torch cuDNN"
TOKENS, WIDTH = 16384, 2048  # B · L and H · d of the comparison
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
SHORT_LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
UNPACKED = "a tile for each head"
SPLIT = ", keys split"
BY_HAND = ", packed by hand"
TABLE_SHAPE = (16, 12, 2048, 64)
SDPA, EAGER, COMPILED = "SDPA", "eager", "compiled"
