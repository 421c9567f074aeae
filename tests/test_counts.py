"""What `python -m tests.counts` counts, of a small checkout."""

import subprocess

from tests.counts import circles, report


def test_a_checkout_is_counted_by_room(tmp_path):
    files = {
        "tests/structure.toml": "[rooms]\nlow = []\nhigh = ['low']\n",
        "tests/low/test_a.py": "1\n2\n",
        "course_utils/__init__.py": "",
        "course_utils/low/__init__.py": "",
        "course_utils/low/a.py": "from course_utils.low import b\nfrom course_utils.high import c\n",
        "course_utils/low/b.py": "from course_utils.low import a\n",
        "course_utils/low/b.js": "1\n2\n3",
        "course_utils/low/notes.txt": "not counted\n",
        "course_utils/high/__init__.py": "",
        "course_utils/high/c.py": "from course_utils.low import a\ndef f():\n" + "    pass\n" * 80,
        "course_utils/low/untracked.js": "1\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "--quiet"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", ".", ":!*untracked.js"], cwd=tmp_path, check=True)
    said = report(tmp_path).splitlines()
    assert "| low | 6 | 2 | 1 |" in said and "| high | 82 | 0 | 1 |" in said
    assert said[said.index("") + 1 :] == [
        "lines of the package: 88",
        "lines of the tests: 2",
        "rooms: 2",
        "arrows between rooms: 2",
        "arrows between modules: 4",
        "arrows upward: 1",
        "circles of modules: 1",
        "functions over 80 lines: 1",
        "  course_utils/high/c.py:2: f, 81 lines",
    ]


def test_a_circle_is_counted_once_however_many_ways_lead_round_it():
    ways = {("a", "b"), ("b", "c"), ("c", "a"), ("b", "a"), ("c", "d"), ("e", "f"), ("f", "e")}
    assert circles(ways) == [["a", "b", "c"], ["e", "f"]]
