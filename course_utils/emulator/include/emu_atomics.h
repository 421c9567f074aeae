// Atomics. Blocks run on several OS threads, so these are real ones.
#pragma once

namespace emu {

template <size_t bytes> struct word;
template <> struct word<2> { typedef unsigned short type; };
template <> struct word<4> { typedef unsigned type; };
template <> struct word<8> { typedef unsigned long long type; };

// An atomic that changes nothing may be one turn of a spin lock: it lets the thread that holds the lock go on.
template <class T, class Update> EMU_UNSEEN T read_modify_write(T* address, Update update) {
    typedef typename word<sizeof(T)>::type Word;
    Word before = __atomic_load_n((Word*)address, __ATOMIC_RELAXED), after;
    do {
        after = bit_cast<Word>(update(bit_cast<T>(before)));
    } while (!__atomic_compare_exchange_n((Word*)address, &before, after, false, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
    if (after == before) emu_yield();
    return bit_cast<T>(before);
}

}  // namespace emu

#define EMU_ATOMIC(name, expression)                                                                                        \
    template <class T> EMU_INLINE T name(T* address, typename emu::identity<T>::type value) {                               \
        EMU_TOUCH(address, sizeof(T), EMU_TOUCH_ATOMIC);                                                                \
        return emu::read_modify_write(address, [value](T old) -> T { return expression; });                                 \
    }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicMax, value > old ? value : old)
EMU_ATOMIC(atomicAnd, old & value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMU_ATOMIC

#if __CUDA_ARCH__ >= 900   // of two or four neighbours in global memory, each by itself
template <class T, unsigned count> EMU_INLINE T emu_add_vector(T* address, const float (&by)[count]) {
    if ((size_t)address % sizeof(T)) emu_trap("misaligned address: a vector lies at a multiple of its size", emu_here());
    EMU_TOUCH(address, sizeof(T), EMU_TOUCH_ATOMIC);
    float old[count];
    for (unsigned n = 0; n < count; n++)
        old[n] = emu::read_modify_write((float*)address + n, [&](float x) -> float { return x + by[n]; });
    T before;
    memcpy((void*)&before, old, sizeof before);
    return before;
}
EMU_INLINE float2 atomicAdd(float2* address, float2 by) { return emu_add_vector(address, {by.x, by.y}); }
EMU_INLINE float4 atomicAdd(float4* address, float4 by) { return emu_add_vector(address, {by.x, by.y, by.z, by.w}); }
#endif

template <class T> EMU_INLINE T atomicCAS(T* address, typename emu::identity<T>::type expected, typename emu::identity<T>::type value) {
    EMU_TOUCH(address, sizeof(T), EMU_TOUCH_ATOMIC);
    return emu::read_modify_write(address, [=](T now) -> T { return now == expected ? value : now; });
}
