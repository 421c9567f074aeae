"""Figures measured on a GPU, kept as JSON with the device, the versions and the date.

A notebook on a machine without a GPU shows these, labelled with their caption; it never invents a timing. The files lie
in `course_utils/measured/`, one per chapter, and are refreshed by `python -m course_utils bench CHAPTER --record`.
"""

import datetime
import importlib.metadata
import json
import platform
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch

FOLDER = Path(__file__).parent
Row = dict[str, object]  # one line of a table; units are in the keys, such as "median_ms"


@dataclass(frozen=True)
class Measurement:
    """Rows of figures with all that is needed to judge them.

    Attributes:
        name: what was measured, such as "02_flash_attention_minimal".
        device: name of the GPU as the driver gives it.
        driver: version of the NVIDIA driver, or "unknown".
        versions: of torch, cuda, cudnn (91900 is 9.19.0), cupy and python; of tilelang, flashinfer,
            flash-attn-4 and sgl-flash-mla, peers, where they were recorded.
        date: ISO date of the run.
        command: the command that takes these figures again.
        rows: list of dicts with the units in the keys.
    """

    name: str
    device: str
    driver: str
    versions: dict[str, str]
    date: str
    command: str
    rows: list[Row]

    def select(self, **columns: object) -> list[Row]:
        """The rows with these values in these columns, such as `select(part="ladder", head_dim=64)`, in their order.

        A list without rows is no error: what a machine could not run has no row.

        Raises:
            KeyError: no row has such a column; the message names those that there are.
        """
        there = dict.fromkeys(key for row in self.rows for key in row)
        for column in columns:
            if column not in there:
                raise KeyError(f"{self.name} has no column {column!r}; it has {', '.join(there)}")
        return select(self.rows, **columns)


def select(rows: Iterable[Row], **columns: object) -> list[Row]:
    """The rows with these values in these columns, in their order. A column that no row has selects nothing."""
    return [row for row in rows if all(key in row and row[key] == value for key, value in columns.items())]


def collect(name: str, rows: list[Row], command: str) -> Measurement:
    """Label rows that were just measured with this machine's GPU, versions and today's date.

    Raises:
        RuntimeError: there is no CUDA device, so these rows cannot have been measured here.
    """
    if not torch.cuda.is_available():
        raise RuntimeError(f"figures for {name!r} cannot be labelled: this machine has no usable NVIDIA GPU")
    _check_rows(rows)
    versions = {
        "torch": torch.__version__,
        "cuda": torch.version.cuda or "none",
        "cudnn": str(torch.backends.cudnn.version() or "none"),
        "cupy": _package_version("cupy-cuda13x", "cupy-cuda12x", "cupy"),
        "python": platform.python_version(),
        "tilelang": _package_version("tilelang"),
        "flashinfer": _package_version("flashinfer-python"),
        "flash-attn-4": _package_version("flash-attn-4"),
        "sgl-flash-mla": _package_version("sgl-flash-mla"),
    }
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    return Measurement(name, torch.cuda.get_device_name(), _driver_version(), versions, today, command, rows)


def save(name: str, rows: list[Row], command: str) -> Measurement:
    """Labels the rows as `collect` does and writes them to the course's own file for `name`."""
    measurement = collect(name, rows, command)
    write(measurement)
    return measurement


def write(measurement: Measurement, path: Path | str | None = None) -> Path:
    """Write a measurement as JSON and return where it went (None: the course's own file for its name)."""
    target = _recorded_file(measurement.name) if path is None else Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(asdict(measurement), indent=1) + "\n", encoding="utf-8")
    return target


def load(name: str, path: Path | str | None = None) -> Measurement:
    """Read a recorded measurement (None: the course's own file for `name`).

    Raises:
        FileNotFoundError: nothing was recorded under this name; the message lists what there is.
        ValueError: the file is not a measurement.
    """
    source = _recorded_file(name) if path is None else Path(path)
    if not source.is_file():
        there = ", ".join(recorded_names()) or "nothing yet"
        raise FileNotFoundError(
            f"no figures are recorded for {name!r} ({source.name} is missing); recorded: {there}. "
            f"On a machine with a GPU: python -m course_utils bench {name} --record"
        )
    try:
        content = json.loads(source.read_text(encoding="utf-8"))
        measurement = Measurement(**{field.name: content[field.name] for field in fields(Measurement)})
        _check_rows(measurement.rows)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{source.name} is not a measurement of this course: {error!r}") from error
    return measurement


def recorded_names() -> list[str]:
    """Names that `load` knows."""
    return sorted(file.stem for file in FOLDER.glob("*.json"))


def caption(measurement: Measurement) -> str:
    """A caption for a table or plot, such as "NVIDIA H200, 2026-11-21, torch 2.11.0, CUDA 13.0"."""
    versions = measurement.versions
    torch_version = versions["torch"].partition("+")[0]
    return f"{measurement.device}, {measurement.date}, torch {torch_version}, CUDA {versions['cuda']}"


def live_or_recorded(name: str, measure: Callable[[], list[Row]]) -> Measurement:
    """The rows that `measure()` returns on a GPU of compute capability 8.0 or newer, else the recorded ones; `caption`
    tells which.

    `measure` is not called otherwise: an older GPU lacks torch's FLASH and the instructions of some kernels.
    """
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0):
        return collect(name, measure(), "measured in the notebook")
    return load(name)


def _recorded_file(name: str) -> Path:
    if not name or Path(name).name != name:
        raise ValueError(f"name is {name!r}; it must be a plain name such as '02_flash_attention_minimal'")
    return FOLDER / f"{name}.json"


def _check_rows(rows: list[Row]) -> None:
    if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
        raise ValueError("rows must be a list of at least one dict")


def _package_version(*names: str) -> str:
    for name in names:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "none"


def _driver_version() -> str:
    """The driver's version from the kernel module's own file, which every Linux driver provides."""
    try:
        text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8")
    except OSError:
        return "unknown"
    words = text.splitlines()[0].split()
    return next((word for word in words if word[0].isdigit() and "." in word), "unknown")
