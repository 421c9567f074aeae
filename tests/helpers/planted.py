"""Mistakes in correct kernels for sm_90a, of each kind that asynccheck finds, and where it finds them."""

from __future__ import annotations

from typing import NamedTuple

from tests.helpers import asynchronous

KERNELS = {
    "gemm": asynchronous.gemm,
    "forward": asynchronous.forward,
    "sparse_mla": asynchronous.sparse_mla,
    "indexer": asynchronous.indexer,
    "cluster_gemm": asynchronous.cluster_gemm,
    "cluster_softmax": asynchronous.cluster_softmax,
}


class Planted(NamedTuple):
    """A change of a kernel (" #2" behind the statement: of the second such), and where it is found.

    `line` and `other` are texts that stand there alone; "" for `other`: there is no other party; None: whichever.
    `kind`: as the comments say.
    """

    kernel: str
    statement: str
    what: str
    kind: int
    line: str
    other: str | None
    message: str
    tool: str = "asynccheck"


GEMM_PRODUCT = "multiply_transposed(d, factor"
GEMM_WAIT, GEMM_EMPTY = "wait(&shared.full[stage]", "if (n >= STAGES) wait("
GEMM_LOADS = ["load(shared.A[stage][0]", "load(shared.A[stage][1]", "load(shared.B[stage]"]
GEMM_WRITE, GEMM_STORE = "* 64 + j / 4 * 8 + i % 4 * 2 + j % 2] = d[j];", "store(D, 128 * blockIdx.x"
SCORES, OUTPUT = "multiply_transposed(flat(S), moved(q, d / 64", "multiply(flat(O), P[key / 16]"
LOAD_BOX = "load_box(tile, map, row, head, &gate.full, panel)"
STORE_O, WRITE_O = "store_box(map, i_w, head", "chunk[threadIdx.x % 4] = pack(O[n]"
P_PRODUCT, P_WRITE = "multiply(O[half], moved(P", "*reinterpret_cast<unsigned*>(chunk + key % 8)"
S_PRODUCT = "multiply_transposed(S, moved(Q, bytes)"
LOGITS, LOAD_Q = "multiply_e4m3(scores", "copy_16_bytes_async(shared.q[stage]"
PULL, PUSHED = "return read_at(of_block(&shared.mine[0]", "// pushed"
COPY = "copy_to(of_block"
REMOVAL = "removal"
NO_FENCE, IN_FLIGHT, OVERWRITES = "no fence.proxy.async in between", "which may still run", "may still read"
PLANTED = [
    # 1: a generic store that the asynchronous proxy may not see
    Planted("gemm", "fence.proxy.async", REMOVAL, 1, GEMM_STORE, GEMM_WRITE, NO_FENCE),
    Planted("forward", "publish_tile();", REMOVAL, 1, STORE_O, WRITE_O, NO_FENCE),
    Planted("gemm", "bar.sync %0, 128", REMOVAL, 1, GEMM_STORE, GEMM_WRITE, "with no barrier in between"),
    Planted("indexer", "publish_tile", REMOVAL, 1, LOGITS, LOAD_Q, NO_FENCE),
    # 2: registers of a product in flight
    Planted("gemm", "wait_group.sync.aligned 0", REMOVAL, 2, GEMM_WRITE, GEMM_PRODUCT, "reads an accumulator"),
    Planted("gemm", "wait_group.sync.aligned 0", "wait 1", 2, GEMM_WRITE, GEMM_PRODUCT, "reads an accumulator"),
    *(
        Planted("forward", "wait_for_product<1>(S)", what, 2, "high = fmaxf(high, fmaxf(", SCORES, IN_FLIGHT)
        for what in (REMOVAL, "wait 2")
    ),
    *(
        Planted("indexer", "wgmma_wait<1>", what, 2, "I[r] = fmaf(pair.x", LOGITS, IN_FLIGHT)
        for what in (REMOVAL, "wait 2")
    ),
    # 3: no wgmma.fence
    Planted("gemm", "wgmma.fence", REMOVAL, 3, GEMM_PRODUCT, "", "no wgmma.fence before the first"),
    Planted(
        "forward",
        "wgmma_fence(); #2",
        REMOVAL,
        3,
        OUTPUT,
        "P[n / 2][n % 2 * 2 + r] = pack",
        "a register of this wgmma was written",
    ),
    Planted(
        "sparse_mla",
        "wgmma_fence(); #2",
        REMOVAL,
        3,
        P_PRODUCT,
        "state.O[0][i] *= rescale",
        "a register of this wgmma was written",
    ),
    Planted("indexer", "wgmma_fence", REMOVAL, 3, LOGITS, "I[r] = fmaf(pair.x", "was read"),
    # 4: overwritten while a product or a store reads it
    *(
        Planted("gemm", "wait_group.sync.aligned 1", what, 4, load, GEMM_PRODUCT, OVERWRITES)
        for what in (REMOVAL, "wait 2")
        for load in GEMM_LOADS[:2]
    ),
    Planted("forward", "sync_threads(1 + w, 128)", REMOVAL, 4, WRITE_O, STORE_O, OVERWRITES),
    Planted("sparse_mla", "wgmma_wait<1>();", REMOVAL, 4, "copy_16_bytes_async(place + panel", P_PRODUCT, OVERWRITES),
    Planted("indexer", "__syncthreads", REMOVAL, 4, LOAD_Q, LOGITS, OVERWRITES),
    Planted("indexer", "wgmma_wait<0>", "wait 1", 4, LOAD_Q, LOGITS, OVERWRITES),
    # 5: a copy's bytes before its phase
    Planted("gemm", GEMM_WAIT, REMOVAL, 5, GEMM_PRODUCT, GEMM_LOADS[2], "but nobody has waited for the phase"),
    Planted("gemm", GEMM_WAIT, "other parity", 5, GEMM_PRODUCT, GEMM_LOADS[1], "but nobody has waited for the phase"),
    Planted(
        "forward",
        "wait_until_full(shared.gate_K[next]",
        REMOVAL,
        5,
        SCORES,
        LOAD_BOX,
        "but nobody has waited for the phase",
    ),
    Planted("indexer", "wait_for_copies", "one group more in flight", 5, LOGITS, LOAD_Q, "no wait for it", "racecheck"),
    # 6: an mbarrier before its init, or after its end
    Planted("gemm", "init(&shared.full", REMOVAL, 6, GEMM_WAIT, "", "was not initialised"),
    Planted("gemm", "init(&shared.empty", REMOVAL, 6, GEMM_EMPTY, "", "was not initialised"),
    Planted("gemm", "__syncthreads", REMOVAL, 6, GEMM_WAIT, "init(&shared.full", "before its mbarrier.init"),
    Planted("gemm", "fence.mbarrier_init", REMOVAL, 6, GEMM_LOADS[0], "init(&shared.full", "no fence.mbarrier_init"),
    Planted("gemm", "__syncthreads", "mbarrier.inval", 6, GEMM_WAIT, "", "was not initialised"),
    # 7: too few bytes, too many, none
    Planted("gemm", "arrive_expecting", "16 bytes less", 7, GEMM_WAIT, None, "more came than were expected"),
    Planted(
        "gemm", "arrive_expecting", "16 bytes more", 7, GEMM_WAIT, None, "0 of 1 arrivals and 16 bytes are to come"
    ),
    Planted("gemm", "arrive_expecting", REMOVAL, 7, GEMM_WAIT, None, "and -24576 bytes are to come"),
    *(Planted("gemm", load, REMOVAL, 7, GEMM_WAIT, None, "and 8192 bytes are to come") for load in GEMM_LOADS),
    # 8: arrivals
    Planted("gemm", "arrive(&shared.empty", "a second arrival", 8, GEMM_LOADS[0], GEMM_PRODUCT, OVERWRITES),
    Planted("gemm", "arrive(&shared.empty", REMOVAL, 8, GEMM_EMPTY, None, "(256 of 256 arrivals"),
    Planted("gemm", "init(&shared.empty", "one arrival more", 8, GEMM_EMPTY, None, "(1 of 257 arrivals"),
    Planted("gemm", "init(&shared.full", "one arrival more", 8, GEMM_WAIT, None, "(1 of 2 arrivals"),
    Planted(
        "gemm", "init(&shared.full", "one arrival less", 8, "init(&shared.full", "", "1 to 1048575 arrivals, got 0"
    ),
    Planted("gemm", "wait(&shared.empty", REMOVAL, 8, "arrive_expecting(&shared.full", "", "takes only 0 more of 1"),
    # 9: never committed, never waited for
    Planted("gemm", "commit_group.sync", REMOVAL, 9, GEMM_PRODUCT, "", "never committed to a group"),
    Planted("gemm", "wait_group.sync.aligned 0", REMOVAL, 9, GEMM_PRODUCT, "", "the wgmma is never waited for"),
    Planted("gemm", "cp.async.bulk.commit", REMOVAL, 9, GEMM_STORE, "", "the bulk store is not waited for"),
    Planted("gemm", "cp.async.bulk.wait", REMOVAL, 9, GEMM_STORE, "", "the bulk store is not waited for"),
    Planted("forward", "wait_until_full(shared.gate_K[first]", REMOVAL, 9, LOAD_BOX, "", "nobody waits for the copy"),
    Planted("indexer", "commit_copies() #2", REMOVAL, 9, LOGITS, LOAD_Q, "may still be on its way", "racecheck"),
    # 10: by a part of the warpgroup
    Planted("gemm", GEMM_PRODUCT, "by some warps", 10, GEMM_PRODUCT, "", "warp 2 does not take part"),
    Planted("gemm", GEMM_PRODUCT, "of other factors", 10, GEMM_PRODUCT, GEMM_PRODUCT, "make different products"),
    Planted("indexer", "multiply_e4m3", "by some warps", 10, LOGITS, "", "warp 2 does not take part"),
    # 11: sizes and places of copies
    *(Planted("gemm", load, "another address", 11, load, "", "is a multiple of 128") for load in GEMM_LOADS),
    Planted("gemm", GEMM_STORE, "another address", 11, GEMM_STORE, "", "is a multiple of 128"),
    Planted("gemm", GEMM_LOADS[2], "past the end", 11, GEMM_LOADS[2], "", "out of bounds, in shared", "memcheck"),
    # 12: registers
    *(
        Planted("gemm", f"setmaxnreg.{way}", "another number", 12, f"setmaxnreg.{way}", "", "a multiple of 8")
        for way in ("inc", "dec")
    ),
    # 13: other blocks of the cluster
    Planted("cluster_gemm", "together()", REMOVAL, 13, "load_for(3, shared", "", "was not initialised"),
    Planted("cluster_gemm", "together() #2", REMOVAL, 13, "arrive_at(of_block", "", "has exited"),
    Planted("cluster_softmax", "together()", REMOVAL, 13, "m = fmaxf(m, read_at(", "", "may not have started yet"),
    Planted("cluster_softmax", "together() #2", REMOVAL, 13, "// the last reads", "", "which may have exited by then"),
    Planted("cluster_softmax", "together() #3", REMOVAL, 13, PULL, "", "may not have started yet"),
    Planted("cluster_softmax", "together() #4", REMOVAL, 13, PULL, "", "of a block that has exited"),
    Planted("cluster_softmax", "together() #5", REMOVAL, 13, "send(of_block", "", "was not initialised"),
    Planted("cluster_softmax", "together() #6", REMOVAL, 13, COPY, "", "was not initialised"),
    Planted("cluster_softmax", "together() #7", REMOVAL, 13, COPY, "", "may still read shared memory of the block"),
    Planted("cluster_softmax", "wait(&shared.bar", REMOVAL, 5, PUSHED, "send(of_block", "has not waited for the phase"),
    Planted("cluster_gemm", "load_for", "for itself alone", 7, "wait(&shared.full", None, "4096 bytes are to come"),
    # 14: who waits for what
    Planted("gemm", "arrive(&shared.empty", REMOVAL, 14, GEMM_WAIT, GEMM_EMPTY, "deadlock: 256 threads"),
    Planted(
        "forward",
        "pass_turn(w); #2",
        REMOVAL,
        14,
        "sync_threads(1 + CONSUMERS + w, 256)",
        None,
        "128 of 256 threads",
    ),
]
