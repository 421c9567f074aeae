"""`python -m tests.corpus` on three tiny files of ours."""

import json

from tests.corpus.__main__ import main
from tests.corpus.compiled import OURS, Outcome

FILES = {
    "program.cu": '#include <stdio.h>\n#include "mine.h"\n'
    "template <typename T> __global__ void scale(T* x) { x[threadIdx.x] *= TIMES; }\n"
    "__global__ void zero(float* x) { x[0] = 0; }\n"
    "template <typename T, int N> __global__ void fill(T* x) { x[0] = N; }\n"
    "int main() { scale<float><<<1, 32>>>(nullptr); scale<double><<<1, 32>>>(nullptr); fill<int, 3><<<1, 1>>>(0); }\n",
    "refused.cu": "__global__ void fine(float* x) { x[0] = 1; }\n__global__ void broken(float* x) { x[0] = y; }\n",
    "host.cu": "#include <vector>\nint main() { std::vector<int> nothing; }\n",
}


def test_each_kernel_is_compiled_on_both_machines(tmp_path, capsys):
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "include").mkdir()
    (tmp_path / "include" / "mine.h").write_text("#define TIMES 2\nint on_the_host();\n")
    assert main([str(tmp_path), "--json", str(tmp_path / "all.json")]) == 0
    said = capsys.readouterr().out
    assert "3 files (2 with kernels), 6 kernels: NVRTC takes 5, the emulator 5" in said
    assert "Both refuse; NVRTC's words: 1" in said and 'identifier "y" is undefined' in said
    found = {one["kernel"]: one for one in json.loads((tmp_path / "all.json").read_text())}
    assert set(found) == {"scale<float>", "scale<double>", "fill<int, 3>", "zero", "fine", "broken"}
    assert [name for name, one in found.items() if one["nvrtc"]] == ["broken"]


def test_a_file_that_takes_too_long_is_a_row_of_its_own(tmp_path, capsys):
    (tmp_path / "long.cu").write_text("__global__ void k(float* x) { x[0] = 1; }\n")
    assert main([str(tmp_path), "--seconds", "0"]) == 1
    said = capsys.readouterr().out
    assert "0 kernels" in said and "Files without an answer: 1" in said and "took more than 0 s" in said


def test_a_disagreement_is_one_unless_a_sentence_of_ours_says_why():
    assert Outcome("a.cu", "k", "", "‘x’ was not declared").disagrees
    assert Outcome("a.cu", "k", "x is undefined", "").disagrees
    assert not Outcome("a.cu", "k", "", "the emulator does not have tex3D, a GPU does", ours=True).disagrees
    assert not Outcome("a.cu", "k", "x is undefined", "‘x’ was not declared").disagrees
    assert OURS.search("static assertion failed: the emulator does not know this PTX instruction: bfind")
    assert not OURS.search("‘the’ was not declared in this scope")
