// float4, int2, dim3 and their like.
#pragma once

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;

#define EMU_VECTOR(name, scalar, align2, align4)                                                                            \
    struct name##1 { scalar x; };                                                                                           \
    struct alignas(align2) name##2 { scalar x, y; };                                                                        \
    struct alignas(align4) name##4 { scalar x, y, z, w; };                                                                  \
    EMU_INLINE name##1 make_##name##1(scalar x) { return {x}; }                                                             \
    EMU_INLINE name##2 make_##name##2(scalar x, scalar y) { return {x, y}; }                                                \
    EMU_INLINE name##4 make_##name##4(scalar x, scalar y, scalar z, scalar w) { return {x, y, z, w}; }

EMU_VECTOR(char, signed char, 2, 4)
EMU_VECTOR(uchar, unsigned char, 2, 4)
EMU_VECTOR(short, short, 4, 8)
EMU_VECTOR(ushort, unsigned short, 4, 8)
EMU_VECTOR(int, int, 8, 16)
EMU_VECTOR(uint, unsigned, 8, 16)
EMU_VECTOR(longlong, long long, 16, 16)
EMU_VECTOR(ulonglong, unsigned long long, 16, 16)
EMU_VECTOR(float, float, 8, 16)
EMU_VECTOR(double, double, 16, 16)
#undef EMU_VECTOR

#define EMU_VECTOR3(name, scalar) EMU_NAMED_VECTOR3(name, scalar, struct name##3 { scalar x, y, z; })
#define EMU_NAMED_VECTOR3(name, scalar, ...)                                                                                \
    __VA_ARGS__;                                                                                                            \
    EMU_INLINE name##3 make_##name##3(scalar x, scalar y, scalar z) { return {x, y, z}; }
EMU_VECTOR3(char, signed char) EMU_VECTOR3(uchar, unsigned char) EMU_VECTOR3(short, short) EMU_VECTOR3(ushort, unsigned short)
EMU_VECTOR3(int, int) EMU_VECTOR3(longlong, long long) EMU_VECTOR3(ulonglong, unsigned long long)
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
