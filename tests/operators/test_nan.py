"""NaN in a key or a value: which rows it reaches, as the docstring of course_utils.operators says."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from course_utils import operators, patterns
from tests.helpers import tensors

HALF, SINGLE = torch.float16, torch.float32
LENGTH, AT, TILE = 200, 150, 64  # each of them has tiles of 64 keys, or of parts of that
ROWS = set(range(LENGTH))
SEEING, OF_ITS_TILE = set(range(AT, LENGTH)), set(range(AT // TILE * TILE, LENGTH))


def sparse_attention(query, key, value, *, is_causal):
    return operators.sparse_attention(query, key, value, patterns.causal())


def sdpa(query, key, value, *, is_causal):
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(query, key, value, is_causal=is_causal)


def rows_of_nan(operator, dtype, head_dim, device, *, is_value):
    query, key, value = (
        tensors.random(1, 1, LENGTH, head_dim, device=device, dtype=dtype, seed=seed) for seed in range(3)
    )
    (value if is_value else key)[0, 0, AT, 3] = torch.nan
    out = operator(query, key, value, is_causal=True)[0, 0]
    return set(out.isnan().any(dim=-1).nonzero().flatten().tolist())


@pytest.mark.parametrize(
    ("operator", "dtype", "head_dim", "by_key", "by_value"),
    [
        pytest.param(sdpa, SINGLE, 16, ROWS, ROWS, id="PyTorch"),
        pytest.param(operators.naive_attention, SINGLE, 16, SEEING, ROWS, id="naive"),
        pytest.param(operators.flash_attention_minimal, SINGLE, 16, SEEING, OF_ITS_TILE, id="minimal"),
        pytest.param(operators.flash_plain, SINGLE, 16, set(), OF_ITS_TILE, id="plain"),
        pytest.param(operators.flash_fa1_order, SINGLE, 16, set(), OF_ITS_TILE, id="fa1"),
        pytest.param(operators.flash_attention_v2, HALF, 16, SEEING, OF_ITS_TILE, id="v2"),
        pytest.param(operators.flash_attention_hopper, HALF, 64, SEEING, OF_ITS_TILE, id="hopper"),
        pytest.param(sparse_attention, HALF, 16, SEEING, OF_ITS_TILE, id="sparse"),
    ],
)
def test_nan_reaches_the_rows_that_the_docstring_names(operator, dtype, head_dim, by_key, by_value):
    """On the emulator: a GPU chooses other tiles."""
    device = torch.device("cpu")
    assert rows_of_nan(operator, dtype, head_dim, device, is_value=False) == by_key
    assert rows_of_nan(operator, dtype, head_dim, device, is_value=True) == by_value
