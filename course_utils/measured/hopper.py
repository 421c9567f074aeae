"""Names of the rows and sizes of what was measured in 07_hopper.json and hopper_ablations.json.

`bench` writes them, chapters read them.
"""

OURS_E4M3, ROUNDED = "flash_attention_hopper in E4M3", "torch, weights rounded to E4M3"
OURS, PORTABLE = "flash_attention_hopper", "flash_attention_v2"
TURNS = f"{OURS}, in turns"  # its backward pass where torch is told to be deterministic
CUDNN, FLASH = "torch cuDNN", "torch FLASH"
FLASH_FIXED = f"{FLASH}, deterministic"  # likewise
AGAIN, PRODUCT = " again", "a matrix product"
FLOPS_OF_A_CLOCK = 4096  # of a multiprocessor's tensor cores, in 16 bits (NVIDIA's Hopper whitepaper)
TOKENS, WIDTH = 16384, 2048  # B · L and H · d
LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
LONGEST = 131072
WHOLE = "nothing"  # what the kernel of a step is without, if it is the step itself
