"""What every widget shares: its JavaScript, its still picture and its state.

A widget is a subclass of `Frame` with the class attribute `_script`, a file in js/, and the method `static_figure`. It
sends `meta` (JSON) and `data` (float32 bytes) to the browser once; after that only the number of the step travels: a
step costs no Python. So a page without Python can run it, too: what it shows carries that state (`STATE`).
"""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path

import anywidget
import torch
import traitlets
from matplotlib.figure import Figure

from course_utils.plots import look

HERE = Path(__file__).parent
SHOWN_DPI = 90
COLOUR_MAP = "viridis"  # the same perceptually ordered map as in js/shared.js
MASKED_HATCH = "////"
STATE = "application/vnd.attention-course.widget+json"  # the media type of a widget's state; the site reads it

WHY_STILL = "Still picture: run this cell in JupyterLab to move through it."


def esm(name: str) -> str:
    """The JavaScript module of one widget: js/shared.js, then the files named in lines "// with ..." of js/`name`, then
    that file. site/widgets.py does the same."""
    own = (HERE / "js" / name).read_text(encoding="utf-8")
    before = ("shared.js", *re.findall(r"^// with ([\w/]+\.js)$", own, re.MULTILINE))
    return "\n".join([*((HERE / "js" / part).read_text(encoding="utf-8") for part in before), own])


class Frame(anywidget.AnyWidget):
    """A widget whose browser half gets `meta` and `data` once and then keeps `step` in common with Python.

    A notebook stores a still picture of it, too, for viewers that run no widget (GitHub, nbconvert).
    """

    _script: str
    _css = (HERE / "widgets.css").read_text(encoding="utf-8")
    meta = traitlets.Dict().tag(sync=True)
    data = traitlets.Bytes().tag(sync=True)
    step = traitlets.Int(0).tag(sync=True)

    def __init_subclass__(cls, **options: object) -> None:
        if "_script" in vars(cls):  # anywidget derives once more from a widget's class
            cls._esm = esm(cls._script)
        super().__init_subclass__(**options)

    def static_figure(self, step: int | None = None) -> Figure:
        raise NotImplementedError

    def _repr_mimebundle_(self, **_: object) -> tuple[dict, dict]:
        still, size = ({}, {}) if os.environ.get(look.UNSEEN) else self._drawn()
        live, metadata = super()._repr_mimebundle_()
        plain = f"{type(self).__name__}. {WHY_STILL}"
        return {**live, **still, "text/plain": plain, STATE: self._state()}, {**metadata, **size}

    def _drawn(self) -> tuple[dict, dict]:
        figure = self.static_figure()
        figure.text(0.01, 0.012, WHY_STILL, fontsize=8, color="0.35")
        png, size = look.png_and_size(figure, SHOWN_DPI)
        return {"image/png": png}, {"image/png": size}

    def _state(self) -> dict:
        data = base64.b64encode(self.data).decode()
        return {"script": self._script, "meta": self.meta, "data": data, "step": self.step}


def pack(*tensors: torch.Tensor) -> bytes:
    """The tensors' values one after the other, as little-endian float32."""
    flat = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors])
    return flat.numpy().astype("<f4").tobytes()


def one_head(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """`tensor` [L, d] or [1, 1, L, d] of any floating dtype, on any device, as float32 [L, d] on the CPU."""
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name}: got {type(tensor).__name__}, takes a torch.Tensor of shape [L, d] or [1, 1, L, d]")
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: got dtype {tensor.dtype}, takes a floating dtype")
    shape = tuple(tensor.shape)
    if len(shape) == 4 and shape[:2] == (1, 1):
        tensor = tensor[0, 0]
    if tensor.dim() != 2 or 0 in tensor.shape:
        raise ValueError(f"{name}: got shape {list(shape)}, takes one head: [L, d] or [1, 1, L, d], L and d at least 1")
    return tensor.detach().to("cpu", torch.float32).contiguous()


def check_key(query: torch.Tensor, key: torch.Tensor) -> None:
    """Raise ValueError unless the rows of `query` [L_q, d] and `key` [L_k, d] have the same length."""
    if query.shape[1] != key.shape[1]:
        raise ValueError(f"key: got head dimension {key.shape[1]}, takes that of query, {query.shape[1]}")


def check_limit(name: str, got: int, most: int) -> None:
    """Raise ValueError if a picture asks for more than it can show legibly."""
    if got > most:
        raise ValueError(f"{name}: got {got}, this widget draws at most {most}; pass a slice")
