"""Kernels for sm_90a that are right, each with many changes to choose from (tests/helpers/one_change.py), and what
asynccheck finds in a launch with one of them.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from course_utils.cuda import KernelError, KernelSource, RawModule, read_kernel, tensor_map
from course_utils.emulator import sanitize
from course_utils.emulator.sanitizer import Finding
from course_utils.launches.hopper import LADDER, ready
from course_utils.operators import hopper_launch, mla
from course_utils.operators.indexer import quantize_e4m3
from course_utils.toolchain.source import with_headers
from tests.helpers.one_change import NONE, Change, Rule, call, instruction, with_changes
from tests.helpers.without_nvrtc import without_nvrtc

HERE = Path(__file__).parents[1] / "emulator/kernels"


class Watched:
    """A kernel, its changes, and launches of it that each give the greatest error of what it makes."""

    def __init__(self, source: KernelSource, start: str, rules: list[Rule], options: tuple[str, ...]) -> None:
        self.text = str(source)
        text, self.changes = with_changes(self.text, rules, start=start)
        self.module = RawModule(code=KernelSource(text, source.path, source.name), options=options)
        self.launches: list[Callable[[], float]] = []
        self.chosen = NONE

    def choose(self, number: int) -> None:
        """The change that launches have from now on."""
        with without_nvrtc():  # which refuses some of the changes
            self.module.get_global("change", (1,), torch.int32).fill_(number)

    def line(self, text: str) -> int:
        """Of the only place where this stands."""
        assert self.text.count(text) == 1, text
        return self.text.count("\n", 0, self.text.index(text)) + 1

    def change(self, statement: str, what: str) -> Change:
        """The first of this kind whose statement has this text; with " #2" behind it, the second, and so on."""
        text, _, which = statement.partition(" #")
        found = [change for change in self.changes if text in change.statement and change.what == what]
        return found[int(which or 1) - 1]

    def findings(self, number: int = NONE) -> list[Finding]:
        """Of the launches with one change, up to the first that has any. Without a change the results must be right."""
        for launch in self.launches:
            with sanitize() as report:
                self.choose(number)
                try:
                    error = launch()
                except KernelError:
                    assert report.findings, "a launch failed, and nothing was found"
                else:
                    assert number != NONE or error < 2e-3
            if report.findings:
                return report.findings
        return []


PARITY = ("other parity", r"\);$", " ^ 1);")
BYTES = [("16 bytes less", r"\);$", " - 16);"), ("16 bytes more", r"\);$", " + 16);")]
INVALIDATE = 'if (threadIdx.x == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(at(&shared.full[0]))); '
COUNT = [("one arrival less", r"\);$", " - 1);"), ("one arrival more", r"\);$", " + 1);")]


def _file(name: str) -> KernelSource:
    return KernelSource((HERE / name).read_text(encoding="utf-8"), HERE / name, name)


@functools.cache
def gemm() -> Watched:
    """gemm.cu: a producer and two warpgroups."""
    rules = [
        Rule(call("wait"), [PARITY]),
        Rule(call("arrive_expecting"), BYTES),
        Rule(call("init"), COUNT),
        Rule(call("arrive"), [("a second arrival", r"^(.*)$", r"\1 \1")]),
        Rule(
            call("load"),
            [
                ("another address", r"^load\(", "load(16 + (char*)"),
                ("past the end", r"^load\(", "load(65536 + (char*)"),
            ],
        ),
        Rule(call("store"), [("another address", ", shared", ", 16 + (char*)shared")]),
        Rule(call("__syncthreads"), [("mbarrier.inval", "^", INVALIDATE)]),
        Rule(
            call("multiply_transposed"),
            [
                ("by some warps", "^", "if (threadIdx.x / 32 % 4 != 2) "),
                ("of other factors", r"stage\], k\)", "stage], (k + threadIdx.x / 32) % 4)"),
            ],
        ),
        Rule(instruction(r"wgmma\.wait_group\.sync\.aligned 1"), [("wait 2", " 1;", " 2;")]),
        Rule(instruction(r"wgmma\.wait_group\.sync\.aligned 0"), [("wait 1", " 0;", " 1;")]),
        Rule(instruction("setmaxnreg"), [("another number", r"u32 \d+", "u32 100")]),
        Rule(
            instruction(
                r"fence\.mbarrier",
                r"fence\.proxy",
                r"wgmma\.(?:fence|commit)",
                r"bar\.sync",
                r"cp\.async\.bulk\.(?:commit|wait)",
            )
        ),
    ]
    watched = Watched(_file("gemm.cu"), "constexpr int STAGES", rules, ("-DBF16=0",))

    def launch(rows: int, depth: int) -> float:
        generator = torch.Generator().manual_seed(rows)
        a, b = (torch.randn(n, depth, generator=generator).half() for n in (rows, 64))
        d = torch.full((rows, 64), torch.nan)
        maps = (tensor_map(a, (64, 64)), tensor_map(b, (64, 64)), tensor_map(d, (64, 64), swizzle=None))
        watched.module.get_function("gemm")((-(-rows // 128),), (384,), (*maps, np.int32(depth)), shared_mem=106544)
        return float((d - a.double() @ b.double().T).abs().max())

    watched.launches += [functools.partial(launch, 128, 456)]
    return watched


@functools.cache
def forward() -> Watched:
    """Chapter 07's last step, with its headers in it: attention by two consumers that take turns, and a producer."""
    source = read_kernel(hopper_launch.FORWARD)
    text = with_headers(source)
    rules = [
        Rule(call("wait_until_full"), [PARITY]),
        Rule(call("arrive_expecting"), BYTES),
        Rule(call("initialize"), COUNT),
        Rule(
            call(
                "fill",
                "load_box",
                "give_back",
                "store_box",
                "wait_for_stores",
                "sync_threads",
                "take_turn",
                "pass_turn",
            )
        ),
        Rule(call("__syncthreads", "wgmma_fence", "wgmma_commit", "publish_barriers", "publish_tile")),
        Rule(call("wait_for_product<0>"), [("wait 1", "<0>", "<1>")]),
        Rule(call("wait_for_product<1>"), [("wait 2", "<1>", "<2>")]),
        Rule(call("(?:lower|raise)_register_limit<[^(]*>")),
    ]
    step = dataclasses.replace(LADDER[-1], consumers={64: 2})
    options = step.options(64, torch.float16)
    watched = Watched(KernelSource(text, source.path, source.name), "struct Gate", rules, options)

    def launch(length: int) -> float:
        generator = torch.Generator().manual_seed(length)
        q, k, v = (torch.randn(1, 3, length, 64, generator=generator).half() for _ in range(3))
        out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
        # On a GPU, too, a block shall fetch a second item.
        ready(step, q, k, v, out, lse, blocks=2, kernel=watched.module.get_function(step.kernel))()
        scores = q.double() @ k.double().mT / 8
        errors = out - scores.softmax(-1) @ v.double(), lse - scores.logsumexp(-1)
        return max(float(error.abs().max()) for error in errors)

    watched.launches += [functools.partial(launch, length) for length in (100, 300)]
    return watched


@functools.cache
def sparse_mla() -> Watched:
    """Chapter 05's attention over chosen keys: threads gather them, two consumers multiply."""
    rules = [
        Rule(call("wait_for"), [PARITY]),
        Rule(call("initialize"), COUNT),
        Rule(call("arrive", "sync_threads", "__syncthreads", "wgmma_fence", "wgmma_commit", "publish_tile")),
        Rule(call("wgmma_wait<0>"), [("wait 1", "<0>", "<1>")]),
        Rule(call("wgmma_wait<1>"), [("wait 2", "<1>", "<2>")]),
    ]
    source = read_kernel("05_deepseek_sparse/sparse_mla_hopper.cu")
    watched = Watched(source, "// Starts S = Q K", rules, ("-DBF16=1",))

    def launch() -> float:
        generator = torch.Generator().manual_seed(0)
        query, latent = (torch.randn(*n, 576, generator=generator).bfloat16() / 2 for n in ((1, 64), (200,)))
        indices = torch.randint(-1, 200, (1, 150), generator=generator, dtype=torch.int32)
        out, lse, tile = (
            torch.full((1, 64, 512), torch.nan).bfloat16(),
            torch.full((1, 64), torch.nan),
            mla.HopperTile(),
        )
        arguments = (query, latent, indices, out, lse, *map(np.int32, (200, 64, 150)), np.float32(192**-0.5))
        kernel = watched.module.get_function("sparse_mla_hopper")
        kernel((1, 1), (tile.threads,), arguments, shared_mem=tile.shared_bytes)
        return 0.0 if lse.isfinite().all() and out.isfinite().all() else torch.inf

    watched.launches.append(launch)
    return watched


@functools.cache
def cluster_gemm() -> Watched:
    """cluster_gemm.cu: pairs of blocks load for each other."""
    rules = [
        Rule(call("wait"), [PARITY]),
        Rule(call("arrive_expecting"), BYTES),
        Rule(call("init"), COUNT),
        Rule(call("arrive_at", "load")),
        Rule(call("load_for"), [("for itself alone", r"\(3,", "(1 << half,")]),
        Rule(call("together")),
        Rule(instruction(r"fence\.mbarrier", r"fence\.proxy", r"wgmma\.(?:fence|commit|wait)")),
    ]
    watched = Watched(_file("cluster_gemm.cu"), "__device__ inline void produce", rules, ("-DBF16=0",))

    def launch(rows: int, depth: int) -> float:
        generator = torch.Generator().manual_seed(rows)
        a, b = (torch.randn(n, depth, generator=generator).half() for n in (rows, 64))
        d = torch.full((rows, 64), torch.nan)
        maps = (tensor_map(a, (64, 64)), tensor_map(b, (32, 64)), tensor_map(d, (64, 64), swizzle=None))
        kernel = watched.module.get_function("cluster_gemm")
        kernel((2 * -(-rows // 128),), (160,), (*maps, np.int32(depth)), shared_mem=49184)
        return float((d - a.double() @ b.double().T).abs().max())

    watched.launches.append(functools.partial(launch, 128, 328))
    return watched


@functools.cache
def cluster_softmax() -> Watched:
    """cluster_softmax.cu: blocks that read from each other, write to each other, and copy."""
    rules = [
        Rule(call("together", "__syncthreads")),
        Rule(call("wait"), [PARITY]),
        Rule(call("arrive_expecting"), BYTES),
        Rule(call("init"), COUNT),
        Rule(call("send")),
        Rule(call("copy_to")),
        Rule(instruction(r"fence\.mbarrier", r"fence\.proxy")),
    ]
    watched = Watched(_file("cluster_softmax.cu"), "// The logarithm of", rules, ())

    def launch(kernel: str) -> float:
        x = torch.randn(1, 640, generator=torch.Generator().manual_seed(0)) * 3
        expected = x.double().logsumexp(-1) if kernel == "log_sum_exp" else x.double().softmax(-1)
        found = torch.full_like(expected, torch.nan, dtype=torch.float32)
        watched.module.get_function(kernel)((4,), (128,), (x, found, np.int32(640)))
        return float((found - expected).abs().max())

    kernels = ("log_sum_exp", "softmax_pull", "softmax_push", "softmax_copy")
    watched.launches += [functools.partial(launch, kernel) for kernel in kernels]
    return watched


@functools.cache
def indexer() -> Watched:
    """Chapter 05's lightning indexer in FP8: keys in registers, queries by cp.async, no role of its own for anybody."""
    rules = [
        Rule(call("wait_for_copies<STAGES - 2>"), [("one group more in flight", "- 2", "- 1")]),
        Rule(call("load_query_async", "commit_copies", "publish_tile", "__syncthreads")),
        Rule(call("wgmma_fence", "wgmma_commit")),
        Rule(call("multiply_e4m3"), [("by some warps", "^", "if (threadIdx.x / 32 % 4 != 2) ")]),
        Rule(call("wgmma_wait<0>"), [("wait 1", "<0>", "<1>")]),
        Rule(call("wgmma_wait<1>"), [("wait 2", "<1>", "<2>")]),
    ]
    source = read_kernel("05_deepseek_sparse/lightning_indexer_hopper.cu")
    watched = Watched(source, "// I[r] = sum of w", rules, ())
    queries, keys, heads, dim = 7, 90, 33, 128

    def launch() -> float:
        generator = torch.Generator().manual_seed(0)
        q, k, weights = (
            torch.randn(*n, generator=generator) for n in ((queries, heads, dim), (keys, dim), (queries, heads))
        )
        (q, q_scale), (k, k_scale) = quantize_e4m3(q), quantize_e4m3(k)
        logits = torch.full((queries, keys), torch.nan)
        numbers = map(np.int32, (queries, keys, heads, keys))  # each query sees all keys
        arguments = (q, k, weights, q_scale, k_scale, logits, *numbers)
        watched.module.get_function("lightning_indexer_hopper")((1, 1), (256,), arguments, shared_mem=33792)
        q, k = q.double() * q_scale.double()[..., None], k.double() * k_scale.double()[:, None]
        products = torch.einsum("thd,sd->ths", q, k).relu()
        terms = weights.double()[..., None] * products
        return float(((logits - terms.sum(1)).abs() / terms.abs().sum(1)).max())

    watched.launches.append(launch)
    return watched
