"""The mirror of runtime/trace_results.h: what a traced launch leaves behind besides its report."""

from __future__ import annotations

import ctypes

from course_utils.emulator.defects import RawDefect
from course_utils.emulator.launcher import Dim3

MOST_ARRAYS = 64  # arguments of one launch that can be traced


class RawFinding(ctypes.Structure):
    _fields_ = [
        ("tool", ctypes.c_uint32),
        ("by", ctypes.c_uint32),
        ("bytes", ctypes.c_uint32),
        ("is_write", ctypes.c_uint32),
        ("is_shared", ctypes.c_uint32),
        ("by_flags", ctypes.c_uint32),
        ("has_other", ctypes.c_uint32),
        ("same_warp", ctypes.c_uint32),
        ("deed", ctypes.c_uint32),
        ("other_deed", ctypes.c_uint32),
        ("step", ctypes.c_uint32),
        ("other_step", ctypes.c_uint32),
        ("look", ctypes.c_uint32),
        ("place", ctypes.c_uint64),
        ("other_place", ctypes.c_uint64),
        ("address", ctypes.c_uint64),
        ("count", ctypes.c_uint64),
        ("block", Dim3),
        ("thread", Dim3),
        ("other_block", Dim3),
        ("other_thread", Dim3),
        ("line", ctypes.c_int32),
        ("other_line", ctypes.c_int32),
        ("file", ctypes.c_char * 256),
        ("other_file", ctypes.c_char * 256),
        ("defect", RawDefect),
    ]


class RawCounter(ctypes.Structure):
    _fields_ = [
        ("place", ctypes.c_uint64),
        ("is_shared", ctypes.c_uint32),
        ("operation", ctypes.c_uint32),
        ("requests", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("sectors", ctypes.c_uint64),
        ("ideal_sectors", ctypes.c_uint64),
        ("wavefronts", ctypes.c_uint64),
        ("ideal_wavefronts", ctypes.c_uint64),
    ]


PRODUCT, COPY_IN, COPY_OUT, COPY_BETWEEN, WAIT = range(5)


class RawAsyncCounter(ctypes.Structure):
    _fields_ = [
        ("place", ctypes.c_uint64),
        ("kind", ctypes.c_uint32),
        ("which", ctypes.c_uint32),
        ("count", ctypes.c_uint64),
        ("flops", ctypes.c_uint64),
        ("global_bytes", ctypes.c_uint64),
        ("shared_bytes", ctypes.c_uint64),
        ("idle", ctypes.c_uint64),
    ]


class RawTouched(ctypes.Structure):
    _fields_ = [("read", ctypes.c_uint64), ("written", ctypes.c_uint64), ("loaded", ctypes.c_uint64)]


class TraceResults(ctypes.Structure):
    _fields_ = [
        ("finding_count", ctypes.c_uint32),
        ("findings_dropped", ctypes.c_uint32),
        ("counter_count", ctypes.c_uint32),
        ("counters_dropped", ctypes.c_uint32),
        ("blocks_traced", ctypes.c_uint64),
        ("asynchronous_count", ctypes.c_uint64),
        ("exponentials", ctypes.c_uint64),
        ("beside_products", ctypes.c_uint64),
        ("most_in_flight", ctypes.c_uint64),
        ("touched", RawTouched * MOST_ARRAYS),
        ("findings", RawFinding * 256),
        ("counters", RawCounter * 8192),
        ("asynchronous", RawAsyncCounter * 1024),
    ]


RESULTS_BYTES = ctypes.sizeof(TraceResults)
