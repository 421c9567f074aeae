"""The operators as torch knows them, `torch.ops.attention_course.<name>`, registered with torch.library: compilers,
exporters, profilers and `FlopCounterMode` call them like torch's own.

The functions of `course_utils.operators` check their arguments and call these. An operator that is called by its name
checks them itself. Operators take tensors with any strides and return new tensors, but for `append_paged` and
`decode_step`, which write to the cache that they are given.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual
from torch.utils.flop_counter import flop_registry

from course_utils.arguments import check_memory, once

NAMESPACE = "attention_course"
# True of every operator: torch.library.opcheck passes, and inputs may have any strides.
TAGS = "pt2_compliant_tag", "flexible_layout"

_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


class Operator:
    """An operator of torch, called as a function of its schema's arguments, by position.

    `op` is torch's object: it checks its arguments and has the gradient, or the error in place of one. `forward` is an
    overload without both, for arguments that were checked; `inference` is the one for calls that ask for no gradient,
    where that launches other kernels. `record` is the call where a gradient is asked for, by an autograd function that
    calls `forward`: in eager mode torch's own way through the gradient of `op` takes the host longer than the launches.
    """

    record: Callable[..., Any] | None = None

    def __init__(self, name: str, arguments: Sequence[str], gradient: Operator | None, refusal: str | None) -> None:
        """refusal: the error where a gradient is asked for, of an operator that writes to its arguments."""
        self.name, self.arguments, self.gradient, self._refusal = name, tuple(arguments), gradient, refusal
        packet = getattr(getattr(torch.ops, NAMESPACE), name)
        self.op = packet.default
        self.forward = getattr(packet, "forward" if "forward" in packet.overloads() else "default")
        self.inference = packet.inference if "inference" in packet.overloads() else self.forward

    def __call__(self, *args: Any) -> Any:
        tensors = [argument for argument in args if isinstance(argument, Tensor)]
        is_eager = not torch.compiler.is_compiling()
        if is_eager:
            for tensor in tensors:
                if unpack_dual(tensor).tangent is not None:  # which torch would drop without a word
                    raise NotImplementedError(
                        f"{self.name} has no forward-mode derivative; take torch.autograd's backward pass"
                    )
        if not needs_gradient(*tensors):
            return self.inference(*args)
        if self._refusal:
            raise NotImplementedError(self._refusal)
        return self.record(*args) if is_eager and self.record else self.op(*args)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a gradient of one of the tensors may be asked for."""
    if torch.is_grad_enabled():
        for tensor in tensors:
            if tensor is not None and tensor.requires_grad:
                return True
    return False


def operator(
    schema: str,
    *,
    fake: Callable[..., Any],
    check: Callable[..., object],
    gradient: Operator | None = None,
    saves: Callable[..., tuple[tuple[Tensor, ...], tuple[Any, ...]]] | None = None,
    hold: Callable[..., object] | None = None,
    instead: str | None = None,
    without_gradient: Callable[..., Any] | None = None,
    flops: Callable[..., int] | None = None,
    tags: tuple[str, ...] = (),
) -> Callable[[Callable[..., Any]], Operator]:
    """A decorator: makes an operator of the function that launches its kernels, on the emulator and on a GPU.

    Args:
        schema: name, arguments and results, all with names, as `torch.library.define` takes it, without defaults.
        fake: the same function for tensors with a shape and no memory: returns empty results.
        check: called with the arguments; raises TypeError or ValueError, which names the one that does not fit the
            kernels. It looks at no more of a tensor than `arguments.once` does, and sizes may still be open. Runs when
            the operator is called by its name or from a graph, and while a graph is made.
        gradient: the operator that computes the gradients. Its arguments are the gradient of the first result and what
            `saves` returns; its results are the gradients of this operator's first arguments, in order, and anything
            for one that is None. The first result is differentiable, once; the others are not.
        saves: saves(arguments, results) returns two tuples for the gradient: tensors, and other arguments.
        hold: hold(*arguments) returns an object that must live until the backward pass.
        instead: for an operator without a gradient: what to use in its place, named by the error of a backward pass.
            An operator that writes to its arguments raises that error at once.
        without_gradient: the function for calls that ask for no gradient, if it launches other kernels for them.
        flops: flops(*arguments) returns the operations of the matrix products, for `FlopCounterMode`.
        tags: names of `torch.Tag`, besides `TAGS`; a name that this version of torch does not know is left out.
    """
    name, arguments = schema.partition("(")[0], re.findall(r"\w+(?=[,)])", schema.partition("->")[0])
    tensors = re.findall(r"Tensor\S* (\w+)", schema.partition("->")[0])
    places = [(arguments.index(tensor), tensor) for tensor in tensors]
    known = [getattr(torch.Tag, tag) for tag in (*TAGS, *tags) if hasattr(torch.Tag, tag)]
    refusal = no_gradient(name, instead) if instead else None
    if name.endswith("_backward"):
        refusal = f"{name.removesuffix('_backward')} is differentiable once: its gradient has none"
    writes = "!" in schema  # to its arguments: torch.library takes no gradient for these, nor an error in place of one

    def register(launch: Callable[..., Any]) -> Operator:
        def faked(*args: Any) -> Any:
            check(*args)
            return fake(*args)

        passed = once(check)

        def checked(*args: Any) -> Any:
            passed(*args)
            return launch(*args)

        differentiable = not writes and bool(gradient or refusal)
        overloads = {"": checked}
        if differentiable:
            overloads[".forward"] = launch
        if without_gradient:
            overloads[".inference"] = without_gradient
        for overload, implementation in overloads.items():
            _LIBRARY.define(schema.replace("(", f"{overload}(", 1), tags=known)
            for backend in ("CPU", "CUDA"):
                _LIBRARY.impl(name + overload, _with_memory(places, implementation), backend)
            torch.library.register_fake(f"{NAMESPACE}::{name}{overload}", faked, lib=_LIBRARY)
        made = Operator(name, arguments, gradient, refusal if writes else None)
        if differentiable:
            backward = _backward(gradient, len(arguments)) if gradient else _refusing(refusal)
            setup = _setup(saves, hold) if gradient else None
            torch.library.register_autograd(f"{NAMESPACE}::{name}", backward, setup_context=setup, lib=_LIBRARY)
            if setup:
                made.record = _recorded(made.forward, setup, backward).apply
        if flops:
            # Not by register_flop_formula, which refuses an operator whose module is loaded again.
            flop_registry[made.op.overloadpacket] = lambda *args, **_: flops(*args)
        return made

    return register


def _with_memory(tensors: Sequence[tuple[int, str]], function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called only with tensors that have memory: a launch, or a copy of strided inputs, would read what
    is not there. tensors: their places among the arguments, and their names."""

    def implementation(*args: Any) -> Any:
        for place, name in tensors:
            if args[place] is not None:
                check_memory(name, args[place])
        return function(*args)

    return implementation


# ---------------------------------------------------------------------------------------------- autograd


def no_gradient(name: str, instead: str) -> str:
    """The error's words where a gradient is asked for that does not exist."""
    return f"{name} has no gradient; take {instead}, or call it under torch.no_grad() or with .detach()"


def refuse_gradient(name: str, instead: str, *tensors: Tensor | None) -> None:
    """Raises NotImplementedError where a gradient of one of the tensors may be asked for: for a function that has none,
    and that is no operator of torch or writes to its arguments."""
    if needs_gradient(*tensors):
        raise NotImplementedError(no_gradient(name, instead))


def _refusing(message: str | None) -> Callable[..., Any]:
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(message)

    return backward


def _setup(saves: Callable[..., Any], hold: Callable[..., object] | None) -> Callable[..., None]:
    def setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        tensors, ctx.others = saves(inputs, output)
        ctx.save_for_backward(*tensors)
        ctx.held = hold(*inputs) if hold else None
        ctx.set_materialize_grads(False)  # else torch would fill zeros for the other results at each backward pass
        ctx.mark_non_differentiable(*output[1:])

    return setup


def _recorded(
    launch: Callable[..., Any], setup: Callable[..., None], backward: Callable[..., Any]
) -> type[torch.autograd.Function]:
    """The function for eager mode. Not by `setup_context`: for that torch reads a signature at every call."""

    class Recorded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> Any:
            results = launch(*args)
            setup(ctx, args, results)
            return results

    Recorded.backward = staticmethod(backward)
    return Recorded


def _backward(gradient: Operator, arguments: int) -> Callable[..., Any]:
    def backward(ctx: Any, grad_out: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        found = () if grad_out is None else gradient(grad_out, *ctx.saved_tensors, *ctx.others)
        wanted = (one if needs else None for one, needs in zip(found, ctx.needs_input_grad, strict=False))
        return *wanted, *(None,) * (arguments - len(found))

    return backward
