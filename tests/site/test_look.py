"""The command that says what is cut, too wide or too pale sees each such thing, and nothing where all is well."""

import pytest

from tests.helpers import look
from tests.helpers.browsing import served

pytestmark = pytest.mark.browser

LINE = "a_long_line_of_code " * 30
GOOD = f"""<pre style="white-space: pre-wrap">{LINE}</pre><p>Some words.</p>
    <div style="overflow: auto"><table><tr><td>1<td>2</table></div><img alt="" width="300" height="20" src="data:,">
    <div style="background: #000c; color: white">on a veil</div>"""
BAD = {
    "page": '<div style="width: 2000px">wide</div>',
    "code": f'<pre style="overflow: auto">{LINE}</pre>',
    "tables": '<div style="overflow: auto"><table><tr><td style="min-width: 2000px">wide</table></div>',
    "pictures": '<div style="overflow: hidden"><img alt="" style="width: 2000px; height: 9px" src="data:,"></div>',
    "formulas": '<mjx-container style="display: grid"><mjx-math style="display: block; width: 2000px">x</mjx-math>',
    # As high as MathJax makes the text for screen readers, which is hidden but makes its box scroll.
    "bars": '<mjx-container style="display: inline-block; position: relative; overflow: auto hidden">x'
    '<mjx-assistive-mml style="position: absolute; clip: rect(1px, 1px, 1px, 1px); width: 40px">x</mjx-assistive-mml>',
    "text": f'<div style="overflow: hidden; text-overflow: ellipsis; white-space: nowrap">{LINE}</div>',
    "pale": '<p style="color: #888">pale</p>',
    "errors": "<script>undefined.call()</script>",
}
PALE = {
    "an opacity of a box around it": '<div style="opacity: 0.5"><p>pale</p></div>',
    "a colour that lets the ground through": '<p style="color: #0008">pale</p>',
    "a ground that lets the page through": '<div style="background: #0008"><p style="color: #333">pale</p></div>',
    "the dark theme only": '<style>[data-theme="dark"] p { color: #bbb }</style><p>pale</p>',
    "folded": '<details><summary>Open</summary><p style="color: #999">pale</p></details>',
}


@pytest.fixture(scope="module")
def faults_of(browser, tmp_path_factory):
    """faults_of("<p>…") -> what is wrong with a page that holds this, by kind and device."""
    folder = tmp_path_factory.mktemp("pages")
    page = browser.new_page()

    def found(body: str) -> dict[str, list[str]]:
        head = '<!doctype html><meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        (folder / "page.html").write_text(f"{head}<article>{body}</article>", encoding="utf-8")
        with served(folder) as address:
            return {what: things for what, things in look.faults(page, f"{address}/page.html").items() if things}

    yield found
    page.close()


def test_where_all_is_well_nothing_is_said(faults_of):
    assert faults_of(GOOD) == {}


@pytest.mark.parametrize("kind", look.FAULTS)
def test_each_fault_is_seen_by_its_name(faults_of, kind):
    found = faults_of(BAD[kind])
    assert f"{kind}, desk" in found and (kind == "errors" or f"{kind}, phone" in found)
    assert {what.partition(",")[0] for what in found} <= {kind, "page", "text"}


@pytest.mark.parametrize("why", PALE)
def test_pale_text_is_seen_whatever_makes_it_pale(faults_of, why):
    assert {what: len(things) > 0 for what, things in faults_of(PALE[why]).items()} == {
        "pale, desk": True,
        "pale, phone": True,
    }
