"""The course as a static site: chapters with their outputs, exercises, kernels and guides, as pages to read.

notebooks, kernels, docs → `execute` (with outputs) → `pages` (sources for Sphinx) → Sphinx with `conf.py` → `check`.
`python -m course_utils.site build` does that. `badges` writes where a chapter can be opened without installing.
"""
