"""Chapter 07's benchmarks, on the emulator: each calls what it says it times; ratios and means by hand."""

import json
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend

from course_utils import costs, reference, timing
from course_utils.bench import hopper as chapter
from course_utils.bench.hopper import AGAIN, CUDNN, FLASH, OURS, PORTABLE
from course_utils.bench.timed import random_inputs
from course_utils.cuda import RawModule
from course_utils.operators import hopper
from course_utils.operators.hopper_launch import E4M3_TILES, TILES
from course_utils.operators.tensor_core import BF16_OPTION, DTYPES

ALL = [OURS, CUDNN, FLASH, PORTABLE]
SMALL = {"device": "cpu", "tokens": 40, "width": 64, "lengths": (40,), "head_dims": (64,)}


@pytest.fixture
def on_cpu(one_run_each, monkeypatch):
    """torch's kernels for GPUs are played by its plain one."""
    monkeypatch.setattr(chapter, "BACKENDS", dict.fromkeys(chapter.BACKENDS, SDPBackend.MATH))
    monkeypatch.setattr(chapter, "peak_speed", lambda: 1000.0)
    monkeypatch.setattr(chapter, "RUNS", 1)
    monkeypatch.setattr(timing, "sustained", lambda functions: timing.compare(functions))
    torch.manual_seed(0)


def test_rungs_have_speed_and_resources_of_each_step(on_cpu):
    step = chapter.LADDER[2]
    *rows, peak, product = chapter.rungs(steps=[step], **SMALL)
    assert [row["name"] for row in rows] == [CUDNN, FLASH, step.title] * 2  # causal and not
    last = rows[-1]
    assert last["spill_bytes"] == 0 and last["registers"] == 168 and last["shared_bytes"] == step.shared(64, 128)
    assert last["tflop_per_s"] == pytest.approx(costs.attention_flops(1, 1, 40, 40, 64, True) / 2e-3 / 1e12)
    assert product["tflop_per_s"] == pytest.approx(2 * 8**3 / 2e-3 / 1e12) and peak["tflop_per_s"] == 1000
    assert last["share_of_peak"] == last["tflop_per_s"] / 1000
    json.dumps(rows)


def test_the_operator_is_timed_beside_its_peers_and_they_beside_themselves(on_cpu):
    rows = chapter.forward(bf16_lengths=(20,), **SMALL)
    names = [*ALL, CUDNN + AGAIN, FLASH + AGAIN]
    timed = [(row["dtype"], row["is_causal"], row["length"], row["name"]) for row in rows if row["part"] == "forward"]
    cases = [(c, *case) for c in (False, True) for case in (("float16", 40), ("bfloat16", 20))]
    assert timed == [(dtype, c, length, name) for c, dtype, length in cases for name in names]
    means = [row for row in rows if row["part"] == "means"]
    assert [(row["is_causal"], row["name"], row["shapes"]) for row in means] == [
        (c, name, 1) for c in (False, True) for name in names
    ]


def test_backward_passes_are_timed_and_two_where_torch_is_deterministic(on_cpu, monkeypatch):
    turns = []
    made = hopper.ready_backward
    monkeypatch.setattr(hopper, "ready_backward", lambda *args: turns.append(args[-1]) or made(*args))
    rows = chapter.backward(**SMALL)
    names = [*ALL, chapter.TURNS, chapter.FLASH_FIXED]
    assert [(row["is_causal"], row["name"]) for row in rows if row["part"] == "backward"] == [
        (c, name) for c in (False, True) for name in names
    ]
    assert rows[0]["tflop_per_s"] == pytest.approx(10 * 40 * 40 * 64 / 2e-3 / 1e12)
    assert [row["name"] for row in rows if row["part"] == "backward means"] == names * 2
    assert turns == 2 * [False, True, False, True]  # checked, then timed
    json.dumps(rows)


@pytest.mark.exhaustive("the bench of chapter 03's step with another attention: test_compiled_step.py")
def test_a_training_step_is_timed_eager_and_compiled(on_cpu):
    rows = chapter.training_step(device="cpu", backend="eager", sizes=((1, 20),), width=64, heads=1)
    ways = [(name, way) for name in (OURS, PORTABLE, "SDPA") for way in ("eager", "compiled")]
    assert [(row["name"], row["way"]) for row in rows] == ways
    torch.compiler.reset()


def test_a_gradient_that_is_less_right_than_cudnns_is_not_timed(on_cpu):
    *inputs, grad_output = random_inputs((1, 1, 40, 64), "cpu", count=4)
    functions = {name: chapter._gradients(*inputs, grad_output, True)[name] for name in (CUDNN, FLASH)}
    chapter.require_gradients_as_right_as_cudnns(functions, *inputs, grad_output, True)
    dq, dk, dv = functions[CUDNN]()
    functions["ours"] = lambda: (dq, 1.01 * dk, dv)
    with pytest.raises(RuntimeError, match="dk of ours is off by .* of its largest number at .1, 1, 40, 64.; at most"):
        chapter.require_gradients_as_right_as_cudnns(functions, *inputs, grad_output, True)


def test_grouped_heads_long_sequences_and_long_turns(on_cpu):
    grouped = chapter.grouped_heads(device="cpu", tokens=20, heads=4, kv_heads=2, lengths=(20,), head_dims=(64,))
    assert [row["name"] for row in grouped] == ALL * 2
    assert {(row["batch"], row["heads"], row["kv_heads"]) for row in grouped} == {(1, 4, 2)}
    long = chapter.long_sequences(device="cpu", width=64, lengths=(130,), head_dims=(64,))
    assert [(row["batch"], row["length"], row["name"]) for row in long] == [(1, 130, name) for name in ALL * 2]
    turns = chapter.sustained(**SMALL)
    assert [(row["name"], row["ratio_to_cudnn"]) for row in turns] == [(OURS, 1), (CUDNN, 1)] * 2


def test_eight_bits_are_timed_beside_sixteen_with_the_error_of_both(on_cpu):
    rows = chapter.eight_bits(**SMALL)
    assert [(row["is_causal"], row["name"]) for row in rows] == [
        (c, name) for c in (False, True) for name in (OURS, chapter.OURS_E4M3)
    ]
    assert all(row["ratio_to_16_bits"] == 1 and "ratio_to_cudnn" not in row for row in rows)
    assert all(row["error"] < 0.002 for row in rows[::2]) and all(0.01 < row["error"] < 0.1 for row in rows[1::2])


def test_what_is_less_right_than_rounded_weights_is_not_timed():
    numbers, scales = chapter.in_e4m3(*random_inputs((1, 2, 40, 64), "cpu"))
    right = reference.e4m3_attention(*numbers, **scales)
    chapter.require_as_right_as_rounded(lambda: right, numbers, scales, False)
    with pytest.raises(RuntimeError, match="E4M3 is off by .* at .1, 2, 40, 64., more than"):
        chapter.require_as_right_as_rounded(lambda: 1.1 * right, numbers, scales, False)


def test_errors_by_length_and_needles_have_a_row_for_each_way_to_sum(on_cpu):
    names = [chapter.EIGHT_BITS.title, chapter.ONE_LEVEL.title]
    rows = chapter.error_by_length(device="cpu", lengths=(100, 400))
    assert [(row["length"], row["name"]) for row in rows] == [
        (n, x) for n in (100, 400) for x in (*names, chapter.ROUNDED)
    ]
    assert all(0 < row["error"] < 0.05 for row in rows)
    rows = chapter.needles(device="cpu", length=4096)
    assert [row["place"] for row in rows[::2]] == [0, 1365, 2048, 4094, 4095]
    assert [row["name"] for row in rows[:2]] == names
    assert all(abs(row["expected"] - 2.5) < 0.01 for row in rows)
    assert all(abs(row["found"] - 2.5) < 0.03 for row in rows[::2])
    assert rows[-1]["found"] < 2.2  # one sum: the needle comes when the others are thousands


def test_ratios_are_to_cudnn_and_flash_and_the_means_are_geometric():
    def rows(length, **milliseconds):
        """Three runs: of `ours`, the ratios are the median's, half of it and twice."""
        ratios = {name: milliseconds["cudnn"] / ms for name, ms in milliseconds.items()}
        names = {"cudnn": CUDNN, "flash": FLASH, "ours": OURS}
        times = {
            names[name]: (timing.Timing(ms, 0.0), [ratios[name], ratios[name] / 2, 2 * ratios[name]])
            for name, ms in milliseconds.items()
        }
        return chapter._rows("forward", times, *random_inputs((1, 1, length, 64), "cpu"), False)

    one, other = rows(8, cudnn=2.0, flash=4.0, ours=1.0), rows(16, cudnn=2.0, flash=3.0, ours=4.0)
    assert one[2]["tflop_per_s"] == pytest.approx(4 * 8 * 8 * 64 / 1e-3 / 1e12)
    assert [(row["ratio_to_cudnn"], row["low"], row["high"]) for row in one] == [(1, 0.5, 2), (0.5, 0.25, 1), (2, 1, 4)]
    assert [row["ratio_to_flash"] for row in one] == [2, 1, 4]
    other_dtype = [row | {"dtype": "bfloat16"} for row in one]
    of_cudnn, of_flash, ours = chapter._means([*one, *other, *other_dtype])
    assert ours["ratio_to_cudnn"] == pytest.approx((2 * 0.5) ** 0.5) and ours["shapes"] == 2
    assert (ours["lowest_ratio_to_cudnn"], ours["highest_ratio_to_cudnn"]) == (0.5, 2)
    assert ours["ratio_to_flash"] == pytest.approx((4 * 0.75) ** 0.5)
    assert of_cudnn["ratio_to_cudnn"] == of_flash["ratio_to_flash"] == 1


@pytest.mark.parametrize("row, error", [(0, 0.01), (39, 0.002), (39, torch.nan)])
def test_what_is_less_right_than_cudnn_is_not_timed(on_cpu, row, error):
    """Causal: the largest number of row 0 is about 3, and of row 39, an average over 40 keys, less than 1."""
    inputs = random_inputs((1, 2, 40, 64), "cpu")
    functions = chapter._torchs(*inputs, True)
    chapter.require_as_right_as_cudnn(functions, *inputs, True)
    wrong = functions[CUDNN]()
    wrong[:, :, row] += error
    functions["ours"] = lambda: wrong
    with pytest.raises(RuntimeError, match="ours is off by .* of a row's largest number at .1, 2, 40, 64., and cuDNN"):
        chapter.require_as_right_as_cudnn(functions, *inputs, True)


def test_the_peak_is_what_nvidia_says_at_another_clock(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(multi_processor_count=132))
    monkeypatch.setattr(chapter, "highest_clock", lambda: 1830.0)
    assert chapter.peak_speed() == pytest.approx(989.4, rel=1e-3)


def test_everything_that_the_chapter_launches_is_compiled_ahead(monkeypatch):
    compiled = []
    monkeypatch.setattr(RawModule, "compile", lambda self, device: compiled.append((self.name, self.options)))
    chapter.compile_all("cpu")
    assert {step.file for step in chapter.LADDER} <= {name.removeprefix("kernels/") for name, _ in compiled}
    assert len(compiled) == len(set(compiled))
    of_operator = {(*tile.options, BF16_OPTION[dtype]) for tile in sum(TILES.values(), ()) for dtype in DTYPES}
    of_operator |= {tile.options for tile in E4M3_TILES.values()}
    assert of_operator <= {options for _, options in compiled}


def test_another_gpu_is_refused(monkeypatch):
    monkeypatch.setattr(chapter, "takes_wgmma", lambda device: False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA L4")
    with pytest.raises(RuntimeError, match="07_hopper needs a Hopper GPU .sm_90., and this is NVIDIA L4"):
        chapter.compile_all()


@pytest.mark.gpu
def test_one_shape_is_timed_on_a_hopper():
    if not chapter.takes_wgmma(torch.device("cuda")):
        pytest.skip("this GPU is no Hopper")
    rows = chapter.rungs(tokens=2048, width=128, lengths=(1024,), head_dims=(128,))
    rows += chapter.forward(tokens=2048, width=128, lengths=(1024,), bf16_lengths=(1024,), head_dims=(64,))
    assert all(row["ratio_to_cudnn"] > 0.1 for row in rows if "ratio_to_cudnn" in row)
