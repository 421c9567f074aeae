"""What `bench 05_deepseek_sparse` measures: every figure of chapter 05, one function for each part.

Each row has its `part`, and says of what size it is: `queries` (S), the last of `length` keys (T), of which `k` are
selected for each query. Times are of the GPU alone (`head_start_us` of `timing.compare`). TFLOP/s are useful ones, of
the pairs that the formula has, by `costs`. Inputs are random normal, with the sizes of DeepSeek-V3.2. The kernels of
the parts step, core and index are timed once some rows of their output are those of float64; backward has some queries
checked in launches of their own, and the layer is held against the dense one by quality. What this machine cannot run
is printed and left out. Conventions as in `timed`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from course_utils import costs, reference, timing
from course_utils.bench import tilelang_peers
from course_utils.bench.timed import Function, all_parts, columns, compile_ahead, that_run
from course_utils.costs import TOP_K, V3_2, DeepSeekDims
from course_utils.measured import Row
from course_utils.measured.deepseek_sparse import (
    BACKWARD,
    BACKWARD_TILELANG,
    CORE,
    CORE_PORTABLE,
    CORE_TORCH,
    DENSE,
    DENSE_LAYER,
    DENSE_MHA,
    DENSE_MHA_CUDNN,
    DENSE_PORTABLE,
    INDEX_VECTORS,
    INDEXER,
    INDEXER_FP8,
    LENGTHS,
    QUERIES,
    SPARSE_LAYER,
    STEP,
    STEP_BF16,
    TOPK,
    TOPK_TILELANG,
    TOPK_TORCH,
    TOPK_UNSORTED,
    UNPACKING,
)
from course_utils.operators import DeepSeekConfig, DeepSeekWeights, indexer, mla
from course_utils.operators.deepseek import (
    deepseek_mla,
    deepseek_sparse_attention,
    project_index_keys,
    project_index_query,
    project_query,
    to_index_dtype,
)
from course_utils.operators.indexer import indexer_forward, quantize_e4m3
from course_utils.operators.tensor_core import takes_wgmma
from course_utils.operators.topk import select_topk

CORE_COMPILED = "torch, gather and einsum, compiled"
CORE_TILELANG = {"TileLang, pipelined": "sparse_mla_fwd_pipelined", "TileLang, seesaw": "sparse_mla_fwd_seesaw"}
INDEXER_FP8_PORTABLE = "lightning_indexer, FP8, mma.sync"
INDEXER_TORCH, PRODUCTS_TORCH = "torch, bf16 einsum", "torch, its products alone"
INDEXER_COMPILED, INDEXER_TILELANG = "torch, bf16 einsum, compiled", "TileLang, FP8"

TIMES = {"warmup": 1, "budget_ms": 25.0, "head_start_us": 500.0}  # longer than the host takes to launch a step
# Cosine difference from float64 that passes: of outputs, log-sum-exps and gradients, and of torch, which rounds scores.
OURS_OFF, LSE_OFF, GRADIENT_OFF, MHA_OFF, TORCH_OFF = 7e-6, 1e-10, 5e-5, 1e-4, 1e-3
TORCH_CHUNK = 256  # queries that torch's versions have in memory at a time


def deepseek_chapter() -> list[Row]:
    """Every figure of chapter 05."""
    compile_all()
    return all_parts((step, core, backward, index, select, layer, quality))


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    where = torch.device(device)
    modules = [module for operator in (mla, indexer) for module in operator.modules(where)]
    compile_ahead(modules, device)


# ---------------------------------------------------------------------------------------------- a step beside dense MLA


def step(
    *,
    device: str = "cuda",
    queries: int = QUERIES,
    lengths: Sequence[int] = LENGTHS,
    top_k: int = TOP_K,
    config: DeepSeekDims = V3_2,
) -> list[Row]:
    """A chunk of queries at the end of a longer and longer sequence: DSA, whole and kernel by kernel, beside dense MLA,
    absorbed and in MHA mode. Without projections; MHA mode has its K and V ready made.

    `ratio_to_dense`, `ratio_to_mha`: how many times as fast as `mla_attention`, and as the faster of torch's two in MHA
    mode. `panel`: whether it stands for the attention of the layer, or for one of the kernels of DSA, or for what MHA
    mode needs before it: K and V of all keys from their latents, the products alone.
    """
    rows: list[Row] = []
    for length in lengths:
        sizes, q_start = (queries, length), length - queries
        query, latent = latents(queries, length, config, device)
        indexers = _indexers(queries, length, q_start, config, device)
        logits = indexers.get(INDEXER_FP8, indexers[INDEXER])()
        selected = select_topk(logits, top_k)
        require_selection(f"{TOPK}, {length} keys", selected, logits, top_k)

        cores = _cores(query, latent, selected, config)
        dense: dict[str, Function] = {
            DENSE: functools.partial(mla.mla_attention, query, latent, **mla_arguments(config))
        }
        if takes_wgmma(query.device):
            portable = functools.partial(mla.dense_forward, query, latent, hopper=False, **mla_arguments(config))
            dense[DENSE_PORTABLE] = portable
        for name, function in cores.items():
            require_core(f"{name}, {length} keys", function(), query, latent, selected, config)
        for name, function in dense.items():
            require_dense(f"{name}, {length} keys", function(), query, latent, config)

        # The defaults are bound here and now: by the time of a call, the loop may have rebound the names.
        def whole(score: Callable[[], Tensor], query: Tensor = query, latent: Tensor = latent) -> Tensor:
            return mla.sparse_mla(query, latent, select_topk(score(), top_k), **mla_arguments(config))[0]

        kinds = {STEP: INDEXER_FP8, STEP_BF16: INDEXER}
        steps = {name: functools.partial(whole, indexers[of]) for name, of in kinds.items() if of in indexers}
        kernels = indexers | {TOPK: functools.partial(select_topk, logits, top_k)} | cores
        functions = steps | kernels | dense
        mha = _mha_mode(*sizes, config, device)
        functions |= mha | {UNPACKING: _unpacking(latent, config)}
        times = timing.compare(functions, **TIMES)

        pairs = costs.attended_pairs(*sizes, is_causal=True)
        flops = dict.fromkeys(indexers, costs.indexer_flops(*sizes, config=config))
        flops |= dict.fromkeys(cores, costs.sparse_mla_flops(*sizes, top_k, config=config))
        flops |= dict.fromkeys(steps, costs.dsa_flops(*sizes, top_k, config=config))
        flops |= dict.fromkeys(dense, costs.mla_flops(*sizes, config=config))
        flops |= dict.fromkeys(mha, pairs * costs.mha_pair_flops(config))
        flops |= {UNPACKING: costs.rebuild_flops(length, config), TOPK: 0}
        panels = dict.fromkeys(kernels, "kernels of DSA") | {UNPACKING: "before MHA mode"}
        for name, taken in times.items():
            row = _row("step", sizes, top_k, name, taken, flops[name])
            row["panel"] = panels.get(name, "whole attention")
            if name in steps:
                row["ratio_to_dense"] = times[DENSE].median / taken.median
                row["ratio_to_mha"] = min(times[name].median for name in mha) / taken.median if mha else None
            rows.append(row)
        del functions, steps, kernels, indexers, cores, dense, mha, logits  # before the next, which is larger
    return rows


def _mha_mode(queries: int, length: int, config: DeepSeekDims, device: str) -> dict[str, Function]:
    """Dense attention with K and V of every head, what runs here of torch's two ways, after a check of each.

    SDPA with the mask wants V as wide as K, padded with zeros. cuDNN takes V as it is, but has no mask for queries at
    the end of a longer sequence: it runs twice, and the results are merged.
    """
    heads, width = config.n_heads, config.qk_nope_head_dim + config.qk_rope_head_dim
    query = _normal(1, heads, queries, width, device=device)
    key = _normal(1, heads, length, width, device=device)
    value = _normal(1, heads, length, config.v_head_dim, device=device)

    def masked() -> Function:
        from torch.nn.attention.bias import causal_lower_right  # takes 3 s: it brings torch.compile

        wide, mask = pad(value, (0, width - config.v_head_dim)), causal_lower_right(queries, length)
        return functools.partial(scaled_dot_product_attention, query, key, wide, attn_mask=mask)

    made = {DENSE_MHA: masked, DENSE_MHA_CUDNN: lambda: functools.partial(merged_attention, query, key, value)}
    functions = that_run(made, f"{length} keys")
    for name, function in functions.items():
        out = function()[..., : config.v_head_dim]
        require_mha(f"{name}, {length} keys", out, query, key, value)
    return functions


def cudnn_attention(query: Tensor, key: Tensor, value: Tensor, is_causal: bool) -> tuple[Tensor, Tensor]:
    """cuDNN's attention and its natural log-sum-exp; of torch's own kernels only this operator gives both."""
    attention = torch.ops.aten._scaled_dot_product_cudnn_attention
    out, lse, *_ = attention(query, key, value, None, compute_log_sumexp=True, is_causal=is_causal)
    return out, lse.reshape(out.shape[:-1])


def merged_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention: Callable[[Tensor, Tensor, Tensor, bool], tuple[Tensor, Tensor]] = cudnn_attention,
) -> Tensor:
    """Causal attention of a sequence's last queries by a kernel without that mask: the keys before the chunk, which
    every query sees, then the chunk's own keys, causal, merged by their sums of exponentials."""
    before = key.shape[2] - query.shape[2]
    own, own_lse = attention(query, key[:, :, before:], value[:, :, before:], True)
    if before == 0:
        return own
    earlier, earlier_lse = attention(query, key[:, :, :before], value[:, :, :before], False)
    return torch.lerp(earlier, own, torch.sigmoid(own_lse - earlier_lse).to(own.dtype)[..., None])


def _unpacking(latent: Tensor, config: DeepSeekDims) -> Function:
    """K (without RoPE) and V of all heads from the latents, by one matrix product."""
    width = config.n_heads * (config.qk_nope_head_dim + config.v_head_dim)
    weights = _normal(config.kv_lora_rank, width, device=str(latent.device))
    return functools.partial(torch.mm, latent[:, : config.kv_lora_rank], weights)


# ---------------------------------------------------------------------------------------------- the sparse core


def core(
    *,
    device: str = "cuda",
    shapes: Sequence[tuple[int, int, int]] = ((4096, 8192, 2048), (4096, 8192, 512), (4096, 4096, 2048)),
    config: DeepSeekDims = V3_2,
) -> list[Row]:
    """The sparse core at (S, T, k): random visible keys of each query, and -1 if there are fewer than k.

    `ratio_to_torch`: how many times as fast as the faster of torch's two ways, which gather the rows of a chunk of
    queries into a tensor; one is compiled. TileLang's kernels stand beside them (`tilelang_peers`).
    """
    rows: list[Row] = []
    for queries, length, k in shapes:
        query, latent = latents(queries, length, config, device)
        indices = random_selection(queries, length, k, device)
        functions = _cores(query, latent, indices, config)
        for name, function in functions.items():
            require_core(name, function(), query, latent, indices, config)
        in_torch = functools.partial(torch_sparse_mla, query, latent, indices, **mla_arguments(config))
        peers = {CORE_TORCH: in_torch} | _compiled(CORE_COMPILED, in_torch, attend_gathered, device)
        for name, function in peers.items():
            torch_out = function()
            for rows_of in first_and_last(queries):
                expected, _ = reference.sparse_mla(query[rows_of], latent, indices[rows_of], **mla_arguments(config))
                require_right(name, torch_out[rows_of], expected, TORCH_OFF)
            del torch_out
        functions |= peers | _tilelang_cores(query, latent, indices, config)
        times = timing.compare(functions, **TIMES)
        flops = int((indices >= 0).sum()) * costs.mla_pair_flops(config)
        for name, taken in times.items():
            row = _row("core", (queries, length), k, name, taken, flops) | {"heads": config.n_heads}
            row["ratio_to_torch"] = min(times[peer].median for peer in peers) / taken.median
            rows.append(row)
    return rows


def backward(
    *,
    device: str = "cuda",
    shapes: Sequence[tuple[int, int, int]] = ((4096, 8192, 2048), (4096, 4096, 2048)),
    config: DeepSeekDims = V3_2,
) -> list[Row]:
    """The backward pass of the sparse core alone, at (S, T, k), the portable forward pass beside it, and TileLang's
    backward pass where there are as many queries as keys: it knows no other mask."""
    rows: list[Row] = []
    for queries, length, k in shapes:
        query, latent = latents(queries, length, config, device)
        indices = random_selection(queries, length, k, device)
        grad = _normal(queries, config.n_heads, config.kv_lora_rank, device=device)
        forward = functools.partial(mla.sparse_forward, query, latent, indices, hopper=False, **mla_arguments(config))
        out, lse = forward()
        for rows_of in first_and_last(queries):
            part = (tensor[rows_of] for tensor in (query, indices, lse, grad))
            require_gradients(f"{BACKWARD}, queries from {rows_of.start} on", *part, latent, config)
        scale = mla_arguments(config)["scale"]
        functions: dict[str, Function] = {
            BACKWARD: functools.partial(mla.sparse_backward, query, latent, indices, lse, grad, scale=scale),
            CORE_PORTABLE: forward,
        }
        ours = functions[BACKWARD]()
        tensors = query, latent, indices, out, lse, grad
        in_tilelang = functools.partial(tilelang_peers.sparse_backward, *tensors, scale=scale)
        peers = that_run({BACKWARD_TILELANG: in_tilelang}, f"{queries} queries, {length} keys")
        for function in peers.values():
            for gradient, their, our in zip(("query", "latent"), function(), ours, strict=True):
                require_right(f"{BACKWARD_TILELANG}, gradient of {gradient}", their, our, GRADIENT_OFF)
        del ours
        functions |= peers
        times = timing.compare(functions, **TIMES)
        pairs = int((indices >= 0).sum())
        for name, taken in times.items():
            flops = pairs * costs.mla_pair_flops(config, backward=name != CORE_PORTABLE)
            rows.append(_row("backward", (queries, length), k, name, taken, flops) | {"heads": config.n_heads})
    return rows


def random_selection(queries: int, length: int, k: int, device: str) -> Tensor:
    """int32 `[S, k]`: k different visible keys of each query at random, or all of them and -1."""
    scores = torch.rand(queries, length, device=device).masked_fill_(~_visible(queries, length, device), -torch.inf)
    best, indices = scores.topk(min(k, length), sorted=False)
    return indices.masked_fill(best == -torch.inf, -1).int()


def _cores(query: Tensor, latent: Tensor, indices: Tensor, config: DeepSeekDims) -> dict[str, Function]:
    """The operator and, if it takes another kernel, the portable kernel."""
    cores: dict[str, Function] = {
        CORE: functools.partial(mla.sparse_mla, query, latent, indices, **mla_arguments(config))
    }
    if takes_wgmma(query.device):
        portable = functools.partial(mla.sparse_forward, query, latent, indices, hopper=False, **mla_arguments(config))
        cores[CORE_PORTABLE] = portable
    return cores


def _tilelang_cores(query: Tensor, latent: Tensor, indices: Tensor, config: DeepSeekDims) -> dict[str, Function]:
    """TileLang's kernels for the sparse core that run here, after a check of each."""
    made = {
        name: functools.partial(tilelang_peers.sparse_core, of, query, latent, indices, **mla_arguments(config))
        for name, of in CORE_TILELANG.items()
    }
    functions = that_run(made, f"{len(latent)} keys, k = {indices.shape[1]}")
    for name, function in functions.items():
        out = function()
        for rows in first_and_last(len(query)):
            expected, _ = reference.sparse_mla(query[rows], latent, indices[rows], **mla_arguments(config))
            require_right(name, out[rows], expected, OURS_OFF)
    return functions


def torch_sparse_mla(
    query: Tensor,
    latent: Tensor,
    indices: Tensor,
    *,
    scale: float,
    value_dim: int,
    chunk_of: Callable[..., Tensor] | None = None,
) -> Tensor:
    """The sparse core as a user writes it in torch, a chunk of queries at a time, by `attend_gathered` or its compiled
    form."""
    out, attend = query.new_empty(*query.shape[:2], value_dim), chunk_of or attend_gathered
    for first in range(0, len(query), TORCH_CHUNK):
        chunk = slice(first, first + TORCH_CHUNK)
        out[chunk] = attend(query[chunk], latent, indices[chunk], scale, value_dim)
    return out


def attend_gathered(query: Tensor, latent: Tensor, indices: Tensor, scale: float, value_dim: int) -> Tensor:
    """Gather, einsum, softmax, einsum."""
    gathered = latent[indices.clamp(min=0)]  # [chunk, k, d]
    scores = torch.einsum("shd,skd->shk", query, gathered) * scale
    weights = scores.masked_fill((indices < 0)[:, None], -torch.inf).softmax(-1)
    return torch.einsum("shk,skd->shd", weights, gathered[..., :value_dim])


def _compiled(
    name: str, in_torch: Callable[..., Tensor], chunk_of: Callable[..., Tensor], device: str
) -> dict[str, Function]:
    """`in_torch` with its work on a chunk compiled, if this machine can: a GPU, Triton and a C compiler."""
    if device != "cuda":
        return {}
    made = functools.partial(in_torch, chunk_of=torch.compile(chunk_of, dynamic=False))
    return that_run({name: lambda: made}, "torch.compile")


# ---------------------------------------------------------------------------------------------- the indexer


def index(
    *,
    device: str = "cuda",
    shapes: Sequence[tuple[int, int, int, int]] = ((4096, 32768, 64, 128), (4096, 8192, 32, 64)),
) -> list[Row]:
    """The lightning indexer at (S, T, heads, d), every key legal, in FP8 and bf16, beside torch in bf16 and TileLang in
    FP8.

    `ratio_to_torch`: how many times as fast as the whole formula in torch, plain or compiled, whichever is faster.
    Beside them stands the einsum for `q · k` alone, which is not yet the result.
    """
    rows: list[Row] = []
    for queries, length, heads, head_dim in shapes:
        config = V3_2._replace(index_n_heads=heads, index_head_dim=head_dim)
        functions = _indexers(queries, length, length, config, device)  # from q_start = T - 1 on, all keys are legal
        q, k, weights = _index_inputs(queries, length, config, device)
        in_torch = functools.partial(torch_indexer, q, k, weights)
        peers = {INDEXER_TORCH: in_torch} | _compiled(INDEXER_COMPILED, in_torch, fused_scores, device)
        for name, function in peers.items():
            torch_logits = function()
            for rows_of in first_and_last(queries):
                expected = reference.lightning_indexer(q[rows_of], k, weights[rows_of], q_start=length)
                require_right(name, torch_logits[rows_of], expected, TORCH_OFF)
            del torch_logits
        functions |= peers | _tilelang_indexer(q, k, weights, length)
        functions[PRODUCTS_TORCH] = functools.partial(_torch_products, q, k)
        times = timing.compare(functions, **TIMES)
        flops = queries * length * costs.indexer_pair_flops(config)
        for name, taken in times.items():
            row = _row("indexer", (queries, length), None, name, taken, flops) | {"heads": heads, "head_dim": head_dim}
            row["ratio_to_torch"] = min(times[peer].median for peer in peers) / taken.median
            rows.append(row)
        del functions
    return rows


def _tilelang_indexer(q: Tensor, k: Tensor, weights: Tensor, length: int) -> dict[str, Function]:
    """TileLang's indexer on the same vectors in FP8, if it runs here, after a check."""
    (q8, q_scale), (k8, k_scale) = quantize_e4m3(q), quantize_e4m3(k)
    made = functools.partial(tilelang_peers.indexer, q8, k8, weights, q_scale=q_scale, k_scale=k_scale)
    functions = that_run({INDEXER_TILELANG: made}, f"{length} keys")
    for name, function in functions.items():
        logits = function()
        for rows in first_and_last(len(q)):
            scales = {"q_scale": q_scale[rows], "k_scale": k_scale}
            expected = reference.lightning_indexer(q8[rows], k8, weights[rows], q_start=length, **scales)
            require_right(name, logits[rows], expected, OURS_OFF)
    return functions


def torch_indexer(
    q: Tensor, k: Tensor, weights: Tensor, *, chunk_of: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
) -> Tensor:
    """The formula as a user writes it in torch, a chunk of queries at a time, by `weighted_scores` or its compiled
    form."""
    logits, score = weights.new_empty(len(q), len(k)), chunk_of or weighted_scores
    for first in range(0, len(q), TORCH_CHUNK):
        chunk = slice(first, first + TORCH_CHUNK)
        logits[chunk] = score(q[chunk], k, weights[chunk])
    return logits


def weighted_scores(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """einsum, ReLU, einsum; the products of all heads are in memory."""
    products = torch.einsum("shd,td->sht", q, k).relu_()
    return torch.einsum("sh,sht->st", weights.to(q.dtype), products)


def fused_scores(q: Tensor, k: Tensor, weights: Tensor) -> Tensor:
    """`weighted_scores` with a sum in place of the second einsum, which a compiler fuses with the ReLU."""
    products = torch.einsum("shd,td->sht", q, k)
    return (weights[..., None] * products.relu()).sum(1)


def _torch_products(q: Tensor, k: Tensor) -> None:
    for chunk in q.split(TORCH_CHUNK):
        torch.einsum("shd,td->sht", chunk, k)


# ---------------------------------------------------------------------------------------------- top-k


def select(
    *,
    device: str = "cuda",
    shapes: Sequence[tuple[int, int]] = ((64, 32768), (4096, 32768), (1024, 131072)),
    k: int = TOP_K,
) -> list[Row]:
    """Top-k of (rows, T) logits: random normal; mostly equal, as where ReLU leaves zeros; and causal. TileLang's stands
    beside the first: it has no room for rows of mostly equal numbers (`tilelang_peers`).

    `ratio_to_torch`: how many times as fast as `torch.topk`, sorted or not, whichever is faster.
    """
    rows: list[Row] = []
    for queries, length in shapes:
        normal = torch.randn(queries, length, device=device)
        last = torch.arange(1, queries + 1, device=device)[:, None] * length // queries  # keys that a row sees
        hidden = torch.arange(length, device=device) >= last
        kinds: dict[str, Callable[[], Tensor]] = {
            "normal": lambda x=normal: x,
            "mostly zeros": lambda x=normal: (x - 2).relu(),
            "causal": lambda x=normal, h=hidden: x.masked_fill(h, -torch.inf),
        }
        for kind, make in kinds.items():
            logits = make()
            functions: dict[str, Function] = {
                TOPK: functools.partial(select_topk, logits, k),
                TOPK_TORCH: functools.partial(torch.topk, logits, min(k, length)),
                TOPK_UNSORTED: functools.partial(torch.topk, logits, min(k, length), sorted=False),
            }
            made = {TOPK_TILELANG: functools.partial(tilelang_peers.select_topk, logits, k)} if kind == "normal" else {}
            functions |= that_run(made, f"{queries} rows of {length}")
            for name in {TOPK, TOPK_TILELANG} & functions.keys():
                require_selection(f"{name}, {kind}", functions[name](), logits, k)
            times = timing.compare(functions, **TIMES)
            for name, taken in times.items():
                row = _row("topk", (queries, length), k, name, taken) | {"scores": kind}
                row["ratio_to_torch"] = min(times[TOPK_TORCH].median, times[TOPK_UNSORTED].median) / taken.median
                rows.append(row)
    return rows


# ---------------------------------------------------------------------------------------------- the layer


def layer(
    *,
    device: str = "cuda",
    lengths: Sequence[int] = (8192, 16384),
    top_k: int = TOP_K,
    config: DeepSeekConfig | None = None,
) -> list[Row]:
    """The whole layer from hidden states, projections included: sparse beside dense. And a part of the sparse one that
    is left to torch: the indexer's queries and keys, by projections, LayerNorm, RoPE, Hadamard transform and E4M3."""
    config = config or DeepSeekConfig.v3_2()
    weights = DeepSeekWeights.random(config, seed=0, dtype=torch.bfloat16, device=device)
    rows: list[Row] = []
    for length in lengths:
        hidden = _normal(length, config.dim, device=device)
        functions: dict[str, Function] = {
            SPARSE_LAYER: functools.partial(deepseek_sparse_attention, hidden, weights, top_k=top_k),
            DENSE_LAYER: functools.partial(deepseek_mla, hidden, weights),
            INDEX_VECTORS: _index_vectors(hidden, weights),
        }
        times = timing.compare(functions, **TIMES)
        projections = costs.projection_flops(length, config=config)
        of_indexer = sum(flops for name, flops in projections.items() if name.startswith("indexer"))
        dense_flops = sum(projections.values()) - of_indexer + costs.mla_flops(length, length, config=config)
        flops = {
            SPARSE_LAYER: sum(projections.values()) + costs.dsa_flops(length, length, top_k, config=config),
            DENSE_LAYER: dense_flops,
            INDEX_VECTORS: of_indexer,
        }
        for name, taken in times.items():
            row = _row("layer", (length, length), top_k, name, taken, flops[name])
            if name != INDEX_VECTORS:
                row["ratio_to_dense"] = times[DENSE_LAYER].median / taken.median
            rows.append(row)
    return rows


def _index_vectors(hidden: Tensor, weights: DeepSeekWeights) -> Function:
    q_lora = project_query(hidden, weights)[1]

    def function() -> tuple[object, object]:
        keys = project_index_keys(hidden, weights)
        queries, _ = project_index_query(hidden, q_lora, weights)
        return keys, to_index_dtype(queries, keys.key.dtype)

    return torch.no_grad()(function)


def quality(
    *,
    device: str = "cuda",
    shapes: Sequence[tuple[int, int]] = ((2048, 2048), (4096, 2048)),
    config: DeepSeekConfig | None = None,
) -> list[Row]:
    """The sparse layer beside the dense one at (tokens, top_k): equal if top_k reaches the number of tokens.

    `max_difference` beside `largest`, the largest number of the dense output; `cosine_difference` of the whole outputs.
    """
    config = config or DeepSeekConfig.v3_2()
    weights = DeepSeekWeights.random(config, seed=0, dtype=torch.bfloat16, device=device)
    rows: list[Row] = []
    for length, top_k in shapes:
        hidden = _normal(length, config.dim, device=device)
        dense = deepseek_mla(hidden, weights).double()
        sparse = deepseek_sparse_attention(hidden, weights, top_k=top_k).double()
        row: Row = {"part": "quality", "queries": length, "length": length, "k": top_k, "name": SPARSE_LAYER}
        row |= {"max_difference": (sparse - dense).abs().max().item(), "largest": dense.abs().max().item()}
        rows.append(row | {"cosine_difference": cosine_difference(sparse, dense)})
        if top_k >= length and not rows[-1]["cosine_difference"] <= 10 * OURS_OFF:
            raise RuntimeError(f"with every key selected, {SPARSE_LAYER} is not {DENSE_LAYER}: {rows[-1]}")
    return rows


# ---------------------------------------------------------------------------------------------- checks


def require_core(
    name: str, result: tuple[Tensor, Tensor], query: Tensor, latent: Tensor, indices: Tensor, config: DeepSeekDims
) -> None:
    """Raises RuntimeError unless the first and the last queries have the output and log-sum-exp of float64."""
    for rows in first_and_last(len(query)):
        expected = reference.sparse_mla(query[rows], latent, indices[rows], **mla_arguments(config))
        _require_attention(name, result, expected, rows)


def require_dense(
    name: str, result: tuple[Tensor, Tensor], query: Tensor, latent: Tensor, config: DeepSeekDims
) -> None:
    """Raises RuntimeError unless dense causal MLA has the output and log-sum-exp of float64 for these queries."""
    for rows in first_and_last(len(query)):
        visible = latent[: len(latent) - len(query) + rows.stop]
        _require_attention(name, result, reference.mla_attention(query[rows], visible, **mla_arguments(config)), rows)


def require_mha(name: str, out: Tensor, query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raises RuntimeError unless causal attention in MHA mode, `[1, H, L, d]`, is right in the first and the last
    head."""
    heads = [0, query.shape[1] - 1]
    for rows in first_and_last(query.shape[2]):
        visible = key.shape[2] - query.shape[2] + rows.stop
        wide = pad(value[:, heads, :visible], (0, query.shape[3] - value.shape[3]))  # the reference wants them alike
        expected = reference.attention(query[:, heads, rows], key[:, heads, :visible], wide, is_causal=True)
        require_right(name, out[:, heads, rows], expected[..., : value.shape[3]], MHA_OFF)


def _require_attention(name: str, result: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor], rows: slice) -> None:
    (out, lse), (right_out, right_lse) = result, expected
    require_right(f"{name}, out", out[rows], right_out, OURS_OFF)
    require_right(f"{name}, log-sum-exp", lse[rows], right_lse, LSE_OFF)


def require_gradients(
    name: str,
    query: Tensor,
    indices: Tensor,
    lse: Tensor,
    grad: Tensor,
    latent: Tensor,
    config: DeepSeekDims,
) -> None:
    """Raises RuntimeError unless `mla.sparse_backward` returns the gradients of float64 for these queries."""
    ours = mla.sparse_backward(query, latent, indices, lse, grad, scale=mla_arguments(config)["scale"])
    inputs = [tensor.double().requires_grad_() for tensor in (query, latent)]
    expected, _ = reference.sparse_mla(*inputs, indices, **mla_arguments(config))
    right = torch.autograd.grad(expected, inputs, grad.double())
    for what, our, their in zip(("query", "latent"), ours, right, strict=True):
        require_right(f"{name}, gradient of {what}", our, their, GRADIENT_OFF)


def require_right(name: str, out: Tensor, expected: Tensor, at_most: float) -> None:
    """Raises RuntimeError unless `out` is minus infinity where `expected` is, finite elsewhere, and close to it."""
    finite = expected > -torch.inf
    if not torch.equal(out == -torch.inf, ~finite) or not out[finite].isfinite().all():
        raise RuntimeError(f"{name} is infinite or NaN where float64 is not, or the other way round: not timed")
    off = cosine_difference(out[finite], expected[finite])
    if not off <= at_most:
        raise RuntimeError(f"{name} is off by {off:.1e} from float64, as 1 - cosine (at most {at_most:.0e}): not timed")


def cosine_difference(x: Tensor, y: Tensor) -> float:
    """`1 - 2 x·y / (x·x + y·y)`, 0 for equal tensors: one minus the cosine, and it also sees a wrong factor."""
    x, y = x.double(), y.double()
    norms = (x * x).sum() + (y * y).sum()
    return ((x - y) ** 2).sum().div(norms).item() if norms > 0 else 0.0


def require_selection(name: str, indices: Tensor, logits: Tensor, k: int) -> None:
    """Raises RuntimeError unless each row selects the k greatest, none twice, no minus infinity, and -1 at the end."""
    best = logits.topk(min(k, logits.shape[1])).values
    legal = (best > -torch.inf).sum(1, keepdim=True)
    places = torch.arange(indices.shape[1], device=logits.device)
    chosen = logits.gather(1, indices.clamp(min=0).long()).masked_fill(indices < 0, -torch.inf)
    in_order = torch.where(indices < 0, logits.shape[1] + places, indices).sort().values  # each -1 a number of its own
    right = (
        torch.equal(indices >= 0, places < legal)
        and torch.equal(chosen.sort(descending=True).values[:, : best.shape[1]], best)
        and bool((in_order.diff() > 0).all())
    )
    if not right:
        raise RuntimeError(f"{name} does not select the {k} greatest: not timed")


# ---------------------------------------------------------------------------------------------- shared


def _row(
    part: str, sizes: tuple[int, int], k: int | None, name: str, taken: timing.Timing, flops: int | None = None
) -> Row:
    row: Row = {"part": part, "queries": sizes[0], "length": sizes[1], "k": k, "name": name}
    row |= columns(taken)
    if flops:
        row |= {"gflop": flops / 1e9, "tflop_per_s": flops / taken.median / 1e9}
    return row


def _indexers(
    queries: int, length: int, q_start: int, config: DeepSeekDims, device: str
) -> dict[str, Callable[[], Tensor]]:
    """The indexer in FP8, if this machine has it, and in bf16, on the same random vectors, after a check of each."""
    q, k, weights = _index_inputs(queries, length, config, device)
    (q8, q_scale), (k8, k_scale) = quantize_e4m3(q), quantize_e4m3(k)
    fp8 = functools.partial(indexer_forward, q8, k8, weights, q_start=q_start, q_scale=q_scale, k_scale=k_scale)
    made: dict[str, Callable[[], Tensor]] = {
        INDEXER_FP8: fp8,
        INDEXER: functools.partial(indexer_forward, q, k, weights, q_start=q_start),
    }
    if takes_wgmma(torch.device(device)):
        made[INDEXER_FP8_PORTABLE] = functools.partial(fp8, hopper=False)
    functions = that_run({name: lambda fn=fn: fn for name, fn in made.items()}, f"{length} keys")
    for name, function in functions.items():
        logits = function()
        for rows in first_and_last(queries):
            vectors, scales = (q[rows], k), {}
            if name != INDEXER:
                vectors, scales = (q8[rows], k8), {"q_scale": q_scale[rows], "k_scale": k_scale}
            expected = reference.lightning_indexer(*vectors, weights[rows], q_start=q_start + rows.start, **scales)
            require_right(f"{name}, {length} keys", logits[rows], expected, OURS_OFF)
    return functions


def _index_inputs(queries: int, length: int, config: DeepSeekDims, device: str) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and weights of the indexer, the same ones for the same sizes."""
    heads, head_dim = config.index_n_heads, config.index_head_dim
    torch.manual_seed(0)
    weights = torch.randn(queries, heads, device=device) * heads**-0.5 * head_dim**-0.5
    return _normal(queries, heads, head_dim, device=device), _normal(length, head_dim, device=device), weights


def latents(queries: int, length: int, config: DeepSeekDims, device: str) -> tuple[Tensor, Tensor]:
    """Absorbed queries, and latent rows."""
    width = config.kv_lora_rank + config.qk_rope_head_dim
    return _normal(queries, config.n_heads, width, device=device), _normal(length, width, device=device)


def _normal(*shape: int, device: str) -> Tensor:
    return torch.randn(shape, device=device, dtype=torch.bfloat16)


def mla_arguments(config: DeepSeekDims) -> dict[str, float]:
    """The arguments of MLA's operators and references besides tensors."""
    scale = (config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5
    return {"scale": scale, "value_dim": config.kv_lora_rank}


def _visible(queries: int, length: int, device: str | torch.device) -> Tensor:
    rows = torch.arange(queries, device=device)[:, None]
    return torch.arange(length, device=device) <= rows + length - queries


def first_and_last(queries: int) -> Iterator[slice]:
    """The first two and the last two queries."""
    yield slice(0, min(2, queries))
    if queries > 2:
        yield slice(max(2, queries - 2), queries)
