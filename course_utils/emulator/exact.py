"""Conversions and shifts as a GPU has them, where C++ leaves them undefined: a float that does not fit into an integer,
and a shift by the width of its operand or more.

A host compiler may do anything there, and what it does depends on what stands around: no function of a header can put
it right, least of all conversions that nobody wrote. In clang's intermediate code (LLVM IR), before it is optimised,
each of them is one instruction of its own; there it gets PTX's meaning. NVRTC makes its cvt and shl of the same ones.
"""

from __future__ import annotations

import re

# As -fno-strict-float-cast-overflow has them: of these types, and saturated to exactly this width.
_CONVERSION = re.compile(r"@llvm\.fpto([su])i\.sat\.(i\d+)\.(f32|f64)\b")
_SHIFT = re.compile(r"= (shl|lshr|ashr)(?: nuw| nsw| exact)* (i32|i64) ([^,\n]+), ([^,\n]+)")
_FLOATS = {"f32": "float", "f64": "double"}


def exact(ir: str) -> str:
    """LLVM IR in which conversions and shifts are calls of functions that do what PTX says."""
    lines = [line for line in ir.splitlines() if not (line.startswith("declare ") and _CONVERSION.search(line))]
    text = "\n".join(lines)
    conversions = sorted(set(_CONVERSION.findall(text)))
    text = _CONVERSION.sub(r"@emu.fpto\1i.\2.\3", text)
    text = _SHIFT.sub(_checked_shift, text)
    shifts = sorted(set(re.findall(r"@emu\.(shl|lshr|ashr)\.(i32|i64)\(", text)))
    declared = sorted({f"declare {width} {name}({_FLOATS[of]})" for width, name, of in map(_saturated, conversions)})
    return "\n".join([text, *declared, *(_conversion(*c) for c in conversions), *(_shift(*s) for s in shifts), ""])


def _checked_shift(found: re.Match[str]) -> str:
    operation, width, value, count = found.groups()
    if count.isdigit() and int(count) < int(width[1:]):
        return found[0]
    return f"= call {width} @emu.{operation}.{width}({width} {value}, {width} {count})"


def _function(result: str, name: str, parameters: str, *body: str) -> str:
    return "\n".join([f"define internal {result} {name}({parameters}) alwaysinline {{", *body, "}"])


def _saturated(conversion: tuple[str, str, str]) -> tuple[str, str, str]:
    """The intrinsic behind a conversion: its result, its name, and what it takes. To 8 and 16 bits by way of 32."""
    sign, to, source = conversion
    width = "i64" if to == "i64" else "i32"
    return width, f"@llvm.fpto{sign}i.sat.{width}.{source}", source


def _conversion(sign: str, to: str, source: str) -> str:
    """NaN becomes 0; from a double, or in 64 bits, the highest bit alone."""
    width, intrinsic, _ = _saturated((sign, to, source))
    of_nan = 0 if (width, source) == ("i32", "f32") else -(1 << int(width[1:]) - 1)
    body = [
        f"  %fit = call {width} {intrinsic}({_FLOATS[source]} %x)",
        f"  %nan = fcmp uno {_FLOATS[source]} %x, %x",
        f"  %all = select i1 %nan, {width} {of_nan}, {width} %fit",
    ]
    body += [f"  ret {width} %all"] if to == width else [f"  %low = trunc {width} %all to {to}", f"  ret {to} %low"]
    name = f"@emu.fpto{sign}i.{to}.{source}"
    return _function(to, name, f"{_FLOATS[source]} %x", *body)


def _shift(operation: str, width: str) -> str:
    """A shift as a GPU does it: only 32 bits of the count matter, and too large a count shifts all bits out."""
    last = int(width[1:]) - 1
    body = [
        f"  %count = and {width} %n, {2**32 - 1 if width == 'i64' else -1}",
        f"  %far = icmp ugt {width} %count, {last}",
        f"  %near = and {width} %count, {last}",
    ]
    if operation == "ashr":
        body += [f"  %by = select i1 %far, {width} {last}, {width} %near", f"  %all = ashr {width} %x, %by"]
    else:
        body += [f"  %some = {operation} {width} %x, %near", f"  %all = select i1 %far, {width} 0, {width} %some"]
    return _function(width, f"@emu.{operation}.{width}", f"{width} %x, {width} %n", *body, f"  ret {width} %all")
