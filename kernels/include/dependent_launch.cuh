// dependent_launch.cuh — a kernel begins while the one before it in the stream still ends, on sm_90 and
// newer: programmatic dependent launch.
//
// What takes time at the start of a launch, its way to the GPU and what it need not wait for, is then
// over when the kernel before has ended. The host must ask for it, too: course_utils.cuda.ReadyLaunch,
// `dependent`. On older GPUs nothing happens.
// source  CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"
#pragma once

// Lets the blocks of the next kernel begin, once all blocks of this one have come here and there is
// room beside them.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel before has ended, and what it has written is there. All threads of one block
// must, at least: else a kernel could end before the one before it.
__device__ inline void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
