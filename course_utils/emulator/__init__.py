"""Runs CUDA C++ kernels on a CPU: the same `.cu` files, one fiber per CUDA thread, each launch in a process of its own.

    translate.py   the few changes to the text     include/         CUDA's own names, as C++ headers
    macros.py      macros that hold pieces of it   cuda_headers.py  which headers a kernel may include
    ptx.py         inline assembly                 arithmetic_ptx.py  and what of it computes
    compiler.py    g++, clang++ or zig; a cache    exact.py         a GPU's conversions and shifts, by clang
    shortfalls.py  what the emulator lacks         library_tables.py  symbols and lines of a compiled kernel
    module.py      load, look up, launch           memory.py        argument arrays with gaps between them
    launch.py      a launch, from its caller       launcher.py      the process that starts its worker
    runtime/       fibers, barriers, warps (C++)   waiting.py       how far a long launch is
    debug_lines.py from a crash to a line          report.py        and to an exception
    watching.py    what watches a launch: clients  trace_results.py what a watched launch leaves
    tracing.py     sanitize(), profile()           defects.py       what is wrong, as the runtime gives it
    sanitizer.py   findings                        profiler.py      counters per source line
    findings.py    how they are made of that       counters.py      how these are
    words.py       what findings say               pages.py         findings and counters in a notebook
    endless.py     which loop did not end          finding_steps.py at which steps a finding happened
    recorder.py    record(): one block             raw_recording.py what a recorded launch takes and leaves
    recording.py   the recording, packed           recorded.py      what it consists of
    frames.py      where local variables are       origins.py       who wrote a byte, what went into it
    struct_members.py  what lies in shared memory  debug_types.py   the types of both

A launch that fails raises `course_utils.cuda.KernelError` in the calling process, which goes on. What the emulator does
not imitate: the order in which a GPU runs threads between barriers (here: one after the other, the first one or, by
`configure(thread_order=)`, another first), the last bits of fast functions, and time. It rounds twice in a * b + c,
which NVRTC makes one fma of (fmaf() is the same on both), and keeps denormals, which CuPy flushes (-ftz=true). Of a
kernel's options it follows -D, -U and -I, and none about arithmetic, such as --use_fast_math. A thread that waits in a
loop for another one of its block must wait by an atomic function or __nanosleep(): a loop of plain reads goes on for
ever. Its device presents itself as sm_80 with 227 KiB of shared memory per block.

To kernels whose header says `arch: sm_90a only` it is an sm_90a: wgmma, mbarriers, named barriers, the copy engine
(cp.async.bulk, with tensor maps of `course_utils.cuda.tensor_map`), clusters of up to 8 blocks, setmaxnreg. Products
and copies are done as late as the rules allow (`configure(order=)` has others), so that what is used too early is not
there, and what is overwritten too early is the new; a wait for what cannot come is an error that says who waits for
what. The warps of a warpgroup meet where they wait for products, which are added as a Hopper GPU adds them
(`configure(exact_sums=True)`: as fp32 can). `sanitize()` watches such kernels by asynccheck (runtime/async_rules.cpp),
the blocks of a cluster together; `profile()` counts products, copies and waits. docs/validation.md says what a GPU left
of a thousand small kernels beside the emulator's own bytes.

It runs under Linux, on x86-64 and on ARM (aarch64), with the same results; what a processor does otherwise, such as a
division by zero, is made equal where compiler.py and runtime/worker.cpp name ARM. Its tests run on ARM under qemu
(tests/aarch64), where memory keeps x86's order: only a real ARM shows whether the runtime's own threads lack a fence.

A worker is a process like any other, not a sandbox: a kernel can do what its user can.

Inside `sanitize()` or `profile()` a launch runs a second build of the kernel, which the compiler has instrumented: each
memory access calls runtime/trace.cpp. races.cpp looks for hazards, and fences.cpp for those in global memory where
flags order threads; counters.cpp counts sectors and bank conflicts.
Inside `record()` it runs a third one, without optimisation, and recorder.cpp lets the warps of one block take turns.
The head of runtime/worker.cpp says in which order the runtime's files stand.
"""

from course_utils.emulator.launch import configure
from course_utils.emulator.module import EmulatedModule
from course_utils.emulator.pages import counters_page, findings_page, heat_listing
from course_utils.emulator.profiler import Counters
from course_utils.emulator.recorder import record
from course_utils.emulator.recording import Recording
from course_utils.emulator.sanitizer import SanitizerReport
from course_utils.emulator.tracing import profile, sanitize

# The data do not know their pages. An import of either comes through here, so that a notebook always shows them.
SanitizerReport._repr_html_ = findings_page
Counters._repr_html_ = counters_page
Counters.listing = heat_listing

__all__ = ["EmulatedModule", "Recording", "configure", "profile", "record", "sanitize"]
