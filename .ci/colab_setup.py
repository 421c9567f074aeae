"""Sets the course up beside what a machine of Google Colab or Kaggle has already: PyTorch, CuPy and Jupyter stay.

Only what is missing is installed, and every package that is there is pinned to its version while pip does so: a kernel
is running, and PyTorch fits the machine's driver. The cell tagged `colab-setup` of each chapter calls `main`.

The free GPU of both is a T4, an sm_75, and Kaggle also has the P100, an sm_60. What chapters 00 to 02 run on a GPU
compiles for an sm_75. The kernels of the later chapters need cp.async and bf16 tensor cores. A chapter whose kernels a
GPU is too old for runs on the emulator.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from importlib import invalidate_caches
from importlib.metadata import distributions
from pathlib import Path

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
    from packaging.version import InvalidVersion, Version
except ImportError:  # pip is there, and brings its own copy
    from pip._vendor.packaging.requirements import Requirement
    from pip._vendor.packaging.utils import canonicalize_name
    from pip._vendor.packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
FIRST_WITH_TENSOR_CORES = "03"  # the first chapter whose kernels have them
# CUDA's compiler and headers, which must fit each other.
CUDA = re.compile(r"(nvidia-cuda-(?:cccl|crt|nvrtc|runtime))==(\S+)")


def installed() -> dict[str, str]:
    """Normalised name → version of each package. One that lies on several paths is there once: as `import` finds it."""
    found: dict[str, str] = {}
    for one in distributions():  # in the order of sys.path
        name, number = one.metadata["Name"], one.version
        if name and number:
            found.setdefault(canonicalize_name(name), number)
    return found


def missing(requirements: Sequence[str], there: Mapping[str, str]) -> list[str]:
    """Those requirements of which no version is `there`. Says of the others what is kept, and what is too old."""
    absent = []
    for text in requirements:
        requirement = Requirement(text)
        name = canonicalize_name(requirement.name)
        if name not in there:
            absent.append(text)
            continue
        print(f"kept: {name} {there[name]}{_objection(requirement, there[name])}")
    return absent


def _objection(requirement: Requirement, number: str) -> str:
    """What is wrong with an installed version; an empty string if it is one that the course asks for."""
    needs = f"needs {requirement.specifier}"
    if not _readable(number):
        return f", a version that cannot be compared: {needs}"
    if requirement.specifier.contains(number, prereleases=True):
        return ""
    floors = [Version(one.version) for one in requirement.specifier if one.operator == ">="]
    return f", too old: {needs}" if any(Version(number) < floor for floor in floors) else f", too new: {needs}"


def _readable(number: str) -> bool:
    """Whether pip can read this version: a Linux distribution's own packages may have others."""
    try:
        Version(number)
    except InvalidVersion:
        return False
    return True


def pins(there: Mapping[str, str], tested: str) -> str:
    """A constraints file: everything that is `there`, and what is missing of CUDA as in `tested` (constraints.txt).

    If a part of CUDA is there in another minor version, the missing parts are pinned to that one.
    """
    lines = [f"{name}=={number}" for name, number in sorted(there.items()) if _readable(number)]
    parts = {match[1]: Version(match[2]) for match in map(CUDA.match, tested.splitlines()) if match}
    found = [Version(there[name]) for name in parts if name in there and _readable(there[name])]
    for name, number in parts.items():
        if name not in there:
            same = next((one for one in found if one.major == number.major), number)
            stays = same.minor == number.minor or name == "nvidia-cuda-cccl"  # the emulator takes no newer one
            fits = number if stays else f"{same.major}.{same.minor}.*"
            lines.append(f"{name}=={fits}")
    return "".join(f"{line}\n" for line in lines)


def gpu() -> tuple[str, int] | None:
    """Name of the GPU and its compute capability times ten, as its driver has them; None without one."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
        first = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None
    name, _, capability = first.rpartition(", ")
    return name, round(10 * float(capability))


def needed(slug: str) -> int:
    """The compute capability, times ten, that a chapter's kernels need. CUDA 13 compiles for none below 75."""
    return 80 if slug[:2] >= FIRST_WITH_TENSOR_CORES else 75


def choose_machine(slug: str) -> None:
    """Hides a GPU that is too old for a chapter's kernels from PyTorch, and says so: they run on the emulator then."""
    found, least = gpu(), needed(slug)
    if found and found[1] < least:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        features = ", which has cp.async and bf16 tensor cores" if least == 80 else ""
        print(f"{found[0]} is an sm_{found[1]}. This chapter's kernels need an sm_{least}{features}.")
        print("So they run on the emulator. All cells run; timings are recorded ones.")


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def main(slug: str) -> None:
    """Sets up the course for the chapter of this slug, in the process that runs its cells."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        there = installed()
        constraints.write_text(pins(there, (ROOT / "constraints.txt").read_text(encoding="utf-8")), encoding="utf-8")
        if absent := missing(project["dependencies"], there):
            print("installing:", ", ".join(absent))
            pip("--constraint", str(constraints), *absent)
    pip("--no-deps", "--editable", str(ROOT))
    # The running kernel has read its paths before the course was installed.
    sys.path.insert(0, str(ROOT))
    invalidate_caches()
    os.chdir(ROOT / "notebooks")
    choose_machine(slug)
    print("The course is ready. Go on with the next cell.")
