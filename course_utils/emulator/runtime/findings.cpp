#include "findings.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

uintptr_t emu_load_base, emu_load_end;
const emu_dim3* emu_preferred;

static pthread_mutex_t findings_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool finding_now __attribute__((tls_model("initial-exec"))) = false;

static bool same(const emu_finding& a, const emu_finding& b) {
    const bool same_kind = a.defect.kind == b.defect.kind || a.tool >= EMU_SYNCCHECK;   // there a place says enough
    return a.tool == b.tool && same_kind && a.place == b.place && a.other_place == b.other_place && a.line == b.line &&
           !strcmp(a.file, b.file) && a.other_line == b.other_line && !strcmp(a.other_file, b.other_file);
}

static bool is_preferred(const emu_finding& a) { return emu_preferred && !memcmp(&a.block, emu_preferred, sizeof a.block); }

static bool is_between_blocks(const emu_finding& a) { return a.has_other && memcmp(&a.block, &a.other_block, sizeof a.block); }

static bool tells_more(const emu_finding& a, const emu_finding& b) {
    if (is_preferred(a) != is_preferred(b)) return is_preferred(a);
    if (is_between_blocks(a) != is_between_blocks(b)) return is_between_blocks(a);   // no barrier of a block mends it
    if (a.same_warp != b.same_warp) return !a.same_warp;   // that of two warps takes the stronger barrier to mend
    const unsigned key_a[] = {a.block.z, a.block.y, a.block.x, a.thread.z, a.thread.y, a.thread.x};
    const unsigned key_b[] = {b.block.z, b.block.y, b.block.x, b.thread.z, b.thread.y, b.thread.x};
    for (int i = 0; i < 6; i++)
        if (key_a[i] != key_b[i]) return key_a[i] < key_b[i];
    return false;
}

emu_defect emu_defect_of(emu_kind kind, emu_figures figures, const char* name) {
    emu_defect defect = {};
    defect.kind = kind;
    defect.figures = figures;
    snprintf(defect.name, sizeof defect.name, "%s", name);
    return defect;
}

emu_finding emu_finding_at(const emu_thread* thread, emu_tool tool, emu_kind kind, uint64_t place) {
    emu_finding finding = {};
    finding.tool = tool;
    finding.defect.kind = kind;
    finding.place = place;
    finding.count = 1;
    finding.block = thread->block_idx;
    finding.thread = thread->thread_idx;
    return finding;
}

void emu_find(emu_trace_results* results, const emu_finding& finding) {
    emu_trace_results& r = *results;
    finding_now = true;                      // a signal that comes now must not wait for the lock
    pthread_mutex_lock(&findings_lock);
    uint32_t i = 0;
    while (i < r.finding_count && !same(r.findings[i], finding)) i++;
    if (i < r.finding_count) {
        const uint64_t count = r.findings[i].count + finding.count;
        if (tells_more(finding, r.findings[i])) r.findings[i] = finding;   // whichever OS thread comes first
        r.findings[i].count = count;
    } else if (i < sizeof r.findings / sizeof *r.findings) {
        r.findings[i] = finding;
        __atomic_store_n(&r.finding_count, i + 1, __ATOMIC_RELEASE);   // whole, should the worker die now
    } else {
        r.findings_dropped++;
    }
    pthread_mutex_unlock(&findings_lock);
    finding_now = false;
}

bool emu_is_finding() { return finding_now; }

// ---- looks

static uint32_t looks[1024];              // by a hash of the place; 0: none. When it is full, there are no more of them

static uint32_t* look_at(uint32_t place) {
    for (unsigned n = 0, i = place * 0x9E3779B9u >> 22; n < 64; n++, i = (i + 1) % 1024) {
        const uint32_t there = __atomic_load_n(&looks[i], __ATOMIC_RELAXED);
        if (!there || there == place) return &looks[i];
    }
    return nullptr;
}

bool emu_has_looks;

void emu_add_look(uint32_t place) {
    emu_has_looks = true;
    for (uint32_t* at; (at = look_at(place)) && *at != place;) {
        uint32_t none = 0;                 // another OS thread may come first, with another place
        __atomic_compare_exchange_n(at, &none, place, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
    }
}

bool emu_knows_look(uint32_t place) {
    const uint32_t* at = place ? look_at(place) : nullptr;
    return at && *at == place;
}

void emu_drop_looks(emu_trace_results* results) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < results->finding_count; i++)
        if (!emu_is_look(results->findings[i].look)) results->findings[kept++] = results->findings[i];
    results->finding_count = kept;
}
