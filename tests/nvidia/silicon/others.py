"""What else an sm_90a has: barriers and what they return, matrices of a warp, hints, integers, clusters of blocks.

Each body is a kernel of its own, whose threads write what they saw to `out`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from course_utils.cuda import tensor_map
from tests.nvidia.silicon.case import HEAD, MBARRIER, Arguments, Case, numbers
from tests.nvidia.silicon.copies import MAP

OUT = 2048  # numbers of 32 bits

MORE = """
__device__ inline unsigned long long arrive_many(void* bar, int count) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state) : "r"(at(bar)), "r"(count) : "memory");
    return state;
}
__device__ inline unsigned long long arrive_not_last(void* bar, int count) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state) : "r"(at(bar)), "r"(count) : "memory");
    return state;
}
__device__ inline unsigned long long arrive_for(void* bar, int bytes) {
    unsigned long long state;
    asm volatile("mbarrier.arrive.expect_tx.release.cta.shared::cta.b64 %0, [%1], %2;"
                 : "=l"(state) : "r"(at(bar)), "r"(bytes) : "memory");
    return state;
}
__device__ inline void expect(void* bar, int bytes) {
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" :: "r"(at(bar)), "r"(bytes) : "memory");
}
__device__ inline void invalidate(void* bar) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(bar)) : "memory");
}
"""
BARRIERS = {
    "states": """
    if (i == 0) {
        init(&bar[0], 2);
        const unsigned long long first = arrive(&bar[0]);
        out[0] = over(&bar[0], first);
        const unsigned long long second = arrive(&bar[0]);
        out[1] = over(&bar[0], first), out[2] = over(&bar[0], second);
        const unsigned long long third = arrive(&bar[0]);
        out[3] = over(&bar[0], third), out[4] = over(&bar[0], first);
    }""",
    "parities": """
    if (i == 0) {
        init(&bar[0], 1);
        for (int n = 0; n < 5; n++) {
            out[2 * n] = over_parity(&bar[0], 0), out[2 * n + 1] = over_parity(&bar[0], 1);
            arrive(&bar[0]);
        }
    }""",
    "many arrivals at once": """
    if (i == 0) {
        init(&bar[0], 7);
        arrive_many(&bar[0], 3);
        out[0] = over_parity(&bar[0], 0);
        const unsigned long long last = arrive_many(&bar[0], 4);
        out[1] = over_parity(&bar[0], 0), out[2] = over_parity(&bar[0], 1), out[3] = over(&bar[0], last);
        arrive_many(&bar[0], 7);
        out[4] = over_parity(&bar[0], 0), out[5] = over_parity(&bar[0], 1);
    }""",
    "noComplete": """
    if (i == 0) {
        init(&bar[0], 4);
        const unsigned long long first = arrive_not_last(&bar[0], 2), second = arrive_not_last(&bar[0], 1);
        out[0] = over(&bar[0], first), out[1] = over(&bar[0], second);
        const unsigned long long last = arrive(&bar[0]);
        out[2] = over(&bar[0], first), out[3] = over(&bar[0], last), out[4] = over_parity(&bar[0], 1);
    }""",
    "bytes": """
    if (i == 0) {
        init(&bar[0], 1);
        expect(&bar[0], 64);
        out[0] = over_parity(&bar[0], 0);
        const unsigned long long state = arrive(&bar[0]);
        out[1] = over(&bar[0], state);
        complete(&bar[0], 48);
        out[2] = over(&bar[0], state);
        complete(&bar[0], 16);
        out[3] = over(&bar[0], state), out[4] = over_parity(&bar[0], 1);
    }""",
    "bytes before they are expected": """
    if (i == 0) {
        init(&bar[0], 2);
        complete(&bar[0], 32);
        out[0] = over_parity(&bar[0], 0);
        const unsigned long long state = arrive_for(&bar[0], 48);
        out[1] = over(&bar[0], state);
        arrive(&bar[0]);
        out[2] = over(&bar[0], state);
        complete(&bar[0], 16);
        out[3] = over(&bar[0], state);
    }""",
    "the most bytes": """
    if (i == 0) {
        init(&bar[0], 1);
        const unsigned long long state = arrive_for(&bar[0], (1 << 20) - 1);
        out[0] = over(&bar[0], state);
        complete(&bar[0], (1 << 20) - 16);
        out[1] = over(&bar[0], state);
        complete(&bar[0], 15);
        out[2] = over(&bar[0], state);
    }""",
    "the most arrivals": """
    if (i == 0) {
        init(&bar[0], (1 << 20) - 1);
        const unsigned long long state = arrive_many(&bar[0], (1 << 20) - 2);
        out[0] = over(&bar[0], state);
        arrive(&bar[0]);
        out[1] = over(&bar[0], state);
    }""",
    "used again": """
    if (i == 0) {
        init(&bar[0], 1);
        arrive(&bar[0]);
        out[0] = over_parity(&bar[0], 0);
        invalidate(&bar[0]);
        bar[0] = 77;
        out[1] = (int)bar[0];
        init(&bar[0], 3);
        out[2] = over_parity(&bar[0], 0), out[3] = over_parity(&bar[0], 1);
        invalidate(&bar[0]);
    }""",
    "all threads": """
    if (i == 0) init(&bar[0], 64), init(&bar[1], 1);
    __syncthreads();
    const unsigned long long state = arrive(&bar[0]);
    wait(&bar[0], 0);
    out[i] = over(&bar[0], state);
    if (i == 63) arrive(&bar[1]);
    wait(&bar[1], 0);
    out[64 + i] = over_parity(&bar[1], 0) + 2 * over_parity(&bar[1], 1);""",
    "a ring": """
    __shared__ int box[2][32];
    __shared__ unsigned long long empty[2];
    if (i < 2) init(&bar[i], 32), init(&empty[i], 32);
    __syncthreads();
    int sum = 0;
    for (int n = 0; n < 7; n++) {
        if (i < 32) {
            if (n >= 2) wait(&empty[n % 2], (n / 2 - 1) % 2);
            box[n % 2][i] = n * i;
            arrive(&bar[n % 2]);
        } else {
            wait(&bar[n % 2], n / 2 % 2);
            sum += box[n % 2][63 - i];
            arrive(&empty[n % 2]);
        }
    }
    out[i] = sum;""",
    "named barriers": """
    __shared__ int box[32];
    for (int n = 0; n < 4; n++) {
        if (i < 32) {
            if (n > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
            box[i] = 100 * n + i;
            asm volatile("barrier.cta.arrive %0, %1;" :: "r"(1), "r"(64) : "memory");
        } else {
            asm volatile("barrier.cta.sync 1, 64;" ::: "memory");
            out[32 * n + i - 32] = box[i - 32 ^ 1];
            if (n < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
        }
    }""",
    "votes of named barriers": """
    int any, all, how_many;
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.or.pred q, 3, 64, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(any) : "r"((int)(i == 40)) : "memory");
    asm volatile("{ .reg .pred p, q; setp.ne.b32 p, %1, 0; bar.red.and.pred q, 4, 64, p; selp.b32 %0, 1, 0, q; }"
                 : "=r"(all) : "r"((int)(i != 40)) : "memory");
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %1, 0; bar.red.popc.u32 %0, 5, 64, p; }"
                 : "=r"(how_many) : "r"((int)(i % 3 == 0)) : "memory");
    out[i] = any, out[64 + i] = all, out[128 + i] = how_many;""",
    "registers change hands": """
    if (i < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
        out[i] = 3 * i;
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 240;");
        int sum = 0;
        for (int n = 0; n < 100; n++) sum += n * i;
        out[i] = sum;
    }""",
    "matrices loaded": """
    __shared__ __align__(128) unsigned short rows[32][8];
    for (int n = i; n < 256; n += 32) rows[n / 8][n % 8] = 1000 + n;
    __syncwarp();
    unsigned r[4];
    const unsigned row = at(rows[(i * 5 + 3) % 32]);
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row));
    out[i] = r[0];
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(row));
    for (int n = 0; n < 2; n++) out[32 + 32 * n + i] = r[n];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared::cta.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
    for (int n = 0; n < 4; n++) out[96 + 32 * n + i] = r[n];
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
    for (int n = 0; n < 4; n++) out[224 + 32 * n + i] = r[n];""",
    # ---- below: forms that came to the emulator later
    "pending counts": """
    if (i == 0) {
        init(&bar[0], 5);
        unsigned long long state = arrive(&bar[0]);
        for (int n = 0; n < 4; n++) {
            unsigned pending;
            asm volatile("mbarrier.pending_count.b64 %0, %1;" : "=r"(pending) : "l"(state));
            out[n] = pending;
            state = arrive(&bar[0]);
        }
    }""",
    "arrive_drop": """
    if (i == 0) {
        init(&bar[0], 3);
        asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" :: "r"(at(&bar[0])) : "memory");
        out[0] = over_parity(&bar[0], 0);
        arrive_many(&bar[0], 2);
        out[1] = over_parity(&bar[0], 0), out[2] = over_parity(&bar[0], 1);
        arrive_many(&bar[0], 2);
        out[3] = over_parity(&bar[0], 0), out[4] = over_parity(&bar[0], 1);
    }""",
    "try_wait gives up": """
    if (i == 0) {
        init(&bar[0], 1);
        int result;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0, 20; selp.b32 %0, 1, 0, p; }"
                     : "=r"(result) : "r"(at(&bar[0])) : "memory");
        out[0] = result;
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 1, 20; selp.b32 %0, 1, 0, p; }"
                     : "=r"(result) : "r"(at(&bar[0])) : "memory");
        out[1] = result;
    }""",
    "cp.async arrives": """
    __shared__ __align__(16) int box[64];
    if (i == 0) init(&bar[0], 64), init(&bar[1], 64);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(box + i)), "l"(in + i) : "memory");
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" :: "r"(at(&bar[0])) : "memory");
    wait(&bar[0], 0);
    out[i] = box[63 - i];
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(box + i)), "l"(in + 64 + i) : "memory");
    asm volatile("cp.async.mbarrier.arrive.shared::cta.b64 [%0];" :: "r"(at(&bar[1])) : "memory");
    arrive(&bar[1]);
    wait(&bar[1], 0);
    out[64 + i] = box[63 - i];""",
    "elected": """
    unsigned leader = 77, mine = 0;
    asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.b32 %1, 1, 0, p; }"
                 : "=r"(leader), "=r"(mine) : "r"(0xffffffff));
    out[i] = leader, out[64 + i] = mine;
    if (i % 32 >= 5) {
        asm volatile("{ .reg .pred p; elect.sync %0|p, %2; selp.b32 %1, 1, 0, p; }"
                     : "=r"(leader), "=r"(mine) : "r"(0xffffffe0));
        out[128 + i] = leader, out[192 + i] = mine;
    }
    asm volatile("{ .reg .pred p; elect.sync _|p, 0xffffffff; selp.b32 %0, 1, 0, p; }" : "=r"(mine));
    out[256 + i] = mine;""",
    "matrices stored": """
    __shared__ __align__(128) unsigned rows[32][4];
    const unsigned row = at(rows[(i * 5 + 3) % 32]);
    unsigned r[4];
    for (int n = 0; n < 4; n++) r[n] = 1000 * n + 2 * i + (1000 * n + 2 * i + 1 << 16);
    for (int form = 0; form < 6; form++) {
        for (int n = 0; n < 4; n++) rows[i][n] = 0;
        __syncwarp();
        if (form == 0) asm volatile("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};" :: "r"(row), "r"(r[0]));
        if (form == 1)
            asm volatile("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};" :: "r"(row), "r"(r[0]));
        if (form == 2)
            asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" :: "r"(row), "r"(r[0]), "r"(r[1]));
        if (form == 3)
            asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
                         :: "r"(row), "r"(r[0]), "r"(r[1]));
        if (form == 4)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         :: "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
        if (form == 5)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared::cta.b16 [%0], {%1, %2, %3, %4};"
                         :: "r"(row), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]));
        __syncwarp();
        for (int n = 0; n < 4; n++) out[128 * form + 32 * n + i] = rows[i][n];
        __syncwarp();
    }""",
    "a matrix moved": """
    unsigned r;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r) : "r"(2 * i + (2 * i + 1 << 16)));
    out[i] = r;""",
    "hints": """
    unsigned long long policy;
    __shared__ __align__(128) int box[64];
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("prefetch.global.L2 [%0];" :: "l"(in));
    asm volatile("prefetchu.L1 [%0];" :: "l"(in));
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], 256;" :: "l"(in) : "memory");
        arrive_expecting(&bar[0], 256);
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                     "[%0], [%1], 256, [%2], %3;"
                     :: "r"(at(box)), "l"(in), "r"(at(&bar[0])), "l"(policy) : "memory");
    }
    __syncthreads();
    wait(&bar[0], 0);
    int value;
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.b32 %0, [%1], %2;"
                 : "=r"(value) : "l"(in + 64 + i), "l"(policy));
    out[i] = box[i], out[64 + i] = value;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0;" : "=l"(policy));
    asm volatile("createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %0, 0.5;" : "=l"(policy));
    if (i == 0) {
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%0], [%1], 256, %2;"
                     :: "l"(out + 128), "r"(at(box)), "l"(policy) : "memory");
        asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");
    }""",
    "products of bytes": """
    const int a = in[i], b = in[64 + i], c = in[128 + i];
    out[i] = __dp4a(a, b, c), out[64 + i] = __dp4a((unsigned)a, (unsigned)b, (unsigned)c);
    out[128 + i] = __dp2a_lo(a, b, c), out[192 + i] = __dp2a_hi(a, b, c);
    out[256 + i] = __dp2a_lo((unsigned)a, (unsigned)b, (unsigned)c);
    out[320 + i] = __dp2a_hi((unsigned)a, (unsigned)b, (unsigned)c);
    out[384 + i] = __dp4a(make_char4(i, -i, 2 * i, 7), make_char4(a, b, c, i), c);""",
    "integers": """
    const int a = in[i], b = in[64 + i], c = in[128 + i];
    const long long p = (long long)a << 32 ^ b, q = (long long)c << 32 ^ a;
    out[i] = __mulhi(a, b), out[64 + i] = __umulhi(a, b), out[128 + i] = (int)(__mul64hi(p, q) >> 16);
    out[192 + i] = (int)(__umul64hi(p, q) >> 16), out[256 + i] = __mul24(a, b), out[320 + i] = __umul24(a, b);
    out[384 + i] = __sad(a, b, c), out[448 + i] = __usad(a, b, c), out[512 + i] = __hadd(a, b);
    out[576 + i] = __uhadd(a, b), out[640 + i] = __rhadd(a, b), out[704 + i] = __urhadd(a, b);
    out[768 + i] = __byte_perm(a, b, c), out[832 + i] = __funnelshift_l(a, b, c);
    out[896 + i] = __funnelshift_r(a, b, c), out[960 + i] = __funnelshift_lc(a, b, c);
    out[1024 + i] = __funnelshift_rc(a, b, c), out[1088 + i] = __brev(a) ^ (int)(__brevll(p) >> 9);
    out[1152 + i] = __clz(a >> i % 32) + 100 * __clzll(p >> i);
    out[1216 + i] = __ffs(a << i % 31) + 100 * __ffsll(p << i);
    out[1280 + i] = __popc(a) + 100 * __popcll(p);""",
    "pairs and quads of small integers": """
    const unsigned a = in[i], b = in[64 + i], c = in[128 + i];
    const unsigned all[] = {
        __vadd2(a, b), __vadd4(a, b), __vsub2(a, b), __vsub4(a, b), __vaddss2(a, b), __vaddss4(a, b), __vaddus4(a, b),
        __vsubss4(a, b), __vsubus2(a, b), __vabs2(a), __vabs4(a), __vabsss4(a), __vneg2(a), __vnegss4(a),
        __vabsdiffs4(a, b), __vabsdiffu4(a, b), __vsads4(a, b), __vsadu2(a, b), __vavgs4(a, b), __vavgu2(a, b),
        __vhaddu4(a, b), __vmaxs2(a, b), __vmaxu4(a, b), __vmins4(a, b), __vminu2(a, b), __vcmpeq4(a, a ^ 0xff00),
        __vcmpgts2(a, b), __vcmpgtu4(a, b), __vsetles4(a, b), __vseteq2(a, a ^ 1)};
    for (int n = 0; n < 30; n++) out[64 * n + i] = all[n];
    out[1920 + i] = c;""",
}
CLUSTERS = {
    "who is where": """
    unsigned rank, blocks, x, nx, is, mapped;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
    asm volatile("mov.u32 %0, %%clusterid.x;" : "=r"(x));
    asm volatile("mov.u32 %0, %%nclusterid.x;" : "=r"(nx));
    asm volatile("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(is));
    asm volatile("mov.u32 %0, %%cluster_ctaid.x;" : "=r"(mapped));
    if (i == 0) {
        const unsigned all[] = {rank, blocks, x, nx, is, mapped};
        for (int n = 0; n < 6; n++) out[8 * blockIdx.x + n] = all[n];
    }""",
    "shared memory of the others": """
    __shared__ int box[64];
    box[i] = 100 * me + i;
    together();
    const unsigned there = of_block(box + i, (me + 1) % size);
    int value;
    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(there) : "memory");
    out[64 * blockIdx.x + i] = value;
    together();
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(1000 * (int)me + i) : "memory");
    together();
    out[64 * (blockIdx.x + gridDim.x) + i] = box[i];""",
    "arrivals from afar": """
    if (i == 0) {
        init(&bar[0], size);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __shared__ int box[8];
    together();
    if (i < size) {
        const unsigned there = of_block(box + me, i), bar_there = of_block(&bar[0], i);
        asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(10 * (int)me + i) : "memory");
        asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" :: "r"(bar_there) : "memory");
    }
    asm volatile("{ .reg .pred open; again: "
                 "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 open, [%0], 0; @!open bra again; }"
                 :: "r"(at(&bar[0])) : "memory");
    if (i < size) out[8 * blockIdx.x + i] = box[i];
    together();""",
    "bytes to another block": """
    __shared__ __align__(128) int from[64], to[64];
    from[i] = 100 * me + i;
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        arrive_expecting(&bar[0], 256);
    }
    together();
    if (i == 0) {
        const unsigned next = (me + 1) % size;
        asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"
                     :: "r"(of_block(to, next)), "r"(at(from)), "r"(of_block(&bar[0], next)) : "memory");
    }
    wait(&bar[0], 0);
    out[64 * blockIdx.x + i] = to[i];
    together();""",
    "stores that arrive": """
    __shared__ __align__(16) int box[64];
    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        arrive_expecting(&bar[0], 256);
    }
    box[i] = 5;
    together();
    const unsigned next = (me + 1) % size;
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];"
                 :: "r"(of_block(box + i, next)), "r"(100 * me + i), "r"(of_block(&bar[0], next)) : "memory");
    wait(&bar[0], 0);
    out[64 * blockIdx.x + i] = box[i];
    together();""",
    "one copy for all": """
    __shared__ __align__(128) int box[64];
    box[i] = -i;
    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
        arrive_expecting(&bar[0], me % 2 ? 256 : 512);
    }
    together();
    if (i == 0 && me < 2) {
        const unsigned short all = (1 << size) - 1, even = all & 0x55;
        const unsigned short mask = me == 0 ? all : even;
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                     "[%0], [%1], 256, [%2], %3;"
                     :: "r"(at(me == 0 ? box : box2)), "l"(in + 64 * me), "r"(at(&bar[0])), "h"(mask) : "memory");
    }
    wait(&bar[0], 0);
    out[64 * blockIdx.x + i] = box[i] + (me % 2 ? 0 : box2[i]);
    together();""".replace("int box[64];", "int box[64], box2[64];"),
    "one box for all": """
    __shared__ __align__(1024) int box[8 * 32];
    for (int n = i; n < 256; n += 64) box[n] = 0;
    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster; fence.proxy.async.shared::cta;" ::: "memory");
        arrive_expecting(&bar[0], size * 128);
    }
    together();
    if (i == 0) {
        const unsigned short all = (1 << size) - 1;
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
                     ".multicast::cluster [%0], [%1, {%2, %3}], [%4], %5;"
                     :: "r"(at(box + 32 * me)), "l"(&map), "r"(4), "r"((int)me), "r"(at(&bar[0])), "h"(all)
                     : "memory");
    }
    wait(&bar[0], 0);
    for (int n = i; n < 32 * size; n += 64) out[256 * blockIdx.x + n] = box[n];
    together();""",
}
CLUSTER = """
__device__ inline void together() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ inline unsigned of_block(const void* p, unsigned rank) {
    unsigned there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at(p)), "r"(rank));
    return there;
}
"""


def kernel(body: str, threads: int, blocks: int = 1) -> str:
    """The code around a body: `bar` are two mbarriers, `i` is the thread, `me` the block and `size` their number."""
    cluster = f"__cluster_dims__({blocks}, 1, 1) " if blocks > 1 else ""
    more = CLUSTER if blocks > 1 else ""
    me = f"    const unsigned me = blockIdx.x % {blocks}, size = {blocks};\n" if blocks > 1 else ""
    parameters = "int* out, const int* in" + (", const __grid_constant__ TensorMap map" if "map)" in body else "")
    return (
        f'{HEAD}{MAP}{MBARRIER}{MORE}{more}extern "C" __global__ void {cluster}__launch_bounds__({threads}, 1)\n'
        f"k({parameters}) {{\n    __shared__ unsigned long long bar[2];\n    const int i = threadIdx.x;\n{me}"
        f"{body}\n    if (i < 0) out[0] = in[0] + (int)bar[0];\n}}"
    )


def arguments(device: str, mapped: bool) -> Arguments:
    """Of these kernels."""
    out = torch.full((OUT,), -1, dtype=torch.int32).to(device)
    given = torch.from_numpy(numbers(256, seed=9).view("int32")).to(device)
    maps = (tensor_map(given.view(8, 32), (1, 32), swizzle=None),) if mapped else ()
    return (out, given, *maps), (out,)


def others() -> Iterator[Case]:
    """Every body once; those of clusters with 2, 4 and 8 blocks, in two clusters."""
    for name, body in BARRIERS.items():
        threads = 384 if "setmaxnreg" in body else 32 if "matri" in name else 64
        yield Case("others", name, kernel(body, threads), lambda device: arguments(device, False), threads=threads)
    for name, body in CLUSTERS.items():
        for blocks in (2, 4, 8):
            code = kernel(body, 64, blocks)
            grid = blocks if "box for all" in name else 2 * blocks
            made = lambda device, code=code: arguments(device, "TensorMap map)" in code)  # noqa: E731
            yield Case("clusters", f"{name}, {blocks} blocks", code, made, threads=64, blocks=grid)


ALL: Sequence = (others,)
