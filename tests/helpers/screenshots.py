"""Pictures of what a learner sees, to look at after `make test-all`: no test asks what is on them."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "build" / "screenshots"
wanted = False  # tests/conftest.py says


def save(shown, name: str) -> None:
    """Saves a page, or a part of one, as build/screenshots/<name>.png."""
    if wanted:
        FOLDER.mkdir(parents=True, exist_ok=True)
        shown.screenshot(path=FOLDER / f"{name}.png")
