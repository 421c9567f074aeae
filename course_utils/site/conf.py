"""Sphinx's settings for the site. `build.py` sets what depends on the folder (html_extra_path)."""

import functools
import shutil
from importlib.metadata import files
from pathlib import Path

from sphinx.search.en import SearchEnglish

from course_utils.site import icons, widgets
from course_utils.site.colours import LEXERS

project = "Attention kernels in raw CUDA"
html_title = project
copyright = "the attention kernels course authors, MIT licence"
language = "en"
extensions = ["myst_nb", "sphinx.ext.mathjax"]
exclude_patterns = []

nb_execution_mode = "off"  # `execute.py` has run them
nb_merge_streams = True
nb_code_prompt_show, nb_code_prompt_hide = "Show the code", "Hide the code"
nb_mime_priority_overrides = [("html", "text/html", 0)]
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True
myst_dmath_allow_labels = False
myst_all_links_external = True  # `pages.py` has written them as they are on the site, and `check.py` follows each
suppress_warnings = ["myst.header"]

html_theme = "sphinx_book_theme"
COURSE = Path(__file__).resolve().parents[1]
html_static_path = ["static", str(COURSE / "questions" / "js")]
html_css_files = [*widgets.STYLES, "site.css"]
SCRIPTS = ("theme.js", "code.js", "fitting.js", "tables.js", "formulas.js", "pictures.js", "motion.js", "scrolling.js")
MODULES = ("ask.js", "guesses.js", "widgets.js")
html_js_files = [
    *((name, {"defer": "defer"}) for name in SCRIPTS),
    *((name, {"type": "module"}) for name in MODULES),
]
html_favicon = "static/favicon.svg"
html_use_index = False
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_context = {"default_mode": "auto"}
html_theme_options = {
    "show_navbar_depth": 1,
    "show_toc_level": 1,
    "use_download_button": False,
    "footer_content_items": ["copyright.html"],
    "use_fullscreen_button": False,
    # No bar on top: the search is in the side bar.
    "navbar_start": [],
    "navbar_center": [],
    "navbar_end": [],
    "navbar_persistent": [],
    "article_header_end": ["theme-switcher.html", "toggle-secondary-sidebar.html"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}

# MathJax comes from a Python package, so that the site shows its formulas without any other server.
mathjax_path = "mathjax/tex-chtml.js"
MATHJAX = "sphinx-mathjax-offline/static/mathjax/"
MATHJAX_PARTS = ("tex-chtml.js", "output/chtml/fonts/woff-v2/")


def copy_mathjax(app, error) -> None:
    """Copies the parts of MathJax that a page loads into the built site."""
    if error is not None:
        return
    for file in files("sphinx-mathjax-offline"):
        part = str(file).removeprefix(MATHJAX)
        if part.startswith(MATHJAX_PARTS):
            target = Path(app.outdir) / "_static" / "mathjax" / part
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file.locate(), target)


def write_widgets(app, error) -> None:
    """Writes the scripts and styles of the widgets into the built site, as JupyterLab gets them."""
    if error is None:
        for name, text in widgets.files():
            file = Path(app.outdir) / "_static" / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")


def keep_shown_icons(app, error) -> None:
    """Leaves only the icons that the built site shows in the theme's script."""
    if error is None:
        icons.keep_shown(Path(app.outdir))


class Search(SearchEnglish):
    """Sphinx's own, but a word's stem is found once for the site, not once for each page."""

    stem = functools.cache(SearchEnglish.stem)


CONTENTS: dict[tuple, str] = {}  # of a folder's pages, as the theme asked for them


def share_contents(app, pagename, templatename, context, doctree) -> None:
    """The side bar has the same contents on all pages of a folder that are not in it themselves, which are two of
    three."""
    if "orphan" not in app.env.metadata.get(pagename, {}):
        return
    own, folder = context["toctree"], pagename.rpartition("/")[0]

    def contents(**asked) -> str:
        key = (folder, *sorted(asked.items()))
        if key not in CONTENTS:
            CONTENTS[key] = own(**asked)
        return CONTENTS[key]

    context["toctree"] = contents


def setup(app) -> None:
    app.add_search_language(Search)
    app.connect("html-page-context", share_contents, priority=400)  # before the theme asks for the contents
    for name, lexer in LEXERS.items():
        app.add_lexer(name, lexer)
    app.connect("build-finished", copy_mathjax)
    app.connect("build-finished", write_widgets)
    app.connect("build-finished", keep_shown_icons)
