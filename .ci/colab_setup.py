"""Sets the course up beside what a machine has already: Google Colab's PyTorch, CuPy and Jupyter stay as they are.

Only what is missing is installed, and every package that is there is pinned to its version while pip does so: a kernel
is running, and PyTorch fits the machine's driver. The cell tagged `colab-setup` of each chapter runs this file.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from importlib import invalidate_caches
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# The page is Colab's own, and cells run in the kernel that is running now.
NOT_NEEDED = {"jupyterlab", "ipykernel"}


def missing(requirements: list[str]) -> list[str]:
    """Those requirements of which no version is installed. Says which installed ones may be too old."""
    absent = []
    for requirement in requirements:
        name = re.match(r"[A-Za-z0-9._-]+", requirement)[0]
        if name in NOT_NEEDED:
            continue
        try:
            print(f"kept: {name} {version(name)} (the course asks for {requirement})")
        except PackageNotFoundError:
            absent.append(requirement)
    return absent


def pins() -> str:
    """A constraints file of everything that is installed."""
    found = {(one.metadata["Name"], one.version) for one in distributions()}
    return "".join(f"{name}=={number}\n" for name, number in sorted(found) if name and number)


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True)


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text(pins(), encoding="utf-8")
        if absent := missing(project["dependencies"]):
            print("installing:", ", ".join(absent))
            pip("--constraint", str(constraints), *absent)
    pip("--no-deps", "--editable", str(ROOT))
    # The running kernel has read its paths before the course was installed.
    sys.path.insert(0, str(ROOT))
    invalidate_caches()
    os.chdir(ROOT / "notebooks")
    print("The course is ready. Go on with the next cell.")


if __name__ == "__main__":
    main()
