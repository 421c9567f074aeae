"""What the driver gets for a dependent launch, and what is said where it refuses."""

import ctypes

import pytest

from course_utils.toolchain import dependent_launch
from course_utils.toolchain.errors import LaunchError


class Config(ctypes.Structure):
    """CUlaunchConfig of cuda.h."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("x", "y", "z", "u", "v", "w", "shared")),
        *(("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(ctypes.c_int)), ("count", ctypes.c_uint)),
    )


@pytest.fixture
def driver(monkeypatch):
    """Plays cuLaunchKernelEx: keeps what it gets in `seen`, and returns `error`."""

    class Driver:
        seen, error = [], 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Config), *3 * (ctypes.c_void_p,))
    def launch(config, function, arguments, extra):
        c = config[0]
        Driver.seen.append(([c.x, c.y, c.z], [c.u, c.v, c.w], c.shared, c.stream, c.count, c.attributes[0]))
        Driver.seen[-1] += c.attributes[2], function, arguments, extra
        return Driver.error

    launch.argtypes = 4 * (ctypes.c_void_p,)
    monkeypatch.setattr(dependent_launch, "_launch_kernel", lambda: launch)
    return Driver


def test_the_driver_gets_the_launch_and_what_makes_it_dependent(driver):
    for stream in (7, 8):  # the second time in memory of the first
        dependent_launch.launch_dependent(11, 1, 2, 3, 32, 4, 5, 600, stream, 99, 0)
    assert driver.seen == [([1, 2, 3], [32, 4, 5], 600, stream, 1, 6, 1, 11, 99, None) for stream in (7, 8)]


def test_what_the_driver_refuses_is_an_error(driver):
    driver.error = 719
    with pytest.raises(LaunchError, match=r"grid \(1, 2, 3\) and block \(32, 1, 1\) is the driver's error 719"):
        dependent_launch.launch_dependent(11, 1, 2, 3, 32, 1, 1, 0, 7, 99, 0)
