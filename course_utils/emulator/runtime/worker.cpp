// The worker process of a launch: OS threads that share out the blocks, a watchdog, and the last words of a crash.
//
// A launch begins here, at emu_start(). The order of the runtime's files, from here down; each includes and calls only what
// stands below it:
//
//   worker                this file
//   async_copy bulk_copy  cp.async: the bytes arrive at the wait; cp.async.bulk: the copy engine
//   trace                 where accesses come in: memcheck, and the log of each thread
//   races     counters    they read the logs: racecheck and initcheck; what ncu would count
//   fences                racecheck of global memory in a kernel with fences
//   tracer.h              what the tracer knows: the logs
//   barriers  wgmma       barriers of some threads; products that are done when they are waited for
//   recorder              what one block does, step by step
//   async_rules  async_counters   what those, the copy engine and the accesses of an sm_90a kernel tell asynccheck, and the profiler
//   undefined             where g++'s arithmetic is not a GPU's
//   heap                  what kernels take by malloc()
//   block                 the scheduler: the threads of a block take turns
//   findings  fiber       what was found; the stack of a thread
//   launch.h  report.h  trace_results.h  abi.h    what the runtime shares with Python and with the kernels
//
// One arrow goes up, from the scheduler to the tracer: the calls in trace_hooks.h.
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#include "block.h"
#include "counters.h"
#include "findings.h"
#include "races.h"
#include "recorder.h"
#include "trace.h"
#include "trace_hooks.h"

// A stack and its guard page are two mappings, of which Linux grants a process 65530.
static const uint64_t most_stacks = 24 << 10;

static const emu_launch* launch;          // of this worker; a worker runs one launch and exits
static uint64_t next_cluster, cluster_count;
static uintptr_t code_low, code_high;     // the machine code of the kernel's module

// An OS thread: it runs the blocks of one rank in the clusters that it and its peers take one after the other.
struct Part { Cluster* cluster; uint64_t* index; unsigned rank; };

static uint64_t next_of(const Part& part) {
    Cluster& c = *part.cluster;
    if (part.rank == 0) *part.index = __atomic_fetch_add(&next_cluster, 1, __ATOMIC_RELAXED);
    if (c.size > 1) pthread_barrier_wait(&c.between);
    return *part.index;
}

static uint64_t number_in_grid(uint64_t cluster, unsigned rank) {
    const emu_dim3 grid = launch->grid, size = launch->cluster;
    const uint64_t across = grid.x / size.x, down = grid.y / size.y;
    const uint64_t x = cluster % across * size.x + rank % size.x;
    const uint64_t y = cluster / across % down * size.y + rank / size.x % size.y;
    const uint64_t z = cluster / across / down * size.z + rank / (size.x * size.y);
    return x + grid.x * (y + grid.y * z);
}

static void* run_blocks(void* argument) {
    const size_t signal_stack_bytes = 64 << 10;
    stack_t signal_stack = {};
    signal_stack.ss_sp = malloc(signal_stack_bytes);
    signal_stack.ss_size = signal_stack_bytes;
    sigaltstack(&signal_stack, nullptr);      // a fiber that overflowed its stack has no room to handle that

    Block* block = (Block*)calloc(1, sizeof(Block));
    Part& part = *(Part*)argument;
    block->cluster = part.cluster, block->rank = part.rank;
    part.cluster->blocks[part.rank] = block;
    emu_prepare_block(*block, launch);
    uint64_t index;
    while ((index = next_of(part)) < cluster_count) {
        emu_run_block(*block, number_in_grid(index, part.rank));
        __atomic_fetch_add(&launch->report->blocks_done, 1, __ATOMIC_RELAXED);
    }
    emu_release_block(*block);
    return nullptr;
}

// ---- crashes and the time limit

// A return address without the bits by which an ARM that protects it has signed it.
static uintptr_t unsigned_address(uintptr_t address) {
#if defined(__aarch64__)
    return address << 16 >> 16;
#else
    return address;
#endif
}

// access: 1 for a read, 2 for a write. return_address: of the function that runs, if a register has it.
struct Fault { uintptr_t program_counter, stack_pointer, return_address; uint32_t access; };

static bool in_code(uintptr_t address) { return address - code_low < code_high - code_low; }

#if defined(__aarch64__)
// The processor does not say what an access was, but its instruction does. A load that an exclusive store follows is half
// of an atomic operation: a write, as on x86.
static uint32_t access_of(uint32_t code) {
    const auto bits = [=](unsigned from, unsigned count) { return code >> from & ((1u << count) - 1); };
    const uint32_t read = 1, write = 2, kind = bits(27, 3), loads = bits(22, 1), is_vector = bits(26, 1);
    if (kind == 3 && !bits(24, 2)) return read;                               // beside the program counter
    if (bits(25, 4) == 2) return bits(29, 3) == 7 ? write : read;             // SVE, which -march=native may use
    if (kind == 5 || (is_vector && (kind == 1 || kind == 7))) return loads ? read : write;   // a pair; vectors
    if (kind == 1) return loads && bits(23, 1) && !bits(21, 1) ? read : write;   // in order; exclusive; compare and swap
    const bool is_atomic = kind == 7 && !bits(24, 2) && bits(21, 1) && !bits(10, 2);
    return (kind == 3 || kind == 7) && bits(22, 2) && !is_atomic ? read : write;   // else it clears memory: dc zva
}
#endif

static Fault read_context(const ucontext_t* context, bool has_address) {
#if defined(__x86_64__)
    const greg_t* r = context->uc_mcontext.gregs;
    return {(uintptr_t)r[REG_RIP], (uintptr_t)r[REG_RSP], 0, r[REG_ERR] & 2 ? 2u : 1u};
#else
    const auto& r = context->uc_mcontext;
    const bool is_call = r.fault_address == r.pc;   // of what is no code: there is no instruction to look at
    const uint32_t access = !has_address ? 0u : is_call ? 1u : access_of(*(const uint32_t*)r.pc);
    return {(uintptr_t)r.pc, (uintptr_t)r.sp, unsigned_address(r.regs[30]), access};
#endif
}

// Inside the runtime or libm, the nearest return address into the kernel's code says which line called it.
static uintptr_t kernel_program_counter(const Fault& fault, const Block& b) {
    if (in_code(fault.program_counter)) return fault.program_counter;
    if (in_code(fault.return_address)) return fault.return_address - 1;   // inside the call, not behind it
    uintptr_t low = (uintptr_t)b.stacks, high = low + b.stacks_bytes;
    if (fault.stack_pointer - low >= high - low) return fault.program_counter;
    const uintptr_t* word = (const uintptr_t*)(fault.stack_pointer & ~(uintptr_t)7);
    for (int i = 0; i < 1024 && (uintptr_t)(word + i) < high; i++)
        if (in_code(unsigned_address(word[i]))) return unsigned_address(word[i]) - 1;
    return fault.program_counter;
}

static bool in_stacks(const Block* b, uintptr_t address) { return b && address - (uintptr_t)b->stacks < b->stacks_bytes; }

// What the watchdog says.
static const char still_running[] = "the kernel was still running after %g s", stands_still[] =
    "in %g s of computing there was no step to record, and no other block began";
static const char* out_of_time = still_running;
static double seconds;

// Whether nobody else has failed before.
static bool record_time_limit(const Fiber* f) {
    char words[128];
    snprintf(words, sizeof words, out_of_time, seconds);
    const emu_dim3 grid = launch->grid;
    return emu_record(launch, EMU_TIME_LIMIT, f, emu_site{},
                      "time limit: %s (%llu of %llu blocks done; emulator.configure(time_limit=...) sets the limit, threads=... how many "
                      "blocks run at once, as those must that wait for each other)", words,
                      (unsigned long long)__atomic_load_n(&launch->report->blocks_done, __ATOMIC_RELAXED),
                      (unsigned long long)grid.x * grid.y * grid.z);
}

static bool in_dynamic_shared(const Block* b, uintptr_t address) {
    return b && address - (uintptr_t)b->dynamic_shared < EMU_SHARED_LIMIT;
}

// As a misaligned vector has it: emu_vector_types.h.
static bool is_no_address(int code, uintptr_t address) { return code == SI_KERNEL || address >> 48 & 0x7f; }

static const char* explain(int signal, int code, uintptr_t address, const Block* b) {
    switch (signal) {
    case SIGFPE: return "integer division by zero (a GPU returns garbage and goes on)";
    case SIGILL: case SIGTRAP: return "undefined behaviour: the compiler proved that this code cannot be reached";
    }
    if (in_stacks(b, address))
        return "stack overflow of a CUDA thread: deep recursion, or local arrays of more than 256 KB";
    if (in_dynamic_shared(b, address))
        return "invalid memory access: past the end of the dynamic shared memory that the launch asked for (shared_mem)";
    if (is_no_address(code, address)) return "invalid memory access: a misaligned vector, or an address that cannot exist";
    if (address < 4096) return "invalid memory access: a null pointer";
    return "invalid memory access";
}

// An access that the sanitizer has found to be out of bounds goes on, to memory that nobody else knows.
static bool let_pass(int signal, uintptr_t address) {
    const emu_tracing* tracing = launch->tracing;
    if (signal != SIGSEGV || !tracing || !tracing->sanitize) return false;
    if (address - (uintptr_t)tracing->reserved.address >= tracing->reserved.bytes) return false;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = address / page * page;
    if (mprotect((void*)start, page, PROT_READ | PROT_WRITE)) return false;
    memset((void*)start, 0xff, page);         // NaN, so that what was read there shows in the result
    return true;
}

// The lowest int divided by -1: x86 traps, since -(lowest) does not fit. A GPU divides the magnitudes: the lowest int
// again, and 0 remains. So does idiv, of the dividend without its sign in rdx. What then still traps divides by zero.
static bool divide_magnitude(int signal, ucontext_t* context) {
#if defined(__x86_64__)
    greg_t& sign = context->uc_mcontext.gregs[REG_RDX];
    if (signal != SIGFPE || sign == 0) return false;
    sign = 0;
    return true;
#else
    return false;                             // nor does any other processor trap
#endif
}

// Past the time limit: where is it? An endless loop has several lines, and is in any of them.
static void sample(const Fault& fault) {
    Block* b = emu_block;
    const Fiber* f = emu_current;
    if (!f) return;                           // between two blocks: the next tick of the watchdog finds a kernel
    emu_report* report = launch->report;
    record_time_limit(f);
    if (report->outcome != EMU_TIME_LIMIT) return;
    const uint32_t i = __atomic_fetch_add(&report->sample_count, 1, __ATOMIC_RELAXED);
    if (i >= EMU_SAMPLES) return;
    report->samples[i] = {kernel_program_counter(fault, *b), f->waits_at.line, 0};
    if (f->waits_at.file) snprintf(report->file, sizeof report->file, "%s", f->waits_at.file);
    if (memcmp(&report->block, &f->block_idx, sizeof report->block) || memcmp(&report->thread, &f->thread_idx, sizeof report->thread))
        report->has_thread = 0;
    if (i + 1 < EMU_SAMPLES) return;
    if (b->tracer && !emu_is_finding()) emu_trace_logs(*b);
    emu_end_worker(true);
}

static void on_fault(int signal, siginfo_t* info, void* context) {
    Block* b = emu_block;
    const Fiber* f = emu_current;
    if (f && (let_pass(signal, (uintptr_t)info->si_addr) || divide_magnitude(signal, (ucontext_t*)context))) return;
    const bool has_address = signal == SIGSEGV || signal == SIGBUS;
    Fault fault = read_context((const ucontext_t*)context, has_address);
    if (signal == SIGALRM) return sample(fault);
    uintptr_t address = has_address ? (uintptr_t)info->si_addr : 0;
    emu_site site = f ? f->copying : emu_site{};
    if (!emu_record(launch, EMU_CRASH, f, site, "%s", explain(signal, info->si_code, address, b))) emu_end_worker(false);
    launch->report->program_counter = b ? kernel_program_counter(fault, *b) : fault.program_counter;
    launch->report->address = address;
    bool explained = address < 4096 || is_no_address(info->si_code, address) || in_stacks(b, address) || in_dynamic_shared(b, address);
    launch->report->access = explained ? 0 : fault.access;
    if (b && b->tracer && f && !emu_is_finding()) emu_trace_logs(*b);
    emu_end_worker(true);
}

static double now(clockid_t clock) {
    timespec time;
    clock_gettime(clock, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

// Until the time limit; or until a launch that is recorded has not come further for a while. A busy machine does not count.
static void wait_until_late() {
    seconds = launch->time_limit;
    const emu_recording* recording = launch->tracing ? launch->tracing->recording : nullptr;
    const double end = now(CLOCK_MONOTONIC) + launch->time_limit, most = recording ? 0.05 : launch->time_limit;
    double since = now(CLOCK_PROCESS_CPUTIME_ID), left;
    uint32_t steps = 0, blocks = 0;
    while ((left = end - now(CLOCK_MONOTONIC)) > 0) {
        const double pause = left < most ? left : most;
        const timespec time = {(time_t)pause, (long)((pause - (double)(time_t)pause) * 1e9)};
        nanosleep(&time, nullptr);
        if (!recording) continue;
        const uint32_t steps_now = __atomic_load_n(&recording->step_count, __ATOMIC_RELAXED);
        const uint32_t blocks_now = __atomic_load_n(&recording->block_count, __ATOMIC_RELAXED);
        const double computed = now(CLOCK_PROCESS_CPUTIME_ID);
        if (steps_now != steps || blocks_now != blocks) since = computed;
        steps = steps_now, blocks = blocks_now;
        if (computed - since < recording->patience) continue;
        out_of_time = stands_still, seconds = recording->patience;
        return;
    }
}

static void* watch(void*) {
    wait_until_late();
    const timespec tick = {0, 500000};
    for (int i = 0; i < 2000; i++) {          // the handler runs on a thread that executes the kernel, and says where
        kill(getpid(), SIGALRM);
        nanosleep(&tick, nullptr);
    }
    emu_end_worker(record_time_limit(nullptr));
}

static int find_code(dl_phdr_info* info, size_t, void*) {
    uintptr_t inside = (uintptr_t)launch->kernel, last = 0;
    bool mine = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const auto& segment = info->dlpi_phdr[i];
        if (segment.p_type != PT_LOAD) continue;
        uintptr_t start = info->dlpi_addr + segment.p_vaddr, end = start + segment.p_memsz;
        if (end > last) last = end;
        if (inside < start || inside >= end) continue;
        mine = true;
        code_low = start;
        code_high = end;
    }
    if (!mine) return 0;
    emu_load_base = info->dlpi_addr;
    emu_load_end = last;
    return 1;
}

static void install_handlers() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGALRM};
    for (int signal : faults) sigaction(signal, &action, nullptr);
    signal(SIGINT, SIG_DFL);                  // the notebook's interrupt button ends the worker, too
    signal(SIGTERM, SIG_DFL);
}

[[noreturn]] static void work(pid_t launcher) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);         // the launcher has but one thread: when that ends, it has ended
    if (getppid() != launcher) _exit(1);      // it had, before that was said
    dl_iterate_phdr(find_code, nullptr);
    emu_preferred = launch->tracing ? launch->tracing->preferred : nullptr;
    install_handlers();

    for (uint64_t i = 0, at = 0; i < launch->global_count; at += launch->globals[i++].bytes)
        memcpy(launch->globals[i].address, launch->global_values + at, launch->globals[i].bytes);
    if (launch->tracing && launch->tracing->profile) emu_prepare_touched(launch);
    if (launch->tracing && launch->tracing->recording) emu_prepare_recording(launch->tracing);
    next_cluster = 0;
    const unsigned cluster_size = launch->cluster.x * launch->cluster.y * launch->cluster.z;
    cluster_count = (uint64_t)launch->grid.x * launch->grid.y * launch->grid.z / cluster_size;
    const uint64_t block_threads = (uint64_t)launch->block.x * launch->block.y * launch->block.z;
    uint64_t threads = launch->os_threads;
    if (threads > most_stacks / block_threads) threads = most_stacks / block_threads;
    uint64_t clusters = threads / cluster_size ? threads / cluster_size : 1;   // at a time
    if (clusters > cluster_count) clusters = cluster_count;
    threads = clusters * cluster_size;
    pthread_t* pool = (pthread_t*)calloc(threads, sizeof(pthread_t));
    Part* parts = (Part*)calloc(threads, sizeof(Part));
    Cluster* at_work = (Cluster*)calloc(clusters, sizeof(Cluster));
    uint64_t* indices = (uint64_t*)calloc(clusters, sizeof(uint64_t));
    for (uint64_t i = 0; i < clusters; i++) {
        at_work[i].size = cluster_size;
        pthread_mutex_init(&at_work[i].mutex, nullptr);
        pthread_cond_init(&at_work[i].turns, nullptr);
        pthread_barrier_init(&at_work[i].between, nullptr, cluster_size);
    }
    for (uint64_t i = 0; i < threads; i++)
        parts[i] = {&at_work[i / cluster_size], &indices[i / cluster_size], (unsigned)(i % cluster_size)};
    sigset_t alarms, inherited;
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_UNBLOCK, &alarms, &inherited);
    for (uint64_t i = 0; i < threads; i++)
        if ((errno = pthread_create(&pool[i], nullptr, run_blocks, &parts[i]))) emu_fail_to_start(launch, "a thread");
    pthread_sigmask(SIG_BLOCK, &alarms, nullptr);   // leaves SIGALRM to the pool
    pthread_t watchdog;
    if ((errno = pthread_create(&watchdog, nullptr, watch, nullptr))) emu_fail_to_start(launch, "a thread");
    for (uint64_t i = 0; i < threads; i++) pthread_join(pool[i], nullptr);
    if (launch->tracing && launch->tracing->sanitize) emu_find_conflicts();
    if (launch->tracing && launch->tracing->profile) emu_count_touched(launch->tracing);

    for (uint64_t i = 0, at = 0; i < launch->global_count; at += launch->globals[i++].bytes)
        memcpy(launch->global_values + at, launch->globals[i].address, launch->globals[i].bytes);
    uint32_t running = EMU_RUNNING;
    __atomic_compare_exchange_n(&launch->report->outcome, &running, EMU_FINISHED, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    _exit(0);
}

// Starts a worker process that runs the launch; returns its process id, or -errno.
extern "C" int emu_start(const emu_launch* request) {
    const pid_t launcher = getpid(), worker = fork();
    if (worker == 0) {
        launch = request;
        work(launcher);
    }
    return worker < 0 ? -errno : worker;
}

extern "C" uint64_t emu_report_bytes() { return sizeof(emu_report); }
extern "C" uint64_t emu_trace_results_bytes() { return sizeof(emu_trace_results); }
extern "C" uint64_t emu_recording_bytes() { return sizeof(emu_recording); }

// ---- device printf

extern "C" int emu_printf(const char* format, ...) {
    char line[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    if (length < 0) return length;
    uint32_t bytes = (uint32_t)length < sizeof line ? (uint32_t)length : (uint32_t)sizeof line - 1;
    emu_report* report = launch->report;
    uint32_t at = __atomic_load_n(&report->printed, __ATOMIC_RELAXED);
    do {
        if (bytes > sizeof report->output - at) {
            __atomic_fetch_add(&report->print_lost, bytes, __ATOMIC_RELAXED);
            return length;
        }
    } while (!__atomic_compare_exchange_n(&report->printed, &at, at + bytes, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    memcpy(report->output + at, line, bytes);
    return length;
}
