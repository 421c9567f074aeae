// How the runtime calls a __global__ function, and what Python may know of it.
#pragma once

#if defined(__aarch64__)   // a kernel of Linux for it chooses pages of 4, 16 or 64 KiB
#define EMU_LARGEST_PAGE 65536
#else
#define EMU_LARGEST_PAGE 4096
#endif

extern "C" {
__thread char emu_dynamic_shared[EMU_SHARED_LIMIT] __attribute__((aligned(EMU_LARGEST_PAGE)));   // `extern __shared__` arrays
char* emu_dynamic_shared_base() { return emu_dynamic_shared; }
// Destructors of shared variables run on no GPU; nor here, where C++ would call them when the thread or the library goes.
#define EMU_HIDDEN __attribute__((visibility("hidden")))
EMU_HIDDEN void emu_no_handle() __asm__("__dso_handle");
EMU_HIDDEN void emu_no_handle() {}
EMU_HIDDEN int __cxa_atexit(void (*)(void*), void*, void*) { return 0; }
EMU_HIDDEN int __cxa_thread_atexit(void (*)(void*), void*, void*) { return 0; }
#undef EMU_HIDDEN
}

namespace emu {

template <class T> struct argument { typedef T type; };
template <class T> struct argument<const T> { typedef T type; };

template <size_t... index> struct indices {};
template <size_t count, size_t... index> struct count_to : count_to<count - 1, count - 1, index...> {};
template <size_t... index> struct count_to<0, index...> { typedef indices<index...> type; };

template <class... T, size_t... index> EMU_UNSEEN inline void call(void (*kernel)(T...), void** arguments, indices<index...>) {
    kernel(*(typename argument<T>::type*)arguments[index]...);
}
template <class... T> inline void call(void (*kernel)(T...), void** arguments) {
    call(kernel, arguments, typename count_to<sizeof...(T)>::type());
}
template <class... T> inline int argument_sizes(void (*)(T...), int* sizes) {
    const int all[] = {0, (int)sizeof(T)...};
    for (size_t i = 0; i < sizeof...(T); i++) sizes[i] = all[i + 1];
    return (int)sizeof...(T);
}

}  // namespace emu

#define EMU_ENTRY(index, ...)                                                                                               \
    extern "C" void emu_call_##index(void** arguments) { emu::call(&__VA_ARGS__, arguments); }                              \
    extern "C" int emu_argument_sizes_##index(int* sizes) { return emu::argument_sizes(&__VA_ARGS__, sizes); }

// Behind a kernel that is declared with __cluster_dims__(...).
#define EMU_CLUSTER(index, ...)                                                                                             \
    extern "C" void emu_cluster_##index(unsigned* sizes) {                                                                  \
        const unsigned given[] = {__VA_ARGS__};                                                                             \
        for (size_t i = 0; i < sizeof given / sizeof *given; i++) sizes[i] = given[i];                                      \
    }
