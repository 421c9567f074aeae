"""What a handed-in kernel may not contain, and that the course's own kernels contain none of it."""

import pytest

from course_utils.grading.kernel_rules import broken_rule
from course_utils.toolchain.source import kernel_names, read_kernel
from tests.helpers.all_of import all_of


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        ("#include </etc/passwd>\n", "/etc/passwd", 1),
        ('\n#include "../../solutions/x.cu"', "solutions", 2),
        ("#include <unistd.h>", "unistd.h", 1),
        ("\n\n__attribute__((constructor)) void f() {}", "__attribute__ is not taken", 3),
        ("#pragma GCC optimize", "#pragma GCC", 1),
        ("#ifdef EMU_TRACED", "EMU_TRACED", 1),
        ("void f() { syscall(57); }", "syscall", 1),
        ("void f() { while (true) fork(); }", "no GPU has fork(", 1),
        ('void f() { asm volatile("int3"); }', "asm", 1),
    ],
)
def test_names_what_is_not_taken_and_its_line(code: str, words: str, line: int) -> None:
    found = broken_rule(code)
    assert found is not None and words in found[0] and found[1] == line


def test_comments_and_strings_do_not_count() -> None:
    assert broken_rule('// system("x")\n/* asm */ const char* s = "fork()"; printf("%d", 1);') is None


def test_inline_ptx_where_the_exercise_has_it() -> None:
    assert broken_rule('asm("mov.u32 %0, 1;" : "=r"(x));', assembly=True) is None


@all_of("name", kernel_names())
def test_the_courses_kernels_keep_the_rules(name) -> None:
    assert broken_rule(read_kernel(name), assembly=True) is None
