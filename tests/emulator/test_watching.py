"""What watches launches: a client is asked how, takes what is left, and says beside whom it cannot be."""

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record, sanitize
from course_utils.emulator.watching import Client, Watch, active, watching

KERNEL = RawModule(code='extern "C" __global__ void k(float* x) { x[threadIdx.x] = 1; }').get_function("k")


class Writes(Client):
    """Counts how many bytes of the first argument each launch writes."""

    def __init__(self, alone=False):
        self.alone, self.bytes = alone, []

    def conflict(self, other):
        return "one of these is enough" if isinstance(other, Writes) else ""

    def watch(self, grid, kernel):
        return None if grid[0] > 1 else Watch(profile=True)

    def take(self, trace):
        self.bytes.append((trace.kernel, trace.results.touched[0].written))


def launch(blocks=1):
    KERNEL((blocks,), (8,), (torch.zeros(32),))


def test_a_client_takes_what_the_launches_inside_have_left():
    client = Writes()
    with watching(client), sanitize() as report:
        launch()
        launch(blocks=2)  # of which it wants nothing
    launch()
    assert client.bytes == [("k", 32)] and report.launches == 2 and not active()


def test_a_client_says_beside_which_it_cannot_be_opened():
    with watching(Writes()), pytest.raises(ValueError, match="one of these is enough"), watching(Writes()):
        pass
    assert not active()


def test_a_client_that_is_alone_has_the_launches_for_itself():
    client = Writes(alone=True)
    with sanitize() as report, watching(client):
        launch()
    assert client.bytes and not report.launches
    seen = []

    def call():
        with sanitize() as report:
            launch()
        seen.append(report.launches)

    assert record(call).steps and seen == [0]
