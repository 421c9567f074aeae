"""Each rule of asynccheck (runtime/async_rules.cpp) by a kernel of a few lines that breaks it, and no other."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from course_utils.cuda import KernelError, RawModule
from course_utils.emulator import sanitize
from tests.nvidia.silicon.others import kernel

# In a body, `i` is the thread, `me` the block of the cluster, `bar` are two mbarriers. `in` has 256 numbers.
MEMORY = "    __shared__ __align__(128) int box[64], box2[64];\n"
READY = """    if (i == 0) {
        init(&bar[0], 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    MEET
"""
WAIT = "    wait(&bar[0], 0);\n"
FENCE = '    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");\n'
READ = "    __syncthreads();\n    out[i] = box[i % 32];\n"
SYNC = "    __syncthreads();\n"
REMOTE = 'asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(of_block(box + i, 1 - me)), "r"(i) : "memory");'
CP_ASYNC = '    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at(box + i)), "l"(in + i) : "memory");'
CP_WAIT = '    asm volatile("cp.async.commit_group; cp.async.wait_group 0;" ::: "memory");\n'
ARRIVE = '    asm volatile("{}mbarrier.{}.shared::cta.b64 _, [%0];" :: "r"(at(&bar[0])) : "memory");\n'
STORED = '    asm volatile("cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;" ::: "memory");\n'


def load(to="box", mark="", expects=True, who="i == 0", bar="at(&bar[0])"):
    """By one thread, 256 bytes."""
    expecting = "arrive_expecting(&bar[0], 256); " if expects else ""
    return (
        f"    if ({who}) {{ {expecting}"
        'asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 256, [%2];"'
        f' :: "r"(at({to})), "l"(in), "r"({bar}) : "memory"); }} {mark}\n'
    )


def store(mark="", who="i == 0"):
    return (
        f'    if ({who}) {{ asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], 256;"'
        f' :: "l"(out), "r"(at(box)) : "memory"); }} {mark}\n'
    )


def product(columns, mark):
    """Of a tile with itself, into as many of `d` as there are."""
    count = columns // 2
    d, a, b, add = (", ".join(f"%{n}" for n in range(count)), *(f"%{count + n}" for n in range(3)))
    outputs = ", ".join(f'"+f"(d[{n}])' for n in range(count))
    return (
        f'    asm volatile("{{ .reg .pred p; setp.ne.b32 p, {add}, 0; '
        f'wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{d}}}, {a}, {b}, p, 1, 1, 0, 0; }}"'
        f' : {outputs} : "l"(a), "l"(a), "r"(1)); {mark}\n'
    )


class Broken(NamedTuple):
    """A body with the marks `// here` where it is found and `// other` for the other party; None: nothing is found."""

    name: str
    body: str
    message: str | None
    tool: str = "asynccheck"
    blocks: int = 1
    threads: int = 64


BROKEN = [
    # threads among themselves
    Broken("two write", f"    box[i % 32] = i; // here\n{READ}", "write-after-write", "racecheck"),
    Broken("two write the same", f"    box[i % 32] = i % 32;\n{READ}", None),
    Broken(
        "written, and read",
        "    box[i] = i; // other\n    out[i] = box[63 - i]; // here\n",
        "read-after-write",
        "racecheck",
    ),
    Broken("a barrier between", "    box[i] = i;\n    __syncthreads();\n    out[i] = box[63 - i];\n", None),
    Broken(
        "read, and written",
        "    box[i] = i;\n    __syncthreads();\n    out[i] = box[63 - i]; // other\n    box[i] = 5; // here\n",
        "write-after-read",
        "racecheck",
    ),
    Broken(
        "never written",
        "    if (in[0]) box[i] = 1;\n    out[i] = box[i]; // here\n",
        "that no thread of the block has written",
        "initcheck",
    ),
    Broken("atomics", "    if (i == 0) box[0] = 0;\n    __syncthreads();\n    atomicAdd(&box[0], i);\n", None),
    Broken("a warp", "    box[i] = i;\n    __syncwarp();\n    out[i] = box[i ^ 1];\n", None),
    Broken(
        "a named barrier",
        '    box[i] = i;\n    asm volatile("bar.sync 1, 64;" ::: "memory");\n    out[i] = box[63 - i];\n',
        None,
    ),
    # arrivals: with .release, as by default, and .relaxed, which leaves out what its thread did since its last fence
    *(
        Broken(
            f"arrivals with {name}",
            "    if (i == 0) init(&bar[0], 64);\n    __syncthreads();\n"
            f"    box[i] = i; // other\n{ARRIVE.format(fence, arrival)}{WAIT}    out[i] = box[63 - i]; // here\n",
            message,
            "racecheck",
        )
        for name, fence, arrival, message in (
            (".release", "", "arrive.release.cta", None),
            (".relaxed", "", "arrive.relaxed.cta", "read-after-write"),
            (".relaxed behind a fence", "fence.acq_rel.cta; ", "arrive.relaxed.cta", None),
            ("arrive_drop.relaxed", "", "arrive_drop.relaxed.cta", "read-after-write"),
        )
    ),
    Broken(
        "a fence, written, and an arrival with .relaxed",
        "    if (i == 0) init(&bar[0], 64);\n    __syncthreads();\n    __threadfence();\n"
        f"    box[i] = i; // other\n{ARRIVE.format('', 'arrive.relaxed.cta')}{WAIT}    out[i] = box[63 - i]; // here\n",
        "read-after-write",
        "racecheck",
    ),
    Broken(
        "an arrival with .relaxed at another block's mbarrier",
        "    if (i == 0) init(&bar[0], 64);\n    together();\n"
        '    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];"'
        ' :: "r"(of_block(&bar[0], 1 - me)) : "memory");\n' + WAIT,
        None,
        blocks=2,
    ),
    # cp.async
    Broken(
        "cp.async, read",
        f"{CP_ASYNC} // other\n    out[i] = box[i]; // here\n{CP_WAIT}",
        "reads shared memory while",
        "racecheck",
    ),
    Broken(
        "cp.async, written",
        f"{CP_ASYNC} // other\n    box[i] = 1; // here\n{CP_WAIT}",
        "writes shared memory while",
        "racecheck",
    ),
    Broken("cp.async, waited for", f"{CP_ASYNC}\n{CP_WAIT}    out[i] = box[i];\n", None),
    Broken(
        "cp.async, stored",
        CP_ASYNC.replace('"memory");', '"memory"); // other\n') + SYNC + FENCE + store("// here") + STORED + CP_WAIT,
        "reads shared memory while",
        "racecheck",
    ),
    # loads
    Broken("a load, waited for", READY + load() + WAIT + "    out[i] = box[i];\n" + SYNC, None),
    Broken(
        "a load, read",
        READY + load(mark="// other") + "    out[i] = box[i]; // here\n" + WAIT,
        "reads what the copy",
    ),
    Broken(
        "a load, written",
        READY + load(mark="// other") + SYNC + "    box[i] = 1; // here\n" + WAIT,
        "writes where the copy",
    ),
    Broken(
        "written, and a load",
        READY + "    box[i] = 1; // other\n" + load(mark="// here") + WAIT,
        "the copy overwrites what another thread writes",
    ),
    Broken(
        "read, and a load",
        "    box[i] = 1;\n" + READY + "    out[i] = box[63 - i]; // other\n" + load(mark="// here") + WAIT,
        "the copy overwrites what another thread may still have to read",
    ),
    Broken(
        "two loads",
        READY + load(mark="// other").replace("256);", "512);") + load(expects=False, mark="// here") + WAIT,
        "overwrites what the copy",
    ),
    Broken(
        "a load, stored",
        READY + load(mark="// other") + store("// here") + STORED + WAIT,
        "the bulk store reads what the copy",
    ),
    Broken("a load that nobody waits for", READY + load(mark="// here"), "nobody waits for the copy"),
    Broken(
        "stored, and a load",
        "    box[i] = i;\n" + FENCE + READY + store("// other") + load(mark="// here") + STORED + WAIT,
        "the copy overwrites what the bulk store",
    ),
    # stores
    Broken("a fence, and a store", "    box[i] = i;\n" + FENCE + SYNC + store() + STORED, None),
    Broken(
        "no fence, and a store",
        "    box[i] = i; // other\n" + SYNC + store("// here") + STORED,
        "no fence.proxy.async in between",
    ),
    Broken(
        "no barrier, and a store",
        "    box[i] = i; // other\n" + FENCE + store("// here", "i == 63") + STORED,
        "the bulk store reads what another thread writes",
    ),
    Broken("never written, and a store", store("// here") + STORED, "no thread of the block has written", "initcheck"),
    Broken("a store that nobody waits for", "    box[i] = i;\n" + FENCE + SYNC + store("// here"), "is not waited for"),
    Broken(
        "stored, and written",
        "    box[i] = i;\n" + FENCE + SYNC + store("// other") + SYNC + "    box[i] = 1; // here\n" + STORED,
        "overwrites what the bulk store",
    ),
    # mbarriers
    Broken(
        "used before its init is seen",
        "    if (i == 0) init(&bar[0], 64); // other\n    arrive(&bar[0]); // here\n",
        "uses an mbarrier before its mbarrier.init",
    ),
    Broken(
        "used by a copy before its init is seen",
        '    if (i == 0) { init(&bar[0], 1); asm volatile("fence.mbarrier_init.release.cluster;"); } // other\n'
        + load(who="i == 40", mark="// here")
        + SYNC
        + WAIT,
        "a copy uses an mbarrier before its mbarrier.init",
    ),
    Broken(
        "used by a copy without a fence",
        "    if (i == 0) init(&bar[0], 1); // other\n    __syncthreads();\n" + load(mark="// here") + WAIT,
        "whose mbarrier.init",
    ),
    Broken(
        "bytes that do not come",
        "    if (i == 0) { init(&bar[0], 1); arrive_expecting(&bar[0], 16); } // here\n",
        "still waits for 16 bytes at the end",
    ),
    Broken(
        "bytes that nobody expects",
        "    if (i == 0) { init(&bar[0], 1); complete(&bar[0], 16); } // here\n",
        "16 bytes came to this mbarrier that nobody expected",
    ),
    # products: most of their rules are broken in larger kernels, test_asynccheck.py
    Broken(
        "accumulators of another shape",
        "    __shared__ __align__(1024) unsigned short tile[64 * 64];\n"
        "    for (int n = i; n < 64 * 64; n += 128) tile[n] = 0;\n" + FENCE + SYNC + "    float d[8] = {};\n"
        "    const unsigned long long a = 64ull << 32 | 1ull << 62 | at(tile) / 16;\n"
        '    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
        + product(8, "// other")
        + product(16, "// here")
        + '    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
        "    for (int n = 0; n < 8; n++) out[8 * i + n] = (int)d[n];\n",
        "of another shape",
        threads=128,
    ),
    *(
        Broken(
            f"a wgmma.fence by some {who}",
            "    __shared__ __align__(1024) unsigned short tile[64 * 64];\n"
            "    for (int n = i; n < 64 * 64; n += 128) tile[n] = 0;\n" + FENCE + SYNC + "    float d[4] = {};\n"
            "    const unsigned long long a = 64ull << 32 | 1ull << 62 | at(tile) / 16;\n"
            '    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
            f'    if ({some}) asm volatile("wgmma.fence.sync.aligned;" ::: "memory");\n'
            + product(8, "// here")
            + '    asm volatile("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;" ::: "memory");\n'
            "    for (int n = 0; n < 4; n++) out[4 * i + n] = (int)d[n];\n",
            f"the {who} of a warp",
            threads=128,
        )
        for who, some in (("warps", "i < 64"), ("lanes", "i % 32 < 16"))
    ),
    Broken(
        "registers of a part of a warpgroup",
        '    if (i >= 32) asm volatile("setmaxnreg.dec.sync.aligned.u32 24;"); // here\n',
        "warp 0 does not take part in this setmaxnreg of its warpgroup",
        threads=128,
    ),
    # clusters
    Broken(
        "an arrival at its own mbarrier by way of the cluster",
        "    if (me == 1 && i == 0) init(&bar[0], 1);\n"
        '    if (me == 1 && i == 0) asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];"'
        ' :: "r"(of_block(&bar[0], 1)) : "memory");\n    together();\n',
        None,
        blocks=2,
    ),
    Broken(
        "written before the block has started",
        f"    {REMOTE} // here\n    together();\n    out[64 * me + i] = box[i];\n",
        "may not have started yet",
        blocks=2,
    ),
    Broken(
        "written, and read by its owner",
        f"    together();\n    {REMOTE} // other\n    out[64 * me + i] = box[i]; // here\n    together();\n",
        "with no barrier.cluster in between",
        "racecheck",
        blocks=2,
    ),
]


def marked(code: str, mark: str) -> int | None:
    """The line of a mark."""
    lines = [number for number, line in enumerate(code.splitlines(), 1) if mark in line]
    return lines[0] if lines else None


@pytest.mark.parametrize("broken", BROKEN, ids=lambda one: one.name)
def test_a_rule(broken):
    body = (MEMORY + broken.body).replace("MEET", "together();" if broken.blocks > 1 else "__syncthreads();")
    code = kernel(body, broken.threads, broken.blocks)
    arguments = torch.zeros(2048, dtype=torch.int32), torch.arange(256, dtype=torch.int32)
    with sanitize() as report:
        try:
            RawModule(code=code).get_function("k")((broken.blocks,), (broken.threads,), arguments)
        except KernelError:
            assert report.findings
    if broken.message is None:
        assert not report.findings, str(report)
        return
    hits = [
        finding
        for finding in report.findings
        if broken.message in finding.message and (finding.tool, finding.line) == (broken.tool, marked(code, "// here"))
    ]
    assert hits, str(report)
    if "// other" in code:
        assert marked(code, "// other") in [hit.other_line for hit in hits], str(report)
