#pragma once
#include "cuda_fp8.h"

#define EMU_CUDA_TEXT <cuda_toolkit/cuda_fp6.h>
#include "emu_cuda_text.h"
