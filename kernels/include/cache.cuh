// cache.cuh — what a cache of keys and values holds, where its pages have it, and how tokens get there.
//
// A number has 16 bits, or is E4M3 and a byte: what it stands for is then the byte's number times the
// scale of its head.
// Include after CACHE_BITS is defined as 8, for E4M3.
#pragma once
#include "e4m3.cuh"
#include "tensor_core.cuh"   // for scalar_t
#ifndef CACHE_BITS
#define CACHE_BITS 16
#endif

#if CACHE_BITS == 8
typedef E4M3 cache_t;
#else
typedef scalar_t cache_t;
#endif

// A sequence's row of the block table: key j is row row_of(j) of the pages, all of them one behind another.
struct PageTable {
    const int* table;
    int page_size;

    __device__ int row_of(int j) const { return table[j / page_size] * page_size + j % page_size; }
};

// Rounded to the nearest, of two that are as near to the even one; beyond ±448 to that. NaN stays NaN.
__device__ inline E4M3 to_e4m3(float x) {
    const unsigned sign = __float_as_uint(x) >> 24 & 0x80;
    const float size = fminf(fabsf(x), 448.0f);
    unsigned bits = __float_as_uint(size);
    if (x != x)
        bits = 0x7f;
    else if (size < 0.015625f)   // 2^-6: below, all steps are 2^-9, as they are in fp32 from 2^14 on
        bits = __float_as_uint(size + 16384.0f) & 15;
    else   // 3 bits of the fraction stay, and an exponent of 127 becomes 7
        bits = (bits + 0x7ffff + (bits >> 20 & 1) >> 20) - (127 - 7 << 3);
    return {(unsigned char)(sign | bits)};
}

// Eight neighbours of a new token's key or value go into the cache.
__device__ inline void append_numbers(cache_t* to, const scalar_t* from, float scale) {
    const uint4 given = *reinterpret_cast<const uint4*>(from);
#if CACHE_BITS == 8
    uint2 made;
    for (int n = 0; n < 8; n++)
        reinterpret_cast<E4M3*>(&made)[n] =
            to_e4m3((float)reinterpret_cast<const scalar_t*>(&given)[n] / scale);
    *reinterpret_cast<uint2*>(to) = made;
#else
    *reinterpret_cast<uint4*>(to) = given;
#endif
}

// The last `count` tokens of each sequence, [B, count, heads, columns], and the pages that they go to,
// [pages, page_size, heads, columns], with their scales, [B, heads], in E4M3.
struct NewTokens {
    const scalar_t *K_new, *V_new;
    cache_t *K, *V;
    const float *k_scale, *v_scale;
    int count, heads, columns;

    // Of new token i of a sequence with `keys` tokens: eight columns of one head, from `column` on. A
    // token before the sequence's start is none: then there are more new ones than tokens.
    __device__ void append(int sequence, int keys, const PageTable& table, int i, int head,
                           int column) const {
        const int j = keys - count + i, scale = sequence * heads + head;
        if (j < 0) return;
        const long long from = (((long long)sequence * count + i) * heads + head) * columns + column;
        const long long to = ((long long)table.row_of(j) * heads + head) * columns + column;
        append_numbers(K + to, K_new + from, CACHE_BITS == 8 ? k_scale[scale] : 1);
        append_numbers(V + to, V_new + from, CACHE_BITS == 8 ? v_scale[scale] : 1);
    }
};
