// PTX that reads and writes memory, or says how: ld, st, prefetch, createpolicy. Where a line of a cache lies makes no
// difference here, so that hints are checked and otherwise ignored.
#pragma once

namespace emu { namespace ptx {

// An address as PTX writes it, [a + 16]: bytes, also behind a pointer.
template <class T> EMU_INLINE const char* plus(T* pointer, long long bytes) { return (const char*)pointer + bytes; }
EMU_INLINE unsigned plus(unsigned address, long long bytes) { return address + (unsigned)bytes; }
EMU_INLINE unsigned plus(int address, long long bytes) { return (unsigned)address + (unsigned)bytes; }
EMU_INLINE unsigned long long plus(unsigned long long a, long long bytes) { return a + (unsigned long long)bytes; }
EMU_INLINE unsigned long long plus(unsigned long a, long long bytes) { return a + (unsigned long long)bytes; }

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

template <class T> EMU_INLINE void need_alignment(const void* place, unsigned count, emu_site site) {
    if ((size_t)place % (count * sizeof(T))) emu_trap("misaligned address: a vector lies at a multiple of its size", site);
}
// T is volatile where others wait for a write, or may write meanwhile: .volatile, .relaxed, .acquire, .release.
template <class T, class... Registers> EMU_INLINE void load(const void* from, emu_site site, Registers&... to) {
    need_alignment<T>(from, sizeof...(to), site);
    const T* next = (const T*)from;
    (put<typename plain<T>::type>(to, *next++), ...);
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
