"""The grade of one exercise: points part by part, each with what is wrong and where to read again.

Plain data: who only keeps or shows a grade does not load PyTorch, which takes seconds.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass

RIGHT, WRONG, OPEN, NOT_MEASURED = "right", "wrong", "open", "not measured"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong, in a name that a student can look up.

    name: one line ("O is not rescaled when the maximum changes"). detail: the evidence (where, how much). It must be
    the same each time the same submission is graded with the same seed. read_again: chapter and section.
    """

    name: str
    detail: str = ""
    read_again: str = ""


@dataclass(frozen=True)
class PartResult:
    """One part: `earned` of `points`. status: "right", "wrong", "open" (a question that is not answered
    yet), or "not measured" (a bonus that needs a GPU).

    ratio: of a timed part, the kernel's time over the reference's on this GPU; it differs a little from run to run.
    """

    name: str
    title: str
    points: int
    earned: int
    status: str
    bonus: bool = False
    diagnosis: Diagnosis | None = None
    ratio: float | None = None


@dataclass(frozen=True)
class Result:
    """The grade of one submission.

    exercise: its id; digest: of the submission; seed: of the inputs; device: "cpu" (the emulator) or "cuda".
    status: as `Submission.status`.
    """

    exercise: str
    title: str
    digest: str
    seed: int
    device: str
    status: str
    parts: tuple[PartResult, ...]

    @property
    def earned(self) -> int:
        """Points, with bonuses."""
        return sum(part.earned for part in self.parts)

    @property
    def points(self) -> int:
        """What a right submission earns, without bonuses."""
        return sum(part.points for part in self.parts if not part.bonus)

    @property
    def full(self) -> bool:
        """Whether every part that is no bonus is right."""
        return all(part.status == RIGHT for part in self.parts if not part.bonus)

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The main one: that of most lost points, of these the first. None where nothing is wrong."""
        lost: Counter[str] = Counter()
        first: dict[str, Diagnosis] = {}
        for part in self.parts:
            if part.diagnosis is not None and part.status in (WRONG, OPEN):
                lost[part.diagnosis.name] += part.points if not part.bonus else 0
                first.setdefault(part.diagnosis.name, part.diagnosis)
        return first[max(lost, key=lambda name: lost[name])] if lost else None

    def to_json(self) -> str:
        """As text that `from_json` reads, the same for the same result."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Raises ValueError (KeyError, TypeError) for text that `to_json` did not write."""
        fields = json.loads(text)
        fields["parts"] = tuple(
            PartResult(**{**part, "diagnosis": part["diagnosis"] and Diagnosis(**part["diagnosis"])})
            for part in fields["parts"]
        )
        return cls(**fields)

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.earned} of {self.points} points"]
        for part, details, read_again in self._told():
            mark = {RIGHT: "+", WRONG: "-"}.get(part.status, " ")
            bonus = " (bonus)" if part.bonus else ""
            lines.append(f"  {mark} {part.earned}/{part.points}{bonus}  {part.title}{_timed(part)}")
            if part.diagnosis is not None:
                lines += [f"        {line}" for line in (part.diagnosis.name, *details.splitlines())]
                if read_again:
                    lines.append(f"        read again: {read_again}")
        return "\n".join(lines)

    def to_html(self) -> str:
        """A heading and a table with one row per part, without styles: the page around it brings them."""
        rows = []
        for part, details, read_again in self._told():
            said = ""
            if part.diagnosis is not None:
                said = f"<strong>{html.escape(part.diagnosis.name)}</strong>"
                said += f"<pre>{html.escape(details)}</pre>" if details else ""
                said += f"<div>Read again: {html.escape(read_again)}</div>" if read_again else ""
            title = html.escape(part.title) + (" (bonus)" if part.bonus else "") + _timed(part)
            rows.append(
                f'<tr class="ak-{part.status.replace(" ", "-")}"><td>{title}</td>'
                f"<td>{part.status}</td><td>{part.earned} / {part.points}</td><td>{said}</td></tr>"
            )
        last = "diagnosis" if any(part.diagnosis for part in self.parts) else ""
        head = f"<tr><th>part</th><th></th><th>points</th><th>{last}</th></tr>"
        return (
            f"<p><strong>{html.escape(self.title)}: {self.earned} of {self.points} points</strong></p>"
            f'<table class="ak-grade"><thead>{head}</thead><tbody>{"".join(rows)}</tbody></table>'
        )

    def _told(self) -> Iterator[tuple[PartResult, str, str]]:
        """Each part with the evidence to show and where to read again: its last line if the name was there."""
        seen, sent = set(), set()
        for part in self.parts:
            diagnosis = part.diagnosis or Diagnosis("")
            again = diagnosis.name in seen
            details = diagnosis.detail.rpartition("\n")[2] if again else diagnosis.detail
            yield part, details, "" if diagnosis.read_again in sent else diagnosis.read_again
            seen.add(diagnosis.name)
            sent.add(diagnosis.read_again)

    def _repr_html_(self) -> str:
        return self.to_html()


def _timed(part: PartResult) -> str:
    return f" ({part.ratio:.2f} times the reference's time)" if part.ratio is not None else ""
