"""Which compiler is found, what it says when it fails, and that it is not asked twice."""

import multiprocessing
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import torch

from course_utils.cuda import CompileError, RawModule, read_kernel
from course_utils.emulator import compiler as compilers

KERNEL = 'extern "C" __global__ void k(float* out) { out[threadIdx.x] = 1; }'


needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="g++ alone takes its headers precompiled")


def link_shared_builds(cache: Path) -> None:
    for built in compilers.shared_builds(compilers.find_compiler()):
        link = cache / built.relative_to(compilers.cache_folder())
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(built)


@pytest.fixture
def empty_cache(monkeypatch, tmp_path):
    """A cache folder with nothing but what all kernels share in it, and the commands that run from now on."""
    link_shared_builds(tmp_path)
    monkeypatch.setattr(compilers, "cache_folder", lambda: tmp_path)
    commands = []
    run = subprocess.run

    def record(command, **options):
        if "-o" in command:
            commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", record)
    return commands


@pytest.fixture
def fresh_search():
    compilers.find_compiler.cache_clear()
    yield
    compilers.find_compiler.cache_clear()


def test_an_error_shows_the_file_and_line_of_the_learner(compiler, tmp_path):
    path = tmp_path / "wrong.cu"
    path.write_text('// a comment\nextern "C" __global__ void k(float* out) {\n    out[0] = undeclared;\n}\n')
    with pytest.raises(CompileError) as caught:
        RawModule(code=read_kernel(path)).compile()
    assert f"{path}(3): error: " in str(caught.value) and "undeclared" in caught.value.log


def test_without_nvrtc_an_error_shows_the_file_and_line_of_the_learner(compiler, without_nvrtc, tmp_path):
    path = tmp_path / "wrong.cu"
    path.write_text('// a comment\nextern "C" __global__ void k(float* out) {\n    out[0] = undeclared;\n}\n')
    with pytest.raises(CompileError) as caught:
        RawModule(code=read_kernel(path)).compile()
    assert f"{path}:3:" in str(caught.value) and "undeclared" in caught.value.log


def test_a_missing_brace_is_an_error_of_the_learners_file(compiler, without_nvrtc):
    with pytest.raises(CompileError, match=r"kernel\.cu:\d:\d+: error: expected"):
        RawModule(code='extern "C" __global__ void k(float* out) {\n out[0] = 1;\n').compile()


def test_what_nvrtc_does_not_know_either_is_an_error(compiler):
    with pytest.raises(CompileError, match="INFINITY"):
        RawModule(code='extern "C" __global__ void k(float* out) { out[0] = INFINITY; }').compile()


def test_a_function_that_is_defined_nowhere_is_a_compile_error(compiler, without_nvrtc):
    code = '__device__ float helper(float); extern "C" __global__ void k(float* out) { out[0] = helper(1); }'
    with pytest.raises(CompileError, match=r"kernel\.cu uses _Z6helperf, which is declared but defined nowhere"):
        RawModule(code=code).compile()


def test_the_same_source_is_compiled_once(empty_cache):
    for _ in range(2):
        RawModule(code=KERNEL).compile()
    assert len(empty_cache) == 2  # one compilation, one link


def test_other_options_and_other_text_are_compiled_anew(empty_cache):
    RawModule(code=KERNEL).compile()
    RawModule(code=KERNEL, options=("-DN=1",)).compile()
    RawModule(code=KERNEL.replace("1;", "2;")).compile()
    assert len(empty_cache) == 6


def test_a_changed_header_is_compiled_anew(empty_cache, tmp_path):
    (tmp_path / "a.cu").write_text('#include "value.cuh"\n' + KERNEL.replace("1;", "VALUE;"))
    out = torch.zeros(1)
    for value in (3, 4, 3):
        (tmp_path / "value.cuh").write_text(f"#define VALUE {value}\n")
        RawModule(code=read_kernel(tmp_path / "a.cu")).get_function("k")((1,), (1,), (out,))
        assert out.item() == value
    assert len(empty_cache) == 4


def test_a_changed_header_of_a_header_is_compiled_anew(empty_cache, tmp_path):
    (tmp_path / "a.cu").write_text('#include "deep/outer.cuh"\n' + KERNEL.replace("1;", "VALUE;"))
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "outer.cuh").write_text('#include "inner.cuh"\n')
    out = torch.zeros(1)
    for value in (3, 4, 3):
        (tmp_path / "deep" / "inner.cuh").write_text(f"#define VALUE {value}\n")
        RawModule(code=read_kernel(tmp_path / "a.cu")).get_function("k")((1,), (1,), (out,))
        assert out.item() == value
    assert len(empty_cache) == 4


@pytest.mark.parametrize(
    "file", ["runtime/abi.h", "runtime/block.cpp", "include/cooperative_groups/reduce.h", "compiler.py"]
)
def test_a_change_of_the_emulator_itself_is_compiled_anew(file, monkeypatch, tmp_path):
    emulator = tmp_path / "emulator"
    shutil.copytree(compilers.HERE, emulator)
    monkeypatch.setattr(compilers, "HERE", emulator)
    before = compilers._own_files.__wrapped__()
    assert compilers._own_files.__wrapped__() == before
    with (emulator / file).open("a") as changed:
        changed.write("\n")
    assert compilers._own_files.__wrapped__() != before


def test_a_failed_compilation_leaves_nothing_behind(empty_cache, tmp_path):
    def left() -> set[Path]:
        return {path for path in tmp_path.iterdir() if path.name != "zig"}  # zig keeps a cache of its own

    before = left()
    with pytest.raises(CompileError):
        RawModule(code="nonsense;" + KERNEL).compile()
    assert left() == before


def test_two_processes_compile_the_same_file_at_once(tmp_path, monkeypatch):
    link_shared_builds(tmp_path)  # what both have to build is the kernel
    monkeypatch.setattr(compilers, "cache_folder", lambda: tmp_path)
    fork = multiprocessing.get_context("fork")  # a new Python would first import PyTorch
    both = [fork.Process(target=RawModule(code=KERNEL).compile) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    assert [process.exitcode for process in both] == [0, 0]
    names = [path.name for path in tmp_path.iterdir()]
    assert sorted(name.split("-")[0] for name in names if name.endswith(".so")) == ["kernels", "runtime"]
    assert not any(name.startswith("tmp") for name in names)


def test_a_runtime_that_another_process_has_built_again_does_no_harm(monkeypatch, tmp_path):
    """Where several begin at once on a file system without locks, each builds it, and the last one's file takes the
    place of those that the others have loaded."""
    out = torch.zeros(2)
    RawModule(code=KERNEL).get_function("k")((1,), (1,), (out[:1],))
    shutil.copy(compilers.build_runtime(compilers.find_compiler()), tmp_path)
    monkeypatch.setattr(compilers, "cache_folder", lambda: tmp_path)
    RawModule(code=KERNEL + "// built for the other").get_function("k")((1,), (1,), (out[1:],))
    assert out.tolist() == [1, 1]


def test_of_two_processes_that_begin_on_a_new_machine_one_builds_what_both_need(tmp_path, monkeypatch):
    monkeypatch.setattr(compilers, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(compilers, "RUNTIME_FILES", ())
    built = tmp_path / "built"

    def run(command, what, folder):
        if "-o" in command:
            with built.open("a") as file:
                file.write(f"{what}\n")
            time.sleep(0.1)
            (folder / command[command.index("-o") + 1]).write_text("")

    monkeypatch.setattr(compilers, "_run", run)
    fork = multiprocessing.get_context("fork")
    gcc = compilers.Compiler("gcc", ("g++",), "any")
    both = [fork.Process(target=compilers.shared_builds, args=(gcc,)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join()
    both_preludes_plain_and_traced = ["the emulator's headers"] * 4
    assert built.read_text().splitlines() == ["a shared library", *both_preludes_plain_and_traced]


@needs_gcc
@pytest.mark.parametrize("option", ["-DN=1", "-Dsaturated=of_another_name"])
def test_gcc_takes_precompiled_headers_whatever_names_an_option_defines(option, fresh_search, empty_cache, monkeypatch):
    monkeypatch.setenv("COURSE_EMULATOR_CXX", "g++")
    run, said = subprocess.run, []

    def run_and_name_headers(command, **options):
        done = run([*command, *(["-H"] if "kernels.cpp" in command else [])], **options)
        said.append(done.stderr)
        return done

    monkeypatch.setattr(subprocess, "run", run_and_name_headers)
    out = torch.zeros(1)
    RawModule(code=KERNEL, options=(option,)).get_function("k")((1,), (1,), (out,))
    assert out.item() == 1
    assert any(re.match(r"! .*/emu_prelude\.h\.gch\n", text) for text in said), said


def test_a_macro_may_have_the_name_of_anything_in_the_emulators_headers():
    names = "A B F n m d i j s h l c Type lane blocks site index bits rows warp step left right first from out sum"
    options = (*(f"-D{name}=2" for name in names.split()), "-Dtwice(x)=(2*x)")
    in_a_file = "#define C 3\n#define D 4\n#define F 5\n#include <cuda_fp16.h>\n", "twice + C + D + F"
    for (before, sum), given in ((("", "twice(B) + lane"), options), (in_a_file, ("-Dtwice=2",))):
        code = before + f'extern "C" __global__ void k(float* x) {{ x[0] = {sum}; }}'
        out = torch.zeros(1)
        RawModule(code=code, options=given).get_function("k")((1,), (1,), (out,))
        assert out.item() == (14 if before else 6)


@needs_gcc
def test_where_gcc_cannot_read_its_precompiled_headers_it_reads_the_text(fresh_search, monkeypatch, tmp_path):
    """It is tried once: precompiled headers must lie at the same address as before."""
    monkeypatch.setenv("COURSE_EMULATOR_CXX", "g++")
    runtime = compilers.build_runtime(compilers.find_compiler())
    (tmp_path / runtime.name).symlink_to(runtime)
    monkeypatch.setattr(compilers, "cache_folder", lambda: tmp_path)
    run = compilers._run

    def run_and_fail_once(command, what, folder):
        if "-fsyntax-only" in command:
            raise CompileError("had to relocate PCH")
        run(command, what, folder)

    monkeypatch.setattr(compilers, "_run", run_and_fail_once)
    out = torch.zeros(1)
    RawModule(code=KERNEL).get_function("k")((1,), (1,), (out,))
    assert out.item() == 1
    assert [path.stat().st_size for path in tmp_path.glob("prelude-*/*")] == [0]


def test_the_search_takes_what_the_environment_names(fresh_search, monkeypatch):
    pytest.importorskip("ziglang")
    monkeypatch.setenv("COURSE_EMULATOR_CXX", "zig")
    found = compilers.find_compiler()
    assert found.kind == "zig" and "ziglang" in found.describe()


def test_without_a_compiler_on_the_path_the_ziglang_wheel_serves(fresh_search, monkeypatch):
    pytest.importorskip("ziglang")
    for name in ("CXX", "COURSE_EMULATOR_CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    assert compilers.find_compiler().kind == "zig"


def test_without_any_compiler_the_error_says_what_to_install(fresh_search, monkeypatch):
    for name in ("CXX", "COURSE_EMULATOR_CXX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setattr(compilers, "_zig", lambda: None)
    with pytest.raises(
        CompileError, match=r"needs a C\+\+ compiler: install g\+\+ or clang\+\+, or `pip install ziglang`"
    ):
        RawModule(code=KERNEL).compile()


def test_a_compiler_that_does_not_exist_is_named(fresh_search, monkeypatch):
    monkeypatch.setenv("COURSE_EMULATOR_CXX", "no-such-compiler -O3")
    with pytest.raises(CompileError, match="'no-such-compiler -O3' .* was not found"):
        RawModule(code=KERNEL).compile()


def test_a_cache_folder_that_cannot_be_written_is_replaced(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = compilers.cache_folder.__wrapped__()
    assert folder.is_dir() and tmp_path not in folder.parents
    folder.rmdir()
