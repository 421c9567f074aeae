"""The grade of one exercise: points part by part, each with what is wrong and where to read again.

Plain data: who only keeps or shows a grade does not load PyTorch, which takes seconds.
"""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace

RIGHT, WRONG, UNANSWERED, NOT_MEASURED = "right", "wrong", "open", "not measured"
MOST_IN_ONE_COLUMN = 10  # lines that a kernel has printed


OF_A_FILE, UNWRITTEN = "file", "unwritten"


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong, in a name that a student can look up.

    name: one line ("O is not rescaled when the maximum changes"). detail: the evidence (where, how much). It must be
    the same each time the same submission is graded with the same seed. read_again: chapter and section. kind:
    OF_A_FILE where a handed-in file is at fault, UNWRITTEN of an output; "" of all else.
    """

    name: str
    detail: str = ""
    read_again: str = ""
    kind: str = ""

    def with_figures(self, figures: str) -> Diagnosis:
        """The same, with what was counted before its own words."""
        return replace(self, detail=f"{figures} {self.detail}")


@dataclass(frozen=True)
class PartResult:
    """One part: `earned` of `points`. status: "right", "wrong", "open" (a question that is not answered
    yet), or "not measured" (a bonus that needs a GPU).

    ratio: of a timed part, the kernel's time over the reference's on this GPU; it differs a little from run to run.
    ran: whether there was a kernel to launch; not after a compile error. Of a fresh result only: it is not kept.
    """

    name: str
    title: str
    points: int
    earned: int
    status: str
    bonus: bool = False
    diagnosis: Diagnosis | None = None
    ratio: float | None = None
    ran: bool = field(default=True, compare=False)


@dataclass(frozen=True)
class Result:
    """The grade of one submission.

    exercise: its id; digest: of the submission; seed: of the inputs; device: "cpu" (the emulator) or "cuda".
    status, notes: as those of `Submission`. hints: what a look at the source shows, without points.
    printed: the first case in which the kernel printed something, and what; on the emulator. unset: the local variable
    that is used before it has a value, in a sentence. A kernel with such a one is right by luck.
    """

    exercise: str
    title: str
    digest: str
    seed: int
    device: str
    status: str
    parts: tuple[PartResult, ...]
    hints: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    printed: str = ""
    unset: str = ""

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
        """The main one: that of most lost points, of these the first. None where nothing is wrong.

        A part whose words are another part's, with the case's name before them, counts for these.
        """
        lost: Counter[str] = Counter()
        first: dict[str, Diagnosis] = {}
        for part in self.parts:
            if part.diagnosis is not None and part.status in (WRONG, UNANSWERED):
                lost[part.diagnosis.name] += part.points - part.earned if not part.bonus else 0
                first.setdefault(part.diagnosis.name, part.diagnosis)
        total = {name: sum(lost[n] for n in lost if n == name or n.endswith(f": {name}")) for name in lost}
        return first[max(total, key=lambda name: total[name])] if total else None

    def to_json(self) -> str:
        """As text that `from_json` reads, the same for the same result."""
        fields = asdict(self)
        for name in ("notes", "printed", "unset"):
            if not fields[name]:
                del fields[name]  # an older course reads it, too
        for part in fields["parts"]:
            del part["ran"]
        return json.dumps(fields, indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Result:
        """Raises ValueError (KeyError, TypeError) for text that `to_json` did not write."""
        fields = json.loads(text)
        fields["parts"] = tuple(
            PartResult(**{**part, "diagnosis": part["diagnosis"] and Diagnosis(**part["diagnosis"])})
            for part in fields["parts"]
        )
        lists = {name: tuple(fields.get(name, ())) for name in ("hints", "notes")}
        return cls(**fields | lists)

    def __str__(self) -> str:
        lines = [f"{self.title}: {self.earned} of {self.points} points", *(f"  note: {note}" for note in self.notes)]
        for part, name, details, read_again in self._explained():
            mark = {RIGHT: "+", WRONG: "-"}.get(part.status, " ")
            bonus = " (bonus)" if part.bonus else ""
            lines.append(f"  {mark} {part.earned}/{part.points}{bonus}  {part.title}{_timed(part)}")
            if part.diagnosis is not None:
                lines += [f"        {line}" for line in (name, *details.splitlines())]
                if read_again:
                    lines.append(f"        read again: {read_again}")
        lines += [f"  hint, without points: {hint}" for hint in self.hints]
        if self.printed:
            lines += ["  the kernel printed:", *(f"    {line}" for line in self.printed.splitlines())]
        return "\n".join(lines)

    def to_html(self) -> str:
        """A heading and a table with one row per part, without styles: the page around it brings them."""
        heading = f"<p><strong>{html.escape(self.title)}: {self.earned} of {self.points} points</strong></p>"
        notes = "".join(f"<p>Note: {html.escape(note)}</p>" for note in self.notes)
        return f"{heading}{notes}{self.table_html()}"

    def table_html(self) -> str:
        """The table and the hints alone. A line break stands between cells: copied text keeps its columns apart."""
        rows = []
        for part, name, details, read_again in self._explained():
            said = ""
            if part.diagnosis is not None:
                said = f"<strong>{html.escape(name)}</strong>" if name == part.diagnosis.name else html.escape(name)
                said += f"<pre>{html.escape(details)}</pre>" if details else ""
                said += f"<div>Read again: {html.escape(read_again)}</div>" if read_again else ""
            title = html.escape(part.title) + (" (bonus)" if part.bonus else "") + _timed(part)
            cells = (title, part.status, f"{part.earned} / {part.points}", said)
            row = "\n".join(f"<td>{cell}</td>" for cell in cells)
            rows.append(f'<tr class="ak-{part.status.replace(" ", "-")}">{row}</tr>')
        last = "diagnosis" if any(part.diagnosis for part in self.parts) else ""
        head = "\n".join(f"<th>{name}</th>" for name in ("part", "", "points", last))
        body = "\n".join(rows)
        hints = "".join(f"<p>Hint, without points: {html.escape(hint)}</p>" for hint in self.hints)
        table = f'<table class="ak-grade"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
        return f"{table}{hints}{self.printed_html()}"

    def printed_html(self) -> str:
        """What the kernel printed, or nothing. Many lines stand in columns, as far as they fit: one below the
        other, a number a line would fill the screen."""
        if not self.printed:
            return ""
        lines = self.printed.splitlines()
        columns = f' style="columns: {max(map(len, lines)) + 2}ch"' if len(lines) > MOST_IN_ONE_COLUMN else ""
        return f"<p>The kernel printed:</p><pre{columns}>{html.escape(self.printed)}</pre>"

    def _explained(self) -> Iterator[tuple[PartResult, str, str, str]]:
        """Each part with what to say, the evidence to show and where to read again: nothing that was told before.

        If an earlier part had the same diagnosis with the same evidence, such as a compile error, that part is named.
        If the evidence differs, its first line is added, which begins with the case.
        """
        names, first_parts, sent = set(), {}, set()
        for part in self.parts:
            diagnosis = part.diagnosis or Diagnosis("")
            name, details = diagnosis.name, diagnosis.detail
            if diagnosis in first_parts:
                name, details = f"as for “{first_parts[diagnosis]}”", ""
            elif diagnosis.name in names:
                details = details.partition("\n")[0]
            yield part, name, details, "" if diagnosis.read_again in sent else diagnosis.read_again
            names.add(diagnosis.name)
            first_parts.setdefault(diagnosis, part.title)
            sent.add(diagnosis.read_again)

    def _repr_html_(self) -> str:
        return self.to_html()


def _timed(part: PartResult) -> str:
    return f" ({part.ratio:.2f} times the reference's time)" if part.ratio is not None else ""
