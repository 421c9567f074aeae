// WMMA: products of tiles that are spread over the registers of a warp. CUDA leaves open which lane has which number; here the
// layout is that of mma.sync's operands, the instruction that the compiler makes of WMMA.
#pragma once
#include "cuda_fp16.h"
#include "cuda_bf16.h"

namespace nvcuda { namespace wmma {

struct row_major;
struct col_major;
struct matrix_a;
struct matrix_b;
struct accumulator;
namespace precision { struct tf32; }
namespace experimental { namespace precision { struct u4; struct s4; struct b1; } }
enum layout_t { mem_row_major, mem_col_major };

// 10 bits behind the point, to the nearest and of two the one further from zero.
EMU_INLINE float __float_to_tf32(float x) {
    const unsigned bits = emu::bit_cast<unsigned>(x);
    if (isnan(x)) return emu::bit_cast<float>(0x7fffffffu);
    return isinf(x) ? x : emu::bit_cast<float>((bits + 0x1000u) & ~0x1fffu);
}

template <class T> struct helper_traits {
    typedef T element_type, storage_element_type, fill_argument_type;
};
template <> struct helper_traits<precision::tf32> {
    typedef precision::tf32 element_type;
    typedef float storage_element_type, fill_argument_type;
};

} }  // namespace nvcuda::wmma

namespace emu { namespace wmma {

struct place { int row, column; };

// A tile of A, [outer][depth], or of B, turned: element `index` of a lane. A register holds neighbours along `depth`; behind
// each other are, of A, upper and lower 8 rows, then the parts of the depth; of B, the parts of the depth, then 8 columns.
template <int outer, int depth, int per_register, bool rows_first> EMU_INLINE place of_operand(int lane, int index) {
    constexpr int parts = depth / (4 * per_register), eights = rows_first ? 2 : 1;
    const int number = index / per_register % (outer / 8 * parts), within = number % (eights * parts);
    return {lane / 4 + 8 * (within % eights + eights * (number / (eights * parts))),
            per_register * (lane % 4 + 4 * (within / eights)) + index % per_register};
}

// Of a fragment: its numbers by lane, how many there are, and where in the matrix each belongs.
template <class Use, int m, int n, int k, class T> struct tile;
template <int m, int n, int k, class T> struct tile<nvcuda::wmma::matrix_a, m, n, k, T> {
    static constexpr int per_register = sizeof(T) < 4 ? 4 / sizeof(T) : 1, different = m * k / 32;
    static EMU_INLINE place at(int lane, int index) { return of_operand<m, k, per_register, (m > 8)>(lane, index); }
};
template <int m, int n, int k, class T> struct tile<nvcuda::wmma::matrix_b, m, n, k, T> {
    static constexpr int per_register = sizeof(T) < 4 ? 4 / sizeof(T) : 1, different = k * n / 32;
    static EMU_INLINE place at(int lane, int index) {      // a product of 8 rows is one of the transposed matrices
        const place turned = of_operand<n, k, per_register, (m == 8 && n > 8)>(lane, index);
        return {turned.column, turned.row};
    }
};
template <int m, int n, int k, class T> struct tile<nvcuda::wmma::accumulator, m, n, k, T> {
    static constexpr int per_register = 1, different = m * n / 32;
    static EMU_INLINE place at(int lane, int index) {
        const int long_side = lane / 4 + (m == 8 && n == 8 ? 0 : 8 * (index / 2 % 2)), short_side = 2 * (lane % 4) + index % 2;
        if (m == 8 && n > 8) return {short_side, long_side + 16 * (index / 4)};
        return {long_side + (m == 32 ? 16 * (index / 4) : 0), short_side + (m == 16 ? 8 * (index / 4) : 0)};
    }
};

struct meeting : emu_collective {
    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) { need_all(lanes, participants); }
    static void need_all(emu_collective** lanes, unsigned participants) {
        if (participants == 0xffffffffu) return;
        emu_trap("wmma needs all 32 lanes of the warp, but some have exited", lanes[__builtin_ctz(participants)]->site);
    }
};
EMU_INLINE void meet(const char* name, emu_site site) {
    meeting mine;
    collect(mine, name, 0xffffffffu, site);
}

template <class T> EMU_INLINE T operand(T x) { return x; }
template <class F> EMU_INLINE float operand(scalar16<F> x) { return x; }
EMU_INLINE float operand(float x) { return bit_cast<float>(bit_cast<unsigned>(x) & ~0x1fffu); }      // as tf32
EMU_INLINE int operand(signed char x) { return x; }
EMU_INLINE int operand(unsigned char x) { return x; }

template <class A, class B, class C, class D> struct product : emu_collective {
    static constexpr int m = A::m, n = A::n, k = A::k;
    typedef decltype(operand(typename A::storage_element_type())) Number;
    const A* a;
    const B* b;
    const C* c;
    D* d;
    bool saturates;

    static EMU_UNSEEN void combine_lanes(emu_collective** lanes, unsigned participants) {
        meeting::need_all(lanes, participants);
        static_assert(A::m == B::m && B::k == C::k && C::n == D::n, "the fragments of a product have one shape");
        Number left[m][k], right[k][n], sums[m][n];
        for (int lane = 0; lane < 32; lane++) {
            const product& mine = *(product*)lanes[lane];
            for (int i = 0; i < A::different; i++) left[A::at(lane, i).row][A::at(lane, i).column] = operand(mine.a->x[i]);
            for (int i = 0; i < B::different; i++) right[B::at(lane, i).row][B::at(lane, i).column] = operand(mine.b->x[i]);
            for (int i = 0; i < C::different; i++) sums[C::at(lane, i).row][C::at(lane, i).column] = mine.c->x[i];
        }
        for (int row = 0; row < m; row++) {
            Number terms[n] = {};
            for (int i = 0; i < k; i++)
                for (int column = 0; column < n; column++) terms[column] += left[row][i] * right[i][column];
            for (int column = 0; column < n; column++) {
                auto& sum = sums[row][column];
                if constexpr (__is_same(Number, int)) {
                    const long long exact = (long long)sum + terms[column];
                    const bool fits = exact == (int)exact || !((product*)lanes[0])->saturates;
                    sum = fits ? (int)exact : exact < 0 ? -2147483647 - 1 : 2147483647;
                } else {
                    sum += terms[column];
                }
            }
        }
        for (int lane = 0; lane < 32; lane++)
            for (int i = 0; i < D::different; i++)
                ((product*)lanes[lane])->d->x[i] = sums[D::at(lane, i).row][D::at(lane, i).column];
    }
};

} }  // namespace emu::wmma

namespace nvcuda { namespace wmma {

template <class T> constexpr bool is_known = true;
template <> constexpr bool is_known<experimental::precision::u4> = false;
template <> constexpr bool is_known<experimental::precision::s4> = false;
template <> constexpr bool is_known<experimental::precision::b1> = false;

template <class Use, int m_, int n_, int k_, class T, class Layout = void>
class alignas(8) fragment : public emu::wmma::tile<Use, m_, n_, k_, typename helper_traits<T>::storage_element_type> {
    static constexpr bool has_copies = __is_same(T, __half) && !__is_same(Use, accumulator);     // always 16

public:
    static_assert(is_known<T>, "the emulator does not have fragments of 1 and 4 bits, a GPU does");
    typedef T element_type;
    typedef Layout layout;
    typedef typename helper_traits<T>::storage_element_type storage_element_type;
    static constexpr int m = m_, n = n_, k = k_;
    enum { num_elements = has_copies ? 16 : fragment::different, num_storage_elements = num_elements };
    storage_element_type x[num_elements];
};

template <class Use, int m, int n, int k, class T, class Layout>
EMU_INLINE void fill_fragment(fragment<Use, m, n, k, T, Layout>& f, const typename helper_traits<T>::fill_argument_type& value) {
    for (int i = 0; i < f.num_elements; i++) f.x[i] = value;
}

} }  // namespace nvcuda::wmma

namespace emu { namespace wmma {

// A register whose numbers lie beside each other in memory is one access, as wide as they are together.
template <class Fragment, class T> EMU_INLINE void load(Fragment& f, const T* from, unsigned stride, bool by_rows) {
    constexpr int count = Fragment::per_register;
    const int lane = (int)emu::lane();
    for (int i = 0; i < f.num_elements; i += count) {
        const place first = Fragment::at(lane, i), next = Fragment::at(lane, i + (count > 1));
        const T* here = from + (by_rows ? first.row * stride + first.column : first.column * stride + first.row);
        if (count > 1 && (by_rows ? next.column > first.column : next.row > first.row)) {
            typedef unsigned word __attribute__((may_alias));
            const word all = *(const word*)here;
            __builtin_memcpy((void*)(f.x + i), &all, sizeof all);
        } else {
            for (int j = 0; j < count; j++) f.x[i + j] = here[j * stride];
        }
    }
}

} }  // namespace emu::wmma

namespace nvcuda { namespace wmma {

template <class Use, int m, int n, int k, class T, class Layout>
EMU_INLINE void load_matrix_sync(fragment<Use, m, n, k, T, Layout>& f,
                                 const typename helper_traits<T>::storage_element_type* from, unsigned stride,
                                 emu_site site = emu_here()) {
    emu::wmma::meet("wmma::load_matrix_sync()", site);
    emu::wmma::load(f, from, stride, __is_same(Layout, row_major));
}
template <int m, int n, int k, class T>
EMU_INLINE void load_matrix_sync(fragment<accumulator, m, n, k, T>& f, const typename emu::identity<T>::type* from,
                                 unsigned stride, layout_t layout, emu_site site = emu_here()) {
    emu::wmma::meet("wmma::load_matrix_sync()", site);
    emu::wmma::load(f, from, stride, layout == mem_row_major);
}
template <int m, int n, int k, class T>
EMU_INLINE void store_matrix_sync(typename emu::identity<T>::type* to, const fragment<accumulator, m, n, k, T>& f,
                                  unsigned stride, layout_t layout, emu_site site = emu_here()) {
    emu::wmma::meet("wmma::store_matrix_sync()", site);
    const int lane = (int)emu::lane();
    for (int i = 0; i < f.num_elements; i++) {
        const emu::wmma::place at = f.at(lane, i);
        to[layout == mem_row_major ? at.row * stride + at.column : at.column * stride + at.row] = f.x[i];
    }
}
template <int m, int n, int k, class A, class OfA, class B, class OfB, class C, class D>
EMU_INLINE void mma_sync(fragment<accumulator, m, n, k, D>& d, const fragment<matrix_a, m, n, k, A, OfA>& a,
                         const fragment<matrix_b, m, n, k, B, OfB>& b, const fragment<accumulator, m, n, k, C>& c,
                         bool saturates = false, emu_site site = emu_here()) {
    emu::wmma::product<fragment<matrix_a, m, n, k, A, OfA>, fragment<matrix_b, m, n, k, B, OfB>,
                       fragment<accumulator, m, n, k, C>, fragment<accumulator, m, n, k, D>> mine;
    mine.a = &a, mine.b = &b, mine.c = &c, mine.d = &d, mine.saturates = saturates;
    emu::collect(mine, "wmma::mma_sync()", 0xffffffffu, site);
}

} }  // namespace nvcuda::wmma
