// Takes the place of libc's madvise under qemu, which says of MADV_GUARD_INSTALL that it is done, and does nothing. An
// older Linux refuses it, as this does: the emulator then protects the pages below its stacks by mprotect.

extern "C" long syscall(long number, ...);   // declared here, since zig has no headers where it links no library

extern "C" int madvise(void* address, unsigned long bytes, int advice) {
    const int madvise_on_arm = 233, guard_install = 102;
    return advice == guard_install ? -1 : (int)syscall(madvise_on_arm, address, bytes, advice);
}
