"""The two teaching forwards, FlashAttention-2's loops and the first FlashAttention's, launched as the chapter does."""

import dataclasses
import functools

import numpy as np
import pytest
import torch

from course_utils import checks
from course_utils.costs import ceil_div
from course_utils.cuda import RawModule, read_kernel
from tests.helpers.one_of_each import every_second

TILES = ((64, 32), (32, 48))  # (B_r, B_c); the second has B_c > B_r


@functools.cache
def build(code, name, head_dim, tile):
    options = f"-DD={head_dim}", f"-DB_R={tile[0]}", f"-DB_C={tile[1]}"
    return RawModule(code=code, options=options).get_function(name)


def plain(query, key, value, *, is_causal=False, scale=None, return_lse=False, tile=TILES[0], code=None):
    out, lse = torch.empty_like(query), query.new_empty(query.shape[:3])
    launch("forward_plain", code, tile, query, key, value, (out, lse), scale, is_causal)
    return (out, lse) if return_lse else out


def fa1_order(query, key, value, *, is_causal=False, scale=None, return_lse=False, tile=TILES[0], code=None):
    out, l, m = torch.empty_like(query), query.new_empty(query.shape[:3]), query.new_empty(query.shape[:3])  # noqa: E741
    launch("forward_fa1_order", code, tile, query, key, value, (out, l, m), scale, is_causal)
    return (out, m + torch.log(l)) if return_lse else out


def launch(name, code, tile, query, key, value, outputs, scale, is_causal):
    batch, heads, query_length, d = query.shape
    rows, cols = tile
    first = name == "forward_fa1_order"
    kernel = build(code or read_kernel(f"02_flash_attention_minimal/{name}.cu"), name, d, tile)
    lengths = np.int32(query_length), np.int32(key.shape[2])
    factor = np.float32(d**-0.5 if scale is None else scale)
    kernel(
        (1 if first else ceil_div(query_length, rows), heads, batch),
        (rows,),
        (query, key, value, *outputs, *lengths, factor, np.int32(is_causal)),
        shared_mem=4 * ((2 if first else 1) * rows * (d + 1) + 2 * cols * d + rows * (cols + 1)),
    )


def cases():
    return [case for case in checks.attention_cases() if not case.strided]


@pytest.mark.parametrize("forward", [plain, fa1_order])
@pytest.mark.parametrize("tile", TILES)
def test_correct_on_every_case(device, forward, tile, thinned):
    selected = thinned(cases() if tile == TILES[0] else cases()[::3], 4, forward is plain)
    checks.check_attention(functools.partial(forward, tile=tile), device=device, lse=True, cases=selected)


BROKEN = {
    plain: [
        ("m_new = fmaxf(m_new, s);", "m_new = 0;"),  # no running maximum: exp overflows
        ("        l *= rescale;", ""),
        ("O_i[d] *= rescale", "O_i[d] *= 1"),
        ("j0 + c > i + shift", "j0 + c > i + shift + 1"),  # sees one key of the future
        ("j0 + c > i + shift", "j0 + c > i"),  # top-left
        ("j0 + c >= L_k ||", ""),  # the ragged end counts as keys of zeros
        ("min(L_k, i0 + B_R + shift)", "min(L_k, i0 + shift)"),  # skips a tile too many
    ],
    fa1_order: [
        ("m_new = fmaxf(m_new, s);", "m_new = 0;"),
        ("l_new = l_old * rescale", "l_new = l_old"),
        ("tile.O[t][d] * l_old * rescale", "tile.O[t][d] * l_old"),
        ("tile.O[t][d] * l_old * rescale", "tile.O[t][d] * rescale"),  # forgets that O is kept normalised
        ("l_new > 0 ? o / l_new : 0", "o / l_new"),
        ("max(j0 - shift, 0) / B_R * B_R", "max(j0 - shift + B_R, 0) / B_R * B_R"),
    ],
}


@pytest.mark.parametrize(
    ("forward", "right", "wrong"),
    every_second((forward, *change) for forward, changes in BROKEN.items() for change in changes),
)
def test_a_broken_kernel_fails_the_check(forward, right, wrong):
    name = "forward_plain" if forward is plain else "forward_fa1_order"
    code = str(read_kernel(f"02_flash_attention_minimal/{name}.cu"))
    assert code.count(right) == 1
    broken = functools.partial(forward, code=code.replace(right, wrong))
    # Lengths differ in the selected cases, all kinds of input occur, and some rows see no key.
    selected = [dataclasses.replace(case, head_dim=32) for case in cases() if case.query_length != case.key_length]
    selected.sort(key=lambda case: not case.is_causal)  # where most mistakes show
    with pytest.raises(AssertionError, match="max error|NaN|finite|zero|inf"):
        checks.check_attention(broken, lse=True, cases=selected, seed=0)
