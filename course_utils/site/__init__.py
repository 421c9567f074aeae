"""The course as a static site: chapters with their outputs, exercises, kernels and guides, as pages to read.

notebooks, kernels, docs → `execute` (with outputs) → `pages` (sources for Sphinx) → Sphinx with `conf.py` → `check`.
`python -m course_utils.site build` does that, and fails, with the place, when a cell fails, a link leads nowhere or a
picture has no description. Each chapter is shown as `make test-all` has run it, or else is run; jupyter-cache keeps the
outputs in build/site-run until code, the package or a kernel changes. Widgets move where their states are in the page,
and are pictures without scripts; questions are judged in the page (questions/js), and their answers are folded without
scripts. A guess works as in JupyterLab (guesses.js). A puzzle is shown as a learner gets it (`puzzles`), even
if somebody has solved it in this checkout. MathJax is part of the site: no page needs another server.
tests/site/ opens built pages in a browser, as on a desk and as on a phone.

`badges` writes where a chapter can be opened without installing: `make badges REPOSITORY=owner/name` puts badges
(Colab, Kaggle, Binder, Codespaces) into each chapter, and the cell that sets it up on Colab and Kaggle. The tree itself
names no repository, because that cell runs whatever is at that address. There .ci/colab_setup.py installs only what is
missing: torch, NumPy and CuPy stay as they are. Colab, Kaggle, Binder, Codespaces and GitHub Pages need a public
repository and have not been tried where they run.
"""
