"""What the tests of several operators use."""

import pytest

from course_utils.cuda import read_kernel
from course_utils.toolchain.source import with_headers


@pytest.fixture
def break_kernel(monkeypatch):
    """break_kernel(operator_module, file, right, wrong): that module reads `file`.cu, or what it includes of the
    course, with one passage replaced."""

    def replace(operator_module, file, right, wrong):
        def read_broken(name):
            code = read_kernel(name)
            if not name.endswith(f"/{file}.cu"):
                return code
            if right not in code:
                code = with_headers(code)
            assert code.count(right) == 1
            return code.replace(right, wrong)

        monkeypatch.setattr(operator_module, "read_kernel", read_broken)

    return replace
