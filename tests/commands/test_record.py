"""The command that records a block of a launch: what it says, the page that it writes, and wrong input."""

import json
import re

import pytest

from course_utils.__main__ import main
from course_utils.commands.record import launches_by_name


def test_it_says_what_the_block_does_and_writes_a_page_of_it(tmp_path, capsys):
    page = tmp_path / "swap.html"
    assert main(["record", "two_ways", "--html", str(page)]) == 0
    said = capsys.readouterr().out
    assert "two_ways()" in said and f"written: {page}" in said and "To step through it" not in said
    (recording,) = re.findall(r'id="recording">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert json.loads(recording)["meta"]["index"] == [0, 0, 0]


def test_without_a_page_it_lists_findings_with_their_steps_and_says_how_to_look_at_the_recording(capsys):
    hint = "To step through it: .venv/bin/python -m course_utils record {} --html FILE, then open FILE in a browser.\n"
    assert main(["record", "two_ways"]) == 0
    assert capsys.readouterr().out.endswith(hint.format("two_ways"))
    assert main(["record", "broken missing_sync_after_load"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"racecheck: .*, line \d+, steps [\d,]+ and [\d,]+", said)
    assert said.endswith(hint.format("'broken missing_sync_after_load'"))


def test_the_list_has_every_name_with_a_line_of_what_it_shows(capsys):
    assert main(["record", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(names := list(launches_by_name()))
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(f"{name}  ") and len(line.removeprefix(name).strip()) >= 15, line
    shown = dict(zip(names, (line.split("  ", 1)[1].strip() for line in lines), strict=True))
    assert shown["vector_add"] == "c = a + b, one thread per element: about the smallest kernel there is."
    assert shown["broken unpadded_transpose"].startswith("Right numbers, slower: the 32 lanes of a warp read")
    assert shown["hopper step1_wgmma"] == "FlashAttention forward by wgmma, Hopper's own matrix products."


def test_wrong_input_is_named(tmp_path, capsys):
    cases = {
        (): "KERNEL: missing, takes a launch's name; .venv/bin/python -m course_utils record --list has them",
        ("transpos",): "KERNEL: got 'transpos', takes a launch's name, such as 'transpose_naive'",
        ("two_ways", "--block", "5"): "block",
        ("two_ways", "--launch", "1"): "makes no launch number 1; it makes 0: two_ways()",
        ("two_ways", "--html", str(tmp_path / "no" / "x.html")): "there is no folder",
        ("two_ways", "--html", str(tmp_path)): "is a folder, takes the name of a file",
        ("two_ways", "--html", str(tmp_path / ("x" * 300))): "File name too long",
        ("micro/two_ways.cu",): "takes a launch's name, such as 'two_ways'",
        ("sofmax",): "takes a launch's name, such as 'softmax, L=128'",
        ("flash",): "such as 'forward_plain, L=256', 'forward_fa1_order, L=256', 'forward, L=256'",
        ("zzzz",): "takes a launch's name, such as 'vector_add'",
    }
    for arguments, words in cases.items():
        assert main(["record", *arguments]) == 1
        assert words in capsys.readouterr().err, arguments
    for block in ("a,b", "¹,0,0"):
        with pytest.raises(SystemExit):
            main(["record", "two_ways", "--block", block])
        assert f"takes one to three numbers such as 1,0,0, got {block!r}" in capsys.readouterr().err


def test_a_limit_is_passed_on_and_named_where_it_is_too_low(capsys):
    assert main(["record", "transpose_tiled", "--limit", "64"]) == 1
    assert "--limit of the command, allows more, up to 16,777,216" in capsys.readouterr().err
    assert main(["record", "transpose_tiled", "--limit", "0"]) == 1
    assert "limit takes a positive int up to 16777216, got 0" in capsys.readouterr().err
    assert main(["record", "transpose_tiled", "--limit", "5000"]) == 0


def test_chapters_broken_kernels_and_the_ladder_of_hopper_have_names():
    names = launches_by_name()
    assert {"transpose_tiled", "v2 forward, d=64, L=200", "broken missing_syncwarp", "hopper step1_wgmma"} <= set(names)
