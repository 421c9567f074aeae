"""A plugin of pytest: `pytest -rx -p tests.aarch64.under_qemu FILE` runs tests of the emulator on aarch64.

A test that qemu alone makes fail is expected to, for the reason that NO_DEFECT has. What else fails and is no defect:
tests that look into the launcher's process, which is qemu's, and those that measure time or compile for x86 by
themselves.
"""

from __future__ import annotations

import pytest

from tests.aarch64.machine import gcc, on_aarch64, why_not

# By the beginnings of tests' names.
NO_DEFECT = {
    "test_a_vector_that_is_not_at_a_multiple_of_its_size_": "qemu 7.2 says address 0 where x86 refuses an address that "
    "cannot exist: the launch fails at its line, with the words for a null pointer",
}


def pytest_collection_modifyitems(items):
    for item in items:
        for beginning, why in NO_DEFECT.items():
            if item.name.startswith(beginning):
                item.add_marker(pytest.mark.xfail(reason=why))


@pytest.fixture(autouse=True, scope="session")
def under_qemu():
    """All launches of the session."""
    compiler = gcc()
    if why := why_not() or ("" if compiler else "there is no g++ for aarch64"):
        pytest.exit(why)
    with on_aarch64(compiler):
        yield
