"""Of the theme's icons a site keeps those that it shows, by any of their names."""

import pytest

from course_utils.site import icons

SCRIPT = """(()=>{var c={"sun":[512,512,[9728],"f185","M1 2z"],bars:[448,512,["navicon"],"f0c9","M3z"],
"magnifying-glass":[512,512,[128269,"search"],"f002",["M4z","M5z"]],"xmark":[384,512,[],"f00d","M6z"]};run(c)})()"""


@pytest.fixture
def site(tmp_path):
    script = tmp_path / "_static" / icons.SCRIPT
    script.parent.mkdir(parents=True)
    script.write_text(SCRIPT)
    (tmp_path / "index.html").write_text('<i class="fa-solid fa-sun fa-lg"></i><i class="fa-solid fa-search"></i>')
    (tmp_path / "_static" / "own.js").write_text('button.className = "fa-solid fa-xmark";')
    return tmp_path


def test_icons_of_pages_and_scripts_stay_and_others_go(site):
    icons.keep_shown(site)
    left = (site / "_static" / icons.SCRIPT).read_text()
    assert all(outline in left for outline in ("M1 2z", "M4z", "M6z")) and "M3z" not in left
    assert left.startswith("(()=>{var c={") and left.endswith("};run(c)})()")


def test_a_script_without_icons_is_told(site):
    (site / "_static" / icons.SCRIPT).write_text("run()")
    with pytest.raises(ValueError, match="holds no icon"):
        icons.keep_shown(site)
