"""Part of `make format`: leaves only the still picture of a widget in a saved notebook.

A stored widget view points to a model in a kernel that is gone: JupyterLab would show an error in place of the picture.
"""

import sys

import nbformat

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

for path in sys.argv[1:]:
    notebook = nbformat.read(path, as_version=4)
    stored = [output.data for cell in notebook.cells for output in cell.get("outputs", ()) if "data" in output]
    if any(data.pop(WIDGET_VIEW, None) for data in stored):
        nbformat.write(notebook, path)
