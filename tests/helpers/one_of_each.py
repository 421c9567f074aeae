"""Parameters of a test that has several launches of one kernel, or mistakes in it, of which some are enough for
`make test`; and of one that has all of them on a GPU."""

from collections.abc import Callable, Iterable

import pytest

from course_utils.launches.launch import Launch


def last_of_each_kernel(launches: Iterable[tuple[str, object, Launch]]) -> list:
    """(id, value, launch), ... -> a parameter for each; all but the last of each kernel run in `make test-all` only."""
    launches = list(launches)
    last = {(launch.source, launch.kernel): name for name, _, launch in launches}
    again = pytest.mark.exhaustive("a kernel at other sizes: `make test` has one launch of each kernel")
    return [
        pytest.param(value, id=name, marks=() if last[launch.source, launch.kernel] == name else again)
        for name, value, launch in launches
    ]


def every_second(mistakes: Iterable[tuple]) -> list:
    """A parameter for each of some mistakes in kernels; every second of them runs in `make test-all` only."""
    again = pytest.mark.exhaustive("`make test` has other mistakes in the same kernel, and tests/mutants/ more")
    return [pytest.param(*mistake, marks=again if n % 2 else ()) for n, mistake in enumerate(mistakes)]


def all_on_a_gpu(name: str, cases: Iterable[tuple], chosen: Callable[..., bool], reason: str) -> pytest.MarkDecorator:
    """Parameters for a test on the `device` fixture: every case on a GPU, where it costs next to nothing; on the
    emulator the chosen ones, and the others, for that reason, in `make test-all` only.

    name: the arguments' names, as for `parametrize`. chosen: takes a case's values.
    """
    again, found = pytest.mark.exhaustive(reason), []
    for case in cases:
        words = "-".join(map(str, case))
        found.append(pytest.param(*case, "cpu", id=f"cpu-{words}", marks=() if chosen(*case) else again))
        found.append(pytest.param(*case, "cuda", id=f"cuda-{words}", marks=pytest.mark.gpu))
    return pytest.mark.parametrize(f"{name}, device", found, indirect=["device"])
