"""A page weighs all that it loads: its scripts, styles and pictures, and what these load in turn."""

from pathlib import Path

import pytest

from course_utils.site import check, weight


@pytest.fixture
def weighed(tmp_path):
    """weighed({"a.js": 10, "page.html": "<html>…"}) -> what its pages may load, by name. A number: so many bytes."""

    def make(files):
        for name, content in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(" " * content if isinstance(content, int) else content, encoding="utf-8")
        return weight.weights(check.read_site(tmp_path), tmp_path), tmp_path

    return make


def names(found, site, page="index.html"):
    return {file.relative_to(site).as_posix() for file in found[site / page]}


@pytest.mark.parametrize(
    ("body", "loaded"),
    [
        ('<img src="a.png" alt="a">', {"a.png"}),
        ('<script src="a%20b.js?v=1"></script>', {"a b.js"}),
        ('<link rel="stylesheet" href="s/look.css">', {"s/look.css", "s/font.woff2", "s/ground.svg", "s/base.css"}),
        ('<link rel="preload" as="script" href="lone.js">', {"lone.js"}),
        ('<link rel="icon" href="a.png">', {"a.png"}),
        ('<script type="module" src="first.js"></script>', {"first.js", "second.js", "third.js"}),
        ('<div data-widget-script="w.js"></div>', {"_static/widgets/w.js"}),
        ('<script src="m/tex-chtml.js"></script>', {"m/tex-chtml.js", "m/output/chtml/fonts/woff-v2/A.woff"}),
        ('<a href="a.png">a</a><link rel="next" href="other.html">', set()),
        ('<img src="https://example.org/a.png" alt="a"><img src="data:," alt="b"><img src="none.png" alt="c">', set()),
    ],
)
def test_what_a_page_loads_is_found_and_what_it_links_to_is_not(weighed, body, loaded):
    found, site = weighed(
        {
            "index.html": body,
            "other.html": 1,
            **dict.fromkeys(("a.png", "a b.js", "lone.js", "s/font.woff2", "s/ground.svg", "s/base.css"), 1),
            "s/look.css": "@import 'base.css'; @font-face { src: url(font.woff2) } p { background: url('ground.svg') }",
            "first.js": 'import { a } from "./second.js";',
            "second.js": 'import "./third.js"; import "./first.js";',
            "third.js": 1,
            "_static/widgets/w.js": 1,
            "m/tex-chtml.js": 1,
            "m/output/chtml/fonts/woff-v2/A.woff": 1,
        }
    )
    assert names(found, site) == {"index.html", *loaded}


@pytest.mark.parametrize(("page", "most"), [("index.html", weight.MOST_FRONT), ("notebooks/a.html", weight.MOST)])
def test_the_front_page_and_a_chapter_each_have_a_limit(weighed, page, most):
    body = '<img src="/x.png" alt="x"><img src="x.png" alt="x">'
    picture = (Path(page).parent / "x.png").as_posix()
    found, site = weighed({page: body, picture: most - len(body)})
    assert sum(found[site / page].values()) == most and weight.too_heavy(found, site) == []
    found, site = weighed({picture: most + 10_000})
    (line,) = weight.too_heavy(found, site)
    told = f"{most / 1e6 + 0.01:.2f}"
    assert line == f"{page}: loads {told} MB, at most {most / 1e6:g}; x.png {told}, {Path(page).name} 0.00"
