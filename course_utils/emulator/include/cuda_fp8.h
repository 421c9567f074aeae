#pragma once
#include "cuda_bf16.h"

#define __NV_SILENCE_DEPRECATION_BEGIN
#define __NV_SILENCE_DEPRECATION_END

#define EMU_CUDA_TEXT <cuda_toolkit/cuda_fp8.h>
#include "emu_cuda_text.h"
