"""The sanitizer has nothing to say about any kernel of the chapters, and says so within seconds."""

import time

import pytest
import torch

from course_utils.emulator import sanitize
from course_utils.launches.chapters import course_launches, hard_launches
from course_utils.operators import flash_attention_minimal, naive_attention
from course_utils.toolchain.source import KERNELS, read_kernel, required_architecture
from tests.helpers.one_of_each import last_of_each_kernel

MOST_SECONDS = 5.0  # for one launch, compilation left out
LENGTHS = [(1, 1), (1, 65), (65, 1), (63, 65), (70, 130)]
LAUNCHES = course_launches() | hard_launches()
COUNTED = pytest.mark.exhaustive(
    "watched by the sanitizer, too, where its counters are compared with ncu's; here by each compiler"
)
MASKED = pytest.mark.exhaustive("`make test` has each length once, with and without the causal mask in turn")
WATCHED = (
    *("sparse range_", "sparse block_sparse_", "sparse csr_gather", "sparse hopper"),
    *("hopper step", "hopper forward", "hopper backward,"),
)
ELSEWHERE = pytest.mark.exhaustive(
    "watched in tests/operators/test_sparse….py and test_flash_hopper….py, test_sparse_backward.py and "
    "test_hopper_ladder.py, too"
)
FILES = [path.relative_to(KERNELS).as_posix() for path in sorted(KERNELS.glob("*/*.cu"))]


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, marks=COUNTED) for name in course_launches()),
        *(pytest.param(name, marks=ELSEWHERE) for name in hard_launches() if name.startswith(WATCHED)),
        *last_of_each_kernel(
            (name, name, launch) for name, launch in hard_launches().items() if not name.startswith(WATCHED)
        ),
    ],
)
def test_a_launch_of_a_chapter(name, compiler):
    def seconds() -> float:
        start = time.perf_counter()
        with sanitize() as report:
            LAUNCHES[name].run()
        assert not report.findings, str(report)
        return time.perf_counter() - start

    def in_time() -> bool:
        taken = seconds()
        return taken < MOST_SECONDS or taken < MOST_SECONDS * _crowding()

    assert in_time() or in_time()  # the first may have compiled


def _crowding() -> float:
    """How long a second of the processor takes now: 1 where nothing else runs."""
    start, begun = time.perf_counter(), time.process_time()
    while time.process_time() - begun < 0.1:
        pass
    return (time.perf_counter() - start) / 0.1


@pytest.mark.parametrize("file", FILES)
def test_every_kernel_of_a_chapter_is_among_the_launches(file):
    sources = {launch.source for launch in LAUNCHES.values()}
    if file not in sources and required_architecture(read_kernel(file)).exact:
        pytest.skip("for one architecture: watched where the operator that launches it is tested")
    assert file in sources


@pytest.mark.parametrize(
    ("attention", "query_length", "key_length", "is_causal"),
    [
        pytest.param(attention, *lengths, is_causal, marks=() if (n + m) % 2 == is_causal else MASKED)
        for n, attention in enumerate([naive_attention, flash_attention_minimal])
        for m, lengths in enumerate(LENGTHS)
        for is_causal in (False, True)
    ],
)
def test_operators_at_ragged_lengths(attention, query_length, key_length, is_causal):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, query_length, 64, generator=generator, requires_grad=True)
    key, value = (torch.randn(1, 2, key_length, 64, generator=generator, requires_grad=True) for _ in range(2))
    with sanitize() as report:
        out = attention(query, key, value, is_causal=is_causal)
        if attention is flash_attention_minimal:
            out.sum().backward()
    assert report.launches >= 1 and not report.findings, str(report)
