"""The table of devices, and this machine's GPU among them."""

from types import SimpleNamespace

import pytest
import torch

from course_utils import measured
from course_utils.planner import devices
from course_utils.planner.devices import DEVICES


def test_peaks_are_dense_and_in_order():
    assert DEVICES["A100 80 GB"].half_flops == 312e12 and DEVICES["H200"].half_flops == pytest.approx(989.4e12)
    assert DEVICES["A100 80 GB"].memory_bytes == 80 * 10**9 and DEVICES["A100 80 GB"].bandwidth == 2039e9
    for one in DEVICES.values():
        assert one.half_flops > one.float32_flops > 1e12 < one.bandwidth * 100
        assert one.fp8_flops is None or one.fp8_flops == pytest.approx(2 * one.half_flops, rel=3e-3)
        assert (one.fp8_flops is None) == (one.capability < (8, 9))
        assert "datasheet" in one.source or "whitepaper" in one.source


def test_what_was_measured_on_the_h200_lies_below_its_datasheet():
    assert measured.load("00_start_here").device == "NVIDIA H200"
    h200, rates = DEVICES["H200"], devices.measured_ceilings()
    assert 0.8 < rates["device memory copy"] / h200.bandwidth < 1
    products = [rate for name, rate in rates.items() if "matrix product" in name]
    assert len(products) == 2 and all(0.7 < rate / h200.half_flops < 1 for rate in products)


def test_memory_on_the_datasheet_is_about_what_the_driver_shows():
    sizes = {row["name"]: row.get("bytes") for row in measured.load("00_start_here").rows}
    assert DEVICES["H200"].memory_bytes == pytest.approx(sizes["device memory"], rel=0.07)
    assert DEVICES["H200"].l2_bytes == sizes["L2 cache"]


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "A100 80 GB"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40", None),
        ("NVIDIA H100 PCIe", None),
        ("NVIDIA A100 80GB PCIe", None),
        ("NVIDIA GeForce RTX 4090 D", None),
    ],
)
def test_a_driver_s_name_is_a_device_of_the_table_only_if_it_is_that_board(name, known):
    found = devices.by_driver_name(name)
    assert (found.name if found else None) == known


def test_this_device_has_the_memory_that_the_driver_shows(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert devices.this_device() is None
    properties = SimpleNamespace(name="NVIDIA H200", total_memory=7 * 10**9, L2_cache_size=9)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: properties)
    found = devices.this_device()
    assert (found.name, found.memory_bytes, found.l2_bytes) == ("H200", 7 * 10**9, 9)
    assert found.bandwidth == DEVICES["H200"].bandwidth
    properties.name = "NVIDIA Imaginary 1"
    with pytest.raises(LookupError, match=r"'NVIDIA Imaginary 1' is not in the table.*Device\("):
        devices.this_device()


def test_a_dtype_that_a_device_lacks_is_named():
    with pytest.raises(ValueError, match="dtype: got 'bfloat16', takes float16 or float32 on T4"):
        DEVICES["T4"].peak_flops("bfloat16")
    with pytest.raises(ValueError, match="dtype: got 'int8', takes float16, bfloat16 or float32 on L4"):
        DEVICES["L4"].peak_flops("int8")
    assert DEVICES["T4"].peak_flops("float32") == 8.1e12


def test_a_device_is_found_by_name_and_an_unknown_one_is_named():
    assert devices.device("L4") is devices.device(DEVICES["L4"])
    with pytest.raises(ValueError, match="device: got 'L5', takes a Device, or one of T4, RTX 3090"):
        devices.device("L5")
