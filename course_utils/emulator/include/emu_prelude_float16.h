// The prelude of kernels that include one of these headers, which g++ takes longer to read than many a kernel: once for all.
#pragma once
#include "emu_prelude.h"
#include "cuda_fp16.h"
#include "cuda_bf16.h"
