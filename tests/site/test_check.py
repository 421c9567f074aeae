"""The checker of built pages: each kind of broken link, repeated id and bare picture is seen."""

import pytest

from course_utils.site import check


def site_of(folder, **pages):
    for name, body in pages.items():
        (folder / f"{name}.html").write_text(f"<html><body>{body}</body></html>")
    return folder


def broken_links(site):
    return check.broken_links(check.read_site(site), site)


def bare_pictures(site):
    return check.bare_pictures(check.read_site(site), site)


def test_a_good_site_has_no_problem(tmp_path):
    (tmp_path / "a b.png").write_bytes(b"")
    first = (
        '<a href="second.html#There">x</a><img src="a%20b.png" alt="A map"><a href="https://example.org/x?y=1">x</a>'
    )
    site = site_of(
        tmp_path, first=first, second='<h2 id="There">x</h2><a href="#There">x</a><a href="first.html">x</a>'
    )
    assert broken_links(site) == bare_pictures(site) == []


@pytest.mark.parametrize(
    "body, words",
    [
        ('<a href="third.html">x</a>', "third.html: no such file"),
        ('<a href="first.html#nowhere">x</a>', "no such id"),
        ('<a href="#nowhere">x</a>', "no such id"),
        ('<a href="#There">x</a><p id="there">x</p>', "no such id"),
        ('<img src="none.png" alt="x">', "no such file"),
        ('<script src="none.js"></script>', "no such file"),
        ('<a href="../first.html">x</a>', "leaves the folder"),
        ('<a href="/first.html">x</a>', "leaves the folder"),
        ('<a href="https://">x</a>', "no address"),
        ('<a href="https://exa mple.org">x</a>', "no address"),
        ('<a href="">x</a>', "no address"),
        ('<p id="a"></p><p id="a"></p>', "the id a stands there twice"),
    ],
)
def test_each_broken_link_is_seen(tmp_path, body, words):
    (problem,) = broken_links(site_of(tmp_path, first=body))
    assert words in problem and problem.startswith("first.html")


@pytest.mark.parametrize("attributes", ["", 'alt=""', 'alt=" "', "alt"])
def test_a_picture_without_alt_text_is_seen(tmp_path, attributes):
    (tmp_path / "a.png").write_bytes(b"")
    assert len(bare_pictures(site_of(tmp_path, first=f'<img src="a.png" {attributes}>'))) == 1


def test_an_empty_folder_is_no_site(tmp_path):
    with pytest.raises(ValueError, match="holds no page"):
        broken_links(tmp_path)


@pytest.mark.parametrize(
    "body, seen",
    [
        ("<pre>3.11.7 at /home/me/course/.venv/bin/python</pre>", True),
        ('<p title="/home/me/course">x</p>', True),
        ("<pre><span>/home/me</span>/course/kernels</pre>", True),
        ("<pre>/home/me/courses, /srv/home/me/course</pre>", False),
        ('<a href="https://example.org/home/me/course">x</a>', False),
    ],
)
def test_a_path_of_the_machine_that_built_the_site_is_seen(tmp_path, body, seen):
    problems = check.local_paths(site_of(tmp_path, first=body), {"/home/me/course": "…"})
    assert [problem.split(":")[0] for problem in problems] == ["first.html"] * seen
