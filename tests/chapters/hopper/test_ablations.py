"""What chapter 07 shows of steps with one thing changed: the recorded ratios and shares."""

import itertools

from course_utils.chapters.hopper import ablations
from course_utils.chapters.timed_ladder import ALL_CASES, title
from course_utils.launches.ablations import PARTS
from course_utils.launches.hopper import LADDER
from course_utils.measured.hopper import WHOLE
from course_utils.operators.tensor_core import HEAD_DIMS


def test_the_record_has_each_order_in_each_case_and_each_step_without_each_part():
    copies, parts = (ablations.record().select(part=part) for part in ("copies", "ablations"))
    cases = itertools.product(HEAD_DIMS, (False, True), (2048, ablations.LENGTH), ablations.ORDERS)
    assert [(row["head_dim"], row["is_causal"], row["length"], row["name"]) for row in copies] == [*cases]
    steps = [step.title for step in LADDER if step.producer]
    assert [(row["head_dim"], row["name"], row["without"]) for row in parts] == [
        *itertools.product(HEAD_DIMS, steps, (WHOLE, *PARTS))
    ]
    assert all(0 < row["share"] < 1.05 for row in parts)


def test_the_order_of_the_copies_is_drawn_for_each_case(drawn, capsys):
    assert ablations.show_order_of_copies() == ablations.ratio("wgmma, copies after", 128, False)
    for ax, case in zip(drawn[0].axes, ALL_CASES, strict=True):
        assert ax.get_title("left") == title(*case)
        assert [bar.get_width() for bar in ax.patches] == [ablations.ratio(name, *case) for name in ablations.ORDERS]
    assert capsys.readouterr().out.startswith("times as fast as step 1; L = 16384, B · L = 16384")


def test_shares_are_shown_for_both_head_dimensions(monkeypatch):
    shown = []
    monkeypatch.setattr(ablations.show, "table", lambda rows, _: shown.extend(rows))
    ablations.show_parts(("4", "5"))
    assert [row[""] for row in shown] == ["d = 64, step 4", "d = 64, step 5", "d = 128, step 4", "d = 128, step 5"]
    assert shown[3]["without softmax"] == f"{ablations.share('5', 128, 'softmax'):.0%}"
    assert shown[3]["without products"] == f"{ablations.share('5', 128, 'products'):.0%}"
