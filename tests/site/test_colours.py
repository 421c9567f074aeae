"""A kernel in Python has CUDA's colours on the site, and all other text its own."""

import pytest
from pygments.token import Keyword, String

from course_utils.site.colours import LEXERS

KERNEL = 'extern "C" __global__ void add(float* a) { a[0] = 1.0f; }\n'
GLOBAL = (Keyword.Reserved, "__global__")


@pytest.mark.parametrize("name", LEXERS)
@pytest.mark.parametrize("quotes", ['"""', "'''"])
def test_a_kernel_in_a_string_is_cuda_and_the_text_stays(name, quotes):
    code = f'words = """void"""\nkernel = r{quotes}\n{KERNEL}{quotes}\nprint(kernel)\n'
    tokens = list(LEXERS[name]().get_tokens(code))
    assert "".join(text for _, text in tokens) == code
    assert GLOBAL in tokens and (Keyword.Type, "float") in tokens
    assert [kind in String for kind, text in tokens if text == "void"] == [True, False]


def test_a_puzzle_is_cuda_below_its_first_line():
    code = f"%%puzzle 00_start_here/guard\n{KERNEL}"
    tokens = list(LEXERS["ipython3"]().get_tokens(code))
    assert "".join(text for _, text in tokens) == code
    assert GLOBAL in tokens


@pytest.mark.parametrize("code", ["words = 'float'\n", "# __global__\nfloat = 1\n"])
def test_python_without_a_kernel_stays_python(code):
    plain = LEXERS["python"].__mro__[2]
    assert list(LEXERS["python"]().get_tokens(code)) == list(plain().get_tokens(code))
