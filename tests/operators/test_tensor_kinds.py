"""Every kind of tensor that torch has, given to an operator and to a launch: the right result, or an error that names
the tensor. None may reach a kernel without memory of its own, which would end the process."""

import contextlib
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from course_utils.cuda import RawModule
from course_utils.operators import append_paged, decode_attention, flash_attention_minimal, select_topk
from tests.helpers import tensors

DOUBLE = """extern "C" __global__ void twice(const float* x, float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = 2 * x[threadIdx.x];
}"""


class Subclass(torch.Tensor):
    """A tensor by another name."""


class Wrapper(torch.Tensor):
    """A tensor that holds another one, and has no memory of its own."""

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(cls, held.shape, dtype=held.dtype, device=held.device)
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        args = torch.utils._pytree.tree_map_only(Wrapper, lambda wrapper: wrapper.held, args)
        return function(*args, **(kwargs or {}))


def resized(tensor, size=0):
    tensor = tensor.clone()
    tensor.untyped_storage().resize_(size)
    return tensor


def read_only(tensor):
    array = tensor.cpu().numpy().copy()
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch cannot know it, and says so
        return torch.from_numpy(array)


def inference(tensor):
    with torch.inference_mode():
        return tensor.clone()


LIKE_ANY_OTHER = {
    "plain": torch.clone,
    "parameter": lambda tensor: torch.nn.Parameter(tensor.clone()),
    "in shared memory": lambda tensor: tensor.cpu().share_memory_(),
    "read-only": read_only,
    "pinned": pytest.param(lambda tensor: tensor.cpu().pin_memory(), marks=pytest.mark.gpu),
    "subclass": lambda tensor: tensor.clone().as_subclass(Subclass),
    "inference": inference,
}
WITHOUT_MEMORY = {
    "fake": lambda tensor: FakeTensorMode().from_tensor(tensor),
    "functional": torch._to_functional_tensor,
    "resized to nothing": resized,
    "resized to less": lambda tensor: resized(tensor, 8),
    "constant of zeros": lambda tensor: torch._efficientzerotensor(tensor.shape, device=tensor.device),
    "wrapper": Wrapper,
}
NOT_STRIDED = {
    "sparse": torch.Tensor.to_sparse,
    "compressed": lambda tensor: tensor.reshape(2, -1).to_sparse_csr(),
    "nested": lambda tensor: torch.nested.nested_tensor([tensor, tensor]),
    "jagged": lambda tensor: torch.nested.nested_tensor([tensor, tensor], layout=torch.jagged),
}


def cases(kinds):
    return [
        pytest.param(*kind.values, id=name, marks=kind.marks) if hasattr(kind, "marks") else pytest.param(kind, id=name)
        for name, kind in kinds.items()
    ]


@pytest.fixture(autouse=True)
def prototypes_may_warn():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(prototype|beta|deprecated).*", category=UserWarning)
        yield


def launch(x):
    y = torch.zeros(8, device=x.device)
    RawModule(code=DOUBLE).get_function("twice")((1,), (8,), (x, y, np.int32(8)))
    return y


def attend(query):
    key = tensors.random(1, 1, 3, 32, device=query.device, seed=1)
    return flash_attention_minimal(query, key, key)


@pytest.fixture
def numbers(device):
    return tensors.random(8, device=device)


@pytest.fixture
def query(device):
    return tensors.random(1, 1, 4, 32, device=device)


@pytest.mark.parametrize("kind", cases(LIKE_ANY_OTHER))
def test_tensors_with_memory_are_like_any_other(kind, numbers, query):
    x = kind(numbers)
    assert torch.equal(launch(x.detach()), 2 * torch.Tensor(x.detach()))
    query = kind(query)
    assert torch.equal(attend(query), attend(query.detach().clone()))


@pytest.mark.parametrize("kind", cases(WITHOUT_MEMORY))
def test_a_launch_refuses_a_tensor_without_memory(kind, numbers):
    with pytest.raises(ValueError, match=r"argument 0 \('x'\) of twice\(\).* has [08] bytes of memory for the 32 of"):
        launch(kind(numbers))


@pytest.mark.parametrize("kind", cases(NOT_STRIDED))
def test_tensors_that_are_not_strided_are_refused(kind, numbers, query):
    with pytest.raises(TypeError, match=r"argument 0 \('x'\) of twice\(\) has layout .*; it must be torch.strided"):
        launch(kind(numbers))
    with pytest.raises(TypeError, match="query has layout .*; it must be torch.strided, and not nested"):
        attend(kind(query))


ALIKE = {name: kind for name, kind in LIKE_ANY_OTHER.items() if name not in ("in shared memory", "read-only", "pinned")}
RESIZED = {name: kind for name, kind in WITHOUT_MEMORY.items() if name.startswith("resized")}


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        *((case, None) for case in ALIKE.values()),
        *((case, "query has layout .*; it must be torch.strided, and not nested") for case in NOT_STRIDED.values()),
        *((case, "query has [08] bytes of memory for the 128 of shape") for case in RESIZED.values()),
    ],
    ids=[*ALIKE, *NOT_STRIDED, *RESIZED],
)
def test_a_check_that_is_remembered_takes_no_kind_of_tensor_for_another(kind, error, device):
    """A plain one of the same shape has passed before."""
    query, key = (tensors.random(1, 1, length, 64, device=device, dtype=torch.float16) for length in (1, 8))
    expected = decode_attention(query, key, key)
    with pytest.raises((TypeError, ValueError), match=error) if error else contextlib.nullcontext():
        assert torch.equal(decode_attention(kind(query), key, key), expected)


def test_a_check_that_is_remembered_sees_another_dtype_and_layout(device):
    key, pages = (tensors.random(*shape, 1, 64, device=device, dtype=torch.float16) for shape in ((1, 1), (2, 2)))
    table, lengths = (torch.tensor(numbers, dtype=torch.int32, device=device) for numbers in ([[0, 1]], [3]))
    inputs = key, key, pages, pages, table, lengths
    append_paged(*inputs)
    wrong = {0: key.double(), 2: pages.transpose(0, 1), 3: pages.clone().requires_grad_(), 4: table.long()}
    for place, tensor in wrong.items():
        with pytest.raises((TypeError, ValueError), match="^(key|key_pages|value_pages|block_table) (has|requires) "):
            append_paged(*inputs[:place], tensor, *inputs[place + 1 :])


def test_operators_refuse_a_storage_that_was_resized(query):
    """A copy of strided inputs would read it, too."""
    strided = query[0, 0].clone().mT
    strided.untyped_storage().resize_(0)
    for wrong in (resized(query), resized(query, 8)):
        with pytest.raises(ValueError, match="query has [08] bytes of memory for the 512 of shape"):
            attend(wrong)
    for wrong in (resized(query[0, 0]), strided):
        with pytest.raises(ValueError, match="logits has 0 bytes of memory for the 512 of shape"):
            select_topk(wrong, 2)


def test_operators_give_fake_tensors_for_fake_ones(query):
    with FakeTensorMode() as mode:
        out = attend(mode.from_tensor(query))
    assert isinstance(out, FakeTensor) and out.shape == query.shape


def test_operators_look_through_wrappers_and_constants_of_zeros(query):
    assert torch.equal(attend(Wrapper(query)), attend(query))
    functional = attend(torch._to_functional_tensor(query))
    assert torch.equal(torch._from_functional_tensor(functional), attend(query))
    zeros = torch._efficientzerotensor(query.shape, device=query.device)
    assert torch.equal(attend(zeros), attend(torch.zeros_like(query)))


def test_what_has_no_right_result_is_refused(numbers, query):
    quantised = torch.quantize_per_tensor(numbers.cpu(), 0.1, 0, torch.quint8)
    with pytest.raises(TypeError, match="expected a tensor of torch.float32, got torch.quint8"):
        launch(quantised)
    with pytest.raises(TypeError, match="query has dtype torch.quint8"):
        attend(torch.quantize_per_tensor(query.cpu(), 0.1, 0, torch.quint8))
    for lazy, message in (
        (torch._neg_view(numbers), "call .resolve_neg"),
        (numbers.cfloat().conj(), "torch.complex64"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            launch(lazy)
    with pytest.raises(TypeError, match="query has dtype torch.complex64"):
        attend(query.cfloat().conj())
    with pytest.raises(ValueError, match=r"argument 0 \('x'\) of twice\(\) is on meta"):
        launch(numbers.to("meta"))
    with pytest.raises(ValueError, match="query is on meta"):
        attend(query.to("meta"))
