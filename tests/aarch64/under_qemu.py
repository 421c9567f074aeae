"""A plugin of pytest: `pytest -p tests.aarch64.under_qemu FILE` runs tests of the emulator on aarch64.

What fails then and is no defect: tests that look into the launcher's process, which is qemu's, and those that measure
time or compile for x86 by themselves.
"""

from __future__ import annotations

import pytest

from tests.aarch64.machine import gcc, on_aarch64, why_not


@pytest.fixture(autouse=True, scope="session")
def under_qemu():
    """All launches of the session."""
    compiler = gcc()
    if why := why_not() or ("" if compiler else "there is no g++ for aarch64"):
        pytest.exit(why)
    with on_aarch64(compiler):
        yield
