// PTX instructions as functions. The translator turns each inline `asm` statement into calls of these.
#pragma once

EMU_INLINE size_t __cvta_generic_to_shared(const void* pointer) { return emu_shared_offset(pointer); }
EMU_INLINE void* __cvta_shared_to_generic(size_t address) { return emu_shared_pointer((unsigned)address); }

#define EMU_CVTA(space) /* but for the shared one, a space has the addresses that pointers have */                         \
    EMU_INLINE size_t __cvta_generic_to_##space(const void* pointer) { return (size_t)pointer; }                            \
    EMU_INLINE void* __cvta_##space##_to_generic(size_t address) { return (void*)address; }
EMU_CVTA(global) EMU_CVTA(local) EMU_CVTA(constant) EMU_CVTA(grid_constant)
#undef EMU_CVTA

EMU_INLINE unsigned __isShared(const void* pointer) { return emu_space_of(pointer) == EMU_SHARED_SPACE; }
EMU_INLINE unsigned __isLocal(const void* pointer) { return emu_space_of(pointer) == EMU_LOCAL_SPACE; }
EMU_INLINE unsigned __isGlobal(const void* pointer) { return emu_space_of(pointer) == EMU_GLOBAL_SPACE; }
// Constants lie among the variables here, and parameters are copied: a pointer does not say that it is one.
EMU_INLINE unsigned __isConstant(const void*) { return 0; }
EMU_INLINE unsigned __isGridConstant(const void*) { return 0; }

namespace emu { namespace ptx {

// mma.sync.aligned.m16n8k16.row.col.f32.{f16,bf16}.{f16,bf16}.f32 and .m16n8k32.row.col.f32.e4m3.e4m3.f32:
// D[16,8] = A[16,K] B[K,8] + C[16,8]. Fragments as in the PTX ISA: lane = 4 * group + quad; A has rows group and group + 8,
// B has column group. A register of A or B holds two or four neighbours of a row of A or a column of B. (No capitals as names:
// a kernel's options may define them.)
template <class Format> struct mma_m16n8_lanes : emu_collective {
    enum { bits = Format::bits, count = 32 / bits, depth = 8 * count };
    typedef float float8 __attribute__((vector_size(32)));   // the columns of a row
    unsigned a[4], b[2];
    float c[4], d[4];

    static EMU_INLINE float element(unsigned packed, int i) { return Format::widen(packed >> bits * i & ((1u << bits) - 1)); }
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        if (participants != 0xffffffffu) {
            const emu_collective* any = lanes[__builtin_ctz(participants)];
            emu_trap("mma.sync needs all 32 lanes of the warp, but some have exited", any->site);
        }
        float left[16][depth];
        float8 right[depth], out[16];
        for (size_t lane = 0; lane < 32; lane++) {
            const mma_m16n8_lanes& mine = *(mma_m16n8_lanes*)lanes[lane];
            const size_t group = lane >> 2, quad = lane & 3, first = count * quad;
            for (size_t i = 0; i < 4; i++)
                for (size_t e = 0; e < count; e++)
                    left[group + 8 * (i & 1)][first + depth / 2 * (i >> 1) + e] = element(mine.a[i], e);
            for (size_t i = 0; i < 2; i++)
                for (size_t e = 0; e < count; e++) right[first + depth / 2 * i + e][group] = element(mine.b[i], e);
            for (size_t i = 0; i < 2; i++) memcpy((float*)&out[group + 8 * i] + 2 * quad, mine.c + 2 * i, 2 * sizeof(float));
        }
        for (size_t row = 0; row < 16; row += 4) {       // four rows beside each other: a sum waits for its last addition
            float8 sum0 = {}, sum1 = {}, sum2 = {}, sum3 = {};
            for (size_t k = 0; k < depth; k++) {
                sum0 += left[row][k] * right[k];
                sum1 += left[row + 1][k] * right[k];
                sum2 += left[row + 2][k] * right[k];
                sum3 += left[row + 3][k] * right[k];
            }
            out[row] += sum0, out[row + 1] += sum1, out[row + 2] += sum2, out[row + 3] += sum3;
        }
        for (size_t lane = 0; lane < 32; lane++) {
            mma_m16n8_lanes& mine = *(mma_m16n8_lanes*)lanes[lane];
            const size_t group = lane >> 2, pair = 2 * (lane & 3);
            for (size_t i = 0; i < 2; i++) memcpy(mine.d + 2 * i, (float*)&out[group + 8 * i] + pair, 2 * sizeof(float));
        }
    }
};
template <class Format> inline void mma_m16n8(float& d0, float& d1, float& d2, float& d3, unsigned a0, unsigned a1, unsigned a2,
                                              unsigned a3, unsigned b0, unsigned b1, float c0, float c1, float c2, float c3,
                                              emu_site site = emu_here()) {
    mma_m16n8_lanes<Format> mine;
    mine.a[0] = a0, mine.a[1] = a1, mine.a[2] = a2, mine.a[3] = a3;
    mine.b[0] = b0, mine.b[1] = b1;
    mine.c[0] = c0, mine.c[1] = c1, mine.c[2] = c2, mine.c[3] = c3;
    collect(mine, "mma.sync", 0xffffffffu, site);
    d0 = mine.d[0], d1 = mine.d[1], d2 = mine.d[2], d3 = mine.d[3];
}

// ldmatrix.sync.aligned.m8n8.x{1,2,4}[.trans].shared.b16: lane 8 m + r brings the address of row r of matrix m.
template <int count, bool transposed> struct ldmatrix_lanes : emu_collective {
    unsigned address, result[count];

    EMU_INLINE void touch() {
        if (lane() < 8 * count) EMU_TOUCH(emu_shared_pointer(address), 16, EMU_TOUCH_READ);
    }
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        if (participants != 0xffffffffu) {
            const emu_collective* any = lanes[__builtin_ctz(participants)];
            emu_trap("ldmatrix needs all 32 lanes of the warp, but some have exited", any->site);
        }
        for (int matrix = 0; matrix < count; matrix++) {
            unsigned short m[8][8];
            for (int row = 0; row < 8; row++)
                memcpy(m[row], emu_shared_pointer(((ldmatrix_lanes*)lanes[8 * matrix + row])->address), 16);
            for (int lane = 0; lane < 32; lane++) {
                const int i = lane >> 2, j = 2 * (lane & 3);
                const unsigned low = transposed ? m[j][i] : m[i][j], high = transposed ? m[j + 1][i] : m[i][j + 1];
                ((ldmatrix_lanes*)lanes[lane])->result[matrix] = low | high << 16;
            }
        }
    }
};
template <bool transposed> EMU_INLINE void ldmatrix_x1(unsigned& r0, unsigned address, emu_site site = emu_here()) {
    ldmatrix_lanes<1, transposed> mine;
    mine.address = address;
    mine.touch();
    collect(mine, "ldmatrix", 0xffffffffu, site);
    r0 = mine.result[0];
}
template <bool transposed> EMU_INLINE void ldmatrix_x2(unsigned& r0, unsigned& r1, unsigned address, emu_site site = emu_here()) {
    ldmatrix_lanes<2, transposed> mine;
    mine.address = address;
    mine.touch();
    collect(mine, "ldmatrix", 0xffffffffu, site);
    r0 = mine.result[0], r1 = mine.result[1];
}
template <bool transposed> EMU_INLINE void ldmatrix_x4(unsigned& r0, unsigned& r1, unsigned& r2, unsigned& r3, unsigned address,
                                                   emu_site site = emu_here()) {
    ldmatrix_lanes<4, transposed> mine;
    mine.address = address;
    mine.touch();
    collect(mine, "ldmatrix", 0xffffffffu, site);
    r0 = mine.result[0], r1 = mine.result[1], r2 = mine.result[2], r3 = mine.result[3];
}

#if defined(EMU_RECORDED)
EMU_INLINE void copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool, emu_site site) {
    emu_record_copy(to, from, bytes, source_bytes, site);
}
EMU_INLINE void copy_wait(unsigned in_flight) { emu_record_copy_wait(in_flight); }
#else
EMU_INLINE void copy_async(void* to, const void* from, unsigned bytes, unsigned source_bytes, bool around_l1, emu_site site) {
    emu_copy_async(to, from, bytes, source_bytes, around_l1, site);
}
EMU_INLINE void copy_wait(unsigned in_flight) { emu_copy_wait(in_flight); }
#endif

// cp.async.{ca,cg}.shared.global [to], [from], bytes{, source_bytes}: the bytes past source_bytes become zero.
template <bool around_l1, class Pointer>
EMU_INLINE void cp_async(unsigned to, Pointer from, unsigned bytes, unsigned source_bytes, emu_site site = emu_here()) {
    copy_async(emu_shared_pointer(to), (const void*)from, bytes, source_bytes, around_l1, site);
}
template <bool around_l1, class Pointer>
EMU_INLINE void cp_async(unsigned to, Pointer from, unsigned bytes, emu_site site = emu_here()) {
    copy_async(emu_shared_pointer(to), (const void*)from, bytes, bytes, around_l1, site);
}
EMU_INLINE void cp_async_commit_group() { emu_copy_commit(); }
EMU_INLINE void cp_async_wait_group(unsigned in_flight) { copy_wait(in_flight); }
EMU_INLINE void cp_async_wait_all() { emu_copy_commit(); copy_wait(0); }

// movmatrix.sync.aligned.m8n8.trans.b16: a matrix that lies in a register of each lane, transposed.
struct movmatrix_lanes : emu_collective {
    unsigned given, result;
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        if (participants != 0xffffffffu)
            emu_trap("movmatrix needs all 32 lanes of the warp, but some have exited", lanes[__builtin_ctz(participants)]->site);
        unsigned short m[8][8];
        for (int lane = 0; lane < 32; lane++)
            for (int half = 0; half < 2; half++)
                m[lane >> 2][2 * (lane & 3) + half] = (unsigned short)(((movmatrix_lanes*)lanes[lane])->given >> 16 * half);
        for (int lane = 0; lane < 32; lane++) {
            const int i = lane >> 2, j = 2 * (lane & 3);
            ((movmatrix_lanes*)lanes[lane])->result = m[j][i] | (unsigned)m[j + 1][i] << 16;
        }
    }
};
EMU_INLINE void movmatrix(unsigned& result, unsigned given, emu_site site = emu_here()) {
    movmatrix_lanes mine;
    mine.given = given;
    collect(mine, "movmatrix", 0xffffffffu, site);
    result = mine.result;
}

// Where `_` stands for a result that nobody wants.
EMU_INLINE unsigned long long nowhere() { return 0; }

// cvt.rn.{f16x2,bf16x2}.f32 d, a, b: a goes to the upper half.
template <class Format, class Pair> EMU_INLINE void cvt_pair(Pair& result, float upper, float lower) {
    result = (Pair)((unsigned)Format::round(upper) << Format::bits | Format::round(lower));
}

} }  // namespace emu::ptx
