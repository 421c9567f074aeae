"""What every chapter's benchmarks share: a wrong kernel is not timed, and what does not fit is left out."""

import inspect
from pathlib import Path

import pytest
import torch

from course_utils import timing
from course_utils.bench import deepseek_sparse, flash_attention_v2, hopper, serving, sparse_patterns, timed
from course_utils.cuda import RawModule
from course_utils.toolchain.nvrtc import ARCHITECTURES, compile_kernel
from course_utils.toolchain.source import compile_options, read_kernel


def public_parts(chapter) -> list[str]:
    """The functions of a chapter's module that return rows, but the one that returns all of them."""
    functions = {
        name: function
        for name, function in vars(chapter).items()
        if inspect.isfunction(function) and function.__module__ == chapter.__name__ and not name.startswith("_")
    }
    rows = [name for name, function in functions.items() if function.__annotations__.get("return") == "list[Row]"]
    return [name for name in rows if not name.endswith("_chapter")]


@pytest.mark.parametrize(
    ("chapter", "measure"),
    [
        (flash_attention_v2, flash_attention_v2.flash_v2_chapter),
        (sparse_patterns, sparse_patterns.sparse_chapter),
        (deepseek_sparse, deepseek_sparse.deepseek_chapter),
        (hopper, hopper.hopper_chapter),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_chapter_measures_every_one_of_its_parts(chapter, measure, monkeypatch):
    names = public_parts(chapter)
    monkeypatch.setattr(chapter, "compile_all", lambda: None)
    for name in names:
        monkeypatch.setattr(chapter, name, lambda name=name: [{"part": name}])
    assert len(names) > 5 and {row["part"] for row in measure()} == set(names)


LAUNCHED = {  # the files of a chapter
    flash_attention_v2: {"backward", "backward_reads_p", *(step.kernel for step in flash_attention_v2.LADDER)},
    deepseek_sparse: {"mla_dense", "sparse_mla", "sparse_mla_backward", "lightning_indexer", "lightning_indexer_fp8"},
    serving: set("warp_per_head packed_heads split_keys paged_cache e4m3_cache merge append persistent_step".split()),
}


@pytest.mark.parametrize("chapter", LAUNCHED, ids=lambda chapter: chapter.__name__.split(".")[-1])
def test_everything_that_a_chapter_launches_is_compiled_ahead(chapter, monkeypatch):
    compiled = []
    monkeypatch.setattr(RawModule, "compile", lambda module, device: compiled.append((Path(module.name).stem, device)))
    chapter.compile_all("cpu")
    assert set(compiled) == {(file, "cpu") for file in LAUNCHED[chapter]}


def test_lengths_that_do_not_fit_the_gpu_are_left_out(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10 * 2**30, 16 * 2**30))
    assert timed.fitting((512, 4096), 16, 12, "cuda") == [512]
    assert "L = 4096 is left out" in capsys.readouterr().out


def test_a_wrong_kernel_is_not_timed():
    with pytest.raises(RuntimeError, match="ours is off by"):
        timed.require_close("ours", torch.ones(2), torch.zeros(2))
    with pytest.raises(RuntimeError, match="ours is off by nan"):
        timed.require_close("ours", torch.full((2,), torch.nan), torch.zeros(2))


def test_ratios_are_taken_within_each_run(monkeypatch):
    times = iter([(2.0, 1.0), (4.0, 1.0), (3.0, 2.0)])

    def compare(functions, **options):
        return {name: timing.Timing(time, 0) for name, time in zip(functions, next(times), strict=True)}

    monkeypatch.setattr(timing, "compare", compare)
    found = timed.interleaved({"base": print, "ours": print}, "base", runs=3)
    assert found["ours"] == (timing.Timing(1.0, 0), [2.0, 4.0, 1.5]) and found["base"][1] == [1.0] * 3


def test_what_runs_once_takes_part_in_the_first_run_only(monkeypatch):
    runs = []
    monkeypatch.setattr(
        timing, "compare", lambda fns, **_: runs.append(list(fns)) or dict.fromkeys(fns, timing.Timing(1, 0))
    )
    timed.interleaved({"base": print, "slow": print}, "base", runs=3, once=("slow",))
    assert runs == [["base", "slow"], ["base"], ["base"]]


FILES = pytest.mark.parametrize("file", sorted(timed.KERNELS.glob("*.cu")), ids=lambda file: file.stem)


def spills(file: Path, architecture: int) -> int:
    source = read_kernel(file)
    return max(
        kernel.spill_stores
        for options in compile_options(source)
        for kernel in compile_kernel(source, arch=f"sm_{architecture}", options=options).resources.values()
    )


@FILES
def test_benchmark_kernels_compile_for_gpus(file):
    assert spills(file, 90) == 0


@FILES
@pytest.mark.exhaustive("the other architectures; sm_90 is in make test")
def test_benchmark_kernels_compile_for_every_gpu(file):
    lowest = 80 if "arch: sm_80" in read_kernel(file) else 75
    found = {one: spills(file, one) for one in ARCHITECTURES if one >= lowest}
    assert found == dict.fromkeys(found, 0)
