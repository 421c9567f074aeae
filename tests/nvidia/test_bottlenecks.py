"""What limits a kernel: ncu's output read into a row, and no stated bound that a recorded speed passes."""

import math

import pytest

from course_utils import costs, measured, planner
from course_utils.launches import Launch
from course_utils.nvidia import bottlenecks
from course_utils.planner.devices import DEVICES
from tests.helpers.nvidia_output import LAUNCH

ROWS = {row["name"]: row for row in measured.load("bottlenecks").rows}
PRODUCT = 2 * 16 * 12 * 64  # FLOPs of chapter 01's products per score: B, H, d as it times them
CHIP = {row["name"]: row for row in measured.load("00_start_here").rows}


def speeds(kernel: str) -> list[float]:
    """Every TFLOP/s that is recorded of a kernel that `bench bottlenecks` counts."""
    name = kernel.partition(",")[0]
    if name.startswith("matmul"):
        return [CHIP[f"{name}.cu"]["tflop_per_s"]]
    if name in ("scores", "scores_uncoalesced", "output"):
        found = measured.load("01_attention_basics").select(name=f"{name}.cu")
        return [PRODUCT * row["length"] ** 2 / row["median_ms"] / 1e9 for row in found]
    minimal = {"forward_plain": "forward_plain.cu", "forward": "flash_attention_minimal"}
    if name in minimal:
        found = measured.load("02_flash_attention_minimal").select(name=minimal[name], **{"pass": "forward"})
        return [row["tflop_per_s"] for row in found]
    return []


BOUNDED = [name for name in ROWS if speeds(name)]


def test_every_fp32_product_of_the_chapters_is_bounded():
    products = {"matmul_naive", "matmul_tiled", "matmul_registers", "scores", "scores_uncoalesced", "output"}
    assert {name.partition(",")[0] for name in BOUNDED} == products | {"forward_plain", "forward"}


@pytest.mark.parametrize("kernel", BOUNDED)
def test_no_recorded_speed_passes_what_wavefronts_allow(kernel):
    assert max(speeds(kernel)) < bottlenecks.allowed_tflops(ROWS[kernel])


@pytest.mark.parametrize("kernel", BOUNDED)
def test_what_is_reached_of_the_bound_is_how_busy_ncu_finds_the_data_path(kernel):
    reached = max(speeds(kernel)) / bottlenecks.allowed_tflops(ROWS[kernel])
    assert 100 * reached == pytest.approx(ROWS[kernel]["units"]["L1 and shared memory"], rel=0.1)


def test_no_recorded_speed_passes_the_roof_of_its_unit():
    """fp32 on CUDA cores; products of 16 bits by mma.sync in chapter 03, and by wgmma in chapter 04 on a Hopper GPU."""
    fp32 = CHIP["fp32 multiply-add, CUDA cores"]["tflop_per_s"]
    by_mma = CHIP["fp16 mma.sync alone, tensor cores"]["tflop_per_s"]
    minimal = measured.load("02_flash_attention_minimal").rows
    other = "SDPA memory-efficient", "SDPA flash, fp16"  # tensor cores: fp32 as sums of TF32 numbers, and fp16
    on_cuda_cores = [row for row in minimal if row["name"] not in other]
    on_cuda_cores += [row for name, row in CHIP.items() if name.startswith(("matmul", "torch.mm", "fp32 matrix"))]
    assert max(row["tflop_per_s"] for row in on_cuda_cores) < fp32
    dense = [row for row in measured.load("03_flash_attention_v2").rows if row.get("name") != "torch cuDNN"]
    ours = [row["tflop_per_s"] for row in dense if row.get("tflop_per_s")]
    peers = measured.load("04_sparse_patterns").select(name="sparse_attention")
    sparse = [row["useful_tflop_per_s"] for row in peers if row.get("useful_tflop_per_s")]
    by_wgmma = CHIP["fp16 matrix product, tensor cores"]["tflop_per_s"]
    assert max(ours) < by_mma < by_wgmma and max(sparse) < by_wgmma


def test_bytes_move_no_faster_than_the_memory_reads():
    """A copy is a little slower than reading alone: what the chapters draw as the memory's roof is the copy."""
    read = max(row["gb_per_s"] for row in CHIP.values() if row.get("working_set_bytes", 0) >= 2**28)
    copies = [row["gb_per_s"] for row in CHIP.values() if "gb_per_s" in row and "working_set_bytes" not in row]
    assert max(copies) == CHIP["device memory copy"]["gb_per_s"] < read < 1.1 * max(copies)


def test_no_recorded_time_of_chapter_01_is_below_its_floor():
    """As the chapter states it: bytes over a copy's rate, or FLOP over what multiply-adds sustain."""
    fp32, copy = CHIP["fp32 multiply-add, CUDA cores"]["tflop_per_s"], CHIP["device memory copy"]["gb_per_s"]
    kernels = {"scores.cu": (0, PRODUCT), "softmax.cu": (1, 0), "output.cu": (2, PRODUCT)}
    rows = [row for row in measured.load("01_attention_basics").rows if row["name"] in kernels]
    assert {row["name"] for row in rows} == kernels.keys()
    for row in rows:
        step, flops = kernels[row["name"]]
        moved = costs.naive_traffic(16, 12, row["length"], row["length"], 64, 4)[step].total
        floor = costs.time_floor(flops * row["length"] ** 2, moved, fp32 * 1e12, copy * 1e9)
        assert row["median_ms"] / 1e3 > floor, row


def test_no_recorded_time_of_chapter_08_is_below_its_floor():
    kinds = {"dense,": "dense", "sliding": "sparse", "window": "sparse"}
    rows = [row for row in measured.load("08_choosing").select(part="choices") if row["median_ms"]]
    for row in (row for row in rows if not row["name"].startswith("streaming")):
        method = kinds.get(row["name"].split()[0], "flash")
        assert row["median_ms"] / 1e3 > planner.plan(row["length"], device="H200").methods[method].seconds, row


def test_kernels_with_16_queries_a_warp_stay_below_what_shared_memory_allows_them():
    """Chapter 03: a fragment of 512 bytes of K or V serves 16 queries; shared memory gives 128 bytes a clock."""
    clocks = CHIP["streaming multiprocessors"]["count"] * CHIP["clock, at most"]["mhz"] * 1e6
    dense = measured.load("03_flash_attention_v2")
    steps = dense.select(part="tuning", name="16 queries per warp") + [
        row
        for row in dense.select(part="ladder")
        if row["name"] not in ("CUDA cores", "tuned") and not row["name"].startswith("torch")
    ]
    assert len(steps) > 30
    assert max(row["tflop_per_s"] for row in steps) < clocks * 128 / 512 * 2 * 16 * 16 * 16 / 1e12


def test_no_recorded_speed_passes_the_datasheet():
    """Chapters 03 and 05 time tensor cores by every instruction that they have: 16 bits, and FP8 at twice the rate."""
    half = DEVICES["H200"].half_flops / 1e12
    for name in ("03_flash_attention_v2", "05_deepseek_sparse"):
        for row in measured.load(name).rows:
            assert (row.get("tflop_per_s") or 0) < half * (1 + ("FP8" in row.get("name", ""))), row


def test_exponentials_alone_take_less_than_any_forward_pass():
    """Chapter 03 holds their time, at the rate that chapter 00 measured, against the passes of its table."""
    alone = 16 * 12 * 2048**2 / CHIP["exponentials, special function units"]["per_s"]
    assert all(row["median_ms"] / 1e3 > alone for row in measured.load("03_flash_attention_v2").select(part="table"))


def test_a_row_holds_what_ncu_says(monkeypatch):
    found = dict.fromkeys(bottlenecks.METRICS, 2.0) | {bottlenecks.WAVEFRONTS: 640, bottlenecks.FMAS: 3200}
    found[bottlenecks._WAITS.format("barrier")] = 7.5
    launches = {"some": (LAUNCH, 4000)}
    monkeypatch.setattr(bottlenecks, "busy_launches", lambda: launches)
    monkeypatch.setattr(bottlenecks.tools, "run_ncu", lambda launches, metrics: [found])
    (row,) = bottlenecks.measure_bottlenecks()
    assert (row["name"], row["flops"], row["launch"]) == ("some", 4000, LAUNCH.describe())
    assert bottlenecks.wavefronts_per_fma(row) == pytest.approx(640 / 100)
    assert bottlenecks.waits_for(row, most=1) == "a barrier (barrier)"
    rate = CHIP["streaming multiprocessors"]["count"] * CHIP["clock, at most"]["mhz"] * 1e6
    assert bottlenecks.allowed_tflops(row) == pytest.approx(4000 / (640 / rate) / 1e12)


def test_reasons_to_wait_that_are_as_long_are_all_named():
    waits = dict.fromkeys(bottlenecks.WAITS, 0.0) | {"not_selected": 0.9, "barrier": 1.55, "drain": 1.58, "wait": 0.7}
    assert bottlenecks.waits_for({"waits": waits}, most=1) == "its last stores (drain); a barrier (barrier)"
    assert bottlenecks.waits_for({"waits": waits | {"barrier": 1.4}}, most=1) == "its last stores (drain)"
    chosen = "its turn: another warp was chosen (not_selected)"
    assert bottlenecks.waits_for({"waits": waits | {"not_selected": 9.0}}, most=1) == chosen


@pytest.mark.exhaustive(
    "fills gigabytes with numbers, which takes 12 s; make test compares the record that these launches left with the "
    "speeds of the same kernels"
)
def test_launches_that_fill_the_gpu_do_the_work_that_is_said():
    launches = bottlenecks.busy_launches()
    assert list(launches) == list(ROWS)
    for name, (launch, flops) in launches.items():
        assert isinstance(launch, Launch) and ROWS[name]["flops"] == flops
        blocks, multiprocessors = math.prod(launch.grid), CHIP["streaming multiprocessors"]["count"]
        stays = name.startswith("hopper") and len(launch.grid) == 1  # one for each, which fetches work
        assert blocks == multiprocessors if stays else blocks > 8 * multiprocessors
    assert launches["forward, L=2048"][1] == costs.attention_flops(16, 12, 2048, 2048, 64)
