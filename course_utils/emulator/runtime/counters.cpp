// The profiler's counters. The accesses that the lanes of a warp make with one instruction are a request; its cost follows
// from the addresses: sectors of 32 bytes in global memory, passes through the 32 banks of shared memory.
#include "counters.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct Request { unsigned count; uint64_t address[32]; uint8_t lane[32], space[32], target[32]; };

// The requests of one instruction that wait for more lanes, since a warp's lanes have taken different ways.
struct Instruction {
    LogEntry entry;                      // what its accesses have in common
    uint32_t seen[32];                   // how often each lane has executed it since the warp last synchronised
    uint32_t first, count, capacity;     // the occurrences `first` ... `first + count - 1` have an open request each
    Request* requests;
};

struct OpenWarp { Instruction* instructions; unsigned count, capacity; };   // count 0: the lanes go side by side

static const unsigned most_places = 16384, most_open = 1024;   // most_open: requests of one instruction

struct Counters {
    emu_counter place[most_places];      // open addressing
    uint64_t loaded[64];                 // bytes of each array that loads and atomics ask for, each time anew
    OpenWarp open[32];
};

static pthread_mutex_t merge_lock = PTHREAD_MUTEX_INITIALIZER;
static uint8_t* touched[64];             // one byte per 4 bytes of an array: which were read (low half), which written

Counters* emu_new_counters() { return (Counters*)calloc(1, sizeof(Counters)); }

// ---- the cost of a request

// Aligned accesses never lie across two sectors. Atomics to one address go one after the other: each round counts anew.
static unsigned count_sectors(const Request& q, bool atomic) {
    uint64_t address[32];
    for (unsigned i = 0; i < q.count; i++) {      // insertion sort: sorted already, as a rule
        unsigned j = i;
        for (; j && address[j - 1] > q.address[i]; j--) address[j] = address[j - 1];
        address[j] = q.address[i];
    }
    unsigned sectors = 0, rounds = 0, repeats = 0;
    for (unsigned i = 0; i < q.count; i++) {
        if (i && address[i] / 32 != address[i - 1] / 32) sectors += rounds, rounds = 0;
        repeats = i && address[i] == address[i - 1] ? repeats + 1 : 1;
        if (repeats > rounds) rounds = atomic ? repeats : 1;
    }
    return sectors + rounds;
}

// A cp.async.cg asks for at least one sector for every 32 bytes of shared memory in which eight neighbouring lanes write: ncu
// counts so on an H200, where they lie scattered.
static unsigned count_copied_sectors(const Request& q) {
    unsigned sectors = 0, i = 0;
    while (i < q.count) {
        Request eight;
        eight.count = 0;
        uint64_t seen[4] = {};
        unsigned targets = 0;
        for (const unsigned group = q.lane[i] / 8; i < q.count && q.lane[i] / 8 == group; i++) {
            eight.address[eight.count++] = q.address[i];
            const uint64_t bit = 1ull << q.target[i] % 64;
            targets += !(seen[q.target[i] / 64] & bit);
            seen[q.target[i] / 64] |= bit;
        }
        const unsigned distinct = count_sectors(eight, false);
        sectors += targets > distinct ? targets : distinct;
    }
    return sectors;
}

struct Passes { unsigned wavefronts, ideal; };

// The most words that one bank must deliver to the lanes in [low, high); 0 if none of them takes part. Lanes share a word,
// unless they update it.
static unsigned worst_bank(const Request& q, unsigned bytes, bool atomic, unsigned low, unsigned high) {
    uint32_t words[128];
    uint8_t first_of_bank[32], next[128], of_bank[32] = {};
    unsigned count = 0, worst = 0;
    for (unsigned i = 0; i < q.count; i++) {
        if (q.lane[i] < low || q.lane[i] >= high) continue;
        for (uint64_t word = q.address[i] / 4; word * 4 < q.address[i] + bytes; word++) {
            const unsigned bank = word % 32;
            bool known = false;
            unsigned w = of_bank[bank] ? first_of_bank[bank] : 0;
            for (unsigned n = 0; n < of_bank[bank] && !known && !atomic; n++, w = next[w]) known = words[w] == (uint32_t)word;
            if (known) continue;
            words[count] = (uint32_t)word;
            next[count] = of_bank[bank] ? first_of_bank[bank] : 0;
            first_of_bank[bank] = (uint8_t)count++;
            if (++of_bank[bank] > worst) worst = of_bank[bank];
        }
    }
    return worst;
}

// Do all lanes ask for what their partners ask for? An idle one has nothing against it.
static bool agree(const Request& q, unsigned partner) {
    uint64_t address[32] = {};
    for (unsigned i = 0; i < q.count; i++) address[q.lane[i]] = q.address[i];
    for (unsigned l = 0; l < 32; l++)
        if (address[l] && address[l ^ partner] && address[l] != address[l ^ partner]) return false;
    return true;
}

// Accesses of up to 4 bytes go by 32 lanes, of 8 bytes by 16, of 16 bytes by 8; twice as many in a wide load where
// neighbours, or lanes two apart, read the same. (Measured on an H200 with random patterns: ncu counts exactly this.)
static Passes count_passes(const Request& q, unsigned bytes, Access access) {
    unsigned together = bytes <= 4 ? 32 : 128 / bytes;
    if (is_read(access) && bytes > 4 && (agree(q, 1) || agree(q, 2))) together *= 2;
    Passes passes = {0, 0};
    for (unsigned low = 0; low < 32; low += together) {
        const unsigned worst = worst_bank(q, bytes, access == Access::atomic, low, low + together);
        passes.wavefronts += worst;
        passes.ideal += worst != 0;
    }
    return passes;
}

// ---- requests

static emu_operation operation_of(const LogEntry& e) {
    return is_read(e.access) ? EMU_LOAD : e.access == Access::atomic ? EMU_ATOMIC : EMU_STORE;
}

static emu_counter* counter_for(Tracer& t, const LogEntry& e) {
    const uint32_t is_shared = e.space == 0, operation = operation_of(e);
    const uint64_t hash = (e.place * 8ull + is_shared * 4 + operation) * 0x9E3779B97F4A7C15ull;
    emu_counter* table = t.counters->place;
    for (unsigned i = 0, at = (unsigned)(hash >> 50); i < most_places; i++, at = (at + 1) % most_places) {
        emu_counter& c = table[at];
        if (!c.requests) c.place = e.place, c.is_shared = is_shared, c.operation = operation;
        if (c.place == e.place && c.is_shared == is_shared && c.operation == operation) return &c;
    }
    return nullptr;
}

static void touch(const Tracer& t, unsigned array, uint64_t address, uint64_t bytes, bool reads, bool writes) {
    if (reads) t.counters->loaded[array] += bytes;
    const uint64_t first = t.arrays[array].low / 4;
    for (uint64_t word = address / 4; word * 4 < address + bytes; word++) {
        unsigned which = 15;                                // of the word's bytes
        if (word * 4 < address) which &= 15u << (address - word * 4);
        if (word * 4 + 4 > address + bytes) which &= 15u >> (word * 4 + 4 - address - bytes);
        const uint8_t marks = (uint8_t)((reads ? which : 0) | (writes ? which << 4 : 0));
        uint8_t& mark = touched[array][word - first];
        if ((mark & marks) != marks) __atomic_fetch_or(&mark, marks, __ATOMIC_RELAXED);
    }
}

void emu_count_copied(Tracer& t, unsigned array, const char* from, uint64_t bytes, bool is_load) {
    touch(t, array, (uint64_t)from, bytes, is_load, !is_load);
}

unsigned emu_array_of(const Tracer& t, const char* address) {
    unsigned i = 0;
    while (i < t.array_count && (uintptr_t)address - t.arrays[i].low >= t.arrays[i].high - t.arrays[i].low) i++;
    return i;
}

static void count_request(Tracer& t, const LogEntry& e, const Request& q) {
    emu_counter* c = counter_for(t, e);
    const unsigned bytes = 1u << e.log_bytes;
    if (!c) {
        __atomic_fetch_add(&t.results->counters_dropped, 1, __ATOMIC_RELAXED);
        return;
    }
    c->requests++;
    c->bytes += (uint64_t)q.count * bytes;
    if (e.space == 0) {
        const Passes passes = count_passes(q, bytes, e.access);
        c->wavefronts += passes.wavefronts;
        c->ideal_wavefronts += passes.ideal;
    } else {
        c->sectors += e.access == Access::copy_read ? count_copied_sectors(q) : count_sectors(q, e.access == Access::atomic);
        c->ideal_sectors += (q.count * bytes + 31) / 32;
        const emu_operation operation = operation_of(e);
        for (unsigned i = 0; i < q.count; i++)
            touch(t, q.space[i] - 1u, q.address[i], bytes, operation != EMU_STORE, operation != EMU_LOAD);
    }
}

// ---- which accesses make a request

static inline uint64_t identity(const LogEntry& e) {   // what the accesses of one request have in common
    return (uint64_t)e.place << 24 | (uint64_t)e.log_bytes << 16 | (uint64_t)e.access << 8 | (e.space == 0);
}

static inline void join(Request& q, const LogEntry& e, unsigned lane) {
    q.address[q.count] = e.address;
    q.lane[q.count] = (uint8_t)lane;
    q.target[q.count] = e.value;
    q.space[q.count++] = e.space;
}

static Instruction& instruction_for(OpenWarp& open, const LogEntry& e) {
    for (unsigned i = 0; i < open.count; i++)
        if (identity(open.instructions[i].entry) == identity(e)) return open.instructions[i];
    if (open.count == open.capacity) {
        open.capacity = open.capacity ? 2 * open.capacity : 16;
        open.instructions = (Instruction*)realloc(open.instructions, open.capacity * sizeof(Instruction));
    }
    Instruction& fresh = open.instructions[open.count++];
    memset(&fresh, 0, sizeof fresh);
    fresh.entry = e;
    return fresh;
}

static void close_first(Tracer& t, Instruction& in, unsigned number) {
    for (unsigned i = 0; i < number; i++)
        if (in.requests[i].count) count_request(t, in.entry, in.requests[i]);
    memmove(in.requests, in.requests + number, (in.count - number) * sizeof(Request));
    in.first += number;
    in.count -= number;
}

// Lanes that took different ways meet again at an instruction: its n-th execution by one lane belongs to its n-th by another.
static void add(Tracer& t, OpenWarp& open, const LogEntry& e, unsigned lane, unsigned live) {
    Instruction& in = instruction_for(open, e);
    const uint32_t occurrence = in.seen[lane]++;
    if (occurrence < in.first) {                       // its request is counted already: too far behind the others
        Request alone;
        alone.count = 0;
        join(alone, e, lane);
        return count_request(t, e, alone);
    }
    while (occurrence >= in.first + in.count) {
        if (in.count == most_open) close_first(t, in, most_open / 2);
        if (in.count == in.capacity) {
            in.capacity = in.capacity ? 2 * in.capacity : 8;
            in.requests = (Request*)realloc(in.requests, in.capacity * sizeof(Request));
        }
        in.requests[in.count++].count = 0;
    }
    Request& q = in.requests[occurrence - in.first];
    join(q, e, lane);
    if (q.count == live && &q == in.requests) close_first(t, in, 1);
}

static void close_warp(Tracer& t, OpenWarp& open) {
    for (unsigned i = 0; i < open.count; i++) {
        close_first(t, open.instructions[i], open.instructions[i].count);
        free(open.instructions[i].requests);
    }
    open.count = 0;
}

static bool is_access(const LogEntry& e) {   // to what is counted: variables are not
    return e.access != Access::warp_sync && e.access != Access::copy_arrived && e.space <= most_arrays;
}

// A __syncwarp() after which no lane lags behind; one for some of the lanes closes nothing.
static bool syncs_all(const LogEntry& e, unsigned live) {
    return e.access == Access::warp_sync && (unsigned)__builtin_popcount(e.place) >= live;
}

struct Lane { const LogEntry *next, *end; bool more; };   // more: its log was full, and it goes on

// Counts requests as long as all lanes go on with the same instruction. False: they part, or one has to be waited for.
static bool count_side_by_side(Tracer& t, Lane* lanes) {
    for (;;) {
        Request q;
        q.count = 0;
        const LogEntry* first = nullptr;
        bool wait = false;
        for (unsigned l = 0; l < 32; l++) {
            const LogEntry* e = lanes[l].next;
            if (e == lanes[l].end) {
                wait |= lanes[l].more;
                continue;
            }
            if (!first) first = e;
            else if (identity(*e) != identity(*first)) return false;
            join(q, *e, l);
        }
        if (!first) return true;
        if (wait) return false;
        if (is_access(*first)) count_request(t, *first, q);
        for (unsigned l = 0; l < 32; l++) lanes[l].next += lanes[l].next != lanes[l].end;
    }
}

static void count_warp(Tracer& t, const Warp& w, OpenWarp& open) {
    Lane lanes[32] = {};
    unsigned live = 0;
    for (unsigned l = 0; l < 32; l++) {
        if (!w.fiber[l]) continue;
        const Fiber& f = *w.fiber[l];
        lanes[l] = {f.log, f.log + f.logged, f.state == State::log_full};
        live += w.fiber[l]->state != State::done || w.fiber[l]->logged;
    }
    while (open.count || !count_side_by_side(t, lanes)) {
        bool synchronised = false;
        for (unsigned l = 0; l < 32; l++) {
            for (; lanes[l].next != lanes[l].end && !syncs_all(*lanes[l].next, live); lanes[l].next++)
                if (is_access(*lanes[l].next)) add(t, open, *lanes[l].next, l, live);
            synchronised |= lanes[l].next != lanes[l].end;
        }
        if (!synchronised) return;                     // more is to come: the requests stay open
        close_warp(t, open);
        for (unsigned l = 0; l < 32; l++) lanes[l].next += lanes[l].next != lanes[l].end;
    }
}

void emu_count(Tracer& t) {
    for (unsigned w = 0; w < t.block->warp_count; w++) count_warp(t, t.block->warps[w], t.counters->open[w]);
}

void emu_close_requests(Tracer& t) {
    for (unsigned w = 0; w < t.block->warp_count; w++) close_warp(t, t.counters->open[w]);
}

// ---- results

void emu_merge_counters(Tracer& t) {
    emu_trace_results& r = *t.results;
    pthread_mutex_lock(&merge_lock);
    for (const emu_counter& mine : t.counters->place) {
        if (!mine.requests) continue;
        uint32_t i = 0;
        while (i < r.counter_count && !(r.counters[i].place == mine.place && r.counters[i].is_shared == mine.is_shared &&
                                        r.counters[i].operation == mine.operation))
            i++;
        if (i == sizeof r.counters / sizeof *r.counters) {
            r.counters_dropped++;
            continue;
        }
        emu_counter& sum = r.counters[i];
        if (i == r.counter_count) {
            sum = mine;
            r.counter_count++;
            continue;
        }
        sum.requests += mine.requests;
        sum.bytes += mine.bytes;
        sum.sectors += mine.sectors;
        sum.ideal_sectors += mine.ideal_sectors;
        sum.wavefronts += mine.wavefronts;
        sum.ideal_wavefronts += mine.ideal_wavefronts;
    }
    for (unsigned i = 0; i < t.array_count; i++) r.touched[i].loaded += t.counters->loaded[i];
    pthread_mutex_unlock(&merge_lock);
}

void emu_prepare_touched(const emu_launch* launch) {
    const emu_tracing* tracing = launch->tracing;
    for (uint64_t i = 0; i < tracing->array_count; i++) {
        void* p = mmap(nullptr, tracing->arrays[i].bytes / 4 + 2, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (p == MAP_FAILED) emu_fail_to_start(launch, "memory for the profiler");
        touched[i] = (uint8_t*)p;
    }
}

void emu_count_touched(const emu_tracing* tracing) {
    for (uint64_t i = 0; i < tracing->array_count; i++) {
        emu_touched& sum = tracing->results->touched[i];
        for (uint64_t word = 0; word < tracing->arrays[i].bytes / 4 + 2; word++) {
            sum.read += (unsigned)__builtin_popcount(touched[i][word] & 15);
            sum.written += (unsigned)__builtin_popcount(touched[i][word] >> 4);
        }
    }
}
