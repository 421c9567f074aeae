"""Local variables in a kernel's text."""

import pytest

from course_utils.grading.variables import added_to_unset, line_that_hides


def kernel(*body: str) -> str:
    return "\n".join(["__global__ void k(const float* q, float* s, int n) {", *body, "}"])


@pytest.mark.parametrize(
    "body",
    [
        ("float sum;", "for (int c = 0; c < n; c++) sum += q[c];"),
        ("float m = 0, sum;", "for (int c = 0; c < n; c++) sum = sum + q[c];"),
        ("float sum[4];", "for (int c = 0; c < n; c++) sum[c % 4] += q[c];"),
        ("unsigned long long sum;  // = 0", "while (n) sum++;"),
    ],
)
def test_a_variable_that_is_added_to_before_it_has_a_value(body):
    assert added_to_unset(kernel(*body)) == "sum is used before its value is set (line 3)"


@pytest.mark.parametrize(
    "body",
    [
        ("float sum = 0;", "for (int c = 0; c < n; c++) sum += q[c];"),
        ("float sum{};", "sum += q[0];"),
        ("float sum;", "sum = q[0];", "sum += q[1];"),
        ("float sum[4] = {};", "sum[0] += q[0];"),
        ("float sum;", "if (n == 3) sum = 0;", "sum += q[0];"),
        ("float sum;", "load(&sum);", "sum += q[0];"),
        ("float sum;", "if (sum == 0) return;"),  # the compiler's to tell
        ("__shared__ float sum[32];", "sum[n] += q[0];"),
        ("s[0] += (float) n;",),
    ],
)
def test_one_that_has_a_value_or_may_have_one(body):
    assert added_to_unset(kernel(*body)) == ""


def test_a_local_that_hides_a_parameter():
    assert line_that_hides(kernel("if (n) {", "float s = 0;", "s += q[0];", "}"), "s") == 3
    assert line_that_hides(kernel("if (n) {", "float x = s[0], *s = &x;", "}"), "s") == 3
    assert line_that_hides(kernel("float sum = s[0];", "s[0] = (float)sum;", "// float s;"), "s") is None
    assert line_that_hides(kernel("if (n) { int n = 3; }"), "n") is None
