// What C++ leaves undefined and a GPU defines: a float that does not fit into an integer, a shift by too many bits. g++
// finds it and cannot do as a GPU does; nothing of this launch is kept, and module.py runs it again, built by clang.
#include "block.h"

#include <signal.h>
#include <stdint.h>

struct Place { const char* file; uint32_t line, column; };

[[noreturn]] static void end(const char* what, const Place& place) {
    emu_end_worker(emu_record(emu_block->launch, EMU_UNDEFINED, emu_current, {place.file, (int)place.line}, "%s", what));
}

extern "C" [[noreturn]] void __ubsan_handle_float_cast_overflow_abort(const Place* place, uintptr_t) {
    end("a float that does not fit becomes an integer", *place);
}
extern "C" [[noreturn]] void __ubsan_handle_shift_out_of_bounds_abort(const Place* place, uintptr_t, uintptr_t) {
    end("a shift by as many bits as there are, or more", *place);
}

// A division by zero, of which x86 makes this signal by itself. An ARM goes on: there kernels are built to ask.
extern "C" void __ubsan_handle_divrem_overflow_abort(const Place*, uintptr_t, uintptr_t) { raise(SIGFPE); }
