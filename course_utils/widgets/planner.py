"""Chapter 08's widget: three choices at a glance, what fits in memory, the time floors, and what to try in order."""

from __future__ import annotations

from dataclasses import asdict

import traitlets
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon, Rectangle

from course_utils import planner as planning
from course_utils.planner import Method, Plan, amount, duration
from course_utils.planner.devices import DEVICES, DTYPES, Device, device
from course_utils.plots.look import MATRICES
from course_utils.widgets.frame import MASKED_HATCH, Frame

LENGTHS = tuple(512 * 2**n for n in range(12))  # 512 to 1 M: the steps of the slider
START = LENGTHS.index(2**17)
THIS = "this machine's"
CHOICES: dict[str, tuple] = {  # what the other controls offer
    "batch": (1, 2, 4, 8, 16, 32, 64, 128),
    "heads": (1, 8, 12, 16, 32, 64, 128),
    "kv_heads": (0, 1, 2, 4, 8, 16),  # 0: as many as heads
    "head_dim": (32, 64, 96, 128, 256),
    "dtype": tuple(DTYPES),
    "device": tuple(DEVICES),
    "is_causal": (True, False),
    "window": (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768),
    "target_ms": (0.1, 1, 10, 100, 1000),
}
SETTINGS: dict[str, object] = {
    "batch": 1,
    "heads": 16,
    "kv_heads": 0,
    "head_dim": 128,
    "dtype": "float16",
    "device": "H200",
    "is_causal": True,
    "window": planning.WINDOW,
    "target_ms": planning.TARGET_MS,
}
GLANCED = ("dense", "flash", "sparse")
STORED, COMPUTED = MATRICES["K"], MATRICES["Q"]


def planned(settings: dict[str, object], length: int, own: Device | None = None) -> tuple[Plan, list[planning.Advice]]:
    """The plan and the advice for the widget's settings at a length. own: the device that `THIS` stands for.

    Raises ValueError naming the setting.
    """
    sizes = {name: settings[name] for name in ("batch", "heads", "head_dim", "dtype", "is_causal", "window")}
    where = own if own is not None and settings["device"] == THIS else device(settings["device"])
    plan = planning.plan(length, device=where, kv_heads=settings["kv_heads"] or None, **sizes)
    return plan, planning.advice(plan, settings["target_ms"])


def described(settings: dict[str, object], own: Device | None = None) -> dict:
    """Everything that the browser shows for these settings, at every length, as JSON; or what is wrong with them."""
    try:
        return {"settings": settings, "plans": [_page(settings, length, own) for length in LENGTHS], "error": ""}
    except ValueError as error:
        return {"settings": settings, "error": str(error)}


def _page(settings: dict[str, object], length: int, own: Device | None) -> dict:
    plan, steps = planned(settings, length, own)
    methods = list(plan.methods.values())
    where = plan.setting.device
    return {
        "length": length,
        "device": where.name,
        "capacity": where.memory_bytes,
        "capacityText": amount(where.memory_bytes),
        "window": min(plan.setting.window, length) / length,
        "isCausal": plan.setting.is_causal,
        "methods": [_row(method) for method in methods],
        "leftOut": [f"{planning.TITLES[name]}: {why}" for name, why in plan.left_out.items()],
        "decode": planning.decode(plan).words,
        "advice": [asdict(step) for step in steps],
        "status": status(plan, steps, settings["target_ms"]),
    }


def _row(method: Method) -> dict:
    return {
        "name": method.name,
        "title": method.title,
        "memory": method.memory_bytes,
        "memoryText": amount(method.memory_bytes),
        "parts": [[part.name, part.bytes, amount(part.bytes)] for part in method.parts],
        "fits": method.fits,
        "breaking": method.breaking_part.name if method.breaking_part else "",
        "secondsText": duration(method.seconds),
        "bound": method.bound,
        "flopsText": f"{method.flops:.3g}",
        "leastText": amount(method.least_bytes),
    }


def status(plan: Plan, steps: list[planning.Advice], target_ms: float) -> str:
    """The plan in three sentences: which choice runs out of memory, the floor of flash, and what to try."""
    setting, flash = plan.setting, plan.methods["flash"]
    out = [
        f"{method.title} at {method.breaking_part.name} ({amount(method.breaking_part.bytes)})"
        for method in plan.methods.values()
        if method.breaking_part
    ]
    memory = f"Out of memory: {'; '.join(out)}." if out else "Everything fits in memory."
    reached = "within" if flash.seconds * 1e3 <= target_ms else "above"
    return (
        f"{setting.length:,} tokens, batch {setting.batch}, on {setting.device.name} "
        f"({amount(setting.device.memory_bytes)}). {memory} Flash: at least {duration(flash.seconds)} a layer, "
        f"{reached} the target of {duration(target_ms / 1e3)}. Try in order: {planning.order(steps)}."
    )


class Planner(Frame):
    """Made by `planner`. `step` is the place of the length in `LENGTHS`; `asked` are the settings that the page asks
    for, and `meta` what it shows for them."""

    _script = "planner.js"
    own: Device | None = None
    asked = traitlets.Dict().tag(sync=True)

    @traitlets.observe("asked")
    def _answer(self, change: dict) -> None:
        if change["new"]:
            self.meta = {**self.meta, "shown": described(dict(change["new"]), self.own)}

    def static_figure(self, step: int | None = None) -> Figure:
        """A still picture for length `LENGTHS[step]` (None: the one now shown), with the settings now shown."""
        place = self.step if step is None else step
        if not 0 <= place < len(LENGTHS):
            raise ValueError(f"step: got {place}, takes 0 to {len(LENGTHS) - 1}")
        plan, _ = planned(self.meta["shown"]["settings"], LENGTHS[place], self.own)
        return _draw(plan)


def planner(length: int = LENGTHS[START], *, own: Device | None = None, **settings: object) -> Planner:
    """Plan memory and time of attention in the browser, and see what to try next.

    length (512 to 1,048,576, a power of two) and settings say where the widget starts: batch, heads, kv_heads (0: as
    many), head_dim, dtype, device, is_causal, window and target_ms, each one of `CHOICES`. own: a further device to
    choose, such as `devices.this_device()`, and the one it starts with; None: only those of the table.

    Raises ValueError naming the argument.
    """
    if length not in LENGTHS:
        raise ValueError(f"length: got {length!r}, takes a power of two from {LENGTHS[0]} to {LENGTHS[-1]:,}")
    if own is not None and not isinstance(own, Device):
        raise ValueError(f"own: got {own!r}, takes a Device or None")
    choices = dict(CHOICES)
    if own is not None:
        choices["device"] = (THIS, *choices["device"])
        settings = {"device": THIS, **settings}
    for name, value in settings.items():
        if name not in choices:
            raise ValueError(f"{name}: not a setting; takes {', '.join(choices)}")
        if value not in choices[name]:
            raise ValueError(f"{name}: got {value!r}, takes one of {', '.join(map(str, choices[name]))}")
    shown = described({**SETTINGS, **settings}, own)
    if shown["error"]:
        raise ValueError(shown["error"])
    meta = {"lengths": LENGTHS, "choices": choices, "shown": shown}
    widget = Planner(meta=meta, data=b"", step=LENGTHS.index(length))
    widget.own = own
    return widget


# ---------------------------------------------------------------------------------------------- the still picture


def _draw(plan: Plan) -> Figure:
    figure = Figure(figsize=(8.4, 6.6), layout="constrained")
    # The first two lines are for the title and the colours, the last for the note about still pictures.
    figure.get_layout_engine().set(rect=(0, 0.05, 1, 0.86))
    handles = _legend(plan.setting.is_causal)
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.96), ncols=4, fontsize=9, frameon=False)
    s = plan.setting
    figure.suptitle(
        f"{s.length:,} tokens, batch {s.batch}, {s.heads} heads of {s.head_dim}, {s.dtype}, "
        f"{'causal' if s.is_causal else 'not causal'}, on {s.device.name}",
        fontsize=10,
        y=0.985,
    )
    grid = figure.add_gridspec(2, 3, height_ratios=(3, 2))
    for column, name in enumerate(GLANCED):
        _draw_glance(figure.add_subplot(grid[0, column]), plan, plan.methods[name])
    _draw_memory(figure.add_subplot(grid[1, :]), plan)
    return figure


def _legend(is_causal: bool) -> list[Patch]:
    masked = Patch(
        facecolor=STORED, edgecolor="white", hatch=MASKED_HATCH, alpha=0.75, label="computed, stored, masked"
    )
    return [
        Patch(color=STORED, alpha=0.75, label="computed, stored in HBM"),
        *([masked] if is_causal else []),
        Patch(color=COMPUTED, label="computed, kept on the chip"),
        Patch(facecolor="white", edgecolor="0.6", label="skipped"),
    ]


def _draw_glance(axes: Axes, plan: Plan, method: Method) -> None:
    """The L × L square: orange computed and stored in HBM, blue computed on the chip only, white skipped."""
    causal, width = plan.setting.is_causal, min(plan.setting.window / plan.setting.length, 1)
    axes.set(xlim=(0, 1), ylim=(1, 0), aspect="equal", xticks=(), yticks=())
    if method.name == "dense":
        axes.add_patch(Rectangle((0, 0), 1, 1, color=STORED, alpha=0.75))
        if causal:
            axes.add_patch(
                Polygon([(0, 0), (1, 0), (1, 1)], facecolor="none", edgecolor="white", hatch=MASKED_HATCH, linewidth=0)
            )
    else:
        width = 1 if method.name == "flash" else max(width, 0.008)
        axes.add_patch(Polygon(_band(width, causal), color=COMPUTED, linewidth=0))
    words = {
        "dense": "all computed; S and P stored",
        "flash": "nothing of size L² stored",
        "sparse": "the rest skipped" if width < 1 else "the window covers all",
    }
    fits = "fits" if method.fits else f"out of memory at {method.breaking_part.name}"
    axes.set_title(f"{method.title}\n{words[method.name]}", fontsize=9)
    axes.set_xlabel(
        f"keys →\nmemory {amount(method.memory_bytes)}: {fits}\ntime at least {duration(method.seconds)}", fontsize=9
    )
    if method.name == GLANCED[0]:
        axes.set_ylabel("← queries", fontsize=9)


def _band(width: float, causal: bool) -> list[tuple[float, float]]:
    """Corners of the pairs (j, i) with 0 <= i − j <= width, or |i − j| <= width, in the unit square."""
    lower = [(0, 0), (0, width), (1 - width, 1), (1, 1)]
    return lower if causal else [*lower, (1, 1 - width), (width, 0)]


def _draw_memory(axes: Axes, plan: Plan) -> None:
    methods = list(plan.methods.values())
    titles = [method.title for method in methods]
    sizes = [method.memory_bytes for method in methods]
    colours = ["0.25" if method.fits else "0.65" for method in methods]
    axes.barh(titles, sizes, color=colours)
    axes.axvline(plan.setting.device.memory_bytes, color="black", linestyle="--", linewidth=1)
    axes.set(xscale="log", xlim=(min(sizes) / 4, 30 * max(*sizes, plan.setting.device.memory_bytes)))
    axes.set_xlabel(f"memory in bytes; dashed: what {plan.setting.device.name} has; grey: does not fit", fontsize=9)
    for place, method in enumerate(methods):
        axes.text(
            1.1 * method.memory_bytes, place, f" {amount(method.memory_bytes)}, at least {duration(method.seconds)}",
            va="center", fontsize=8, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
        )  # fmt: skip
    axes.invert_yaxis()
    axes.tick_params(labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
