"""Where JupyterLab finds the course's extension. JUPYTER_CONFIG_PATH leads to this file."""

from pathlib import Path

c.LabApp.extra_labextensions_path = [str(Path(__file__).parent / "labextensions")]  # noqa: F821 — JupyterLab gives `c`
