"""Find the missing barrier: what a recording says of its lines, and how a mark is judged."""

import pytest
from matplotlib.figure import Figure

from course_utils.chapters import missing_barrier
from course_utils.chapters.hand_overs import hand_overs
from course_utils.chapters.missing_barrier import LEVELS
from course_utils.cuda import CompileError, KernelError, read_kernel
from course_utils.emulator import record, sanitize
from course_utils.emulator.recorded import WITH_ROWS
from course_utils.launches.broken import BROKEN
from course_utils.widgets import find_the_missing_barrier
from tests.helpers.large_values import computed

OF_BROKEN = {
    "reduction": "missing_sync_in_reduction",
    "histogram": "histogram_without_barrier",
    "next_tile": "missing_sync_before_overwrite",
    "own_warp": "missing_syncwarp",
}
JUDGED = """async ([level, places]) => {
    const { judge } = await import(window.scriptUrl);
    return places.map((place) => judge(level, place));
}"""


def level_of(name):
    return next(level for level in LEVELS if level.name == name)


@pytest.fixture(scope="module")
def packed():
    """Two levels as the widget takes them: a tile that is turned, and a reduction whose memory is used twice."""
    return [missing_barrier.packed(level_of(name)) for name in ("transpose", "reduction")]


# ---- the levels


def test_each_level_has_lost_its_line_and_nothing_else():
    for level in LEVELS:
        assert level.place in level.places, level.name
        assert level.source(level.place) == level.whole and level.cut not in level.source().splitlines(), level.name
        assert "broken" not in level.source() + level.source().name, level.name
    for name, mistake in OF_BROKEN.items():
        assert level_of(name).source() == read_kernel(BROKEN[mistake].launch().source), name


def test_a_line_that_is_not_there_is_named():
    wrong = missing_barrier.replace(LEVELS[0], which=2)
    with pytest.raises(
        ValueError, match=r"cut: got '__syncthreads\(\).*' number 2, .*transpose_tiled.cu has it 1 times"
    ):
        _ = wrong.place


def test_what_lines_hand_to_each_other_and_the_barrier_between():
    level = level_of("transpose")
    (whole,) = hand_overs(record(lambda: level.run(level.whole)))
    assert (whole.array, whole.kind, whole.line, whole.then_line) == ("tile", "read after write", 18, 24)
    assert whole.first < whole.by < whole.then and whole.by_line == 19
    (broken,) = hand_overs(level.recording())
    assert (broken.line, broken.then_line, broken.by, broken.by_line) == (18, 23, -1, None)
    reduction = {
        (one.kind, one.line, one.then_line): one.by_line for one in hand_overs(level_of("reduction").recording())
    }
    assert reduction == {
        ("read after write", 23, 25): 24,
        ("read after write", 23, 26): 24,
        ("write after read", 25, 23): None,
        ("write after read", 26, 23): None,
    }


def touched(recording, step):
    """The bytes that a step touches: array → a set of offsets."""
    columns, rows = recording.columns, recording.columns["lanes.offset"]
    assert columns["steps.op"][step] <= WITH_ROWS
    first, lanes = int(columns["steps.first"][step]), int(columns["steps.mask"][step]).bit_count()
    width = int(columns["steps.width"][step])
    return {int(offset) + k for offset in rows[first : first + lanes] for k in range(width)}


def test_the_two_parties_of_a_race_touch_the_same_bytes(packed):
    for name, (known, _) in zip(("transpose", "reduction"), packed, strict=True):
        recording, race = level_of(name).recording(), known["race"]
        columns = recording.columns
        assert race["offset"] in touched(recording, race["first"]) & touched(recording, race["then"]), name
        assert columns["steps.array"][race["first"]] == columns["steps.array"][race["then"]]
        assert columns["steps.warp"][race["first"]] != columns["steps.warp"][race["then"]]
        assert known["recording"]["findings"] == [] and known["recording"]["failure"] == ""  # they would tell


# ---- a mark is judged


@pytest.mark.browser
def test_a_mark_is_judged_by_what_the_recording_holds(packed, open_widget):
    page = open_widget(find_the_missing_barrier(packed))
    (transpose, _), (reduction, _) = packed
    right, late, close, before, after, nothing = computed(page, JUDGED, [transpose, [18, 21, 22, 10, 24, 17]])
    assert right["kind"] == "right" and right["steps"] == [63, 64]
    assert right["text"].startswith("Right. Line 18 writes tile at step 63, and line 23 reads it")
    assert "In the course __syncthreads(); stands after line 18." in late["text"]
    assert close["kind"] == "close"  # inside of the condition that follows
    assert before["kind"] == after["kind"] == "outside"
    assert nothing["kind"] == "nothing"
    behind, used_again = computed(page, JUDGED, [reduction, [24, 26]])
    assert behind["kind"] == "ordered" and len(behind["steps"]) == 3
    assert "line 23 writes of_warp, and line 25 reads it, but in this order: the barrier in line 24" in behind["text"]
    assert used_again["kind"] == "right"


# ---- the widget


def test_it_takes_levels_and_has_a_still_picture(packed):
    widget = find_the_missing_barrier(packed)
    assert [level["bytes"] for level in widget.meta["levels"]] == [len(data) for _, data in packed]
    assert isinstance(widget.static_figure(), Figure)
    with pytest.raises(ValueError, match="levels: got none"):
        find_the_missing_barrier([])


@pytest.mark.browser
def test_the_answers_are_beside_the_status_on_the_first_screen(packed, open_widget):
    page = open_widget(find_the_missing_barrier(packed), width=1440)
    page.wait_for_selector(".ak-line")
    status = page.locator(".ak-barrier-now > .ak-status").bounding_box()
    for name in ("Missing before it", "Missing after it", "Hint"):
        button = page.get_by_role("button", name=name).bounding_box()
        assert button["y"] + button["height"] < 500 and button["x"] > status["x"] + status["width"], name
    page.locator(".ak-line").nth(16).click()
    page.get_by_role("button", name="Missing before it").click()
    answer = page.locator(".ak-barrier-answer").bounding_box()
    assert answer["y"] + answer["height"] < 600


def test_a_level_is_played_and_answers(packed, open_widget):
    page = open_widget(find_the_missing_barrier(packed), width=1100)
    page.wait_for_selector(".ak-source")
    answer, score = page.locator(".ak-barrier-answer"), page.locator(".ak-barrier-score")
    assert page.get_by_role("button", name="Missing after it").is_disabled()
    page.locator(".ak-line").nth(16).click()  # line 17
    page.get_by_role("button", name="Missing before it").click()
    assert answer.inner_text().startswith("Not here: the lines in which this block does")
    page.locator(".ak-source").press("ArrowDown")
    page.get_by_role("button", name="Missing after it").press("Enter")
    assert answer.inner_text().startswith("Right. Line 18 writes tile")
    assert "Solved: 1 of 2. Tries: 2. Steps: 0." in score.inner_text()
    page.get_by_role("button", name="Warp 0 reads 32 × 4 bytes of tile at line 23").click()
    assert "Step 64 of 127." in page.locator(".ak-barrier-now > .ak-status").inner_text()
    page.get_by_role("button", name="Hint").click()
    assert "what races is in tile" in answer.inner_text()
    touches = page.locator(".ak-touches")
    assert "writes it, line 18" in touches.inner_text() and "barrier" not in touches.inner_text()
    page.get_by_role("button", name="level 2").click()
    page.wait_for_function("document.querySelector('.ak-source').textContent.includes('of_warp')")
    assert "Solved: 1 of 2. Tries: 2. Steps: 1." in score.inner_text()
    page.get_by_role("button", name="Reset the score").click()
    assert "Solved: 0 of 2. Tries: 0. Steps: 0." in score.inner_text()


# ---- all levels


@pytest.mark.browser
def test_while_a_level_is_unpacked_the_keys_are_not_in_the_former_one(packed, open_widget):
    page = open_widget(find_the_missing_barrier(packed))
    page.locator(".ak-barrier-level .ak-step").focus()
    there = page.evaluate("""() => {
        document.querySelectorAll(".ak-barrier-levels button")[1].click();
        return [document.activeElement.ariaLabel, document.querySelector(".ak-barrier-level").inert];
    }""")
    assert there == ["level 2, One place, used twice", True]
    page.wait_for_function("!document.querySelector('.ak-barrier-level').inert")
    page.locator(".ak-barrier-level .ak-step").focus()
    assert page.evaluate("document.activeElement.className") == "ak-step"


@pytest.mark.exhaustive("each level: two of them in make test")
@pytest.mark.parametrize("level", LEVELS, ids=lambda level: level.name)
def test_a_barrier_mends_a_level_at_its_places_and_nowhere_beside_them(level, open_widget):
    (known, data) = missing_barrier.packed(level)
    assert len(data) <= 200_000
    places = range(len(level.source().splitlines()) + 1)
    verdicts = computed(open_widget(find_the_missing_barrier([(known, data)])), JUDGED, [known, list(places)])
    assert [place for place in places if verdicts[place]["kind"] == "right"] == sorted(level.places)
    race, steps = known["race"], known["recording"]["columns"][0]["count"]
    assert 0 <= race["first"] < race["then"] < steps
    for place in sorted(set(level.places) | {level.places[0] - 1, level.places[-1] + 1}):
        assert is_silent(level, place) == (place in level.places), place


def is_silent(level, place):
    """Whether the sanitizer finds nothing, with the barrier put back after a line; not where it cannot stand."""
    before = next((line for line in reversed(level.source().splitlines()[:place]) if line.strip()), "")
    if before.split("//")[0].strip()[-1:] == ")":
        return False  # it would be what follows an `if`
    try:
        with sanitize() as report:
            level.run(level.source(place))
    except (CompileError, KernelError):
        return False
    return not report.findings
