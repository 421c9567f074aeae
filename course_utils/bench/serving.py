"""What `bench 06_serving` measures: a decode step's attention, beside the ceiling of bytes and what a user could take.

Each row has its `part`. `us` is the time of the GPU alone, with a cold L2; `tb_per_s` counts K and V of the keys that
count, once, and `share` is that over the read ceiling, which is measured in the same run: the sum of a large tensor.
Peers that are not installed are left out, and said to be.
"""

from __future__ import annotations

import functools
import itertools
import math
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
from course_utils.measured.serving import (
    CACHES,
    CHUNK,
    CUDNN,
    FLASH,
    GRAPH,
    HEAD_DIM,
    HEADS,
    IN_TRITON,
    KV_HEADS,
    LAUNCHES,
    LAYERS,
    ONE_LAUNCH,
    OURS,
    OURS_AGAIN,
    PAGE_SIZES,
    PIECES,
    SAME_BYTES,
    SPLITS,
    STEP_PAGE_SIZE,
)
from course_utils.operators import (
    append_paged,
    cascade_attention,
    decode_attention,
    decode_step,
    paged_attention,
    serving_choice,
    serving_launch,
)
from course_utils.serving import Loop, Model, lengths, prompts, summary

FLASHINFER = "FlashInfer"
PACKED = ", packed by hand"
BACKENDS = {FLASH: SDPBackend.FLASH_ATTENTION, CUDNN: SDPBackend.CUDNN_ATTENTION}
STEPS = tuple(itertools.product((1, 8, 64), (1024, 4096, 16384, 65536)))
FEWEST_KEYS = 256  # of a piece in Triton
CEILING_BYTES = 2 * 2**30
BUDGET_MS = 40.0  # for each function
HEAD_START_US = 600.0  # longer than the host takes for two launches or a peer's call
MAX_ERROR = 2e-2  # of outputs whose largest number is 1, between two right kernels


def serving_chapter() -> list[Row]:
    """Every figure of chapter 06."""
    compile_all()
    return all_parts(
        (contiguous, ladder, splits, paged, ragged, eight_bits, several_queries, shared_prefix, step, loop)
    )


def compile_all(device: str = "cuda") -> None:
    """Compiles what the chapter launches."""
    modules = serving_launch.modules(torch.float16, torch.device(device))
    modules.append(compiled("06_serving/warp_per_head.cu", (f"-DD={HEAD_DIM}", "-DBF16=0", "-DWARPS=4")))
    group, on = HEADS // KV_HEADS, torch.device(device)
    tiles = {serving_choice.decode_tile(group, batch * KV_HEADS, HEAD_DIM, 2, on) for batch, _ in CACHES}
    modules += [compiled("06_serving/packed_heads.cu", (*tile.options, "-DBF16=0")) for tile in tiles]
    compile_ahead(modules, device)


# ---------------------------------------------------------------------------------------------- the parts


def contiguous(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """One query against a contiguous cache, beside torch's kernels and FlashInfer."""
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
        made[FLASHINFER] = functools.partial(_flashinfer, query, *pages, table, lengths)
        rows += _timed("contiguous", {"batch": batch, "length": length}, query, key, value, made)
    return rows


def ladder(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """The rungs: a warp per query head, packed heads, and the keys in pieces, each also in Triton."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        made: dict[str, Callable[[], Function]] = {
            title: lambda name=name, q=query, k=key, v=value: lambda: rung(name, q, k, v)[0]
            for name, title in RUNGS.items()
        }
        made[PIECES] = lambda q=query, k=key, v=value: lambda: decode_attention(q, k, v)
        for name in list(made):
            made[f"{name}{IN_TRITON}"] = functools.partial(_rung_in_triton, name, query, key, value)
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
    """Pages in random places beside the contiguous cache, and beside FlashInfer."""
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
            made[FLASHINFER] = functools.partial(_flashinfer, query, *pages, table, lengths)
            where = {"batch": batch, "length": length, "page_size": page_size}
            rows += _timed("paged", where, query, key, value, made)
    return rows


def ragged(*, device: str = "cuda", long: int = 65536, short: int = 1024, sequences: int = 32) -> list[Row]:
    """One long sequence beside short ones, the long one first or last; and as many sequences of one length. Beside each
    the sum of a tensor of as many bytes: what can be had while the GPU fills and drains."""
    rows: list[Row] = []
    query, key, value = _inputs(sequences, long, device)
    some = [long] + (sequences - 1) * [short]
    mean = sum(some) // sequences
    plain = torch.ones(sum(some) * KV_HEADS * HEAD_DIM, device=device)  # fp32: as much as K and V in 16 bits
    for name, counts in (("long first", some), ("long last", some[::-1]), ("equal", sequences * [mean])):
        lengths = torch.tensor(counts, dtype=torch.int32, device=device)
        made: dict[str, Callable[[], Function]] = {
            OURS: lambda n=lengths: lambda: decode_attention(query, key, value, seq_lens=n),
            SAME_BYTES: lambda: plain.sum,
        }
        where = {"batch": sequences, "length": sum(counts), "lengths": name}
        rows += _timed("ragged", where, query, key, value, made, lengths, checked=(OURS,))
    return rows


def eight_bits(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = CACHES) -> list[Row]:
    """A cache in E4M3 beside the same numbers in 16 bits; `error` is the largest of the output that 8 bits make."""
    rows: list[Row] = []
    for batch, length in caches:
        query, key, value = _inputs(batch, length, device)
        scales = [torch.full((batch, KV_HEADS), 2.0**-6, device=device) for _ in range(2)]
        key8, value8 = ((tensor.float() * 2**6).to(serving_choice.E4M3) for tensor in (key, value))
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


def shared_prefix(
    *, device: str = "cuda", prefix: int = 8192, own: int = 512, sequences: int = 32, page_size: int = STEP_PAGE_SIZE
) -> list[Row]:
    """A system prompt that all sequences share: read by each of them, from the same pages, and once for all."""
    query, key, value = _inputs(sequences, own, device)
    shared = [tensor[0] for tensor in _inputs(1, prefix, device)[1:]]
    pages, table = in_pages((key, value), page_size)
    (prefix_pages, prefix_table) = in_pages([tensor[None] for tensor in shared], page_size)
    all_pages = [torch.cat(both) for both in zip(pages, prefix_pages, strict=True)]
    all_tables = torch.cat((prefix_table.expand(sequences, -1) + len(pages[0]), table), dim=1).contiguous()
    lengths = torch.full((sequences,), own, dtype=torch.int32, device=device)
    made: dict[str, Callable[[], Function]] = {
        "paged_attention": lambda: lambda: paged_attention(query, *all_pages, all_tables, lengths + prefix),
        "cascade_attention": lambda: lambda: cascade_attention(query, *shared, *pages, table, lengths),
    }
    last = [torch.cat((both[0], both[1][-1]), dim=1)[None] for both in zip(shared, (key, value), strict=True)]
    where = {"batch": sequences, "length": own, "prefix": prefix}
    read = 2 * (prefix + sequences * own) * KV_HEADS * HEAD_DIM * key.element_size()
    return _rows("shared prefix", where, made, reference.decode_attention(query[-1:], *last), lambda name: read)


def step(*, device: str = "cuda", caches: Sequence[tuple[int, int]] = STEPS, layers: int = LAYERS) -> list[Row]:
    """A step of all layers without its matrix products with weights: append, attention and merge, as launches from
    Python, as a CUDA graph of these, and in one launch, ours and Triton's.

    The time of the launches is the host's, except for its work while the L2 cache is flushed before.
    """
    rows: list[Row] = []
    for batch, length in caches:
        where = {"batch": batch, "length": length, "layers": layers}
        read = 2 * layers * batch * length * KV_HEADS * HEAD_DIM * torch.float16.itemsize
        free = torch.cuda.mem_get_info()[0] if device == "cuda" else math.inf
        if 1.1 * read > free:
            print(f"{where} is left out: it takes {read / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free")
            continue
        made, expected = _steps(batch, length, layers, device)
        rows += _rows("step", where, made, expected, lambda name, read=read: read, head_start_us=0)
        del made
    return rows


def _steps(batch: int, length: int, layers: int, device: str) -> tuple[dict[str, Callable[[], Function]], Tensor]:
    """The ways to do a step, and the right output of the last sequence in the last layer."""
    generator = torch.Generator(device).manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(layers, *shape, HEAD_DIM, device=device, dtype=torch.float16, generator=generator)

    of_one = ceil_div(length, STEP_PAGE_SIZE)
    key_pages, value_pages = (normal(batch * of_one, STEP_PAGE_SIZE, KV_HEADS) for _ in range(2))
    table = torch.randperm(batch * of_one, device=device, generator=generator).int().view(batch, of_one)
    lengths = torch.full((batch,), length, dtype=torch.int32, device=device)
    query, key, value = normal(batch, HEADS, 1), normal(batch, 1, KV_HEADS), normal(batch, 1, KV_HEADS).add_(1)
    value_pages.add_(1)  # as in `_inputs`
    inputs = query, key, value, key_pages, value_pages, table, lengths

    def launches() -> Tensor:
        for n in range(layers):
            pages = key_pages[n], value_pages[n]
            append_paged(key[n], value[n], *pages, table, lengths)
            out = paged_attention(query[n], *pages, table, lengths)
        return out

    workspace = torch.zeros(serving_choice.step_workspace(batch, KV_HEADS), dtype=torch.int32, device=device)
    made: dict[str, Callable[[], Function]] = {
        LAUNCHES: lambda: launches,
        GRAPH: functools.partial(_captured, launches, device),
        ONE_LAUNCH: lambda: lambda: decode_step(*inputs, workspace=workspace),
        ONE_LAUNCH + IN_TRITON: functools.partial(_step_in_triton, inputs, workspace),
    }
    launches()
    rows = [
        pages[-1, table[-1].long()].flatten(0, 1)[:length].transpose(0, 1)[None] for pages in (key_pages, value_pages)
    ]
    return made, reference.decode_attention(query[-1, -1:], *rows)


def _captured(function: Callable[[], Tensor], device: str) -> Function:
    if device == "cpu":
        raise ValueError("a CUDA graph takes a GPU")
    function()  # compiles
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = function()

    def replay() -> Tensor:
        graph.replay()
        return out

    return replay


def _rung_in_triton(name: str, query: Tensor, key: Tensor, value: Tensor) -> Function:
    from course_utils.bench import serving_triton

    if name == RUNGS["warp_per_head"]:
        return lambda: serving_triton.first_rung(query, key, value)[0]
    splits = _chosen_splits(query, key) if name == PIECES else 1
    return lambda: serving_triton.decode_attention(query, key, value, splits=splits)[0]


def _step_in_triton(inputs: Sequence[Tensor], workspace: Tensor) -> Function:
    from course_utils.bench import serving_triton

    batch, length = len(inputs[-1]), inputs[-2].shape[1] * STEP_PAGE_SIZE
    multiprocessors = torch.cuda.get_device_properties(inputs[0].device).multi_processor_count
    splits = max(1, 2 * multiprocessors // (batch * KV_HEADS))
    size = max(FEWEST_KEYS, ceil_div(length, splits))
    return lambda: serving_triton.decode_step(*inputs, workspace, split_size=size)[0]


def loop(
    *, device: str = "cuda", requests: int = 200, longest: int = 512, pages: int = 256, page_size: int = 16
) -> list[Row]:
    """A trace of requests with a heavy tail, served by the small model: in pages, and with pages reserved for the
    longest request as a contiguous cache must; with bits that do not depend on the batch, and with torch's sums.

    Each row has the columns of `serving.summary`, and new tokens a second of the whole run, Python included.
    """
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
    """TB/s of the sum of a large tensor: a kernel that only reads and adds up. Attention may read a little faster."""
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
    """Random query, key and value. The values are not centred: else an average over many keys would be near 0, and any
    error with it."""
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
    """`_rows` of functions of this cache. The bytes are counted for `length` keys of each sequence, or for
    `lengths`."""
    keys = int(where["length"]) * (1 if lengths is not None else int(where["batch"]))
    bytes_of_key = 2 * key.shape[1] * key.shape[3]

    def read(name: str) -> int:
        return keys * bytes_of_key * (1 if "E4M3" in name else key.element_size())

    return _rows(part, where, made, _last_sequence(query, key, value, lengths), read, checked)


def _rows(
    part: str,
    where: Row,
    made: dict[str, Callable[[], Function]],
    expected: Tensor,
    read: Callable[[str], int],
    checked: Sequence[str] | None = None,
    head_start_us: float = HEAD_START_US,
) -> list[Row]:
    """A row for each function that runs here, after a check of its output. expected: the output of the last sequence,
    with which the whole output ends. read: the bytes of keys and values, of a function by name. checked: the names of
    the functions to check; None: all."""
    functions = that_run(made, str(where))
    for name in functions.keys() & set(functions if checked is None else checked):
        found = functions[name]().reshape(-1, expected.numel())[-1]
        require_close(f"{name}, {where}", found, expected.flatten().to(found.dtype), at_most=MAX_ERROR)
    ceiling = read_ceiling(str(expected.device))
    rows: list[Row] = []
    times = timing.compare(functions, budget_ms=BUDGET_MS, head_start_us=head_start_us)
    for name, taken in times.items():
        row: Row = {"part": part, **where, "name": name, "us": 1e3 * taken.median, "spread_us": 1e3 * taken.spread}
        row |= {"tb_per_s": read(name) / taken.median / 1e9}
        rows.append(row | {"share": row["tb_per_s"] / ceiling, "ceiling_tb_per_s": ceiling})
    return rows


def _last_sequence(query: Tensor, key: Tensor, value: Tensor, lengths: Tensor | None) -> Tensor:
    """The right output of the last sequence."""
    length = key.shape[2] if lengths is None else int(lengths[-1])
    return reference.decode_attention(query[-1:], key[-1:, :, :length], value[-1:, :, :length])


def _chosen_splits(query: Tensor, key: Tensor) -> int:
    batch, kv_heads, length, head_dim = key.shape
    rows = query.shape[1] // kv_heads * query.shape[2]
    tile = serving_choice.decode_tile(rows, batch * kv_heads, head_dim, key.element_size(), key.device)
    return serving_choice.cut_keys(batch, kv_heads, length, False, 0, 0, tile, key.device).pieces // batch


def _flashinfer(query: Tensor, keys: Tensor, values: Tensor, table: Tensor, lengths: Tensor) -> Function:
    """FlashInfer on a paged cache, if it is installed."""
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
