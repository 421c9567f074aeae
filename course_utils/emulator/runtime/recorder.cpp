#include "recorder.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "findings.h"

static const int nowhere = -1;
static const unsigned most_calls = sizeof(emu_recording::calls) / sizeof(emu_call);
static const unsigned patience = 1000;        // turns that a lane lets others of its warp go first
static const uint32_t idle_turns = 100000;    // without an access to memory, of a block that does not end
static const unsigned most_tries = 64;        // at a call, to see a struct that it returns go into memory,
static const uint8_t goes_there = 255;        // which it has done there once
static const size_t most_compared = 4 << 20;  // bytes of memory in which that is seen

// A function that a lane is in. copy: what its variables were at the lane's last step; they are all new where there was none yet.
struct Frame {
    const emu_function* function;             // null: one that has no variables
    char* low;                                // where they begin
    uint32_t call;                            // from where it was called
    bool is_new;
    char* copy;                               // kept from call to call
    size_t room;
};
static const unsigned deepest = 32;           // of a call: calls in there are not told apart

// What a lane has begun to write: where, how much, where among the words the new value belongs, and in which step.
struct Written { uintptr_t address; uint32_t bytes, word, step; };

struct Lane {
    emu_intent deed;
    uint32_t call;                            // where it is
    Frame frames[deepest];
    unsigned depth;
    int array;                                // in which the address lies
    uint32_t offset;
    bool waits;
    unsigned passed_over;
    int step;
    Written* written;                         // its last write, in pieces; kept from write to write
    unsigned written_count, written_room;
    bool late;                                // which is there once the warp has met;
    bool copies;                              // or behind the read that the lane does now,
    unsigned copied;                          // of which so many pieces are done
    uint32_t returned, returned_bytes;        // the call from which a struct has just come back; 0: none
    LogEntry log;                             // by which the scheduler knows that there is something to settle
};

// Memory to which a struct may go that a function returns, and a copy of it from before that.
struct Stretch { const char* now; char* before; size_t bytes; };

struct Recorder {
    Tracer* tracer;
    emu_recording* recording;
    Lane lanes[1024];
    uint32_t turn, last_turn, last_rows;      // the last turn at whose beginning there were new rows, and how many there were
    uint32_t find_call[most_calls];           // open addressing: the number of a call
    int barrier_step[EMU_CLUSTER + 1];        // of the first thread at a barrier that is to open; nowhere: none
    char* shared;                             // shared memory, as the steps so far make it
    Stretch stretches[67];
    unsigned stretch_count;
    uint8_t tries[most_calls];                // of each call; goes_there
};

// Global memory, as the steps so far make it, an array after the other. Where memory itself says otherwise, somebody wrote there
// who is not recorded: another block.
static char* known[64];

static char* room(size_t bytes) {
    char* memory = (char*)mmap(nullptr, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return memory == MAP_FAILED ? nullptr : memory;
}

void emu_prepare_recording(const emu_tracing* tracing) {
    for (uint64_t i = 0; i < tracing->array_count; i++) {
        known[i] = room(tracing->arrays[i].bytes);
        if (known[i]) memcpy(known[i], tracing->arrays[i].address, tracing->arrays[i].bytes);
    }
}

static void add_stretch(Recorder& r, const char* now, size_t bytes) {
    size_t all = bytes;
    for (unsigned i = 0; i < r.stretch_count; i++) all += r.stretches[i].bytes;
    char* const before = bytes && all <= most_compared ? room(bytes) : nullptr;
    if (before) r.stretches[r.stretch_count++] = {now, before, bytes};
}

Recorder* emu_new_recorder(Tracer& t) {
    Recorder* r = (Recorder*)calloc(1, sizeof(Recorder));
    r->tracer = &t;
    r->recording = t.tracing->recording;
    const Block& b = *t.block;
    r->shared = room((size_t)(b.shared_high - b.shared_low));
    const char* const behind = b.dynamic_shared + EMU_SHARED_LIMIT;
    add_stretch(*r, b.shared_low, (size_t)(b.dynamic_shared - b.shared_low));
    add_stretch(*r, b.dynamic_shared, b.launch->dynamic_shared);
    add_stretch(*r, behind, (size_t)(b.shared_high - behind));
    for (unsigned i = 0; i < t.array_count; i++)
        if (t.arrays[i].element_bytes) add_stretch(*r, (const char*)t.arrays[i].low, t.arrays[i].high - t.arrays[i].low);
    return r;
}

void emu_start_recording(Recorder& r) {
    const Block& b = *r.tracer->block;
    for (Lane& lane : r.lanes) {
        lane.waits = lane.late = lane.copies = false;
        lane.depth = lane.passed_over = lane.written_count = lane.returned = 0;
    }
    r.recording->call_count = 1;
    r.last_turn = r.turn, r.last_rows = r.recording->row_count;
    memset(r.shared, 0xff, (size_t)(b.shared_high - b.shared_low));
    for (int& step : r.barrier_step) step = nowhere;
}

[[noreturn]] static void give_up(Recorder& r, emu_full why = EMU_FULL) {
    r.recording->full = why;
    emu_end_worker(emu_record(r.tracer->block->launch, EMU_TRAP, nullptr, emu_site{}, "the recording is full"));
}

// ---- where things are

struct Spot { int array; uint32_t offset; char* known; };

// Where an address lies, and what the steps so far have made of it.
static Spot find(const Recorder& r, uintptr_t address, unsigned bytes) {
    const Tracer& t = *r.tracer;
    const Block& b = *t.block;
    const emu_tracing& tracing = *t.tracing;
    const uintptr_t in_shared = address - (uintptr_t)b.shared_low;
    if (in_shared < (uintptr_t)(b.shared_high - b.shared_low)) {
        const uintptr_t in_dynamic = address - (uintptr_t)b.dynamic_shared;
        if (in_dynamic < EMU_SHARED_LIMIT)
            return {(int)(tracing.array_count + tracing.static_count), (uint32_t)in_dynamic, r.shared + in_shared};
        for (uint64_t i = 0; i < tracing.static_count; i++) {
            const emu_static& s = tracing.statics[i];
            if (!s.is_guard && in_shared - s.offset < s.bytes)
                return {(int)(tracing.array_count + i), (uint32_t)(in_shared - s.offset), r.shared + in_shared};
        }
        return {nowhere, 0, nullptr};
    }
    for (unsigned i = 0; i < t.array_count; i++)
        if (address >= t.arrays[i].low && address + bytes <= t.arrays[i].high) {
            const uintptr_t offset = address - t.arrays[i].low;
            return {(int)i, (uint32_t)offset, known[i] ? known[i] + offset : nullptr};
        }
    return {nowhere, 0, nullptr};
}

bool emu_can_record(const Recorder& r, uintptr_t address, unsigned bytes) {
    const emu_tracing& tracing = *r.tracer->tracing;
    const Spot spot = find(r, address, bytes);
    const bool is_dynamic = spot.array == (int)(tracing.array_count + tracing.static_count);
    return is_dynamic ? spot.offset + bytes <= r.tracer->block->launch->dynamic_shared : spot.array != nowhere;
}

uint32_t emu_site_counter(Recorder& r, emu_site site) {
    emu_recording& to = *r.recording;
    if (!site.file) return 0;
    uint32_t i = 0;
    while (i < to.site_count && (to.sites[i].line != site.line || strncmp(to.sites[i].file, site.file, sizeof to.sites[i].file - 1))) i++;
    if (i == sizeof to.sites / sizeof *to.sites) return 0;
    if (i == to.site_count) {
        to.sites[i].line = site.line;
        strncpy(to.sites[i].file, site.file, sizeof to.sites[i].file - 1);
        to.site_count++;
    }
    return emu_is_site | i;
}

// ---- calls

// The number of a place in a call, a new one at its first time.
static uint32_t call_at(Recorder& r, uint32_t counter, uint32_t caller) {
    emu_recording& to = *r.recording;
    if (!counter) return emu_no_place;
    uint32_t at = (counter * 0x9E3779B1u ^ caller * 0x85EBCA6Bu) % most_calls;
    for (; r.find_call[at]; at = (at + 1) % most_calls) {
        const emu_call& call = to.calls[r.find_call[at]];
        if (call.counter == counter && call.caller == caller) return r.find_call[at];
    }
    if (to.call_count == most_calls - 1) return emu_no_place;
    to.calls[to.call_count] = {counter, caller, to.calls[caller].depth + 1};
    return r.find_call[at] = to.call_count++;
}

// Whether a lane at `a` is behind one at `b`, in the order of the code: by the first call in which they differ.
static bool is_behind(const Recorder& r, uint32_t a, uint32_t b) {
    const emu_call* const calls = r.recording->calls;
    const bool deeper = calls[a].depth > calls[b].depth;
    while (calls[a].depth > calls[b].depth) a = calls[a].caller;
    while (calls[b].depth > calls[a].depth) b = calls[b].caller;
    while (calls[a].caller != calls[b].caller) a = calls[a].caller, b = calls[b].caller;
    return calls[a].counter == calls[b].counter ? deeper : calls[a].counter < calls[b].counter;
}

static uint32_t caller_of(const Lane& lane) { return lane.depth ? lane.frames[(lane.depth < deepest ? lane.depth : deepest) - 1].call : 0; }

// ---- steps

static bool writes(uint32_t op) { return op == EMU_OP_WRITE || op == EMU_OP_ATOMIC || op == EMU_OP_COPY_WRITE; }
static bool has_rows(uint32_t op) { return op <= EMU_OP_COPY_WRITE; }

// A new step, with room for its rows and words; ends the launch if there is none.
static emu_step& add_step(Recorder& r, const emu_step& step) {
    emu_recording& to = *r.recording;
    const uint32_t lanes = has_rows(step.op) ? (uint32_t)__builtin_popcount(step.mask) : 0;
    const uint32_t words = writes(step.op) ? lanes * ((step.width + 3) / 4) : 0;
    const uint32_t rows = sizeof to.rows / sizeof *to.rows, most = to.most_rows < rows ? to.most_rows : rows;
    if (to.step_count == sizeof to.steps / sizeof *to.steps || to.row_count + lanes > most ||
        to.word_count + words > sizeof to.words / sizeof *to.words)
        give_up(r);
    emu_step& added = to.steps[to.step_count++];
    added = step;
    added.turn = r.turn;
    added.first = to.row_count;
    to.row_count += lanes;
    to.word_count += words;
    return added;
}

int emu_record_at_once(Recorder& r, emu_op op, int warp, uint32_t mask, uint32_t counter, int extra) {
    const uint32_t place = call_at(r, counter, caller_of(r.lanes[emu_current->linear_id]));
    add_step(r, {0, warp, place, nowhere, mask, 0, 0, extra, op});
    return (int)r.recording->step_count - 1;
}

void emu_record_end(Recorder& r, int warp, uint32_t mask, int begun) {
    add_step(r, {0, warp, r.recording->steps[begun].place, nowhere, mask, 0, 0, begun, EMU_OP_END});
}

// Where memory is not what the steps so far have made of it, another block has written.
static void notice_others(Recorder& r, uintptr_t address, unsigned bytes) {
    const Spot spot = address ? find(r, address, bytes) : Spot{nowhere, 0, nullptr};
    if (!spot.known || !memcmp((const void*)address, spot.known, bytes)) return;
    const uint32_t word = r.recording->word_count;
    const emu_step& step = add_step(r, {0, -1, emu_no_place, spot.array, 1, bytes, 0, 0, EMU_OP_WRITE});
    r.recording->rows[step.first] = spot.offset;
    memcpy(r.recording->words + word, (const void*)address, bytes);
    memcpy(spot.known, (const void*)address, bytes);
}

static void keep_value(Recorder& r, uint32_t word, uintptr_t address, unsigned bytes) {
    uint32_t* to = r.recording->words + word;
    to[(bytes - 1) / 4] = 0;
    memcpy(to, (const void*)address, bytes);
    const Spot spot = find(r, address, bytes);
    if (spot.known) memcpy(spot.known, to, bytes);
}

void emu_record_done(Recorder& r, const emu_intent& deed) {
    const Spot spot = find(r, deed.address, deed.width);
    if (spot.array == nowhere) return;
    const uint32_t word = r.recording->word_count, lane = 1u << emu_current->lane;
    const uint32_t place = r.recording->steps[deed.extra].place;
    const emu_step& step = add_step(r, {0, (int32_t)emu_current->warp, place, spot.array, lane, deed.width, 0, deed.extra, deed.op});
    r.recording->rows[step.first] = spot.offset;
    if (writes(deed.op)) keep_value(r, word, deed.address, deed.width);
}

// ---- what the compiler does not report

// A row of a write that a lane has made: in the step before, if that is of the same write.
static void add_unreported(Recorder& r, uint32_t call, const Spot& spot, uintptr_t address, unsigned bytes) {
    emu_recording& to = *r.recording;
    const uint32_t lane = 1u << emu_current->lane, word = to.word_count, row = to.row_count;
    const emu_step step = {r.turn, (int32_t)emu_current->warp, call, spot.array, lane, bytes, row, 0, EMU_OP_WRITE};
    add_step(r, step);
    emu_step& before = to.steps[to.step_count - 2];
    const bool joins = to.step_count > 1 && before.op == EMU_OP_WRITE && before.warp == step.warp && before.place == call &&
                       before.array == step.array && before.width == bytes && before.turn == step.turn && before.mask < lane;
    if (joins) to.step_count--, before.mask |= lane;
    to.rows[row] = spot.offset;
    keep_value(r, word, address, bytes);
}

// g++ does not say that it stores the struct that a function returns. So memory is looked at when such a function ends, and here,
// when its lane has come further: nobody else ran in between.
static void notice_returned(Recorder& r, Lane& lane) {
    if (!lane.returned) return;
    const uint32_t call = lane.returned, bytes = lane.returned_bytes;
    const uintptr_t unit = bytes % 4 == 0 ? 4 : bytes % 2 == 0 ? 2 : 1;
    lane.returned = 0;
    if (r.tries[call] != goes_there) r.tries[call]++;
    for (unsigned i = 0; i < r.stretch_count; i++) {
        const Stretch& s = r.stretches[i];
        if (!memcmp(s.now, s.before, s.bytes)) continue;
        size_t low = 0, high = s.bytes;
        while (s.now[low] == s.before[low]) low++;
        while (s.now[high - 1] == s.before[high - 1]) high--;
        uintptr_t address = ((uintptr_t)s.now + low) / unit * unit;
        const uintptr_t end = ((uintptr_t)s.now + high + unit - 1) / unit * unit;
        if (end - address > bytes) continue;                       // no struct
        r.tries[call] = goes_there;
        while (address < end) {
            unsigned width = (unsigned)unit;
            while (width < 16 && address % (2 * width) == 0 && address + 2 * width <= end) width *= 2;
            const Spot spot = find(r, address, width);
            if (spot.known && memcmp((const void*)address, spot.known, width)) add_unreported(r, call, spot, address, width);
            address += width;
        }
    }
}

// ---- functions begin and end

// What no variable is set to: no number as fp32, fp16 and bf16, and an unlikely integer. So a variable is new once it is set.
static void leave_unset(char* variable, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) variable[i] = (char)(i % 2 ? 0xff : 0xf5);
}

void emu_record_entry(Recorder& r, uint32_t counter, uint32_t caller, char* frame) {
    Lane& lane = r.lanes[emu_current->linear_id];
    notice_returned(r, lane);
    const uint32_t call = lane.depth ? call_at(r, caller, caller_of(lane)) : 0;
    if (lane.depth++ >= deepest) return;
    Frame& f = lane.frames[lane.depth - 1];
    f.call = call;
    f.function = nullptr;
    const emu_recording& given = *r.recording;
    uint32_t low = 0, high = given.function_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (given.functions[middle].end <= counter) low = middle + 1;
        else high = middle;
    }
    if (low == given.function_count || counter < given.functions[low].start) return;
    f.function = &given.functions[low];
    f.low = frame + f.function->low;
    f.is_new = true;
    const size_t bytes = (size_t)(f.function->high - f.function->low);
    if (f.room < bytes) f.copy = (char*)realloc(f.copy, f.room = bytes);
    for (uint32_t v = f.function->first; v < f.function->first + f.function->count; v++)
        if (!given.variables[v].is_parameter) leave_unset(frame + given.variables[v].offset, given.variables[v].bytes * given.variables[v].count);
    memcpy(f.copy, f.low, bytes);
}

void emu_record_exit(Recorder& r) {
    Lane& lane = r.lanes[emu_current->linear_id];
    notice_returned(r, lane);
    if (!lane.depth) return;
    lane.depth--;
    if (!lane.depth || lane.depth >= deepest) return;
    const Frame& f = lane.frames[lane.depth];
    if (!f.function || !f.function->returns || !f.call || r.tries[f.call] == most_tries) return;
    lane.returned = f.call, lane.returned_bytes = f.function->returns;
    for (unsigned i = 0; i < r.stretch_count; i++) memcpy(r.stretches[i].before, r.stretches[i].now, r.stretches[i].bytes);
}

static void add_change(Recorder& r, const emu_change& change) {
    emu_recording& to = *r.recording;
    if (to.change_count == sizeof to.changes / sizeof *to.changes) give_up(r);
    to.changes[to.change_count++] = change;
}

// Where a pointer points, if that is in shared memory.
static void add_pointer(Recorder& r, emu_change change, const char* pointer) {
    uintptr_t address;
    memcpy(&address, pointer, sizeof address);
    const Spot spot = find(r, address, 1);
    if (spot.array < (int)r.tracer->tracing->array_count) return;
    change.element = (uint32_t)spot.array, change.word = spot.offset;
    add_change(r, change);
}

// Before a lane goes on: what is new in its variables since it last did. Its arguments are all new at the first time.
static void record_changes(Recorder& r, Lane& lane, uint32_t thread, uint32_t step) {
    for (unsigned i = 0; i < lane.depth && i < deepest; i++) {
        Frame& f = lane.frames[i];
        if (!f.function) continue;
        const size_t all = (size_t)(f.function->high - f.function->low);
        if (!f.is_new && !memcmp(f.copy, f.low, all)) continue;
        for (uint32_t v = f.function->first; v < f.function->first + f.function->count; v++) {
            const emu_variable& variable = r.recording->variables[v];
            const size_t at = (size_t)(variable.offset - f.function->low);
            const bool tell_all = f.is_new && variable.is_parameter;
            if (!tell_all && !memcmp(f.copy + at, f.low + at, variable.bytes * variable.count)) continue;
            if (variable.is_pointer) {
                add_pointer(r, {step, thread, v, 0, 0}, f.low + at);
                continue;
            }
            for (uint32_t e = 0; e < variable.count; e++) {
                const char* now = f.low + at + e * variable.bytes;
                if (!tell_all && !memcmp(f.copy + at + e * variable.bytes, now, variable.bytes)) continue;
                uint32_t word = 0;
                memcpy(&word, now, variable.bytes);
                add_change(r, {step, thread, v, e, word});
            }
        }
        memcpy(f.copy, f.low, all);
        f.is_new = false;
    }
}

// ---- what no thread does

// Steps of up to 32 pieces of the same size in the same array, which address(piece) has.
template <class Address>
static void add_pieces(Recorder& r, emu_op op, const emu_piece* pieces, unsigned count, int begun, Address address) {
    const uint32_t place = r.recording->steps[begun].place;
    for (unsigned i = 0; i < count;) {
        const uintptr_t first = (uintptr_t)address(pieces[i]);
        const unsigned bytes = first ? pieces[i].bytes : 0;
        const int array = first ? find(r, first, bytes).array : nowhere;
        unsigned together = 1;
        while (together < 32 && i + together < count) {
            const uintptr_t next = (uintptr_t)address(pieces[i + together]);
            if ((next != 0) != (first != 0) || pieces[i + together].bytes != pieces[i].bytes) break;
            if (next && find(r, next, bytes).array != array) break;
            together++;
        }
        const uint32_t word = r.recording->word_count;
        const emu_step& step = add_step(r, {0, -1, place, array, ~0u >> (32 - together), bytes, 0, begun, op});
        for (unsigned n = 0; n < together; n++) {
            const uintptr_t at = (uintptr_t)address(pieces[i + n]);
            r.recording->rows[step.first + n] = at ? find(r, at, bytes).offset : 0;
            if (writes(op)) keep_value(r, word + n * ((bytes + 3) / 4), at, bytes);
        }
        i += together;
    }
}

void emu_record_reads(Recorder& r, const emu_piece* pieces, unsigned count, int begun) {
    for (unsigned i = 0; i < count; i++) notice_others(r, (uintptr_t)pieces[i].from, pieces[i].bytes);
    add_pieces(r, EMU_OP_COPY_READ, pieces, count, begun, [](const emu_piece& piece) { return piece.from; });
}

void emu_record_writes(Recorder& r, const emu_piece* pieces, unsigned count, int begun) {
    add_pieces(r, EMU_OP_COPY_WRITE, pieces, count, begun, [](const emu_piece& piece) { return piece.to; });
}

// ---- threads in step

static bool together(const Lane& a, const Lane& b) {
    return a.waits && b.waits && a.call == b.call && a.deed.op == b.deed.op && a.deed.width == b.deed.width &&
           a.deed.extra == b.deed.extra && a.array == b.array;
}

// Of a warp, the lanes that go on now: those that are furthest behind, so that the others meet them again. 0: none waits.
static uint32_t next_group(Recorder& r, unsigned warp) {
    Lane *const lanes = r.lanes + 32 * warp, *first = nullptr;
    for (unsigned i = 0; i < 32; i++) {
        Lane& lane = lanes[i];
        if (!lane.waits) continue;
        if (!first || (lane.passed_over > patience && first->passed_over <= patience) ||
            (lane.call != first->call && first->passed_over <= patience && is_behind(r, lane.call, first->call)))
            first = &lane;
    }
    uint32_t group = 0;
    for (unsigned i = 0; first && i < 32; i++) {
        if (together(lanes[i], *first)) group |= 1u << i;
        else lanes[i].passed_over++;
    }
    return group;
}

static void add_written(Lane& lane, const Written& piece) {
    if (lane.written_count == lane.written_room)
        lane.written = (Written*)realloc(lane.written, (lane.written_room = 2 * lane.written_room + 4) * sizeof(Written));
    lane.written[lane.written_count++] = piece;
}

// How many statements begin up to a counter.
static uint32_t statements_before(const emu_recording& given, uint32_t counter) {
    uint32_t low = 0, high = given.statement_count;
    while (low < high) {
        const uint32_t middle = (low + high) / 2;
        if (given.statements[middle] <= counter) low = middle + 1;
        else high = middle;
    }
    return low;
}

// g++ announces a copy of a struct from memory to memory in one go: the write, then the read, then it does both. So at a read this
// tells whether the lane has still to make its last write. A store of the number that was there already looks alike, but stands in
// another statement; if both are of one macro it comes behind the read, too, which changes no number.
static bool is_of_copy(const Recorder& r, const Lane& lane, const emu_intent& deed) {
    if (deed.op != EMU_OP_READ || lane.deed.op != EMU_OP_WRITE || lane.late || !lane.written_count) return false;
    const emu_recording& given = *r.recording;
    const uint32_t write = lane.deed.counter;
    if (!given.statement_count || write & emu_is_site || deed.counter <= write) return false;
    if (statements_before(given, write) != statements_before(given, deed.counter)) return false;
    for (unsigned i = 0; i < lane.written_count; i++) {
        const Spot spot = find(r, lane.written[i].address, lane.written[i].bytes);
        if (!spot.known || memcmp((const void*)lane.written[i].address, spot.known, lane.written[i].bytes)) return false;
    }
    return true;
}

unsigned emu_bytes_to_copy(const Recorder& r, uint32_t counter, unsigned piece) {
    const Lane& lane = r.lanes[emu_current->linear_id];
    if (piece ? !lane.copies : !is_of_copy(r, lane, {EMU_OP_READ, counter})) return 0;
    return piece < lane.written_count ? lane.written[piece].bytes : 0;
}

// What the lane is still to write comes behind its step, a read: piece by piece.
static void write_behind(Recorder& r, Lane& lane) {
    for (unsigned i = lane.copied++; i < lane.written_count; i++) {
        emu_step& write = r.recording->steps[lane.written[i].step];
        write.op = EMU_OP_WRITE_BEHIND, write.extra = lane.step;
    }
}

static void let_go(Recorder& r, unsigned warp, uint32_t group) {
    Block& b = *r.tracer->block;
    const Lane& one = r.lanes[32 * warp + __builtin_ctz(group)];
    const uint32_t word = r.recording->word_count, words = (one.deed.width + 3) / 4;
    const emu_step& step = add_step(r, {0, (int32_t)warp, one.call, one.array, group, one.deed.width, 0, one.deed.extra, one.deed.op});
    uint32_t row = 0;
    for (uint32_t m = group; m; m &= m - 1, row++) {
        const unsigned thread = 32 * warp + (unsigned)__builtin_ctz(m);
        Lane& lane = r.lanes[thread];
        Fiber& f = b.fibers[thread];
        if (has_rows(step.op)) r.recording->rows[step.first + row] = lane.offset;
        lane.step = (int)r.recording->step_count - 1;
        record_changes(r, lane, thread, (uint32_t)lane.step);
        lane.waits = false, lane.passed_over = 0;
        if (writes(step.op) && one.array != nowhere) {
            add_written(lane, {lane.deed.address, lane.deed.width, word + row * words, (uint32_t)lane.step});
            lane.late = lane.deed.shows_late;
            if (!lane.late) f.unsettled = &lane.log;
        }
        if (lane.copies) write_behind(r, lane), f.unsettled = &lane.log;
        emu_make_ready(b, &f);
    }
}

// Whether what a lane writes is not there yet, because it comes with the next piece, behind a read, or once its warp has met.
static bool is_to_come(const Lane& lane, const Fiber& f) {
    if (lane.waits && (lane.deed.goes_on || lane.copies)) return true;
    return lane.late && (f.state == State::in_collective || (lane.waits && lane.deed.op == EMU_OP_EXCHANGE));
}

bool emu_record_turn(Recorder& r) {
    const Block& b = *r.tracer->block;
    uint32_t groups[32] = {};
    bool any = false;
    for (unsigned i = 0; i < b.size; i++)
        if (!is_to_come(r.lanes[i], b.fibers[i])) emu_record_settled(r, &b.fibers[i]);
    for (unsigned warp = 0; warp < b.warp_count; warp++) any |= (groups[warp] = next_group(r, warp)) != 0;
    if (!any) return false;
    r.turn++;
    if (r.last_rows != r.recording->row_count) r.last_rows = r.recording->row_count, r.last_turn = r.turn;
    if (r.turn - r.last_turn > idle_turns) give_up(r, EMU_IDLE);
    for (unsigned warp = 0; warp < b.warp_count; warp++)
        for (uint32_t m = groups[warp]; m; m &= m - 1) {
            const emu_intent& deed = r.lanes[32 * warp + __builtin_ctz(m)].deed;
            if (has_rows(deed.op) && deed.op != EMU_OP_WRITE && deed.op != EMU_OP_COPY_WRITE) notice_others(r, deed.address, deed.width);
        }
    for (unsigned warp = 0; warp < b.warp_count; warp++)
        if (groups[warp]) let_go(r, warp, groups[warp]);
    return true;
}

void emu_record_settled(Recorder& r, Fiber* f) {
    Lane& lane = r.lanes[f->linear_id];
    f->unsettled = nullptr;
    for (unsigned i = 0; i < lane.written_count; i++) keep_value(r, lane.written[i].word, lane.written[i].address, lane.written[i].bytes);
    lane.written_count = 0;
    lane.late = lane.copies = false;
}

void emu_record_stopped(Recorder& r) {
    for (unsigned i = 0; i < r.tracer->block->size; i++) emu_record_settled(r, &r.tracer->block->fibers[i]);
}

// A copy for which nobody has waited lands, and with it those of later lanes that the same step began.
static void land(Recorder& r, unsigned thread, const PendingCopy one) {
    const Block& b = *r.tracer->block;
    const unsigned first = thread / 32 * 32, end = first + 32 < b.size ? first + 32 : b.size;
    const Spot spot = find(r, (uintptr_t)one.to, one.bytes);
    PendingCopy* together[32] = {};
    uint32_t mask = 0;
    for (unsigned i = thread; i < end; i++)
        for (unsigned n = 0; n < b.fibers[i].copy_count; n++) {
            PendingCopy& c = b.fibers[i].copies[n];
            if (c.counter == one.counter && c.bytes == one.bytes && find(r, (uintptr_t)c.to, c.bytes).array == spot.array)
                together[i - first] = &c, mask |= 1u << (i - first);
        }
    const int begun = (int)one.counter;
    const uint32_t word = r.recording->word_count, place = r.recording->steps[begun].place;
    const emu_step& step = add_step(r, {0, (int32_t)(thread / 32), place, spot.array, mask, one.bytes, 0, begun, EMU_OP_COPY_WRITE});
    uint32_t row = 0;
    for (uint32_t m = mask; m; m &= m - 1, row++) {
        PendingCopy& c = *together[__builtin_ctz(m)];
        emu_current = &b.fibers[first + (unsigned)__builtin_ctz(m)];
        emu_land(emu_current, c);
        emu_current->copying = emu_site{};
        r.recording->rows[step.first + row] = find(r, (uintptr_t)c.to, c.bytes).offset;
        keep_value(r, word + row * ((one.bytes + 3) / 4), (uintptr_t)c.to, c.bytes);
        c.bytes = 0;
    }
}

void emu_record_last(Recorder& r) {
    const Block& b = *r.tracer->block;
    Fiber* const current = emu_current;
    emu_record_stopped(r);
    for (unsigned i = 0; i < b.size; i++)
        for (unsigned n = 0; n < b.fibers[i].copy_count; n++)
            if (b.fibers[i].copies[n].bytes) land(r, i, b.fibers[i].copies[n]);
    emu_current = current;
}

int emu_announce(Recorder& r, const emu_intent& deed) {
    Fiber* f = emu_current;
    Lane& lane = r.lanes[f->linear_id];
    const bool is_copy = !deed.goes_on && is_of_copy(r, lane, deed);
    if (deed.goes_on || is_copy) f->unsettled = nullptr;   // all pieces are written at once, behind the last
    else if (!lane.late || deed.op != EMU_OP_EXCHANGE) emu_record_settled(r, f);
    if (is_copy) lane.copies = true, lane.copied = 0;
    notice_returned(r, lane);
    const Spot spot = deed.address ? find(r, deed.address, deed.width) : Spot{nowhere, 0, nullptr};
    lane.deed = deed;
    lane.call = deed.op == EMU_OP_COPY_WRITE ? r.recording->steps[deed.extra].place : call_at(r, deed.counter, caller_of(lane));
    lane.array = spot.array, lane.offset = spot.offset;
    if (!has_rows(deed.op) && spot.array != nowhere) lane.deed.extra = (int32_t)spot.offset;
    lane.waits = true;
    emu_stop(State::for_turn, emu_site{});
    emu_run_another();
    return lane.step;
}

// ---- what orders threads

void emu_record_barrier(Recorder& r, unsigned id, uint32_t counter) {
    const int step = emu_announce(r, {EMU_OP_BARRIER, counter, 0, 0, (int32_t)id, false});
    if (r.barrier_step[id] == nowhere) r.barrier_step[id] = step;
}

void emu_record_open(Recorder& r, unsigned id) {
    if (r.barrier_step[id] == nowhere) return;
    emu_record_end(r, -1, 0, r.barrier_step[id]);
    r.barrier_step[id] = nowhere;
}

void emu_record_phase(Recorder& r, const void* mbarrier, unsigned parity) {
    const Spot spot = find(r, (uintptr_t)mbarrier, 8);
    add_step(r, {0, -1, emu_no_place, spot.array, 0, parity, 0, (int32_t)spot.offset, EMU_OP_PHASE});
}

// Those of a warpgroup are for wgmma.cpp to say.
void emu_record_collective(Recorder& r, const emu_collective* mine) {
    if (!strncmp(mine->name, "wgmma", 5)) return;
    const emu_op op = mine->noticed & EMU_ORDERS_MEMORY ? EMU_OP_WARP_BARRIER : strcmp(mine->name, "mma.sync") ? EMU_OP_EXCHANGE : EMU_OP_PRODUCT;
    emu_announce(r, {op, emu_site_counter(r, mine->site), 0, 0, (int32_t)mine->mask, false});
}
