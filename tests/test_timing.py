"""Timing: the statistics anywhere, the events on a GPU."""

import time

import pytest
import torch

from course_utils import timing


def test_summary_is_the_median_and_the_interquartile_range():
    assert timing.summary([5.0, 1.0, 2.0, 3.0, 100.0]) == (3.0, 3.0)
    assert timing.summary([2.0]) == (2.0, 0.0)


def test_repeats_fit_the_budget_within_limits():
    assert timing._repeats_within(500, 10) == 50
    assert timing._repeats_within(500, 1000) == timing.MIN_REPEATS
    assert timing._repeats_within(500, 0.0) == timing.MAX_REPEATS


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the message on a machine without a GPU")
@pytest.mark.parametrize(
    "call",
    [timing.time_gpu, timing.time_calls, timing.peak_memory]
    + [lambda fn, way=way: way({"fn": fn}) for way in (timing.compare, timing.compare_host, timing.sustained)],
)
def test_without_a_gpu_the_error_says_so(call):
    with pytest.raises(RuntimeError, match="no usable one"):
        call(lambda: None)


def test_bad_counts_name_the_argument():
    with pytest.raises(ValueError, match="warmup is -1"):
        timing._check_counts({"a": print}, -1, None, 1.0)
    with pytest.raises(ValueError, match="repeats is 0"):
        timing._check_counts({"a": print}, 0, 0, 1.0)
    with pytest.raises(TypeError, match=r"functions\['a'\] has type int"):
        timing._check_counts({"a": 3}, 0, None, 1.0)
    with pytest.raises(ValueError, match="functions is empty"):
        timing._check_counts({}, 0, None, 1.0)


def test_each_function_has_the_card_for_two_long_turns(monkeypatch):
    seen = []

    def time_calls(fn, calls):
        seen.append((fn(), calls))
        return {"a": 2.0, "b": 8.0}[fn()] if len(seen) < 5 else 6.0

    monkeypatch.setattr(timing, "_require_gpu", lambda: None)
    monkeypatch.setattr(timing, "time_calls", time_calls)
    times = timing.sustained({name: lambda name=name: name for name in "ab"}, seconds=0.4)
    assert seen == [("a", 3), ("a", 200), ("b", 3), ("b", 50), ("b", 3), ("b", 67), ("a", 3), ("a", 67)]
    assert [times[name].median for name in "ab"] == [4.0, 7.0]
    with pytest.raises(ValueError, match="seconds is 0; it must be positive"):
        timing.sustained({"a": print}, seconds=0)


def test_bursts_of_the_hosts_calls_are_interleaved_and_begin_with_an_idle_gpu(monkeypatch):
    seen, now = [], iter(range(100))
    monkeypatch.setattr(timing, "_require_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: seen.append("-"))
    monkeypatch.setattr(time, "perf_counter", lambda: 0.001 * next(now))
    times = timing.compare_host({name: lambda name=name: seen.append(name) for name in "ab"}, rounds=3, calls=2)
    assert "".join(seen) == "ab" + "-aa-bb" + "-bb-aa" + "-aa-bb" + "-"
    assert times == {name: (pytest.approx(0.5), pytest.approx(0)) for name in "ab"}
    for bad in ({"rounds": 0}, {"calls": 0}):
        with pytest.raises(ValueError, match=f"{next(iter(bad))} is 0; it must be 1 or more"):
            timing.compare_host({"a": print}, **bad)


@pytest.mark.gpu
def test_the_host_is_busy_for_less_time_than_a_long_kernel_takes():
    time_of = timing.compare_host({"sleep": lambda: torch.cuda._sleep(2_000_000)}, rounds=3, calls=5)["sleep"]
    assert 0 < time_of.median < timing.time_gpu(lambda: torch.cuda._sleep(2_000_000), repeats=5).median / 2


@pytest.mark.gpu
def test_a_copy_runs_at_a_plausible_bandwidth():
    source = torch.randn(64 * 2**20, device="cuda")
    target = torch.empty_like(source)
    result = timing.time_gpu(lambda: target.copy_(source))
    gigabytes_per_second = 2 * source.nbytes / result.median / 1e6
    assert 20 < gigabytes_per_second < 50_000
    assert 0 <= result.spread < result.median


@pytest.mark.gpu
def test_compare_orders_small_and_large_work():
    small, large = torch.randn(2**20, device="cuda"), torch.randn(2**26, device="cuda")
    result = timing.compare({"small": small.sum, "large": large.sum}, repeats=10)
    assert result["small"].median < result["large"].median


@pytest.mark.gpu
def test_events_follow_the_current_stream():
    data = torch.randn(2**26, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        aside = timing.time_gpu(data.sum)
    assert aside.median > 0.5 * timing.time_gpu(data.sum).median


@pytest.mark.gpu
def test_peak_memory_counts_what_the_function_allocates():
    assert timing.peak_memory(lambda: torch.empty(2**20, dtype=torch.float32, device="cuda")) == 4 * 2**20


@pytest.mark.gpu
def test_a_head_start_hides_the_time_of_the_host():
    x = torch.zeros(1000, device="cuda")

    def slow_host():
        time.sleep(0.002)
        x.add_(1)

    found = timing.compare({"fn": slow_host}, repeats=5, head_start_us=10_000)["fn"]
    assert found.median < 1 < timing.time_calls(slow_host, calls=5)
