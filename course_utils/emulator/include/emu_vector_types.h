// float4, int2, dim3 and their like.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

// A GPU copies a vector in one piece, where a compiler for a CPU may take it apart. In a traced build the copy goes through a
// word of its size, which the empty asm statement keeps whole. Its alignment of 1: a misaligned copy is a finding, no fault.
#if defined(EMU_TRACED)
namespace emu {
template <int bytes> struct whole;
template <> struct whole<2> { typedef unsigned short type __attribute__((may_alias, aligned(1))); };
template <> struct whole<4> { typedef unsigned type __attribute__((may_alias, aligned(1))); };
template <> struct whole<8> { typedef unsigned long long type __attribute__((may_alias, aligned(1))); };
template <> struct whole<16> { typedef float type __attribute__((vector_size(16), may_alias, aligned(1))); };
}
#if defined(__x86_64__)
#define EMU_KEEP(word) if constexpr (sizeof(word) == 16) asm("" : "+x"(word)); else asm("" : "+r"(word))
#else
#define EMU_KEEP(word) if constexpr (sizeof(word) == 16) asm("" : "+w"(word)); else asm("" : "+r"(word))
#endif
#define EMU_COPY_MEMBERS(name)                                                                                              \
    name() = default;                                                                                                       \
    EMU_INLINE name(const name& other) { *this = other; }                                                                   \
    EMU_INLINE name& operator=(const name& other) {                                                                         \
        typedef typename emu::whole<(sizeof(name) < 16 ? sizeof(name) : 16)>::type Word;                                    \
        Word word = *(const Word*)&other;                                                                                   \
        EMU_KEEP(word);                                                                                                     \
        *(Word*)this = word;                                                                                                \
        if constexpr (sizeof(name) == 32) {                            /* two accesses on a GPU, too */                     \
            Word second = ((const Word*)&other)[1];                                                                         \
            EMU_KEEP(second);                                                                                               \
            ((Word*)this)[1] = second;                                                                                      \
        }                                                                                                                   \
        return *this;                                                                                                       \
    }
#else
// A GPU takes no vector from a place that is not a multiple of its size. Here such an address becomes one that cannot exist,
// so that the access itself fails, at its line. Where the compiler knows the place, nothing is left of it.
namespace emu {
#if defined(__aarch64__)   // it ignores the highest byte of an address
enum { no_address = 48 };
#else
enum { no_address = 58 };
#endif
template <class T> EMU_INLINE auto at_its_place(T* vector) {
    return (T*)__builtin_assume_aligned((char*)vector + ((size_t)vector % alignof(T) << no_address), alignof(T));
}
}
#define EMU_COPY_MEMBERS(name)                                                                                              \
    name() = default;                                                                                                       \
    EMU_INLINE name(const name& other) { *this = other; }                                                                   \
    EMU_INLINE name& operator=(const name& other) {                                                                         \
        __builtin_memcpy((void*)emu::at_its_place(this), (const void*)emu::at_its_place(&other), sizeof(name));             \
        return *this;                                                                                                       \
    }
#endif
#define EMU_MEMBERS2(name, scalar)                                                                                          \
    EMU_COPY_MEMBERS(name)                                                                                                  \
    constexpr name(scalar x, scalar y) : x(x), y(y) {}
#define EMU_MEMBERS4(name, scalar)                                                                                          \
    EMU_COPY_MEMBERS(name)                                                                                                  \
    constexpr name(scalar x, scalar y, scalar z, scalar w) : x(x), y(y), z(z), w(w) {}

#define EMU_VECTOR4(name, scalar, align)                                                                                    \
    struct alignas(align) name { scalar x, y, z, w; EMU_MEMBERS4(name, scalar) };                                           \
    EMU_INLINE name make_##name(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }
#define EMU_VECTOR(name, scalar, align2, align4)                                                                            \
    struct name##1 { scalar x; };                                                                                           \
    struct alignas(align2) name##2 { scalar x, y; EMU_MEMBERS2(name##2, scalar) };                                          \
    EMU_INLINE name##1 make_##name##1(scalar x) { return {x}; }                                                             \
    EMU_INLINE name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                                \
    EMU_VECTOR4(name##4, scalar, align4)
#define EMU_LONG_VECTOR(name, scalar) \
    EMU_VECTOR(name, scalar, 16, 16) EMU_VECTOR4(name##4_16a, scalar, 16) EMU_VECTOR4(name##4_32a, scalar, 32)

EMU_VECTOR(char, signed char, 2, 4)
EMU_VECTOR(uchar, unsigned char, 2, 4)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(ushort, unsigned short, 4, 8)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(uint, unsigned, 8, 16)
EMU_LONG_VECTOR(long, long) EMU_LONG_VECTOR(ulong, unsigned long)
EMU_LONG_VECTOR(longlong, long long) EMU_LONG_VECTOR(ulonglong, unsigned long long)
EMU_VECTOR(float, float, 8, 16)
EMU_LONG_VECTOR(double, double)
#undef EMU_VECTOR
#undef EMU_VECTOR4
#undef EMU_LONG_VECTOR

#define EMU_VECTOR3(name, scalar) EMU_NAMED_VECTOR3(name, scalar, struct name##3 { scalar x, y, z; })
#define EMU_NAMED_VECTOR3(name, scalar, ...)                                                                                \
    __VA_ARGS__;                                                                                                            \
    EMU_INLINE name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }
EMU_VECTOR3(char, signed char) EMU_VECTOR3(uchar, unsigned char) EMU_VECTOR3(short, short) EMU_VECTOR3(ushort, unsigned short)
EMU_VECTOR3(int, int) EMU_VECTOR3(long, long) EMU_VECTOR3(ulong, unsigned long)
EMU_VECTOR3(longlong, long long) EMU_VECTOR3(ulonglong, unsigned long long)
EMU_VECTOR3(float, float) EMU_VECTOR3(double, double)
EMU_NAMED_VECTOR3(uint, unsigned, typedef emu_dim3 uint3)    // the type of threadIdx
#undef EMU_VECTOR3
#undef EMU_NAMED_VECTOR3

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
    constexpr dim3(uint3 d) : x(d.x), y(d.y), z(d.z) {}
    operator uint3() const { return {x, y, z}; }
};
