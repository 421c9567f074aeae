"""What findings and failed launches say. The runtime gives kinds and figures (runtime/defects.h), this text.

Nothing reads these sentences back: what a finding is about is in its fields.
"""

from __future__ import annotations

from course_utils.emulator.sanitizer import Defect, Finding, Wait
from course_utils.toolchain.parameters import argument_label

_UNORDERED = "with no {barrier} in between{hint}"
_PHASE = "the phase of its mbarrier"

WORDS = {
    "": "",
    # memcheck
    "out of bounds": "{out_of_bounds}",
    "past dynamic shared": "{access} at byte {0} of dynamic shared memory, more than the launch asked for",
    "index out of bounds": "out of bounds: index {0} is outside of '{name}'",
    "misaligned": "misaligned: {what} at an address {0} bytes past a multiple of {alignment}",
    # racecheck and initcheck
    "read after write": "read-after-write hazard in {memory}: reads what another thread writes {other}, " + _UNORDERED,
    "write after read": "write-after-read hazard in {memory}: overwrites what another thread may still have to "
    "read {other}, " + _UNORDERED,
    "write after write": "write-after-write hazard in {memory}: writes what another thread writes, too, {other}, "
    + _UNORDERED,
    "copy in flight": "{does} {memory} while the cp.async {other} may still be on its way: no wait for it in between",
    "uninitialised": "{does_first} {memory} that no thread of the block has written",
    # synccheck
    "divergent barrier": "barrier in a divergent branch: thread {thread} waits at this __syncthreads(), but thread "
    "({0},{1},{2}) of the same block waits at the one in line {3}",
    "barrier run past": "barrier in a divergent branch: {0} of the block's {1} threads wait at this __syncthreads(), "
    "but thread ({2},{3},{4}) ran past it to the end of the kernel",
    "different collectives": "lanes of one warp meet in different collectives: {name} here, {other_name} in line {0}",
    "lane not in its mask": "{name}: the mask 0x{0:08x} does not name lane {1}, which calls it",
    "lane not in block": "{name} of lane {0} reads lane {1}, which the block does not have: what it gets is undefined",
    "lane not in mask": "{name} of lane {0} reads lane {1}, which the mask does not name: what it gets is undefined",
    "lane has left": "{name} of lane {0} reads lane {1}, which has left the kernel: what it gets is undefined",
    "deadlock": "deadlock: no thread of the block can go on: {waits}",
    "stuck at barrier": "__syncthreads()",
    "stuck in collective": "{name}",
    "stuck at named barrier": "barrier {0} ({1} of {2} threads have arrived)",
    "stuck at mbarrier": "a wait for parity {0} of an mbarrier in phase {1} ({2} of {3} arrivals and {4} bytes are to "
    "come{more})",
    "stuck at product": "wgmma.wait_group (other warps of the warpgroup have not started the same products)",
    "stuck at cluster barrier": "barrier.cluster ({0} threads of the cluster are missing)",
    "stuck for registers": "setmaxnreg (which needs more than the {0} registers that others have given back)",
    # asynccheck: what is not in order
    "block not started": "needs the shared memory of block {0} of its cluster, which may not have started yet: no "
    "barrier.cluster in between",
    "copy not waited for": "reads what the copy {other} brings, but has not waited for " + _PHASE,
    "overwrites operand": "{overwrites} what the {other_work} {other} may still read: this thread does not wait for "
    "anybody who has waited for that one",
    "writes into copy": "writes where the copy {other} still writes: nobody has waited for " + _PHASE,
    "operand not come": "the {work} reads what the copy {other} brings, but nobody has waited for " + _PHASE,
    "operand race": "the {work} reads what another thread writes {other}, with no barrier in between",
    "operand not fenced": "the {work} reads what a thread writes {other}, with no fence.proxy.async in between",
    "mbarrier not yet initialised": "{uses} an mbarrier before its mbarrier.init {other} can be seen: no barrier in "
    "between",
    "mbarrier not published": "a copy uses an mbarrier whose mbarrier.init {other} it may not see: no "
    "fence.mbarrier_init or fence.proxy.async in between",
    "accumulator in flight": "{deed} an accumulator of the wgmma {other}, which may still run: no wgmma.wait_group for "
    "it in between",
    "factor in flight": "{deed} a register of A of the wgmma {other}, which may still run: no wgmma.wait_group for it "
    "in between",
    "accumulator of another shape": "an accumulator is still in use by the wgmma {other}, of another shape: no "
    "wgmma.wait_group in between",
    "register not fenced": "a register of this wgmma was written {other}, with no wgmma.fence in between",
    "accumulator not fenced": "an accumulator of this wgmma was read {other}, with no wgmma.fence in between",
    "different products": "the warps of a warpgroup make different products: this is not that of the wgmma {other}",
    "warps fence apart": "the warps of a warpgroup come here by different numbers of wgmma.fence: all of them take "
    "part in each",
    "lanes fence apart": "the lanes of a warp come here by different numbers of wgmma.fence: all of them take part in "
    "each",
    "no wgmma fence": "no wgmma.fence before the first wgmma of a warp",
    "copy overwrites copy": "overwrites what the copy {other} brings: nobody has waited for that one",
    "copy overwrites write": "the copy overwrites what another thread writes {other}, with no barrier in between",
    "copy overwrites read": "the copy overwrites what another thread may still have to read {other}, with no barrier "
    "in between",
    "load left behind": "nobody waits for the copy: it may write to shared memory that is no longer the block's",
    "copy reads exited block": "the copy may still read shared memory of the block when that has exited: the block "
    "waits for nobody who has waited for it",
    "store not waited for": "the bulk store is not waited for: shared memory may be gone before it is read",
    "product not waited for": "the wgmma is never waited for",
    "product not committed": "the wgmma is never committed to a group, and so never waited for",
    "block may have exited": "needs the shared memory of block {0} of its cluster, which may have exited by then: that "
    "block waits for nobody behind this",
    "warp without registers": "warp {0} does not take part in this setmaxnreg of its warpgroup",
    "warp without product": "warp {0} does not take part in this wgmma of its warpgroup",
    "mbarrier lacks bytes": "this mbarrier still waits for {0} bytes at the end",
    "mbarrier has bytes too many": "{0} bytes came to this mbarrier that nobody expected",
    # asynccheck: what an instruction does not take
    "descriptor bits": "wgmma: the descriptor has bits that mean nothing",
    "descriptor past shared": "wgmma: the descriptor leads past the end of shared memory",
    "different descriptors": "wgmma: the lanes of a warp have different descriptors",
    "needs all lanes": "{name} needs all 32 lanes of the warp, but some have exited",
    "prefetch size": "cp.async.bulk.prefetch: size and address are multiples of 16 bytes",
    "register count": "setmaxnreg takes a multiple of 8 from 24 to 256",
    "barrier number": "a block has barriers 0 to 15, got {0}",
    "barrier threads": "barrier {0}: the number of threads is a multiple of 32, got {1}",
    "barrier of two sizes": "barrier {0} is for {1} threads here, and for {2} in line {3}",
    "cluster arrives twice": "barrier.cluster.arrive: this thread has arrived before, and not waited since",
    "cluster waits first": "barrier.cluster.wait: this thread has not arrived",
    "mbarrier address": "{name}: an mbarrier lies at a multiple of 8 in shared memory, got address {0}",
    "mbarrier of exited block": "{name}: the block whose mbarrier this is has exited",
    "no mbarrier": "{name}: this mbarrier was not initialised, or something was written over it",
    "mbarrier count": "mbarrier.init: a phase takes 1 to {0} arrivals, got {1}",
    "too many arrivals": "{name}: {0} arrivals, but this phase takes only {1} more of {2}",
    "last arrival completes": "mbarrier.arrive.noComplete: this is the last arrival, which completes the phase",
    "expects too many bytes": "mbarrier.arrive.expect_tx: more than {0} bytes to come",
    "counts too many bytes": "an mbarrier counts up to {0} bytes, got {1}",
    "mbarrier of another block": "a thread waits for an mbarrier of its own block only",
    "shared of exited block": "an access to the shared memory of a block that has exited",
    "no such block": "mapa: the cluster has blocks 0 to {0}, got {1}",
    "copy to exited block": "a copy to the shared memory of a block that has exited",
    "shared alignment": "{name}: the shared address is a multiple of {0}, got {1}",
    "past shared": "{name}: {0} bytes from address {1} on reach past the end of shared memory",
    "no such blocks": "{name}: the mask 0x{0:x} names blocks that the cluster of {1} does not have",
    "bulk alignment": "cp.async.bulk: size and addresses are multiples of 16 bytes",
    "no tensor map": "cp.async.bulk.tensor: this is no tensor map (course_utils.cuda.tensor_map makes them)",
    "tensor map rank": "cp.async.bulk.tensor.{0}d: the tensor map has {1} dimensions",
    "box alignment": "cp.async.bulk.tensor: a box begins at a multiple of 16 bytes of a row, got element {0} of {1} "
    "bytes",
    "box before start": "cp.async.bulk.tensor: a store begins at coordinates of 0 or more, got {0}",
    "no such reduction": "cp.reduce.async.bulk.tensor: not with elements of this type",
    "too many mbarriers": "asynccheck follows up to {0} mbarriers of a cluster of {1} blocks",
}
"""The sentence of each kind of finding, in the order of emu_kind (runtime/defects.h). {0} and so on are its numbers."""

KINDS = tuple(WORDS)
WIDEST_ELEMENT = 8  # bytes; a wider access takes several elements at once
HAZARDS = ("read after write", "write after read", "write after write")
OF_MEMORY = (*HAZARDS, "out of bounds", "past dynamic shared", "copy in flight", "uninitialised")

_BETWEEN_BLOCKS = {  # of a hazard in global memory
    "read after write": "reads global memory that another block writes {other}",
    "write after read": "writes global memory that another block reads {other}",
    "write after write": "writes global memory that another block writes, too, {other}",
}
_ANY_ORDER = ": blocks run in any order; atomics, or one block per element, would be safe{hint}"
_HINT = " (a fence makes nobody wait: what was before it is there for who has seen a flag written behind it)"
_COPY_ASYNC_MISALIGNED = (
    "misaligned: cp.async of {alignment} bytes between addresses that are no multiples of {alignment}"
)

# As runtime/trace_results.h numbers them: what touched memory, where it was no plain load or store; what a party did.
BY = ("", "a prefetch", "a bulk copy", "a reduction by copy", "a row of ldmatrix", "a row of stmatrix", "an atomic")
BY += ("a cp.async",)
DEEDS = ("", "reads", "writes", "starts a wgmma", "starts a copy", "starts a bulk store", "starts a cp.async")
DEEDS += ("initialises an mbarrier", "uses shared memory", "the kernel begins", "the block ends")
STARTED = {"starts a wgmma": "wgmma", "starts a copy": "copy", "starts a bulk store": "bulk store"}
STARTED |= {"starts a cp.async": "cp.async"}  # what goes on by itself

_BARRIER, _WAIT, _GROUP = "a barrier", "a wait for " + _PHASE, "wgmma.wait_group"
_OPERAND_READ = {
    "starts a wgmma": f"{_GROUP}, then a barrier",
    "starts a copy": _WAIT,
    "starts a bulk store": "cp.async.bulk.wait_group.read, then a barrier",
}
_WANTS = {
    **dict.fromkeys((*HAZARDS, "operand race", "mbarrier not yet initialised"), _BARRIER),
    **dict.fromkeys(("copy overwrites write", "copy overwrites read"), _BARRIER),
    **dict.fromkeys(("copy not waited for", "writes into copy", "operand not come", "copy overwrites copy"), _WAIT),
    **dict.fromkeys(("accumulator in flight", "factor in flight", "accumulator of another shape"), _GROUP),
    **dict.fromkeys(("register not fenced", "accumulator not fenced", "no wgmma fence"), "wgmma.fence"),
    **dict.fromkeys(("load left behind", "copy reads exited block", "store not waited for"), "a wait for it"),
    **dict.fromkeys(("product not waited for", "product not committed"), "a wait for it"),
    "copy in flight": "cp.async.wait_group",
    "block not started": "barrier.cluster",
    "operand not fenced": "fence.proxy.async",
    "mbarrier not published": "fence.mbarrier_init",
    "block may have exited": "barrier.cluster, for which that block waits, too",
}


def wants(kind: str, deed: str, other_deed: str) -> str:
    """What had to stand between the two events of a finding of a kernel for sm_90a; "" where nothing could be said."""
    if not deed:
        return ""
    if kind == "overwrites operand":
        return _OPERAND_READ[other_deed]
    return _WANTS.get(kind, "")


def message(finding: Finding, array: str = "") -> str:
    """The sentence of a finding. array: in memory of the block, the name of what it is about, if that is known."""
    template = WORDS[finding.kind]
    if finding.kind.startswith("stuck"):
        here = f"{_plural(finding.threads, 'thread')} wait{'s' if finding.threads == 1 else ''} here"
        waits = _listed(finding.waits)
        return f"deadlock: {here} in {_place(finding)}; no thread of the block can go on: {waits}"
    if finding.kind in HAZARDS and finding.space == "global" and finding.is_between_blocks:
        template = _BETWEEN_BLOCKS[finding.kind] + _ANY_ORDER
    elif finding.kind == "misaligned" and finding.by == "a cp.async":
        template = _COPY_ASYNC_MISALIGNED
    x, y, z = finding.thread or (0, 0, 0)
    block_barrier = "__syncwarp()" if finding.same_warp else "__syncthreads()"
    return template.format(
        *finding.numbers,
        name=finding.name,
        other_name=finding.other_name,
        memory=f"{finding.space} memory" + (f" ({array})" if array else ""),
        alignment=finding.alignment,
        what=finding.by or f"'{finding.name}'",
        access=_access(finding),
        out_of_bounds=_out_of_bounds(finding),
        does="writes" if finding.is_write else "reads",
        does_first="an atomic updates" if finding.is_write else "reads",
        thread=f"({x},{y},{z})",
        other=f"in line {finding.other_line}" if finding.other_line else "elsewhere",
        barrier="barrier.cluster" if finding.is_between_blocks else block_barrier,
        hint=_HINT if finding.by_flags else "",
        deed=finding.deed,
        work=STARTED.get(finding.deed, ""),
        other_work=STARTED.get(finding.other_deed, ""),
        overwrites="the copy overwrites" if finding.deed == "starts a copy" else "overwrites",
        uses="a copy uses" if finding.deed == "starts a copy" else "uses",
    )


def failure(defect: Defect, thread: tuple[int, int, int]) -> str:
    """Why a launch did not end, where the sanitizer has the same as a finding. thread: whose failure it is."""
    x, y, z = thread
    words = {"name": defect.name, "other_name": defect.other_name, "thread": f"({x},{y},{z})"}
    return WORDS[defect.kind].format(*defect.numbers, **words, waits=_listed(defect.waits))


def beside_array(side: str, distance: int, label: str, size: int) -> str:
    """Where an access that is out of bounds begins, by the nearest array. side: "before", "past" or, of a wide access
    that reaches over the end, "over"."""
    how_far = f"{distance:,} byte{'s' if distance != 1 else ''}" if distance else "the first bytes"
    where = {"before": "before", "over": "before the end of", "past": "past the end of"}[side]
    return f"{how_far} {where} {label} ({size:,} bytes)"


def beside_nothing(address: int) -> str:
    """The same for an address that is far from each array."""
    return f"at address {address:#x}, near no argument of the kernel"


def _access(finding: Finding) -> str:
    return f"{'write' if finding.is_write else 'read'} of {_plural(finding.bytes, 'byte')}"


def _out_of_bounds(finding: Finding) -> str:
    """An access outside of every array, in words: an index of elements as wide as the access, where whole ones fit."""
    if finding.kind != "out of bounds":
        return ""
    access = f"{_access(finding)}{f' by {finding.by}' if finding.by else ''} out of bounds"
    if finding.space == "shared":
        return f"{access}, in shared memory, outside of every array"
    if not finding.side:
        return f"{access}, {beside_nothing(*finding.numbers)}"
    (distance, index, size), width, array = finding.numbers, finding.bytes, finding.array
    label = argument_label(index, array, finding.kernel)
    if not array or finding.by or finding.side == "over" or width > WIDEST_ELEMENT or distance % width or size % width:
        return f"{access}, {beside_array(finding.side, distance, label, size)}"
    place = (size + distance) // width if finding.side == "past" else -distance // width
    does, has = "writes" if finding.is_write else "reads", _plural(size // width, "element")
    whole = f"{has} of {_plural(width, 'byte')} (argument {index} of {finding.kernel}())"
    return f"out of bounds: {does} {array}[{place:,}], and {array} has {whole}"


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def _place(wait: Wait | Finding) -> str:
    """What threads wait in."""
    more = ": more came than were expected" if wait.kind == "stuck at mbarrier" and wait.numbers[4] < 0 else ""
    return WORDS[wait.kind].format(*wait.numbers, name=wait.name, more=more)


def _listed(waits: tuple[Wait, ...]) -> str:
    return ", ".join(f"{_plural(wait.threads, 'thread')} in {_place(wait)} at line {wait.line}" for wait in waits)
