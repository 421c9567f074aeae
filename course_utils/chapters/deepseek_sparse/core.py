"""Chapter 05's attention kernels on this machine: absorbed MLA, the sparse core, the whole layer, the mistakes."""

from __future__ import annotations

import functools
import math
import textwrap

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from course_utils import checks, costs, plots, reference, show
from course_utils.chapters import broken_kernels, tensors
from course_utils.chapters.tensors import is_right
from course_utils.cuda import read_kernel
from course_utils.emulator import profile
from course_utils.launches.launch import Launch
from course_utils.operators import (
    DeepSeekConfig,
    DeepSeekWeights,
    deepseek,
    deepseek_mla,
    deepseek_sparse_attention,
    mla,
    mla_attention,
    sparse_mla,
)

SMALL = DeepSeekConfig.small()  # 4 heads, latents of 64 + 64 numbers: the same layer, for the emulator
SCALE = 96**-0.5  # of the small layer's heads
BROKEN_FOLDER = "05_deepseek_sparse/broken"
normal = functools.partial(tensors.normal, dtype=torch.bfloat16)


def difference(found: Tensor, expected: Tensor) -> float:
    """The largest absolute difference of two tensors."""
    return (found.double() - expected.double()).abs().max().item()


def small_layer() -> tuple[DeepSeekWeights, Tensor]:
    """Random weights of the small layer, and the hidden states of 100 tokens."""
    hidden = normal(100, SMALL.dim)
    return DeepSeekWeights.random(SMALL, seed=0, device=hidden.device), hidden


def latent_and_matrices() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """From the small layer in float64: c [100, 64], W_UK and W_UV by head, and a query of each head before
    absorption."""
    weights, hidden = small_layer()
    c = deepseek.project_latent(hidden, weights).double()[:, : SMALL.kv_lora_rank]
    query = normal(100, SMALL.n_heads, SMALL.qk_nope_head_dim, seed=1, dtype=torch.float64)
    return c, weights.w_uk.double(), weights.w_uv.double(), query


def check_absorption() -> None:
    """Checks in float64 that scores and output of unpacked and absorbed attention are the same."""
    c, w_uk, w_uv, q = latent_and_matrices()
    k, v = torch.einsum("hnc,tc->thn", w_uk, c), torch.einsum("hvc,tc->thv", w_uv, c)
    unpacked = torch.einsum("shn,thn->sht", q, k)
    absorbed = torch.einsum("shc,tc->sht", torch.einsum("hnc,shn->shc", w_uk, q), c)
    print(f"scores equal within 1e-12: {difference(unpacked, absorbed) < 1e-12}")
    p = (0.1 * absorbed).softmax(dim=-1)
    out_unpacked = torch.einsum("sht,thv->shv", p, v)
    out_absorbed = torch.einsum("hvc,shc->shv", w_uv, torch.einsum("sht,tc->shc", p, c))
    print(f"output equal within 1e-12: {difference(out_unpacked, out_absorbed) < 1e-12}")


def counted_reprojected() -> list[dict[str, object]]:
    """FLOPs and bytes of a kernel that unpacks each key on the fly and of the absorbed one, and whether both agree."""
    queries, keys, heads = 2, 24, SMALL.n_heads
    weights, hidden = small_layer()
    q_nope, q_rope = (
        normal(queries, heads, 32, dtype=torch.float32),
        normal(queries, heads, 64, seed=1, dtype=torch.float32),
    )
    latent = deepseek.project_latent(hidden, weights)[:keys]
    w_uk, w_uv = weights.w_uk.float().contiguous(), weights.w_uv.float().contiguous()
    c, k_rope = (part.contiguous() for part in latent.float().split([64, 64], dim=-1))
    query = torch.cat([torch.einsum("shn,hnc->shc", q_nope, w_uk), q_rope], dim=-1).bfloat16()
    runs = {
        "mla_reprojected": lambda: mla.mla_reprojected(q_nope, q_rope, c, k_rope, w_uk, w_uv, scale=SCALE),
        "mla_dense": lambda: mla_attention(query, latent, scale=SCALE, value_dim=64)[0],
    }
    rows, outputs = [], []
    for name, run in runs.items():
        with profile() as counters:
            outputs.append(run())
        flops = costs.reprojected_flops if name == "mla_reprojected" else costs.mla_flops
        row = {"": name, "MFLOP, by formula": flops(queries, keys, config=SMALL) / 1e6}
        rows.append(row | {"global KiB asked for": counters.total("bytes", "global", "load") / 1024})
    close = difference(outputs[0], deepseek.unabsorb(outputs[1], weights)) < 0.02
    return [row | {"the same, up to bf16": close} for row in rows]


def reprojected() -> None:
    """Shows what unpacking each key costs, counted by the emulator, as a picture and a table."""
    rows = counted_reprojected()
    panels = {name: [row[name] for row in rows] for name in list(rows[0])[1:3]}
    plots.bars([str(row[""]) for row in rows], panels, colours=(plots.GREY, plots.VERMILION), log=True)
    plt.show()
    show.table(
        rows, "2 queries, 24 keys, 4 heads, small sizes; counted by the emulator; logarithmic above", folded=True
    )


def check_dense() -> None:
    """Checks mla_dense.cu against float64, with heads that do not fill a block, more keys than a tile, and queries
    without a key."""
    for queries, keys, heads in ((3, 100, 9), (5, 3, 20), (1, 70, 4)):
        inputs = normal(queries, heads, 128), normal(keys, 128, seed=1)
        found = mla_attention(*inputs, scale=SCALE, value_dim=64)
        right = is_right(found, reference.mla_attention(*inputs, scale=SCALE, value_dim=64))
        empty = int((found[1] == -math.inf).all(dim=-1).sum())
        print(f"S = {queries}, T = {keys:3}, H = {heads:2}: right: {right}; rows without a key: {empty}")


def lists_with_edges() -> tuple[Tensor, Tensor, Tensor]:
    """One query [4, 2, 128] for each of four lists of keys [4, 4] and a cache [20, 128]. The lists hold −1, keys
    outside the cache, a key twice, or no key."""
    query, cache = normal(4, 2, 128)[:1].expand(4, 2, 128), normal(20, 128, seed=1)
    lists = [[3, 9, 12, -1], [12, 99, 9, 3], [9, 3, 9, 12], [-1, 20, -7, -1]]
    return query, cache, torch.tensor(lists, dtype=torch.int32, device=cache.device)


def check_edges() -> None:
    """Checks sparse_mla.cu at the edges of its lists."""
    query, cache, indices = lists_with_edges()
    out, lse = sparse_mla(query, cache, indices, scale=SCALE, value_dim=64)
    expected = reference.sparse_mla(query, cache, indices, scale=SCALE, value_dim=64)
    print("right:", is_right((out, lse), expected))
    print("-1, an index past the end, and the order change nothing:", torch.allclose(out[0], out[1], atol=0.01))
    scores = (query[0, 0].double() @ cache[[3, 9, 12]].double().T) * SCALE
    doubled = scores + torch.tensor([0, math.log(2), 0], device=scores.device)  # e^(x + ln 2) = 2 e^x
    print("key 9 twice is key 9 with ln 2 more:", torch.allclose(lse[2, 0].double(), doubled.logsumexp(0), atol=1e-4))
    print(f"no valid index: O = {out[3].abs().max().item()}, LSE = {lse[3, 0].item()}")


def check_gradient() -> None:
    """Checks sparse_mla_backward.cu against autograd in float64."""
    _, cache, indices = lists_with_edges()
    leaves = [x.clone().requires_grad_() for x in (normal(4, 2, 128), cache)]
    grad = normal(4, 2, 64, seed=3)
    found = torch.autograd.grad(sparse_mla(*leaves, indices, scale=SCALE, value_dim=64)[0], leaves, grad)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    out = reference.sparse_mla(*exact, indices, scale=SCALE, value_dim=64)[0]
    expected = torch.autograd.grad(out, exact, grad.double())
    for name, ours, right in zip(("query", "latent"), found, expected, strict=True):
        print(f"gradient of the {name} right: {checks.error_report(ours, right).passed}")


def hopper_loop() -> None:
    """Shows the loop of a consumer of sparse_mla_hopper.cu, folded."""
    name = "05_deepseek_sparse/sparse_mla_hopper.cu"
    first, last = show.passage_lines(
        name, "for (int tile = 0; tile < tiles - 1;", "start_output(state.O, shared, (tiles"
    )
    lines = read_kernel(name).splitlines()[first - 1 : last]
    show.folded(f"A consumer's loop: lines {first} to {last} of the kernel", textwrap.dedent("\n".join(lines)))


def fewer_keys() -> None:
    """Shows how far sparse attention in the small layer, with random weights, is from dense attention, by the number of
    keys k."""
    weights, hidden = small_layer()
    dense = deepseek_mla(hidden, weights)
    table, away = [], {}
    for top_k in (100, 64, 16, 4):
        out, indices = deepseek_sparse_attention(hidden, weights, top_k=top_k, return_indices=True)
        off = ((out - dense).double().norm() / dense.double().norm()).item()
        away[f"k = {top_k}"] = 100 * off
        line = {"k": top_k, "keys of the last token": int((indices[-1] >= 0).sum())}
        table.append(line | {"‖difference‖ / ‖dense‖": f"{off:.1%}" if top_k < 100 else f"below 1 %: {off < 0.01}"})
    plots.bars(list(away), {"difference from dense, % of its length": list(away.values())})
    plt.show()
    show.table(table, "random weights, 100 tokens", folded=True)


def shapes(steps: dict[str, Tensor]) -> None:
    """Shows shape and dtype of each step of the layer, by name."""
    rows = [{"": name, "shape": str(list(x.shape)), "dtype": str(x.dtype)[6:]} for name, x in steps.items()]
    show.table(rows, "shapes of these steps", folded=True)


# ---- mistakes


def mistakes() -> None:
    """Shows each broken kernel as a difference from the right one."""
    for case in broken_kernels.of_folder(BROKEN_FOLDER).values():
        show.mistake(case)


def _tested(launch: Launch, results: tuple[Tensor, ...]) -> str:
    """Whether a comparison with the right numbers passes."""
    if launch.kernel != "radix_topk":
        return "passes" if broken_kernels.passes(launch, results) else "fails"
    logits, chosen = (tensor.cpu()[0] for tensor in results[:2])
    best = logits.topk(64).values
    keys = chosen[:64].clamp(0, len(logits) - 1).unique().long()
    return "passes" if torch.equal(logits[keys].sort(descending=True).values, best) else "fails"


def verdicts() -> int:
    """Shows what the sanitizer, compute-sanitizer on a GPU, and a comparison with float64 say of each broken kernel.
    Returns how many kernels the sanitizer names."""
    table, answers = [], {}
    for name, case in broken_kernels.of_folder(BROKEN_FOLDER).items():
        found, *of_launch = broken_kernels.watched(case)
        assert found == ("silent" if case.tool == "check" else case.tool)
        on_gpu, tested = broken_kernels.found_on_gpu(name), _tested(*of_launch)
        line = {"broken kernel": name, "sanitizer": found, "compute-sanitizer": on_gpu, "float64 test": tested}
        table.append(line | {"lesson": case.lesson})
        sees = None if on_gpu == "not recorded" else on_gpu != "silent"
        answers[name] = {"sanitizer": found != "silent", "compute-sanitizer": sees}
        answers[name]["float64 test"] = tested == "fails"
    plots.answers(answers, {True: "sees it", False: "silent", None: "not asked"})
    plt.show()
    show.table(table, broken_kernels.caption())
    return sum(one["sanitizer"] for one in answers.values())
