"""What the tests of several operators use."""

import re

import pytest

from course_utils.cuda import read_kernel
from course_utils.kernel_source import INCLUDE


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
                code = with_headers(code, set())
            assert code.count(right) == 1
            return code.replace(right, wrong)

        monkeypatch.setattr(operator_module, "read_kernel", read_broken)

    return replace


def with_headers(code, done):
    """The source with the course's own headers in the place of their first `#include`."""

    def text(match):
        first = match[1] not in done
        done.add(match[1])
        return with_headers((INCLUDE / match[1]).read_text(encoding="utf-8"), done) if first else ""

    return re.sub(r'#include "([^"]+)"|#pragma once', lambda match: text(match) if match[1] else "", code)
