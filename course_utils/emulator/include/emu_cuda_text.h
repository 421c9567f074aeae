// Included by a header of the same name as one of NVIDIA's, to take EMU_CUDA_TEXT as it is. For architectures before those
// whose instructions it uses it says the same in C++, which any compiler understands.
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("NV_IF_ELSE_TARGET")
#undef __CUDA_ARCH__
#undef NV_IF_ELSE_TARGET
#define __CUDA_ARCH__ 520
#define NV_IF_ELSE_TARGET(architecture, instructions, plain) plain
#include EMU_CUDA_TEXT
#undef EMU_CUDA_TEXT
#pragma pop_macro("NV_IF_ELSE_TARGET")
#pragma pop_macro("__CUDA_ARCH__")
