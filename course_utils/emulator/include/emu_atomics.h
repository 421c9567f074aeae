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

// For the block and for all of the system they are the same here.
#define EMU_ATOMIC(name, expression) EMU_ATOMICS(name, expression, EMU_TOUCH_ATOMIC)
#define EMU_GUARDED_ATOMIC(name, expression) EMU_ATOMICS(name, expression, EMU_TOUCH_ATOMIC_GUARDED)
#define EMU_ATOMICS(name, expression, kind)                                                                                 \
    EMU_ONE_ATOMIC(name, expression, kind)                                                                                  \
    EMU_ONE_ATOMIC(name##_block, expression, kind) EMU_ONE_ATOMIC(name##_system, expression, kind)
#define EMU_ONE_ATOMIC(name, expression, kind)                                                                              \
    template <class T> EMU_INLINE T name(T* address, typename emu::identity<T>::type value) {                               \
        EMU_TOUCH(address, sizeof(T), kind);                                                                                \
        return emu::read_modify_write(address, [value](T old) -> T { return expression; });                                 \
    }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicExch, value)
EMU_GUARDED_ATOMIC(atomicMin, value < old ? value : old)
EMU_GUARDED_ATOMIC(atomicMax, value > old ? value : old)
EMU_GUARDED_ATOMIC(atomicAnd, old & value)
EMU_GUARDED_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef EMU_ATOMIC
#undef EMU_GUARDED_ATOMIC
#undef EMU_ATOMICS
#undef EMU_ONE_ATOMIC

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

#define EMU_CAS(name)                                                                                                       \
    template <class T>                                                                                                      \
    EMU_INLINE T name(T* address, typename emu::identity<T>::type expected, typename emu::identity<T>::type value) {        \
        EMU_TOUCH(address, sizeof(T), EMU_TOUCH_ATOMIC_GUARDED);                                                            \
        return emu::read_modify_write(address, [=](T now) -> T { return now == expected ? value : now; });                  \
    }
EMU_CAS(atomicCAS) EMU_CAS(atomicCAS_block) EMU_CAS(atomicCAS_system)
#undef EMU_CAS

// The compiler's own atomics: order and scope are arguments. Here all of them have the strongest order; the sanitizer hears of
// that which was asked for.
enum { __NV_ATOMIC_RELAXED, __NV_ATOMIC_CONSUME, __NV_ATOMIC_ACQUIRE, __NV_ATOMIC_RELEASE, __NV_ATOMIC_ACQ_REL, __NV_ATOMIC_SEQ_CST };
enum { __NV_THREAD_SCOPE_THREAD, __NV_THREAD_SCOPE_BLOCK, __NV_THREAD_SCOPE_CLUSTER, __NV_THREAD_SCOPE_DEVICE, __NV_THREAD_SCOPE_SYSTEM };
namespace emu {
EMU_INLINE void release(int order, int scope) {
    if (order >= __NV_ATOMIC_RELEASE) emu_fence(scope != __NV_THREAD_SCOPE_BLOCK);
}
}
#define EMU_FETCH(name, atomic)                                                                                             \
    template <class T> EMU_INLINE T __nv_atomic_fetch_##name(T* p, typename emu::identity<T>::type by, int order, int scope = 0) { \
        emu::release(order, scope);                                                                                         \
        return atomic(p, by);                                                                                               \
    }                                                                                                                       \
    template <class T> EMU_INLINE void __nv_atomic_##name(T* p, typename emu::identity<T>::type by, int order, int scope = 0) { \
        __nv_atomic_fetch_##name(p, by, order, scope);                                                                      \
    }
EMU_FETCH(add, atomicAdd) EMU_FETCH(sub, atomicSub) EMU_FETCH(min, atomicMin) EMU_FETCH(max, atomicMax)
EMU_FETCH(and, atomicAnd) EMU_FETCH(or, atomicOr) EMU_FETCH(xor, atomicXor)
#undef EMU_FETCH
template <class T> EMU_INLINE T __nv_atomic_load_n(const T* p, int, int = 0) {
    EMU_TOUCH(p, sizeof(T), EMU_TOUCH_ATOMIC);
    return emu::read_modify_write((T*)p, [](T now) -> T { return now; });
}
template <class T> EMU_INLINE void __nv_atomic_load(const T* p, T* result, int order, int scope = 0) {
    *result = __nv_atomic_load_n(p, order, scope);
}
template <class T> EMU_INLINE T __nv_atomic_exchange_n(T* p, typename emu::identity<T>::type value, int order, int scope = 0) {
    emu::release(order, scope);
    return atomicExch(p, value);
}
template <class T> EMU_INLINE void __nv_atomic_exchange(T* p, T* value, T* result, int order, int scope = 0) {
    *result = __nv_atomic_exchange_n(p, *value, order, scope);
}
template <class T> EMU_INLINE void __nv_atomic_store_n(T* p, typename emu::identity<T>::type value, int order, int scope = 0) {
    emu::release(order, scope);
    EMU_TOUCH(p, sizeof(T), EMU_TOUCH_ATOMIC_STORE);
    emu::read_modify_write(p, [value](T) -> T { return value; });
}
template <class T> EMU_INLINE void __nv_atomic_store(T* p, T* value, int order, int scope = 0) {
    __nv_atomic_store_n(p, *value, order, scope);
}
template <class T>
EMU_INLINE bool __nv_atomic_compare_exchange_n(T* p, T* expected, typename emu::identity<T>::type value, bool, int order, int,
                                               int scope = 0) {
    emu::release(order, scope);
    const T before = atomicCAS(p, *expected, value), wanted = *expected;
    *expected = before;
    return before == wanted;
}
template <class T> EMU_INLINE bool __nv_atomic_compare_exchange(T* p, T* expected, T* value, bool weak, int success, int failure, int scope = 0) {
    return __nv_atomic_compare_exchange_n(p, expected, *value, weak, success, failure, scope);
}
EMU_INLINE void __nv_atomic_thread_fence(int, int scope) { emu_fence(scope > __NV_THREAD_SCOPE_BLOCK); }
