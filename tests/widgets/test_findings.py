"""The report of a launch with a button at each finding: what is recorded, where the player opens, and what is kept."""

import base64
import importlib
import json

import pytest
import torch

from course_utils.cuda import RawModule
from course_utils.emulator import record, sanitize
from course_utils.launches.broken import BROKEN
from course_utils.widgets import findings
from course_utils.widgets import recorded as packed_recording
from course_utils.widgets.findings import Watched, at_finding
from course_utils.widgets.frame import STATE
from course_utils.widgets.player import player
from tests.helpers.racing import racing

module = importlib.import_module("course_utils.widgets.findings")  # the package's own name is the function
pytestmark = pytest.mark.usefixtures("leaves_no_shell")

SOURCE = """extern "C" __global__ void clean(float* x) { x[threadIdx.x] = 1; }
extern "C" __global__ void past(float* x) {
    x[threadIdx.x] = 1;
    if (threadIdx.x != 40) return;
    x[1 << 20] = 1; x[1 << 21] = 1;   // the launch ends at the first of them
    x[1 << 22] = 1;
}
extern "C" __global__ void own(float* x) {
    float best[4] = {};
    float s = x[threadIdx.x];
    for (int k = 0; k < 5; k++)
        best[k] = s + k;
    x[threadIdx.x] = best[threadIdx.x % 4];
}
"""


def launch(kernel):
    RawModule(code=SOURCE).get_function(kernel)((1,), (64,), (torch.zeros(64),))


@pytest.fixture
def recordings(monkeypatch):
    """What is recorded meanwhile, as (block, launch)."""
    asked = []

    def counted(call, *, block, launch):
        asked.append((block, launch))
        return record(call, block=block, launch=launch)

    monkeypatch.setattr(module, "record", counted)
    return asked


def pressed(shown, number):
    """What the panel says and what stands below it, after this button."""
    shown._panel._handle_custom_msg({"show": number}, [])
    return shown._panel.status, shown._panel.below.outputs


def test_a_press_records_the_findings_own_block_once_and_opens_there(recordings):
    shown = findings(racing)
    race = next(n for n, one in enumerate(shown.report.findings) if (one.tool, one.space) == ("racecheck", "shared"))
    assert (shown.report.findings[race].block, shown.report.findings[race].launch) == ((1, 0, 0), 1)
    assert recordings == [] and shown._panel.status == ""
    said = []
    shown._panel.observe(lambda change: said.append(change["new"]), ["status", "busy"])
    status, (output,) = pressed(shown, race)
    assert said[:2] == [True, "Recording block (1, 0, 0) of late(): this takes a moment."] and said[-1] is False
    assert status.startswith("The player shows line 7, step ") and "at line 5, step " in status
    assert output["data"]["text/plain"].startswith("Player")
    assert pressed(shown, race)[0] == status and recordings == [((1, 0, 0), 1)]


def test_the_player_has_both_parties_and_no_party_of_another_block():
    with sanitize() as report:
        racing()
    inside = next(one for one in report.findings if (one.tool, one.space) == ("racecheck", "shared"))
    between = next(one for one in report.findings if one.is_between_blocks)
    meta, data = record(racing, block=(1, 0, 0), launch=1).packed()
    shown, words = at_finding(meta, data, inside)
    chosen = meta["findings"][shown.meta["start"]["finding"]]
    place = packed_recording.columns(meta, data)["steps.place"]
    lines = [meta["places"][place[chosen[name]]][1] for name in ("step", "other_step")]
    assert lines == [7, 5] and shown.step == chosen["step"]
    assert f"line 7, step {chosen['step']:,}; the other party, at line 5, step {chosen['other_step']:,}" in words
    meta, data = record(racing, block=between.block, launch=1).packed()
    shown, words = at_finding(meta, data, between)
    assert meta["findings"][shown.meta["start"]["finding"]]["other_step"] == -1
    assert f"the other party is in block {between.other_block}, which this recording does not have" in words


def test_a_finding_without_a_step_opens_at_the_nearest_line_above_or_where_the_launch_stopped():
    for kernel, line, words in (
        ("own", 10, "the nearest above it."),
        ("past", 5, "The launch failed before this was recorded."),
    ):
        watched = Watched(lambda kernel=kernel: launch(kernel))
        found = watched.report.findings[-1]
        meta, data = watched.recording(found).packed()
        shown, said = at_finding(meta, data, found)
        place = packed_recording.columns(meta, data)["steps.place"][shown.step]
        assert meta["places"][place][1] == line and words in said, kernel
        assert "finding" not in shown.meta["start"]


def test_the_report_keeps_its_words_and_recordings_without_variables_are_kept_where_asked(recordings):
    plain, _ = findings(racing)._repr_mimebundle_()
    with sanitize() as report:
        racing()
    assert plain["text/html"] == report._repr_html_() and plain["text/plain"] == str(report)
    assert "application/vnd.jupyter.widget-view+json" in plain and STATE not in plain and recordings == []
    kept, _ = findings(racing, keep=True)._repr_mimebundle_()
    state = kept[STATE]
    assert json.loads(json.dumps(state)) == state and state["script"] == "findings.js"
    meta, data = state["meta"], base64.b64decode(state["data"])
    assert recordings == [((0, 0, 0), 1), ((1, 0, 0), 1)]  # each once
    for found, stop in zip(report.findings, meta["stops"], strict=True):
        one = meta["recordings"][stop["recording"]]
        assert tuple(one["index"]) == found.block and one["variables"] == []
        assert player(one, data[one["from"] : one["to"]], at=found).step == stop["step"]


def test_what_is_too_large_to_be_kept_is_a_picture(monkeypatch):
    monkeypatch.setattr(module, "MOST_STORED", 10)
    state = findings(racing, keep=True)._state()
    assert state["data"] == "" and state["meta"]["recordings"] == []
    for stop in state["meta"]["stops"]:
        assert base64.b64decode(stop["still"]).startswith(b"\x89PNG") and "too large" in stop["words"]


def test_a_clean_launch_has_no_button_and_nothing_is_kept():
    shown = findings(lambda: launch("clean"), keep=True)
    assert shown._panel.meta["cards"] == [] and "no finding in 1 launch" in shown._panel.meta["head"]
    assert STATE not in shown._repr_mimebundle_()[0]


def test_a_launch_that_fails_is_said_with_what_was_found():
    shown = findings(lambda: BROKEN["shuffle_in_branch"].launch().run())
    said = "deadlock: no thread of the block can go on"
    assert {one.tool for one in shown.report.findings} == {"synccheck"}
    bundle, _ = shown._repr_mimebundle_()
    assert all(said in text for text in (bundle["text/html"], bundle["text/plain"], shown._panel.meta["tail"]))
    status, (output,) = pressed(shown, 0)
    assert status.startswith("The player shows line 20, step ") and "line 22" in status


def test_what_cannot_be_recorded_is_said(monkeypatch):
    def fails(*_, **__):
        raise ValueError("the recording is longer than 4,000,000 accesses")

    monkeypatch.setattr(module, "record", fails)
    shown = findings(racing, keep=True)
    words = "There is nothing to show: ValueError: the recording is longer than 4,000,000 accesses"
    assert pressed(shown, 0) == (words, ()) and not shown._panel.busy
    assert {stop["words"] for stop in shown._state()["meta"]["stops"]} == {words.replace("ValueError: ", "")}
    for wrong in ({"show": 99}, {"show": -1}, {"other": 1}, "show"):
        shown._panel._handle_custom_msg(wrong, [])
        assert shown._panel.status == words


def test_what_is_no_call_is_named():
    with pytest.raises(TypeError, match="call: got SanitizerReport, takes a function without arguments that makes"):
        with sanitize() as report:
            pass
        findings(report)


@pytest.mark.browser
def test_a_press_tells_python_which_finding_and_nothing_else_until_it_answers(open_widget):
    page = open_widget(findings(racing)._panel)
    buttons = page.get_by_role("button", name="Show finding")
    assert buttons.count() > 1 and not page.locator(".ak-status").is_visible()
    buttons.nth(1).focus()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("window.sent") == [{"show": 1}]
    assert buttons.nth(1).inner_text() == "Opening …" and buttons.nth(0).inner_text() == "Show"
    page.evaluate("model.set('busy', true); model.set('status', 'Recording'); model.set('busy', false)")
    assert buttons.nth(1).inner_text() == "Show" and page.locator(".ak-status").inner_text() == "Recording"
    assert buttons.nth(1).get_attribute("aria-pressed") == "true"
    buttons.nth(0).click()
    assert page.evaluate("window.sent") == [{"show": 1}, {"show": 0}]
    page.evaluate("window.cleanup()")
    assert page.evaluate("model.listeners.length") == 0
