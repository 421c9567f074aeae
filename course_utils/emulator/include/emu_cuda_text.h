// Included by a header of the same name as one of NVIDIA's, to take EMU_CUDA_TEXT as it is. Where no architecture is
// named, it says in C++ what it has in PTX otherwise.
#pragma push_macro("__CUDA_ARCH__")
#pragma push_macro("NV_IF_ELSE_TARGET")
#undef __CUDA_ARCH__
#undef NV_IF_ELSE_TARGET
#define NV_IF_ELSE_TARGET(architecture, instructions, plain) plain
#include EMU_CUDA_TEXT
#undef EMU_CUDA_TEXT
#pragma pop_macro("NV_IF_ELSE_TARGET")
#pragma pop_macro("__CUDA_ARCH__")
