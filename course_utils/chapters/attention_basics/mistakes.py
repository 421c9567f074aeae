"""Chapter 01's mistakes, and which test or tool sees which."""

from __future__ import annotations

from collections.abc import Callable

import matplotlib.pyplot as plt
import torch
from IPython.display import display
from torch import Tensor

from course_utils import checks, measured, plots, reference, show
from course_utils.chapters.attention_basics import passes
from course_utils.cuda import read_kernel
from course_utils.emulator import profile, sanitize
from course_utils.launches.broken import BROKEN

PLANTED = checks.AttentionCase(1, 2, 2, 65, 65, 64, is_causal=True, kind="planted")
UNEQUAL = checks.AttentionCase(1, 2, 2, 63, 96, 64, is_causal=False, kind="normal")
IN_FILES = ("ragged_tail", "missing_sync_in_reduction", "uncoalesced_keys")
LOOSE = 1e-2  # the mean error that a careless test allows


def changed_texts() -> dict[str, str]:
    """scores.cu with two common mistakes, by name."""
    right = read_kernel("01_attention_basics/scores.cu")
    return {
        "off by one": right.replace("j > i + L_k - L_q", "j > i + L_k - L_q + 1"),
        "wrong stride": right.replace("K += head * L_k * d", "K += head * L_q * d"),
    }


def operators() -> dict[str, Callable[..., Tensor]]:
    """Attention with each mistake, the right one, and one that returns zeros."""
    found = {name: passes.three_kernels(passes.kernel("scores", text)) for name, text in changed_texts().items()}
    found["right"] = passes.three_kernels(passes.kernel("scores"))
    return found | {"zeros": lambda query, key, value, **options: torch.zeros_like(query)}


def passes_loosely(operator: Callable[..., Tensor]) -> bool:
    """Whether an operator passes a careless test: one size, small numbers, equal lengths, mean error."""
    q, k, v = (0.05 * passes.random(1, 2, 256, 64, seed=seed) for seed in (7, 8, 9))
    expected = reference.attention(q, k, v, is_causal=True)
    return (operator(q, k, v, is_causal=True) - expected).abs().mean().item() < LOOSE


def report(operator: Callable[..., Tensor], case: checks.AttentionCase) -> checks.ErrorReport:
    """The errors of an operator in one case."""
    (found,) = checks.check_case(operator, case, device=passes.DEVICE, seed=0)
    return found


def show_tests() -> None:
    """Draws which of three tests each operator passes. Green is the right verdict: the right operator passes, a wrong
    one fails."""
    table = {}
    for name, operator in operators().items():
        passed = {
            "small, mean error": passes_loosely(operator),
            "planted keys": report(operator, PLANTED).passed,
            "unequal lengths": report(operator, UNEQUAL).passed,
        }
        table[name] = {test: ("passes" if ok else "fails", ok == (name == "right")) for test, ok in passed.items()}
    plots.verdicts(table)
    plt.show()


def show_finding(name: str) -> str:
    """Shows what the sanitizer says of a broken kernel. Returns "right" if the kernel's numbers are right all the same,
    else "wrong"."""
    with sanitize() as found:
        *_, result = BROKEN[name].launch().run()
    *_, right = BROKEN[name].mended().run()
    assert {finding.tool for finding in found.findings} == {BROKEN[name].tool}
    equal = torch.equal(result, right)
    print("numbers equal to the mended kernel's:", equal)
    display(found)
    return "right" if equal else "wrong"


def under_every_tool(name: str) -> dict[str, object]:
    """What each tool says of a broken kernel and of its mended form, as a row."""
    with sanitize() as found, profile() as counters:
        *_, result = BROKEN[name].launch().run()
    with sanitize() as after:
        *_, right = BROKEN[name].mended().run()
    recorded = measured.load("sanitizer").select(name=name, state="broken")  # compute-sanitizer's, on a GPU
    tools = {finding.tool for finding in found.findings}
    assert not after.findings and (tools or {"counters"}) == {BROKEN[name].tool}
    return {
        "right numbers": torch.allclose(result, right, atol=1e-5),
        "sanitizer": ", ".join(tools),
        "compute-sanitizer": ", ".join({row["tool"] for row in recorded if row["findings"]}),
        "sectors / ideal": counters.total("sectors", "global") / counters.total("ideal_sectors", "global"),
        "mended: findings": len(after.findings),
    }


def show_tools() -> None:
    """Draws which tool names which broken kernel. Green: the tool sees that something is wrong."""
    rows = {name: under_every_tool(name) for name in IN_FILES}
    grid = {}
    for name, row in rows.items():
        waste = row["sectors / ideal"]
        grid[name] = {
            "check of numbers": ("sees nothing" if row["right numbers"] else "wrong numbers", not row["right numbers"]),
            "sanitizer": (row["sanitizer"] or "sees nothing", bool(row["sanitizer"])),
            "compute-sanitizer": (row["compute-sanitizer"] or "sees nothing", bool(row["compute-sanitizer"])),
            "counters": (f"{waste:.1f} × ideal sectors", waste > 2),
        }
    plots.verdicts(grid)
    plt.show()
    recorded = measured.caption(measured.load("sanitizer"))
    table = [{"kernel": name} | row for name, row in rows.items()]
    show.table(table, f"compute-sanitizer: {recorded}; all else: the emulator", folded=True)
