"""Macros that hold pieces of inline PTX: found with the conditions around them, and put in their place."""

import torch

from course_utils.emulator.macros import Macro, text_macros, variants

HEADER = """
#define SIZE 8
#if BF16   // a comment
#define KIND(n) "m64n" #n "k16.bf16 "
#elif defined(FP8)
#define KIND(n) "m64n" #n "k32.e4m3 "
#else
#define KIND(n) "m64n" #n "k16.f16 "
#endif
#define PAIR(d, i) "+f"(d[i]), \\
                   "+f"(d[i + 1])
#define FOUR(d, i) PAIR(d, i), PAIR(d, i + 2)
#ifndef NEVER
#define VOLATILE "memory"
#endif
"""


def test_only_what_holds_a_string_is_kept_with_its_conditions():
    found = text_macros([HEADER])
    assert set(found) == {"KIND", "PAIR", "FOUR", "VOLATILE"}
    assert [macro.condition for macro in found["KIND"]] == [
        "(BF16)",
        "!(BF16) && (defined(FP8))",
        "!(BF16) && !(defined(FP8)) && (1)",
    ]
    assert found["VOLATILE"] == [Macro(None, '"memory"', "(!defined(NEVER))")]


def test_each_choice_of_definitions_is_a_variant():
    found = variants('"wgmma." KIND(32) "%0;" : FOUR(acc, SIZE) :: VOLATILE', text_macros([HEADER]))
    operands = '"+f"(acc[SIZE]), "+f"(acc[SIZE + 1]), "+f"(acc[SIZE + 2]), "+f"(acc[SIZE + 2 + 1])'
    kinds = ("k16.bf16 ", "k32.e4m3 ", "k16.f16 ")
    assert [" ".join(text.split()) for _, text in found] == [
        f'"wgmma." "m64n" "32" "{kind}" "%0;" : {operands} :: "memory"' for kind in kinds
    ]
    assert [condition for condition, _ in found] == [macro.condition for macro in text_macros([HEADER])["KIND"]]


def test_a_name_in_a_string_and_a_macro_without_its_arguments_stay():
    macros = text_macros(['#define ex2(n) "ex2"\n'])
    assert variants('"ex2(y)" : "=f"(ex2)', macros) == [("", '"ex2(y)" : "=f"(ex2)')]
    assert variants("nothing", macros) == [("", "nothing")]


def test_the_preprocessor_says_which_one_holds_and_lines_keep_their_numbers(run_kernel):
    code = """#if BASE2
#define FUNCTION "ex2.approx"
#else
#define FUNCTION "rcp.approx"
#endif
#define RESULT "=f"(y)
extern "C" __global__ void k(float* out) {
    float y;
    asm(FUNCTION ".f32 %0, %1;"
        : RESULT : "f"(3.0f));
    out[0] = y, out[1] = __LINE__;
}"""
    for base2, expected in ((1, 8.0), (0, 1 / 3)):
        out = torch.zeros(2)
        run_kernel(code, (1,), (1,), (out,), options=(f"-DBASE2={base2}",))
        torch.testing.assert_close(out, torch.tensor([expected, 11.0]))
