"""What C++ leaves undefined and a GPU defines, in every build: floats that do not fit, shifts by too many bits, and the
lowest int divided by -1.

What each of them gives is in tests/nvidia/test_arithmetic.py; here, that no launch shows that a kernel was built twice.
"""

import numpy as np
import pytest
import torch

from course_utils import emulator
from course_utils.cuda import CompileError, KernelError, RawModule
from course_utils.emulator import compiler as compilers
from course_utils.emulator.exact import exact

CODE = """
__device__ int launches;
template <class T, class S> __device__ T converted(S x) { return x; }
extern "C" __global__ void k(int* o, unsigned short* s, long long* l, int* n, const float* x, int count) {
    const int i = threadIdx.x;
    if (i == 0) printf("launched\\n"), launches++;
    atomicAdd(n, 1);
    o[i] = x[i];
    s[i] += x[i];
    l[i] = converted<unsigned>(x[i]) + (1ll << (count + i));
}
extern "C" __global__ void outside(int* o, const float* x, int count) {
    o[threadIdx.x] = x[threadIdx.x];
    o[count] = 0;
}
"""
X = [float("inf"), float("-inf"), float("nan"), 3e10, -5.7, 70000.0]
AS_INT = [2**31 - 1, -(2**31), 0, 2**31 - 1, -5, 70000]
AS_SHORT = [65535, 0, 0, 65535, 0, 4465]  # 1 + x, saturated to 32 bits without a sign, of which 16 stay
AS_LONG = [2**32 - 1 + 2**61, 2**62, -(2**63), 2**32 - 1, 0, 70000]


def launch(module):
    o, s = torch.zeros(6, dtype=torch.int32), torch.ones(6, dtype=torch.uint16)
    long, n = torch.zeros(6, dtype=torch.int64), torch.zeros(1, dtype=torch.int32)
    module.get_function("k")((1,), (6,), (o, s, long, n, torch.tensor(X), np.int32(61)))
    return o.tolist(), s.tolist(), long.tolist(), n.item()


def test_a_launch_gives_a_gpus_values_once_and_the_next_one_too(capsys):
    module = RawModule(code=CODE)
    for times in (1, 2):
        assert launch(module) == (AS_INT, AS_SHORT, AS_LONG, 6)
        assert module.get_global("launches", (1,), torch.int32).item() == times
    assert capsys.readouterr().out == "launched\n" * 2


@pytest.mark.parametrize("watched", [emulator.sanitize, emulator.profile])
def test_under_the_sanitizer_and_the_profiler(watched):
    with watched() as report:
        assert launch(RawModule(code=CODE))[:3] == (AS_INT, AS_SHORT, AS_LONG)
    if watched is emulator.sanitize:
        assert not report.findings


def test_a_finding_beside_it_keeps_its_line():
    o = torch.zeros(6, dtype=torch.int32)
    with emulator.sanitize() as report:
        RawModule(code=CODE).get_function("outside")((1,), (6,), (o, torch.tensor(X), np.int32(6)))
    (finding,) = report.findings
    assert o.tolist() == AS_INT and finding.line == 1 + CODE[: CODE.index("o[count]")].count("\n")


def test_in_a_recording():
    results = []
    recording = emulator.record(lambda: results.append(launch(RawModule(code=CODE))))
    assert results[0][:3] == (AS_INT, AS_SHORT, AS_LONG) and recording.steps


def test_without_clang_a_sentence_says_what_to_install(monkeypatch):
    if compilers.find_compiler().kind != "gcc":
        pytest.skip("this compiler builds it at once")
    monkeypatch.setattr(compilers, "_on_path", lambda command: None)
    monkeypatch.setattr(compilers, "_zig", lambda: None)
    with pytest.raises(CompileError, match="pip install ziglang"):
        launch(RawModule(code=CODE))


DIVISIONS = """
template <class T> __device__ void divide(T* q, T* r, const T* a, const T* b) {
    const int i = threadIdx.x;
    q[i] = a[i] / b[i];
    r[i] = a[i];
    r[i] %= b[i];
}
extern "C" __global__ void ints(int* q, int* r, const int* a, const int* b) { divide(q, r, a, b); }
extern "C" __global__ void longs(long long* q, long long* r, const long long* a, const long long* b) {
    divide(q, r, a, b);
}
"""
LOWEST = {"ints": -(2**31), "longs": -(2**63)}
LINE_OF_DIVISION = 1 + DIVISIONS[: DIVISIONS.index("q[i] =")].count("\n")


def divided(name, a, b):
    type_ = {"ints": torch.int32, "longs": torch.int64}[name]
    q, r = torch.full((len(a),), 9, dtype=type_), torch.full((len(a),), 9, dtype=type_)
    given = (torch.tensor(a, dtype=type_), torch.tensor(b, dtype=type_))
    RawModule(code=DIVISIONS).get_function(name)((1,), (len(a),), (q, r, *given))
    return q.tolist(), r.tolist()


@pytest.mark.parametrize("name", LOWEST)
def test_the_lowest_int_divided_by_minus_one_is_itself_and_nothing_remains(name, each_compiler):
    lowest = LOWEST[name]
    a, b = [lowest, lowest, lowest + 1, -7, 7, lowest], [-1, 1, -1, 2, -2, -1]
    right = [lowest, lowest, -1 - lowest, -3, -3, lowest], [0, 0, 0, -1, 1, 0]
    assert divided(name, a, b) == right
    with emulator.sanitize() as report:
        assert divided(name, a, b) == right
    assert not report.findings
    results = []
    emulator.record(lambda: results.append(divided(name, a, b)))
    assert results == [right]


@pytest.mark.parametrize("name", LOWEST)
def test_by_zero_every_number_is_an_error_of_its_line(name, each_compiler):
    for dividend in (LOWEST[name], -1, 0):
        with pytest.raises(KernelError, match="integer division by zero") as caught:
            divided(name, [1, dividend], [1, 0])
        assert (caught.value.line, caught.value.thread) == (LINE_OF_DIVISION, (1, 0, 0))


def test_only_shifts_that_may_be_too_far_are_checked():
    ir = "  %3 = shl nsw i32 %1, 4, !dbg !5\n  %4 = ashr i64 %2, %3\n  %5 = lshr i32 %1, 32\n  %6 = shl i128 %7, 64\n"
    text = exact(ir)
    assert "%3 = shl nsw i32 %1, 4, !dbg !5" in text and "%6 = shl i128 %7, 64" in text
    assert (
        "%4 = call i64 @emu.ashr.i64(i64 %2, i64 %3)" in text and "%5 = call i32 @emu.lshr.i32(i32 %1, i32 32)" in text
    )
    assert text.count("define internal") == 2
