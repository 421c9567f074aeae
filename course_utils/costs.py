"""The least that attention costs: operations, bytes and memory, counted exactly.

Two kinds of byte count, never to be mixed:

- *Algorithmic traffic* (`naive_traffic`, `fa1_traffic`, `fa2_traffic`): what the paper counts. Each load of a tile from
  HBM into on-chip memory counts once, caches do not exist, and the tile sizes decide everything.
- *Global bytes requested* (`naive_requested`): what the load and store instructions of our kernels ask of global
  memory, every thread counted. L1 and L2 answer most of it, so it says nothing about HBM by itself. For the kernels of
  chapter 02 both counts are the same, and tests/operators/test_traffic.py holds them against the emulator's counters.

What really went through HBM is neither; only a profiler on a GPU can measure that.

Conventions: a multiply-add is 2 FLOP; the softmax itself is not counted; a causal mask halves the FLOPs; the backward
pass costs 2.5 times the forward pass (five matrix products instead of two). Causal is bottom-right aligned. What is
below the heading DeepSeek counts causal pairs exactly, diagonal included, and the backward pass of its core, whose
products differ in width, costs 704,512 / 278,528 = 2.53 times the forward pass.
"""

import functools
import math
from collections.abc import Iterator, Sequence
from numbers import Integral
from typing import NamedTuple


class Step(NamedTuple):
    """Bytes that one step of an algorithm moves between HBM and the chip."""

    name: str
    bytes_read: int
    bytes_written: int

    @property
    def total(self) -> int:
        """Bytes read plus bytes written."""
        return self.bytes_read + self.bytes_written


def total_bytes(steps: list[Step]) -> int:
    """Bytes read plus bytes written over all steps."""
    return sum(step.total for step in steps)


# ---------------------------------------------------------------------------------------------- arithmetic


def attention_flops(
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    head_dim: int,
    is_causal: bool = False,
    backward: bool = False,
) -> int:
    """FLOPs of attention by the usual convention: `4 · L_q · L_k · d` per head, half of it when causal.

    "Half" is the area under the causal diagonal: `L²/2` for square attention, `L_q·L_k − L_q²/2` for `L_q < L_k`. It
    leaves out half of the diagonal itself; `attended_pairs` counts exactly. With `backward`, 2.5 times the forward
    pass, and the forward pass is not included.
    """
    _require_positive(batch=batch, heads=heads, query_length=query_length, key_length=key_length, head_dim=head_dim)
    doubled_pairs = 2 * query_length * key_length
    if is_causal and query_length <= key_length:
        doubled_pairs -= query_length**2
    elif is_causal:
        doubled_pairs = key_length**2
    forward = 2 * batch * heads * head_dim * doubled_pairs
    return forward * 5 // 2 if backward else forward


def attended_pairs(query_length: int, key_length: int, is_causal: bool = False) -> int:
    """Number of (query, key) pairs that the mask keeps, diagonal included, for one head."""
    _require_counts(query_length=query_length, key_length=key_length)
    if not is_causal:
        return query_length * key_length
    seeing = min(query_length, key_length)  # queries that see at least one key; the last sees L_k, the one before L_k-1
    return seeing * key_length - seeing * (seeing - 1) // 2


def window_pairs(length: int, window: int, is_causal: bool = True) -> int:
    """Pairs that a sliding window keeps, for one head: `0 ≤ i−j < window` if causal, else `|i−j| < window`."""
    _require_counts(length=length, window=window)
    beyond = max(length - window, 0)
    one_side = beyond * (beyond + 1) // 2  # pairs at a distance of `window` or more, on one side of the diagonal
    return attended_pairs(length, length, is_causal) - (one_side if is_causal else 2 * one_side)


def arithmetic_intensity(flops: int, bytes_moved: int) -> float:
    """FLOP per byte."""
    _require_positive(bytes_moved=bytes_moved)
    return flops / bytes_moved


def ridge_point(peak_flops: float, bandwidth: float) -> float:
    """FLOP per byte at which a device turns from memory bound to compute bound. FLOP/s and bytes/s in."""
    _require_positive(peak_flops=peak_flops, bandwidth=bandwidth)
    return peak_flops / bandwidth


def time_floor(flops: float, bytes_moved: float, peak_flops: float, bandwidth: float) -> float:
    """Seconds below which no version can run: the larger of FLOPs over FLOP/s and bytes over bytes/s."""
    _require_positive(peak_flops=peak_flops, bandwidth=bandwidth)
    return max(flops / peak_flops, bytes_moved / bandwidth)


# ---------------------------------------------------------------------------------------------- memory


def least_bytes(
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    head_dim: int,
    element_bytes: int,
    *,
    kv_heads: int | None = None,
    backward: bool = False,
) -> int:
    """Compulsory bytes: each input read once, each output written once.

    Forward: Q, K and V in, O out. Backward: Q, K, V, O, dO and the fp32 log-sum-exp in, dQ, dK and dV out.
    """
    _require_positive(
        batch=batch,
        heads=heads,
        query_length=query_length,
        key_length=key_length,
        head_dim=head_dim,
        element_bytes=element_bytes,
        kv_heads=heads if kv_heads is None else kv_heads,
    )
    query = batch * heads * query_length * head_dim * element_bytes
    key = batch * (heads if kv_heads is None else kv_heads) * key_length * head_dim * element_bytes
    if not backward:
        return 2 * query + 2 * key  # Q and O, K and V
    return 4 * query + 4 * key + lse_bytes(batch, heads, query_length)  # Q O dO dQ, K V dK dV, LSE


def score_matrix_bytes(
    batch: int, heads: int, query_length: int, key_length: int, element_bytes: int, matrices: int = 1
) -> int:
    """Memory of the score matrix S `[B, H, L_q, L_k]`; `matrices=2` when S and P are both kept."""
    _require_positive(
        batch=batch, heads=heads, query_length=query_length, key_length=key_length, element_bytes=element_bytes
    )
    return matrices * batch * heads * query_length * key_length * element_bytes


def lse_bytes(batch: int, heads: int, query_length: int) -> int:
    """Memory of the log-sum-exp, one fp32 number per row: all that FlashAttention keeps beside the output."""
    return batch * heads * query_length * 4


def kv_cache_bytes(
    tokens: int, kv_heads: int, head_dim: int, *, element_bytes: int = 2, layers: int = 1, batch: int = 1
) -> int:
    """Memory of the keys and values of past tokens: multi-head attention with `kv_heads` heads, GQA with fewer."""
    _require_positive(tokens=tokens, kv_heads=kv_heads, head_dim=head_dim, element_bytes=element_bytes)
    return 2 * batch * layers * tokens * kv_heads * head_dim * element_bytes


def mla_cache_bytes(
    tokens: int,
    *,
    latent_dim: int = 512,
    rope_dim: int = 64,
    element_bytes: int = 2,
    rope_bytes: int | None = None,
    scale_bytes: int = 0,
    layers: int = 1,
    batch: int = 1,
) -> int:
    """The same for multi-head latent attention (DeepSeek-V3, arXiv 2412.19437 §2.1.1): one latent and one RoPE key
    per token, shared by all heads, and no factor 2 because V is a part of the latent.

    rope_bytes: of an element of the RoPE key; None: element_bytes. scale_bytes: of a token's scales. FlashMLA's FP8
    cache has the latent in E4M3 with four fp32 scales and the key in bf16: 656 bytes a token with 1, 2 and 16.
    """
    rope_bytes = element_bytes if rope_bytes is None else rope_bytes
    _require_positive(tokens=tokens, latent_dim=latent_dim, rope_dim=rope_dim, element_bytes=element_bytes)
    return batch * layers * tokens * (latent_dim * element_bytes + rope_dim * rope_bytes + scale_bytes)


def index_cache_bytes(
    tokens: int, *, head_dim: int = 128, element_bytes: int = 1, scale_bytes: int = 4, layers: int = 1, batch: int = 1
) -> int:
    """Memory of the lightning indexer's keys (DeepSeek-V3.2, arXiv 2512.02556 §2.1), beside `mla_cache_bytes`: one per
    token for all index heads, in FP8 with an fp32 scale for each vector. bf16: `element_bytes=2, scale_bytes=0`."""
    _require_positive(tokens=tokens, head_dim=head_dim, element_bytes=element_bytes)
    return batch * layers * tokens * (head_dim * element_bytes + scale_bytes)


def tile_shared_bytes(
    block_rows: int,
    block_cols: int,
    head_dim: int,
    element_bytes: int,
    *,
    query_tiles: int = 1,
    kv_buffers: int = 1,
    score_tile: bool = False,
    output_tile: bool = False,
    row_padding: int = 0,
) -> int:
    """Shared memory of one block for tiles of `block_rows` (B_r) queries and `block_cols` (B_c) keys, in bytes.

    Args:
        query_tiles: tiles of Q kept in shared memory (0 when Q lives in registers).
        kv_buffers: K and V tiles each this many times (2 for double buffering).
        score_tile: also a B_r × B_c tile of S.
        output_tile: also a B_r × d tile of O.
        row_padding: unused elements at the end of each row, against bank conflicts.
    """
    _require_positive(block_rows=block_rows, block_cols=block_cols, head_dim=head_dim, element_bytes=element_bytes)
    row = head_dim + row_padding
    elements = query_tiles * block_rows * row + 2 * kv_buffers * block_cols * row
    elements += block_rows * (block_cols + row_padding) if score_tile else 0
    elements += block_rows * row if output_tile else 0
    return elements * element_bytes


# ---------------------------------------------------------------------------------------------- DeepSeek


class DeepSeekDims(NamedTuple):
    """Sizes of one attention layer of DeepSeek-V3.2, by the names and with the figures of its published configuration.

    `course_utils.operators.DeepSeekConfig` has the same names, and serves wherever a function here takes `config`.
    """

    dim: int = 7168
    n_heads: int = 128
    q_lora_rank: int = 1536
    kv_lora_rank: int = 512
    qk_nope_head_dim: int = 128
    qk_rope_head_dim: int = 64
    v_head_dim: int = 128
    index_n_heads: int = 64
    index_head_dim: int = 128


V3_2 = DeepSeekDims()
TOP_K = 2048  # keys that DeepSeek-V3.2 keeps for each query, in every layer


class Work(NamedTuple):
    """What one kernel must do: FLOPs, and compulsory bytes (each input read once, each output written once)."""

    name: str
    flops: int
    bytes_moved: int

    def time_floor(self, peak_flops: float, bandwidth: float) -> float:
        """Seconds below which no version can run on a device of that many FLOP/s and bytes/s."""
        return time_floor(self.flops, self.bytes_moved, peak_flops, bandwidth)


def mla_pair_flops(config: DeepSeekDims = V3_2, *, backward: bool = False) -> int:
    """FLOPs of one (query, key) pair, all heads, absorbed (MQA mode; DeepSeek-V3, arXiv 2412.19437 §2.1.1).

    `2·(d_c + d_R)` for the score with the latent and the RoPE key, `2·d_c` for the sum of latents:
    `2·(576 + 512)·128` = 278,528. The backward pass has three products of the first kind and two of the second,
    `2·(3·576 + 2·512)·128` = 704,512; the forward pass is not included.
    """
    row = config.kv_lora_rank + config.qk_rope_head_dim
    widths = 3 * row + 2 * config.kv_lora_rank if backward else row + config.kv_lora_rank
    return 2 * widths * config.n_heads


def mha_pair_flops(config: DeepSeekDims = V3_2) -> int:
    """The same when every head has its own K and V, rebuilt from the latents once per key (MHA mode, for prefill):
    `2·(d_nope + d_R + d_v)·H` = 81,920. Fewer than absorbed, but rebuilding them costs `rebuild_flops` and memory."""
    return 2 * (config.qk_nope_head_dim + config.qk_rope_head_dim + config.v_head_dim) * config.n_heads


def rebuild_flops(keys: int, config: DeepSeekDims = V3_2) -> int:
    """FLOPs of `K = W_UK c` and `V = W_UV c` of all heads for `keys` latents: `2·d_c·(d_nope + d_v)·H` each."""
    _require_counts(keys=keys)
    return 2 * keys * config.kv_lora_rank * (config.qk_nope_head_dim + config.v_head_dim) * config.n_heads


def reprojected_pair_flops(config: DeepSeekDims = V3_2) -> int:
    """FLOPs of one pair, all heads, when K and V are rebuilt for every pair: MLA without absorption, done naively.

    Each head spends 262,144 on the rebuilding, 512 on the part of the score without RoPE and on the value (128 products
    each), and 128 on the RoPE part.
    """
    return rebuild_flops(1, config) + mha_pair_flops(config)


def indexer_pair_flops(config: DeepSeekDims = V3_2) -> int:
    """FLOPs of one pair in the lightning indexer (arXiv 2512.02556 §2.1): `2·d_I·H_I` = 16,384 for the products, which
    run in FP8. ReLU and the weighted sum over heads are not counted."""
    return 2 * config.index_head_dim * config.index_n_heads


def selected_pairs(query_length: int, key_length: int, top_k: int = TOP_K) -> int:
    """Pairs of the sparse core: each query has the keys that it sees (causal, bottom-right), at most `top_k`."""
    _require_counts(top_k=top_k)
    seen = attended_pairs(query_length, key_length, is_causal=True)
    return seen - (attended_pairs(query_length, key_length - top_k, is_causal=True) if key_length > top_k else 0)


def mla_flops(query_length: int, key_length: int, *, is_causal: bool = True, config: DeepSeekDims = V3_2) -> int:
    """FLOPs of dense absorbed MLA over all queries of a layer, pairs counted exactly, diagonal included.

    The queries are the last of the keys: `query_length=1` is the last token alone.
    """
    return attended_pairs(query_length, key_length, is_causal) * mla_pair_flops(config)


def reprojected_flops(
    query_length: int, key_length: int, *, is_causal: bool = True, config: DeepSeekDims = V3_2
) -> int:
    """The same with K and V rebuilt for each pair."""
    return attended_pairs(query_length, key_length, is_causal) * reprojected_pair_flops(config)


def mha_flops(query_length: int, key_length: int, *, is_causal: bool = True, config: DeepSeekDims = V3_2) -> int:
    """The same with K and V rebuilt once for each key, that included."""
    pairs = attended_pairs(query_length, key_length, is_causal)
    return pairs * mha_pair_flops(config) + rebuild_flops(key_length, config)


def indexer_flops(query_length: int, key_length: int, *, config: DeepSeekDims = V3_2) -> int:
    """FLOPs of the lightning indexer over all causal pairs: quadratic, like dense attention, with a small constant."""
    return attended_pairs(query_length, key_length, is_causal=True) * indexer_pair_flops(config)


def sparse_mla_flops(query_length: int, key_length: int, top_k: int = TOP_K, *, config: DeepSeekDims = V3_2) -> int:
    """FLOPs of the sparse core over all queries: `min(top_k, keys seen)` pairs each."""
    return selected_pairs(query_length, key_length, top_k) * mla_pair_flops(config)


def dsa_flops(query_length: int, key_length: int, top_k: int = TOP_K, *, config: DeepSeekDims = V3_2) -> int:
    """FLOPs of DeepSeek Sparse Attention over all queries: the indexer's and the sparse core's, projections left out.

    The last token at 128 K: 2.72 GFLOP, against 36.5 of dense MLA.
    """
    return indexer_flops(query_length, key_length, config=config) + sparse_mla_flops(
        query_length, key_length, top_k, config=config
    )


def projection_flops(tokens: int, *, config: DeepSeekDims = V3_2) -> dict[str, int]:
    """FLOPs of every projection of a layer, by the name of its matrix (arXiv 2412.19437 §2.1.1, equations 1 to 11).

    `W_UK, absorbed` takes q_nope to the latent space, `W_UV, absorbed` takes the sum of latents back, head by head; the
    `indexer` ones exist in V3.2 only. Linear in the length.
    """
    _require_counts(tokens=tokens)
    heads, latent = config.n_heads, config.kv_lora_rank
    index_query = config.index_n_heads * config.index_head_dim
    products = {
        "W_DQ": config.dim * config.q_lora_rank,
        "W_UQ and W_QR": config.q_lora_rank * heads * (config.qk_nope_head_dim + config.qk_rope_head_dim),
        "W_DKV and W_KR": config.dim * (latent + config.qk_rope_head_dim),
        "W_UK, absorbed": heads * config.qk_nope_head_dim * latent,
        "W_UV, absorbed": heads * latent * config.v_head_dim,
        "W_O": heads * config.v_head_dim * config.dim,
        "indexer, query": config.q_lora_rank * index_query,
        "indexer, key": config.dim * config.index_head_dim,
        "indexer, weights": config.dim * config.index_n_heads,
    }
    return {name: 2 * tokens * product for name, product in products.items()}


def indexer_core_crossover(top_k: int = TOP_K, *, index_speed: float = 1.0, config: DeepSeekDims = V3_2) -> float:
    """Keys of a query at which its indexer takes as long as its sparse core: `k · 278,528 / 16,384` = 34,816.

    index_speed: how many times as many FLOP/s the indexer reaches; 2 counts FP8 as twice as fast, and gives 69,632.
    """
    _require_positive(top_k=top_k, index_speed=index_speed)
    return index_speed * top_k * mla_pair_flops(config) / indexer_pair_flops(config)


def dsa_dense_crossover(
    top_k: int = TOP_K, *, index_speed: float = 1.0, dense_pair_flops: int | None = None, config: DeepSeekDims = V3_2
) -> float:
    """Keys of a query from which DSA costs less than dense attention: `L·dense = L·index + k·core`; 2176 for V3.2.

    dense_pair_flops: of the dense side; None is absorbed MLA. `mha_pair_flops()`, the mode of dense prefill, gives
    8704. Infinite when the indexer alone costs more than dense attention.
    """
    _require_positive(top_k=top_k, index_speed=index_speed)
    dense = mla_pair_flops(config) if dense_pair_flops is None else dense_pair_flops
    saved = dense - indexer_pair_flops(config) / index_speed
    return top_k * mla_pair_flops(config) / saved if saved > 0 else math.inf


def logits_bytes(query_length: int, key_length: int) -> int:
    """Memory of the indexer's fp32 logits `[S, T]`: a matrix of size L² again, though without heads."""
    return score_matrix_bytes(1, 1, query_length, key_length, 4)


def gathered_bytes(
    query_length: int,
    key_length: int,
    top_k: int = TOP_K,
    *,
    element_bytes: int = 2,
    config: DeepSeekDims = V3_2,
) -> int:
    """Bytes of latent rows that the sparse core asks for: 1152 for each selected pair, once for all heads.

    2.36 MB for a query with 2048 keys. Queries select the same rows again, so that most come from the L2 cache.
    """
    row = mla_cache_bytes(
        1, latent_dim=config.kv_lora_rank, rope_dim=config.qk_rope_head_dim, element_bytes=element_bytes
    )
    return selected_pairs(query_length, key_length, top_k) * row


def mla_work(query_length: int, key_length: int, *, config: DeepSeekDims = V3_2) -> Work:
    """Dense absorbed MLA, causal: FLOPs and compulsory bytes (bf16; log-sum-exp fp32)."""
    return Work(
        "dense MLA", mla_flops(query_length, key_length, config=config), _core_bytes(query_length, key_length, config)
    )


def dsa_work(
    query_length: int, key_length: int, top_k: int = TOP_K, *, config: DeepSeekDims = V3_2, index_bytes: int = 1
) -> list[Work]:
    """The three kernels of a DSA step: indexer, top-k, sparse core. Each waits for the one before, so their time floors
    add up. The core must read top_k latents at least: more, where not all queries select the same.

    index_bytes: 1 for FP8 queries and keys with an fp32 scale for each vector, 2 for bf16 without.
    """
    scale = 4 if index_bytes == 1 else 0
    index_vector = config.index_head_dim * index_bytes + scale
    query_heads = query_length * config.index_n_heads
    logits = logits_bytes(query_length, key_length)
    indices = 4 * query_length * top_k
    return [
        Work(
            "indexer",
            indexer_flops(query_length, key_length, config=config),
            query_heads * (index_vector + 4) + key_length * index_vector + logits,
        ),
        Work("top-k", 0, logits + indices),
        Work(
            "sparse core",
            sparse_mla_flops(query_length, key_length, top_k, config=config),
            _core_bytes(query_length, min(key_length, top_k), config) + indices,
        ),
    ]


def _core_bytes(query_length: int, latents: int, config: DeepSeekDims) -> int:
    """Query, latents and output in bf16, log-sum-exp in fp32."""
    row = config.kv_lora_rank + config.qk_rope_head_dim
    of_query = config.n_heads * (2 * row + 2 * config.kv_lora_rank + 4)
    return query_length * of_query + 2 * latents * row


# ---------------------------------------------------------------------------------------------- tiles


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest integer that is at least numerator / denominator."""
    return -(-numerator // denominator)


def wave_efficiency(blocks: int, places: int) -> float:
    """The share of a GPU's places for blocks that equal blocks keep at work: they run in waves of `places`, and the
    last wave may be nearly empty."""
    _require_positive(blocks=blocks, places=places)
    return blocks / (ceil_div(blocks, places) * places)


@functools.lru_cache(maxsize=1024)
def splits_by_waves(blocks: int, places: int, most: int, *, share: float = 0.95) -> int:
    """Into how many splits each of the blocks' work is cut, up to `most`: the smallest number whose waves are as
    efficient as the best one's, or `share` of that. FlashAttention-3 chooses so, with a share of 0.85."""
    _require_positive(most=most, places=places)
    # With as many splits as places all waves are full: more are never better.
    found = [wave_efficiency(blocks * splits, places) for splits in range(1, min(most, places) + 1)]
    return next(n for n, efficiency in enumerate(found, start=1) if efficiency >= share * max(found))


def visited_tiles(
    query_length: int, key_length: int, block_rows: int, block_cols: int, is_causal: bool = False
) -> Iterator[tuple[int, int]]:
    """Tiles (i, j), row by row, that hold at least one pair the mask keeps; the others are never loaded.

    Tile i covers queries `i·B_r …`, tile j keys `j·B_c …`; the last of each may be ragged.
    """
    for i, columns in _visited_columns(query_length, key_length, block_rows, block_cols, is_causal):
        for j in range(columns):
            yield i, j


def _visited_columns(
    query_length: int, key_length: int, block_rows: int, block_cols: int, is_causal: bool
) -> Iterator[tuple[int, int]]:
    """Each row of tiles, and how many of its tiles are visited: always the first ones."""
    _require_positive(query_length=query_length, key_length=key_length, block_rows=block_rows, block_cols=block_cols)
    for i in range(ceil_div(query_length, block_rows)):
        last_row = min(query_length, (i + 1) * block_rows) - 1
        keys = min(key_length, last_row + key_length - query_length + 1) if is_causal else key_length
        yield i, ceil_div(max(keys, 0), block_cols)


def masked_tiles(query_length: int, key_length: int, block_rows: int, block_cols: int) -> int:
    """Visited causal tiles that hold a hidden pair too: only these need the mask (FlashAttention-2 §3.1)."""
    offset = key_length - query_length
    return sum(
        min(key_length, (j + 1) * block_cols) - 1 > i * block_rows + offset
        for i, j in visited_tiles(query_length, key_length, block_rows, block_cols, is_causal=True)
    )


def fa1_block_sizes(sram_elements: int, head_dim: int) -> tuple[int, int]:
    """(B_r, B_c) of FlashAttention's Algorithm 1, line 1 (arXiv 2205.14135), for M = `sram_elements` of on-chip memory:
    `B_c = ceil(M / 4d)`, `B_r = min(B_c, d)`."""
    _require_positive(sram_elements=sram_elements, head_dim=head_dim)
    block_cols = ceil_div(sram_elements, 4 * head_dim)
    return min(block_cols, head_dim), block_cols


def largest_block_rows(shared_bytes: int, block_cols: int, head_dim: int, element_bytes: int, step: int = 32) -> int:
    """The largest B_r, a multiple of `step`, with which tiles of Q, K, V and S fit `shared_bytes`; 0 if none does."""
    one = tile_shared_bytes(1, block_cols, head_dim, element_bytes, score_tile=True)
    row = tile_shared_bytes(2, block_cols, head_dim, element_bytes, score_tile=True) - one
    return max(0, (shared_bytes - one) // row + 1) // step * step


# ---------------------------------------------------------------------------------------------- algorithmic traffic


def naive_traffic(
    batch: int, heads: int, query_length: int, key_length: int, head_dim: int, element_bytes: int
) -> list[Step]:
    """HBM traffic of standard attention (Algorithm 0 of FlashAttention), step by step; a mask saves nothing here."""
    _require_positive(
        batch=batch,
        heads=heads,
        query_length=query_length,
        key_length=key_length,
        head_dim=head_dim,
        element_bytes=element_bytes,
    )
    scale = batch * heads * element_bytes
    rows, columns = query_length * head_dim * scale, key_length * head_dim * scale
    square = query_length * key_length * scale
    return [
        Step("S = scale · Q Kᵀ", rows + columns, square),
        Step("P = softmax(S)", square, square),
        Step("O = P V", square + columns, rows),
    ]


def fa1_traffic(
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    head_dim: int,
    *,
    block_rows: int,
    block_cols: int,
    element_bytes: int,
    statistics_bytes: int | None = None,
    is_causal: bool = False,
) -> list[Step]:
    """HBM traffic of FlashAttention's loop order (Algorithm 1): outer loop over K and V, inner loop over Q.

    K and V are read once; Q, O and the statistics m and l come back for every tile of K. `statistics_bytes` is the size
    of one m or one l (None: `element_bytes`, as the paper counts elements).
    """
    _require_positive(batch=batch, heads=heads, head_dim=head_dim, element_bytes=element_bytes)
    row_passes, _ = _tile_passes(query_length, key_length, block_rows, block_cols, is_causal)
    statistic = element_bytes if statistics_bytes is None else statistics_bytes
    vector = head_dim * element_bytes
    steps = [
        Step("start O, m, l", 0, query_length * (vector + 2 * statistic)),
        Step("K and V tiles", 2 * key_length * vector, 0),
        Step("Q tiles", row_passes * vector, 0),
        Step("O tiles", row_passes * vector, row_passes * vector),
        Step("m and l", row_passes * 2 * statistic, row_passes * 2 * statistic),
    ]
    return [Step(name, batch * heads * read, batch * heads * written) for name, read, written in steps]


def fa1_ratio(kibibytes: float, element_bytes: int, length: int = 4096, head_dim: int = 64) -> float:
    """How many times less traffic than standard attention FlashAttention's first algorithm needs for one head, with the
    paper's tile sizes for `kibibytes` of memory on the chip and no cache."""
    block_rows, block_cols = fa1_block_sizes(int(kibibytes * 1024) // element_bytes, head_dim)
    tiles = {"block_rows": block_rows, "block_cols": block_cols, "element_bytes": element_bytes}
    fa1 = total_bytes(fa1_traffic(1, 1, length, length, head_dim, **tiles))
    return total_bytes(naive_traffic(1, 1, length, length, head_dim, element_bytes)) / fa1


def fa2_traffic(
    batch: int,
    heads: int,
    query_length: int,
    key_length: int,
    head_dim: int,
    *,
    block_rows: int,
    block_cols: int,
    element_bytes: int,
    is_causal: bool = False,
    with_lse: bool = True,
) -> list[Step]:
    """HBM traffic of FlashAttention-2's loop order (arXiv 2307.08691): outer loop over Q, inner loop over K and V.

    Q is read once, O and the fp32 log-sum-exp are written once; K and V are read for every tile of Q that sees them.
    """
    _require_positive(batch=batch, heads=heads, head_dim=head_dim, element_bytes=element_bytes)
    _, column_passes = _tile_passes(query_length, key_length, block_rows, block_cols, is_causal)
    vector = head_dim * element_bytes
    steps = [
        Step("Q tiles", query_length * vector, 0),
        Step("K and V tiles", 2 * column_passes * vector, 0),
        Step("O tiles", 0, query_length * vector),
        Step("log-sum-exp", 0, query_length * 4 if with_lse else 0),
    ]
    return [Step(name, batch * heads * read, batch * heads * written) for name, read, written in steps]


def naive_requested(
    batch: int, heads: int, query_length: int, key_length: int, head_dim: int, *, coalesced: bool = True
) -> list[Step]:
    """Global bytes requested by the three kernels of chapter 01, fp32, every thread counted.

    `coalesced` chooses scores.cu over scores_uncoalesced.cu. The first shares what it loads: 32 keys serve 32 queries
    and the other way round, so it asks less often; whether the loads of a warp fall together is not visible in bytes
    requested. The distinct bytes among them are those of `naive_traffic`.

    The kernels of chapter 02 need no formula of their own: forward_fa1_order.cu requests exactly `fa1_traffic` (fp32,
    4-byte statistics), forward_plain.cu and forward.cu exactly `fa2_traffic`, since the threads of a block share loads.
    """
    pairs = query_length * key_length
    score_reads = 2 * pairs * head_dim
    if coalesced:
        query_tiles, key_tiles = ceil_div(query_length, 32), ceil_div(key_length, 32)
        score_reads = (query_length * key_tiles + key_length * query_tiles) * head_dim
    steps = [
        Step("S = scale · Q Kᵀ", score_reads, pairs),
        Step("P = softmax(S)", 3 * pairs, pairs),  # once for the maximum, once for the sum, once for P
        Step("O = P V", 2 * pairs * head_dim, query_length * head_dim),
    ]
    return [Step(name, 4 * batch * heads * read, 4 * batch * heads * written) for name, read, written in steps]


def first_bank(offset: int) -> int:
    """The first of the four banks that hold the 16 bytes at `offset`: a bank is 4 bytes wide, and there are 32."""
    return offset // 4 % 32


def ldmatrix_turns(offsets: Sequence[int]) -> tuple[int, ...]:
    """The wavefront in which `ldmatrix` serves each lane: how many rows before it in its phase lie in the same banks.

    offsets: bytes, multiples of 16, all different, one for each lane; eight lanes are a phase.
    """
    banks = [first_bank(offset) for offset in offsets]
    return tuple(banks[lane // 8 * 8 : lane].count(bank) for lane, bank in enumerate(banks))


def _tile_passes(
    query_length: int, key_length: int, block_rows: int, block_cols: int, is_causal: bool
) -> tuple[int, int]:
    """Over all visited tiles: query rows loaded with them, and key rows loaded with them (ragged tiles are shorter)."""
    row_passes = column_passes = 0
    for i, columns in _visited_columns(query_length, key_length, block_rows, block_cols, is_causal):
        row_passes += columns * min(block_rows, query_length - i * block_rows)
        column_passes += min(columns * block_cols, key_length)
    return row_passes, column_passes


def _require_counts(**values: int) -> None:
    for name, value in values.items():
        if not isinstance(value, Integral) or value < 1:
            raise ValueError(f"{name} is {value!r}; it must be a positive integer")


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not value > 0:
            raise ValueError(f"{name} is {value!r}; it must be a positive number")
