"""The operators as torch knows them, `torch.ops.attention_course.<name>`: what compilers, exporters, autograd, autocast
and profilers need to be told of a kernel that they cannot look into.

The functions of `course_utils.operators` check their arguments and call these; an operator that is called by its name
checks them itself. It takes tensors of any strides and numbers, and gives new tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import _C, Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.utils.flop_counter import flop_registry

from course_utils.arguments import check_memory, once

NAMESPACE = "attention_course"
AUTOCAST = None  # in `casts`: to the dtype of autocast
# Of every operator: what torch.library.opcheck proves, and that inputs may come with any strides.
TAGS = "pt2_compliant_tag", "flexible_layout"
# What no autocast touches: a number of 64 bits was meant to have them, and one of 8 comes with a scale.
NEVER_CAST = torch.float64, torch.float8_e4m3fn

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator:
    """An operator of torch, called as a function of its schema's arguments, by position."""

    def __init__(self, name: str, casts: Mapping[str, torch.dtype | None]) -> None:
        self.name = name
        self.op = getattr(getattr(torch.ops, NAMESPACE), name).default
        self.arguments = tuple(argument.name for argument in self.op._schema.arguments)
        self._tensors = [n for n, a in enumerate(self.op._schema.arguments) if "Tensor" in str(a.type)]
        self.returns = tuple(result.name for result in self.op._schema.returns)
        self.launched: Callable[..., Any]  # what runs below all that torch has between a call and a kernel
        self.function: type[torch.autograd.Function] | None = None  # for eager mode, of an operator with a gradient
        self._casts = tuple((name in casts, casts.get(name)) for name in self.arguments)

    def __call__(self, *args: Any) -> Any:
        """The operator, as `self.op(*args)`. In eager mode, where torch's dispatcher would only find the way to
        `launched`, it is not asked: to find it takes the host as much time as a launch."""
        if not _nothing_watches():
            return self.op(*args)
        for number in self._tensors:
            if not _is_plain(args[number]):
                return self.op(*args)
        if not torch.is_grad_enabled() or not _C._any_requires_grad(*args):
            return self.launched(*args)
        return self.function.apply(None, *args) if self.function else self.op(*args)

    def autocast(self, *args: Any) -> tuple[Any, ...]:
        """The first arguments, tensors cast as the operator casts them where autocast is on for their device: for a
        function that looks at dtypes before it calls the operator. What is no tensor stays what it is."""
        if not torch.compiler.is_compiling() and not _C._is_any_autocast_enabled():
            return args
        device = next((argument.device.type for argument in args if isinstance(argument, Tensor)), "cpu")
        if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
            return args
        return self._cast(args, torch.get_autocast_dtype(device))

    def _cast(self, args: tuple[Any, ...], lower: torch.dtype) -> tuple[Any, ...]:
        return tuple(
            argument.to(dtype or lower) if casts and _may_be_cast(argument) else argument
            for argument, (casts, dtype) in zip(args, self._casts, strict=False)
        )


def operator(
    schema: str,
    *,
    fake: Callable[..., Any],
    check: Callable[..., object],
    casts: Mapping[str, torch.dtype | None] | None = None,
    gradient: Operator | None = None,
    is_gradient: bool = False,
    instead: str | None = None,
    keeps: Callable[..., object] | None = None,
    flops: Callable[..., int] | None = None,
    tags: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Operator]:
    """A decorator: makes an operator of the function that launches its kernels, on the emulator and on a GPU.

    Args:
        schema: name, arguments and results, all with names, as `torch.library.define` takes it, without defaults.
        fake: the same function for tensors that have a shape and no memory: it makes the results, empty.
        check: of the arguments, raises TypeError or ValueError, which names the one that does not fit the kernels. Of a
            tensor it looks at no more than `arguments.once` does, and it may have sizes that are still open. It is for
            whoever calls the operator by torch's name for it, or from a graph, which asks while it is made, too; who
            calls what this decorator gives has checked the arguments.
        casts: the arguments that autocast casts, each with the dtype, `AUTOCAST` for autocast's own. None for an
            operator that autocast leaves alone.
        gradient: the operator that computes the gradients. It takes `grad_out`, then those of this one's arguments and
            results that it has in its schema, by their names, and gives a tensor `grad_<name>` for each argument with a
            gradient. The first result is differentiable, once; the others are not. None for an operator without one.
        is_gradient: whether this is such a gradient, which has none of its own: to ask for one is an error.
        instead: of an operator that has no gradient, and results that could have one, what to take in its place: for
            the error where a gradient is asked for. An operator that only writes to its arguments is refused at once.
        keeps: of the arguments, what must live until the backward pass beside the tensors.
        flops: of the arguments, how many operations the matrix products take: what `FlopCounterMode` counts. None for
            an operator without matrix products.
        tags: what else is true of the operator, beside `TAGS`: names of `torch.Tag`; those that an older torch does not
            know are left out.
    """

    def register(launch: Callable[..., Any]) -> Operator:
        known = [getattr(torch.Tag, tag) for tag in (*TAGS, *tags) if hasattr(torch.Tag, tag)]
        _LIBRARY.define(schema, tags=known)
        made = Operator(schema.partition("(")[0], casts or {})
        name = made.name
        made.launched = _with_memory(made, launch)
        for backend in ("CPU", "CUDA"):
            _LIBRARY.impl(name, _checked(made, once(check)), backend)
        torch.library.register_fake(f"{NAMESPACE}::{name}", _faked(check, fake), lib=_LIBRARY)
        for batched in ("FuncTorchBatched", "Batched"):
            _LIBRARY.impl(name, _no_vmap(made), batched)
        if any(argument.is_write for argument in made.op._schema.arguments):
            _LIBRARY.impl(name, _none_negated_is_written(made), "Negative")
        refusal = no_gradient(name, instead) if instead else None
        if is_gradient:
            refusal = f"{name.removesuffix('_backward')} is differentiable once: its gradient has none"
        if gradient:
            made.function = _differentiable(made, gradient, keeps)
        elif refusal:
            made.function = _refusing(made, refusal)
        if made.function:
            _LIBRARY.impl(name, _autograd(made, made.function, refusal), "Autograd", with_keyset=True)
        else:
            _LIBRARY.impl(name, torch.library.fallthrough_kernel, "Autograd")
        if casts:
            for backend in ("CPU", "CUDA"):
                _LIBRARY.impl(name, _autocast(made, backend), f"Autocast{backend}")
        if flops:
            # Not by register_flop_formula, which takes no operator twice, as where a module is loaded again.
            flop_registry[made.op.overloadpacket] = lambda *args, **_: flops(*args)
        return made

    return register


def _checked(made: Operator, check: Callable[..., object]) -> Callable[..., Any]:
    """What the dispatcher calls: nobody may have looked at the arguments before. The calls of a compiled model, too,
    come here."""

    def implementation(*args: Any) -> Any:
        check(*args)
        return made.launched(*args)

    return implementation


def _faked(check: Callable[..., object], fake: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiler calls: of arguments that do not fit it hears while it makes the graph."""

    def implementation(*args: Any) -> Any:
        check(*args)
        return fake(*args)

    return implementation


def _with_memory(made: Operator, launch: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called with tensors that have memory only: a copy, and a launch, would read what is not there."""
    tensors = [(n, made.arguments[n]) for n in made._tensors]

    def launched(*args: Any) -> Any:
        try:
            for number, name in tensors:
                if args[number] is not None:
                    check_memory(name, args[number])
        except ValueError:
            if any(isinstance(one, Tensor) and _C._functorch.is_legacy_batchedtensor(one) for one in args):
                _no_vmap(made)()  # of is_grads_batched, which `_nothing_watches` does not see
            raise
        return launch(*args)

    return launched


def _nothing_watches() -> bool:
    """Whether a call in this thread is only to be run: no compiler, exporter, transform, autocast, mode or profiler of
    torch has a part in it."""
    return not (
        torch.compiler.is_compiling()
        or _C._len_torch_dispatch_stack()
        or _C._is_torch_function_mode_enabled()
        or _C._are_functorch_transforms_active()
        or _C._is_any_autocast_enabled()
        or _C._get_tracing_state()
        or _C._autograd._profiler_enabled()
        or forward_ad._current_level >= 0
    )


def _is_plain(argument: Any) -> bool:
    """Whether an argument for a tensor is None, or one for which the dispatcher has nothing to do."""
    if type(argument) is not Tensor and type(argument) is not Parameter:
        return argument is None
    on_device = argument.is_cuda or argument.is_cpu
    return on_device and not argument.is_neg() and not argument._is_zerotensor()


def _no_vmap(made: Operator) -> Callable[..., Any]:
    def batched(*_: Any) -> Any:
        raise RuntimeError(
            f"{made.name} has no rule for torch.vmap, nor for is_grads_batched, which is one: its tensors have axes of "
            "batch and heads already; put there what is to be mapped"
        )

    return batched


def _none_negated_is_written(made: Operator) -> Callable[..., Any]:
    """An operator that writes to arguments where some tensor's sign is still to be changed (`Tensor.is_neg`): others
    come with their own numbers. torch's way for all operators writes to copies, and ends in an assertion of its own."""
    writes = tuple(argument.is_write for argument in made.op._schema.arguments)

    def negated(*args: Any) -> Any:
        for name, argument, written in zip(made.arguments, args, writes, strict=True):
            if written and isinstance(argument, Tensor) and argument.is_neg():
                raise ValueError(f"{name} is a negated view; it is written in place: call .resolve_neg() first")
        return made.op(*(one.resolve_neg() if isinstance(one, Tensor) else one for one in args))

    return negated


def _autocast(made: Operator, backend: str) -> Callable[..., Any]:
    device, off = backend.lower(), _C.DispatchKeySet(getattr(_C.DispatchKey, f"Autocast{backend}"))

    def cast(*args: Any) -> Any:
        with _C._ExcludeDispatchKeyGuard(off):
            return made.op(*made._cast(args, torch.get_autocast_dtype(device)))

    return cast


def _may_be_cast(argument: Any) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point() and argument.dtype not in NEVER_CAST


# ---------------------------------------------------------------------------------------------- autograd


def no_gradient(name: str, instead: str) -> str:
    """What the error says where someone asks for a gradient that there is not."""
    return f"{name} has no gradient; take {instead}, or call it under torch.no_grad() or with .detach()"


def refuse_gradient(name: str, instead: str, *tensors: Tensor) -> None:
    """Raises NotImplementedError where a gradient of a function may be asked for that has none: of one of the tensors,
    and of no operator of torch."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        raise NotImplementedError(no_gradient(name, instead))


def _autograd(made: Operator, function: type[torch.autograd.Function], refusal: str | None) -> Callable[..., Any]:
    """The operator where a gradient may be asked for. refusal: what is said where it has none. An autograd Function of
    our own takes two thirds of the time that `torch.library.register_autograd` takes, and can say which results have no
    gradient."""

    no_forward = f"{made.name} has no forward-mode derivative; take torch.autograd's backward pass"
    not_by_func = (
        f"{made.name} is not differentiated by torch.func (grad, vjp, jacrev); take torch.autograd.grad or backward(), "
        "with torch.func.functional_call where the parameters come from outside"
    )

    def differentiated(keyset: Any, *args: Any) -> Any:
        if forward_ad._current_level >= 0 and any(
            isinstance(argument, Tensor) and forward_ad.unpack_dual(argument).tangent is not None for argument in args
        ):
            raise NotImplementedError(refusal or no_forward)
        if torch.is_grad_enabled() and _C._any_requires_grad(*args):
            if _C._are_functorch_transforms_active():
                raise NotImplementedError(refusal or not_by_func)
            return function.apply(keyset, *args)
        return _below_autograd(made, keyset, args)

    return differentiated


def _below_autograd(made: Operator, keyset: Any, args: tuple[Any, ...]) -> Any:
    """The operator without its gradient. keyset: what the dispatcher was asked with, None where it was not."""
    if keyset is None:
        return made.launched(*args)
    with _C._AutoDispatchBelowAutograd():
        return made.op.redispatch(keyset & _C._after_autograd_keyset, *args)


def _differentiable(
    made: Operator, gradient: Operator, keeps: Callable[..., object] | None
) -> type[torch.autograd.Function]:
    """The operator and its gradient as an autograd Function."""
    names = *made.arguments, *made.returns
    taken = [(names.index(a.name), str(a.type) == "Tensor") for a in gradient.op._schema.arguments[1:]]
    saved = [number for number, is_tensor in taken if is_tensor]
    others = [number for number, is_tensor in taken if not is_tensor]
    given = [made.arguments.index(name.removeprefix("grad_")) for name in gradient.returns]
    assert [is_tensor for _, is_tensor in taken] == sorted((is_tensor for _, is_tensor in taken), reverse=True)
    assert given == list(range(len(given)))
    without = (None,) * (len(made.arguments) - len(given))

    def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
        results = _below_autograd(made, keyset, args)
        values = *args, *results
        ctx.save_for_backward(*(values[number] for number in saved))
        ctx.others = [values[number] for number in others]
        ctx.kept = keeps(*args) if keeps else None
        ctx.set_materialize_grads(False)  # else torch would fill zeros for what has no gradient, at each backward pass
        ctx.mark_non_differentiable(*results[1:])
        return results

    def backward(ctx: Any, grad_out: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        if grad_out is None:
            return (None,) * (1 + len(made.arguments))
        return None, *gradient(grad_out, *ctx.saved_tensors, *ctx.others), *without

    return _function(made.name, forward, backward)


def _refusing(made: Operator, refusal: str) -> type[torch.autograd.Function]:
    """An operator without a gradient as an autograd Function: it says so instead of passing for a constant."""

    def forward(ctx: Any, keyset: Any, *args: Any) -> Any:
        if not made.returns:  # no backward pass would come by
            raise NotImplementedError(refusal)
        return _below_autograd(made, keyset, args)

    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(refusal)

    return _function(made.name, forward, backward)


def _function(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> type[torch.autograd.Function]:
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type(name, (torch.autograd.Function,), methods)
