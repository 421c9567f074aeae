"""What is passed to a kernel: tensors without memory are refused, and the quick look at arguments like those of the
last launch lets nothing pass that the whole check would not."""

import ctypes
import warnings

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from course_utils.cuda import RawModule
from course_utils.toolchain.parameters import CheckedArguments
from course_utils.toolchain.tensor_map import PassedMap

CODE = 'extern "C" __global__ void add(const float* x, float* y, int n, float a, long long m, bool b, void* raw) {}'
KERNEL = RawModule(code=CODE).get_function("add")


def arguments(**other):
    """Good arguments, but for those given by name."""
    good = {"x": torch.ones(8), "y": torch.ones(8), "n": np.int32(8), "a": np.float32(2), "m": np.int64(-3)}
    good |= {"b": np.bool_(True), "raw": torch.ones(2)}
    return tuple((good | other).values())


def freed(count=8, *, first=0, left=0):
    """Numbers from the first-th on, of whose storage so many bytes are left."""
    tensor = torch.ones(first + count)[first:]
    tensor.untyped_storage().resize_(left)
    return tensor


def fake():
    with FakeTensorMode():
        return torch.ones(8)


def under(transform):
    """What a function gets in place of its argument under a transform of torch.func."""
    seen = []
    transform(lambda tensor: (seen.append(tensor), tensor.sum())[1])(torch.ones(8, 8))
    return seen[0]


with warnings.catch_warnings(action="ignore"):  # that such tensors are a prototype
    NESTED = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])
WITHOUT_MEMORY = {
    "freed": (freed, " has 0 bytes of memory for the 32 of shape \\[8\\]"),
    "freed in part": (lambda: freed(left=8), " has 8 bytes of memory for the 32"),
    "a view, freed in part": (lambda: freed(4, first=4, left=24), " has 24 bytes of memory for the 32"),
    "fake": (fake, ", a FakeTensor, has 0 bytes of memory for the 32"),
    "functional": (lambda: torch._to_functional_tensor(torch.ones(8)), " has 0 bytes of memory for the 32"),
    "zeros by name only": (lambda: torch._efficientzerotensor((8,)), " has 0 bytes of memory for the 32"),
    "vmap": (lambda: under(torch.vmap), " has 0 bytes of memory for the 32"),
    "grad": (lambda: under(torch.func.grad), " has 0 bytes of memory for the 256"),
    "functionalize": (lambda: under(torch.func.functionalize), " has 0 bytes of memory for the 256"),
}


@pytest.mark.parametrize("kind", WITHOUT_MEMORY)
def test_a_tensor_without_memory_never_reaches_a_launch(kind):
    make, message = WITHOUT_MEMORY[kind]
    with pytest.raises(ValueError, match=rf"argument 1 \('y'\) of add\(\){message}"):
        KERNEL((1,), (1,), arguments(y=make()))


def test_a_tensor_without_elements_needs_no_memory():
    KERNEL((1,), (1,), arguments(y=torch.empty(0), raw=freed(0)))


def test_a_nested_tensor_is_refused():
    with pytest.raises(TypeError, match=r"argument 0 \('x'\) of add\(\) has layout nested; it must be torch.strided"):
        KERNEL((1,), (1,), arguments(x=NESTED))


def test_a_conjugated_view_is_refused():
    with pytest.raises(ValueError, match=r"argument 6 \('raw'\) .* conjugated .* call .resolve_conj\(\) first"):
        KERNEL((1,), (1,), arguments(raw=torch.ones(2, dtype=torch.complex64).conj()))


# ---- the quick look


@pytest.fixture
def checked():
    return CheckedArguments(arguments(), torch.device("cpu"))


OTHERS = {
    "another dtype": {"x": lambda: torch.ones(8).double()},
    "a dtype of the same size": {"x": lambda: torch.ones(8).int()},
    "another device": {"x": lambda: torch.ones(8, device="meta")},
    "strides": {"x": lambda: torch.ones(16)[::2]},
    "sparse": {"x": lambda: torch.ones(8, 8).to_sparse()},
    "negated": {"x": lambda: torch._neg_view(torch.ones(8))},
    "nested": {"x": lambda: NESTED},
    "an array": {"x": lambda: np.ones(8, np.float32)},
    "a number for a tensor": {"x": lambda: np.float32(1)},
    "a tensor for a number": {"n": lambda: torch.tensor(8, dtype=torch.int32)},
    "an int": {"n": lambda: 8},
    "a float": {"a": lambda: 2.0},
    "a number of another size": {"n": lambda: np.int64(8)},
    "one more": {"more": lambda: np.int32(1)},
    **{kind: {"x": make} for kind, (make, _) in WITHOUT_MEMORY.items()},
}


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_what_is_not_as_in_the_last_launch_is_left_to_the_whole_check(checked, other):
    assert checked.values(arguments()) is not None
    is_left = checked.values(arguments(**{name: make() for name, make in other.items()})) is None
    assert is_left  # without the tensors in the message: to print one that has no memory ends the process


def test_arguments_that_are_no_tuple_are_left_to_the_whole_check(checked):
    assert checked.values(list(arguments())) is None and checked.values(torch.ones(7)) is None


@pytest.mark.parametrize("args", [(np.int32(1),), (), arguments(raw=torch.ones(2, dtype=torch.complex64))])
def test_without_a_real_tensor_every_launch_is_checked_in_whole(args):
    assert CheckedArguments(args, torch.device("cpu")).values(args) is None


def test_a_parameter_of_a_model_and_a_tensor_without_elements_are_as_quick():
    args = arguments(x=torch.nn.Parameter(torch.ones(8)), raw=torch.empty(0))
    assert CheckedArguments(args, torch.device("cpu")).values(args) is not None


# ---- as the driver takes them


def read_back(address, sizes):
    """The bytes of each value, found as the driver finds them: by an array of addresses."""
    addresses = (ctypes.c_uint64 * len(sizes)).from_address(address)
    return [ctypes.string_at(where, size) for where, size in zip(addresses, sizes, strict=True)]


SCALARS = [
    *(np.int8(-1), np.uint8(255), np.int16(-2), np.uint16(65535), np.int32(-(2**31)), np.uint32(2**32 - 1)),
    *(np.int64(-(2**63)), np.uint64(2**64 - 1), np.longlong(-5), np.float16(0.1), np.float32(0.1), np.float64(0.1)),
    *(np.float32("inf"), np.float32("-nan"), np.float16("inf"), np.float64("-inf"), np.bool_(True), np.bool_(False)),
]


def test_the_driver_finds_every_value_bit_by_bit():
    x = torch.ones(8)
    struct = np.zeros((), np.dtype("i4,f4,i4"))[()]
    args = [x, *SCALARS, struct, np.complex64(1 + 2j), x[4:]]
    checked = CheckedArguments(args, torch.device("cpu"))
    _, address = checked.fill(CheckedArguments.checked_values(args))
    expected = [np.uint64(v.data_ptr()) if isinstance(v, torch.Tensor) else v for v in args]
    assert read_back(address, [v.nbytes for v in expected]) == [v.tobytes() for v in expected]


def test_two_launches_at_a_time_have_memory_of_their_own_which_later_ones_take_again(checked):
    values = [checked.values(arguments(n=np.int32(n))) for n in range(3)]
    first, second = checked.fill(values[0]), checked.fill(values[1])
    assert [read_back(address, [8, 8, 4])[2] for _, address in (first, second)] == [b"\0\0\0\0", b"\1\0\0\0"]
    checked.release(first)
    third = checked.fill(values[2])
    checked.release(second)
    fourth = checked.fill(values[1])
    assert (third[1], fourth[1]) == (first[1], second[1])
    assert [read_back(address, [8, 8, 4])[2] for _, address in (third, fourth)] == [b"\2\0\0\0", b"\1\0\0\0"]


def test_what_stays_is_laid_out_behind_what_a_launch_gives():
    args, given = arguments(), [0, 6]
    checked = CheckedArguments(args, torch.device("cpu"), given)
    others = torch.ones(8), torch.ones(4)
    assert checked.values(others[:1]) is None and checked.values((*others, others[0])) is None
    for first, last in (others, others[::-1]):
        filled = checked.fill(checked.values((first, last)))
        now = first, *args[1:6], last
        expected = [np.uint64(v.data_ptr()) if isinstance(v, torch.Tensor) else v for v in now]
        assert read_back(filled[1], [v.nbytes for v in expected]) == [v.tobytes() for v in expected]
    args[1].untyped_storage().resize_(0)
    is_left = checked.values(others) is None
    assert is_left  # as above


class Encoded:
    """A tensor map, encoded by no driver."""

    def __init__(self, tensor):
        self.tensor = tensor

    def for_gpu(self):
        return np.void(self.tensor.data_ptr().to_bytes(8, "little") * 16)


def test_a_tensor_that_the_kernel_takes_as_a_map_is_encoded_once_for_each_address():
    made = []
    passed_map = PassedMap(lambda tensor: made.append(tensor) or Encoded(tensor))
    args, given = arguments(), [0, 6]
    checked = CheckedArguments(args, torch.device("cpu"), given, maps={0: passed_map})
    others = torch.ones(8), torch.ones(4)
    for first, last in (others, others[::-1], others):
        filled = checked.fill(checked.values((first, last)))
        found = read_back(filled[1], [128, *(8 if isinstance(v, torch.Tensor) else v.nbytes for v in args[1:])])
        assert found[0] == Encoded(first).for_gpu().tobytes() and found[6] == last.data_ptr().to_bytes(8, "little")
        assert found[1] == args[1].data_ptr().to_bytes(8, "little")
    assert len(made) == 2
    assert checked.values((others[0].double(), others[1])) is None
    for _ in range(PassedMap.MOST):
        made.append(tensor := torch.ones(1))
        passed_map.encoded(tensor)
    assert passed_map.encoded(others[0]) == Encoded(others[0]).for_gpu().tobytes()
