// PTX that reads and writes memory, or says how: ld, st, prefetch, createpolicy. Where a line of a cache lies makes no
// difference here, so that hints are checked and otherwise ignored.
#pragma once

template <class T> EMU_INLINE T __ldca(const T* p) { return *p; }
template <class T> EMU_INLINE T __ldlu(const T* p) { return *p; }
template <class T> EMU_INLINE void __stwb(T* p, typename emu::identity<T>::type value) { *p = value; }
template <class T> EMU_INLINE void __stwt(T* p, typename emu::identity<T>::type value) { *p = value; }
// From memory each time: what another thread writes is seen in a loop.
template <class T> EMU_INLINE T __ldcv(const T* p) {
    emu_yield();
    __asm__ volatile("" ::: "memory");
    return *p;
}

namespace emu { namespace ptx {

// An address as PTX writes it, [a + 16]: bytes, also behind a pointer.
template <class T> EMU_INLINE const char* plus(T* pointer, long long bytes) { return (const char*)pointer + bytes; }
EMU_INLINE unsigned plus(unsigned address, long long bytes) { return address + (unsigned)bytes; }
EMU_INLINE unsigned plus(int address, long long bytes) { return (unsigned)address + (unsigned)bytes; }
EMU_INLINE unsigned long long plus(unsigned long long a, long long bytes) { return a + (unsigned long long)bytes; }
EMU_INLINE unsigned long long plus(unsigned long a, long long bytes) { return a + (unsigned long long)bytes; }

template <size_t bytes> using unsigned_of = typename word<bytes>::type;

// Registers have no types but widths: bits go over as they are where the widths agree.
template <class T, class Register> EMU_INLINE void put(Register& to, T value) {
    if constexpr (sizeof(Register) == sizeof(T)) memcpy((void*)&to, &value, sizeof value);
    else to = (Register)value;
}
template <class T, class Register> EMU_INLINE T get(Register from) {
    if constexpr (sizeof(Register) == sizeof(T)) return bit_cast<T>(from);
    else return (T)from;
}

template <class T> struct plain { typedef T type; };
template <class T> struct plain<volatile T> { typedef T type; };

// mov of several registers into one, or out of it, the lowest bits first.
template <class To, class... From> EMU_INLINE void join(To& to, From... from) {
    constexpr size_t bits = 8 * sizeof(To) / sizeof...(from);
    unsigned long long all = 0, at = 0;
    ((all |= (unsigned long long)get<unsigned_of<bits / 8>>(from) << at, at += bits), ...);
    put(to, (unsigned_of<sizeof(To)>)all);
}
template <class From, class... To> EMU_INLINE void split(From from, To&... to) {
    constexpr size_t bits = 8 * sizeof(From) / sizeof...(to);
    unsigned long long all = get<unsigned_of<sizeof(From)>>(from);
    ((put(to, (unsigned_of<bits / 8>)all), all = bits < 64 ? all >> (bits & 63) : 0), ...);
}

template <class T> EMU_INLINE void need_alignment(const void* place, unsigned count, emu_site site) {
    if ((size_t)place % (count * sizeof(T))) emu_trap("misaligned address: a vector lies at a multiple of its size", site);
}
// T is volatile where others wait for a write, or may write meanwhile: .volatile, .relaxed, .acquire, .release.
template <class T, class... Registers> EMU_INLINE void load(const void* from, emu_site site, Registers&... to) {
    need_alignment<T>(from, sizeof...(to), site);
    const T* next = (const T*)from;
    (put<typename plain<T>::type>(to, *next++), ...);
}
// One that sees what other threads write, as a loop that waits for it needs; they may be of the same warp.
template <class T, class... Registers> EMU_INLINE void load_again(const void* from, emu_site site, Registers&... to) {
    emu_yield();
    load<volatile T>(from, site, to...);
}
template <class T, class... Registers> EMU_INLINE void store(void* to, emu_site site, Registers... from) {
    need_alignment<T>(to, sizeof...(from), site);
    T* next = (T*)to;
    ((*next++ = get<typename plain<T>::type>(from)), ...);
}

template <class Address> EMU_INLINE void prefetch(Address from) {
    (void)from;
    EMU_TOUCH((const void*)from, 1, EMU_TOUCH_PREFETCH);
}
template <class Policy, class... Fraction> EMU_INLINE void create_policy(Policy& policy, Fraction...) { policy = 1; }
template <class... T> EMU_INLINE void nothing(T...) {}

} }  // namespace emu::ptx
