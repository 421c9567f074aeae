#pragma once
#include "cuda_fp6.h"

#define EMU_CUDA_TEXT <cuda_toolkit/cuda_fp4.h>
#include "emu_cuda_text.h"
