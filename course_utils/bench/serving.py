"""What `bench 06_serving` measures: a decode step's attention, beside the ceiling of bytes and what a user could take.

Each row has its `part`. `us` is the time of the GPU alone, with a cold L2; `tb_per_s` counts K and V of the keys that
count, once, and `share` is that over the read ceiling, which is measured in the same run: the sum of a large tensor.
Peers that are not installed are left out, and said to be.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

from course_utils import reference, timing
from course_utils.bench.timed import Function, all_parts, compile_ahead, require_close, sdpa, that_run
from course_utils.costs import ceil_div
from course_utils.cuda import compiled
from course_utils.launches.serving import RUNGS, rung
from course_utils.measured import Row
from course_utils.operators import decode_attention, paged_attention, serving
from course_utils.serving import Loop, Model, lengths, prompts, summary

OURS, OURS_AGAIN = "decode_attention", "decode_attention again"
FLASH, CUDNN = "torch FLASH", "torch cuDNN"
FLASHINFER, FLASH3 = "FlashInfer", "FlashAttention-3"
PACKED = ", packed by hand"
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
CACHES = ((8, 8192), (8, 65536), (1, 4096), (1, 65536), (64, 4096))  # batch sizes, and keys of each sequence
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 33, 48, 64)
PAGE_SIZES = (1, 16, 64, 256)
CEILING_BYTES = 2 * 2**30
CHUNK = 256  # tokens of prompts in a step of the loop
BUDGET_MS = 40.0  # for each function
HEAD_START_US = 600.0  # longer than the host takes for two launches or a peer's call
MAX_ERROR = 2e-2  # of outputs whose largest number is 1, between two right kernels


def serving_chapter() -> list[Row]:
    """Every figure of chapter 06."""
    compile_all()
    return all_parts((contiguous, ladder, splits, paged, ragged, eight_bits, several_queries, loop))


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    modules = serving.modules(torch.float16, torch.device(device))
    modules.append(compiled("06_serving/warp_per_head.cu", (f"-DD={HEAD_DIM}", "-DBF16=0", "-DWARPS=4")))
    tile = serving.decode_tile(HEADS // KV_HEADS, torch.empty(1, HEAD_DIM, dtype=torch.float16, device=device))
    modules.append(compiled("06_serving/packed_heads.cu", (*tile.options, "-DBF16=0")))
    compile_ahead(modules, device)


# ---------------------------------------------------------------------------------------------- the parts


def contiguous(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """One query against a contiguous cache, beside torch's kernels, FlashInfer and FlashAttention-3."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        made: dict[str, Callable[[], Function]] = {
            OURS: lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v),
            OURS_AGAIN: lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v),
        }
        packed = query.unflatten(1, (KV_HEADS, -1)).flatten(2, 3)  # one query each: no mask
        for name, backend in BACKENDS.items():
            made[name] = functools.partial(sdpa, backend, query, key, value, enable_gqa=True)
            made[name + PACKED] = functools.partial(sdpa, backend, packed, key, value)
        pages = [tensor.transpose(1, 2).reshape(-1, 16, KV_HEADS, HEAD_DIM) for tensor in (key, value)]
        table = torch.arange(len(pages[0]), dtype=torch.int32, device=device).view(batch, -1)
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        made |= _paged_peers(query, *pages, table, lengths)
        rows += _timed("contiguous", {"batch": batch, "length": length}, query, key, value, made)
    return rows


def ladder(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """The rungs: a warp per query head, packed heads, and the keys in pieces."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        made: dict[str, Callable[[], Function]] = {
            title: lambda name=name, q=query, k=key, v=value: lambda: rung(name, q, k, v)[0]
            for name, title in RUNGS.items()
        }
        made["keys in pieces"] = lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v)
        rows += _timed("ladder", {"batch": batch, "length": length}, query, key, value, made)
    return rows


def splits(
    *, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES, numbers: Sequence[int] = SPLITS
) -> list[Row]:
    """Each number of splits beside the chosen one, which is marked."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        chosen = _chosen_splits(query, key)
        made: dict[str, Callable[[], Function]] = {
            str(n): lambda n=n, q=query, k=key, v=value: lambda: decode_attention(q, k, v, num_splits=n)
            for n in sorted({*numbers, chosen})
        }
        for row in _timed("splits", {"batch": batch, "length": length}, query, key, value, made):
            number = int(row.pop("name"))
            rows.append(row | {"splits": number, "chosen": number == chosen})
    return rows


def paged(
    *,
    device: str = "cuda",
    caches: Sequence[tuple[int, int]] = CACHES[:2],
    page_sizes: Sequence[int] = PAGE_SIZES,
) -> list[Row]:
    """Pages in random places beside the contiguous cache, and beside FlashInfer and FlashAttention-3."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
        for page_size in page_sizes:
            pages, table = in_pages((key, value), page_size)
            made: dict[str, Callable[[], Function]] = {
                OURS: lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v),
                "paged_attention": lambda q=query, p=pages, t=table, n=lengths: lambda: paged_attention(q, *p, t, n),
            }
            made |= _paged_peers(query, *pages, table, lengths)
            where = {"batch": batch, "length": length, "page_size": page_size}
            rows += _timed("paged", where, query, key, value, made)
    return rows


def ragged(*, device: str = "cuda", long: int = 65536, short: int = 1024, sequences: int = 32) -> list[Row]:
    """One long sequence beside short ones, the long one first or last; and as many sequences of one length."""
    rows: list[Row] = []
    query, key, value = _inputs(sequences, long, device)
    some = [long] + (sequences - 1) * [short]
    mean = sum(some) // sequences
    for name, counts in (("long first", some), ("long last", some[::-1]), ("equal", sequences * [mean])):
        lengths = torch.tensor(counts, dtype=torch.int32, device=device)
        made: dict[str, Callable[[], Function]] = {
            OURS: lambda n=lengths: lambda: decode_attention(query, key, value, seq_lens=n)
        }
        where = {"batch": sequences, "length": sum(counts), "lengths": name}
        rows += _timed("ragged", where, query, key, value, made, lengths)
    return rows


def eight_bits(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """A cache in E4M3 beside the same numbers in 16 bits; `error` is the largest of the output that 8 bits make."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        scales = [torch.full((batch, KV_HEADS), 2.0**-6, device=device) for _ in range(2)]
        key8, value8 = ((tensor.float() * 2**6).to(serving.E4M3) for tensor in (key, value))
        error = decode_attention(query, key, value).float()
        key, value = ((tensor.float() * 2**-6).to(query.dtype) for tensor in (key8, value8))
        error -= decode_attention(query, key, value).float()
        made: dict[str, Callable[[], Function]] = {
            OURS: lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v),
            "decode_attention, E4M3": lambda q=query, k=key8, v=value8, s=scales: (
                lambda: decode_attention(q, k, v, k_scale=s[0], v_scale=s[1])
            ),
        }
        for row in _timed("eight bits", {"batch": batch, "length": length}, query, key, value, made):
            rows.append(row | {"error": error.abs().max().item()} if "E4M3" in row["name"] else row)
    return rows


def several_queries(
    *,
    device: str = "cuda",
    caches: Sequence[tuple[int, int]] = CACHES[:2],
    query_lengths: Sequence[int] = (1, 2, 4, 8, 16),
) -> list[Row]:
    """Several queries a step, as a chain and as a tree."""
    rows: list[Row] = []
    for batch, length in caches:
        for query_length in query_lengths:
            query, key, value = _inputs(batch, length, device, query_length)
            halves = (torch.arange(query_length, dtype=torch.int32, device=device) - 1) >> 1  # a binary tree
            parents = halves.expand(batch, -1).contiguous()
            made: dict[str, Callable[[], Function]] = {
                "chain": lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v),
                "tree": lambda q=query, k=key, v=value, p=parents: lambda: decode_attention(q, k, v, parents=p),
            }
            where = {"batch": batch, "length": length, "query_length": query_length}
            rows += _timed("queries", where, query, key, value, made, checked=("chain",))
    return rows


def loop(
    *, device: str = "cuda", requests: int = 200, longest: int = 512, pages: int = 256, page_size: int = 16
) -> list[Row]:
    """A trace of requests with a heavy tail, served by the small model: in pages, and with pages reserved for the
    longest request as a contiguous cache must; with bits that do not depend on the batch, and with torch's sums.

    Each row has what `serving.summary` says, and new tokens a second of the whole run, Python included."""
    trace = lengths(requests, longest=longest)
    texts = prompts(trace, __doc__)
    rows: list[Row] = []
    for sums, options in (("exact", {}), ("torch's", {"split_size": None, "exact_sums": False})):
        model = Model(device=device, **options)
        said: list[list[list[int]]] = []
        for name, reserve in (("pages", None), ("reserved", 2 * longest)):
            where = {"requests": requests, "pages": pages, "page_size": page_size, "sums": sums, "name": name}
            for count in (3, requests):  # the first few, to warm up
                served = Loop(model.next_tokens, model.cache(pages, page_size), chunk=CHUNK, reserve=reserve)
                for prompt, one in zip(texts[:count], trace, strict=False):
                    served.submit(prompt, one.new)
                start = time.perf_counter()
                served.run()  # each step ends with a look at its tokens, which waits for the GPU
                seconds = time.perf_counter() - start
            said.append([request.said for request in served.requests])
            summed = summary(served)
            rows.append(
                {"part": "loop", **where, **summed, "seconds": seconds, "tokens_per_s": summed["tokens"] / seconds}
            )
        if sums == "exact" and said[0] != said[1]:
            raise RuntimeError("the requests got other tokens in pages than with pages reserved: not recorded")
    return rows


# ---------------------------------------------------------------------------------------------- shared


@functools.cache
def read_ceiling(device: str) -> float:
    """TB/s of the sum of a large tensor, the fastest way in torch to read memory."""
    numbers = torch.ones(CEILING_BYTES // 4, device=device)
    taken = timing.compare({"sum": numbers.sum}, budget_ms=BUDGET_MS)["sum"]
    return numbers.nbytes / taken.median / 1e9


def in_pages(cache: Sequence[Tensor], page_size: int) -> tuple[list[Tensor], Tensor]:
    """Tensors `[B, H_kv, L, d]` as pages `[pages, page_size, H_kv, d]` in random places, and the block table."""
    batch, kv_heads, length, head_dim = cache[0].shape
    of_one = ceil_div(length, page_size)
    table = torch.randperm(batch * of_one, generator=torch.Generator().manual_seed(0)).to(cache[0].device)
    made = []
    for tensor in cache:
        rows = tensor.new_zeros(batch, of_one * page_size, kv_heads, head_dim)
        rows[:, :length] = tensor.transpose(1, 2)
        pages = torch.empty_like(rows).view(-1, page_size, kv_heads, head_dim)
        pages[table] = rows.view_as(pages)
        made.append(pages)
    return made, table.int().view(batch, of_one)


def _inputs(batch: int, length: int, device: str, query_length: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Random query, key and value. Values are not centred: an average over many keys would be near 0, and any error
    with it."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(heads: int, rows: int) -> Tensor:
        shape = batch, heads, rows, HEAD_DIM
        return torch.randn(shape, device=device, dtype=torch.float16, generator=generator)

    return normal(HEADS, query_length), normal(KV_HEADS, length), normal(KV_HEADS, length).add_(1)


def _timed(
    part: str,
    where: Row,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: dict[str, Callable[[], Function]],
    lengths: Tensor | None = None,
    checked: Sequence[str] | None = None,
) -> list[Row]:
    """A row for each function that runs here, once its output is right. checked: the names of those that are looked at;
    None: all. The bytes are those of `length` keys, for each sequence unless lengths says how many there are."""
    functions = that_run(made, str(where))
    expected = _last_sequence(query, key, value, lengths)
    for name in functions.keys() & set(functions if checked is None else checked):
        found = functions[name]().reshape(expected.shape[0], -1)[-1]
        require_close(f"{name}, {where}", found, expected[-1].flatten().to(found.dtype), at_most=MAX_ERROR)
    keys = int(where["length"]) * (1 if lengths is not None else int(where["batch"]))
    bytes_of_key = 2 * key.shape[1] * key.shape[3]
    ceiling = read_ceiling(str(query.device))
    rows: list[Row] = []
    times = timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=HEAD_START_US)
    for name, taken in times.items():
        read = keys * bytes_of_key * (1 if "E4M3" in name else key.element_size())
        row: Row = {"part": part, **where, "name": name, "us": 1e3 * taken.median, "spread_us": 1e3 * taken.spread}
        row |= {"tb_per_s": read / taken.median / 1e9}
        rows.append(row | {"share": row["tb_per_s"] / ceiling, "ceiling_tb_per_s": ceiling})
    return rows


def _last_sequence(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
    """The right output of the last sequence, at its place; the others are left as they come."""
    length = key.shape[2] if lengths is None else int(lengths[-1])
    last = reference.decode_attention(query[-1:], key[-1:, :, :length], value[-1:, :, :length])
    return torch.cat([torch.zeros_like(query[:-1], dtype=last.dtype), last])


def _chosen_splits(query: Tensor, key: Tensor) -> int:
    batch, kv_heads, length, _ = key.shape
    tile = serving.decode_tile(query.shape[1] // kv_heads * query.shape[2], key)
    return serving.cut_keys(batch, kv_heads, length, False, 0, 0, tile, key.device).pieces // batch


# ---------------------------------------------------------------------------------------------- peers


def _paged_peers(
    query: Tensor, key_pages: Tensor, value_pages: Tensor, block_table: Tensor, lengths: Tensor
) -> dict[str, Callable[[], Function]]:
    """What other projects have for a cache in pages, where they are installed."""
    inputs = query, key_pages, value_pages, block_table, lengths
    return {FLASHINFER: functools.partial(_flashinfer, *inputs), FLASH3: functools.partial(_flash3, *inputs)}


def _flashinfer(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Function:
    import flashinfer

    batch, heads, _, head_dim = query.shape
    _, page_size, kv_heads, _ = keys.shape
    pages = -(-lengths // page_size)
    starts = torch.zeros(batch + 1, dtype=torch.int32, device=query.device)
    starts[1:] = pages.cumsum(0)
    used = torch.arange(table.shape[1], device=query.device) < pages[:, None]
    workspace = torch.empty(256 * 2**20, dtype=torch.uint8, device=query.device)
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace, "NHD", use_tensor_cores=True)
    last = (lengths - (pages - 1) * page_size).int()
    sizes = heads, kv_heads, head_dim, page_size
    wrapper.plan(starts, table[used], last, *sizes, q_data_type=query.dtype, kv_data_type=keys.dtype)
    queries = query[:, :, 0].contiguous()
    return lambda: wrapper.run(queries, (keys, values))


def _flash3(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Function:
    from flash_attn_interface import flash_attn_with_kvcache

    queries = query.transpose(1, 2).contiguous()
    options = {"cache_seqlens": lengths, "page_table": table, "causal": True}
    return lambda: flash_attn_with_kvcache(queries, keys, values, **options)
