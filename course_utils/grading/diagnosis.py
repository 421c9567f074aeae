"""From what a kernel left behind to the name of its mistake."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from course_utils.checks import error_report, lse_report
from course_utils.emulator.sanitizer import Finding
from course_utils.emulator.words import HAZARDS
from course_utils.grading.exercise import Case, Diagnosis, Exercise, Mistake, Outcome
from course_utils.grading.job import still_blank
from course_utils.grading.mistakes import give, give_in_places
from course_utils.grading.result import OF_A_FILE, UNWRITTEN
from course_utils.grading.variables import line_that_hides
from course_utils.grading.wrong_values import first_of, places
from course_utils.toolchain.source import blank_comments

ABSENT_LANES = {
    "lane not in block": "the block does not have",
    "lane not in mask": "the mask does not name",
    "lane has left": "has left the kernel",
}
EQUAL = 1e-3  # how near an output must be to what a mistake would give, relative to the largest value
READING_A_FINDING = "00 Memory and tools, section 10, 'Reading a finding'"  # where nothing nearer explains one
NOT_ALL_ARRIVE = {  # what several exercises say of what synccheck finds
    "synccheck": Diagnosis("not all threads come to a barrier or shuffle", read_again=READING_A_FINDING)
}


class Matches:
    """Which mistakes give what a kernel gave, case by case. Of one submission: each pair is compared once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Mistake, int], bool] = {}

    def among(self, mistakes: Sequence[Mistake], case: Case, outcome: Outcome) -> list[Mistake]:
        """The mistakes that give the outputs of this outcome of the case."""
        unknown = [mistake for mistake in mistakes if (mistake, id(case)) not in self._known]
        for mistake, given in give_in_places(unknown, case).items():
            if not all(_near_where_written(outcome.outputs.get(name), given[name]) for name in _judged(case)):
                self._known[mistake, id(case)] = False
        unknown = [mistake for mistake in unknown if (mistake, id(case)) not in self._known]
        give(unknown, case)
        unwritten = frozenset(name for name, tensor in outcome.outputs.items() if still_blank(tensor).any())
        for mistake in unknown:
            self._known[mistake, id(case)] = _matches(mistake, case, outcome.outputs, unwritten)
        return [mistake for mistake in mistakes if self._known[mistake, id(case)]]


def diagnose(
    exercise: Exercise,
    cases: Sequence[Case],
    outcomes: Sequence[Outcome],
    source: str = "",
    matches: Matches | None = None,
) -> list[Diagnosis | None]:
    """What is wrong in each case; None where nothing is. source: the kernel's text. matches: what is known already.

    Where a value is wrong, a variable that is used before it has a value names it, unless the sanitizer found something
    there; else a known mistake that gives the same wrong values; else what the sanitizer found; else the values
    themselves do. One mistake that explains many cases goes before several that explain few. A mistake that would show
    in a case where the values are right is none that this kernel makes. What no mistake explains, `Case.explain` of
    this or another case may read off the values.
    """
    matches = matches or Matches()
    pairs = list(zip(cases, outcomes, strict=True))
    wrong = [None if outcome.error else wrong_values(case, outcome.outputs) for case, outcome in pairs]
    lacks_barrier = [right_in_step(case, outcome) for case, outcome in pairs]
    verdicts = [_verdict(exercise, *pair, values, source) for pair, values in zip(pairs, wrong, strict=True)]
    of_findings = _of_findings(exercise, cases, outcomes)
    for i, said in of_findings.items():
        verdicts[i] = verdicts[i] and replace(said, detail=f"{said.detail}\n{verdicts[i].detail}")
    unset = [bool(outcome.unset) and not outcome.findings for outcome in outcomes]
    settled = [lacks_barrier[i] or unset[i] or i in of_findings for i in range(len(cases))]
    open_cases = [i for i, values in enumerate(wrong) if values is not None and not settled[i]]
    right = [case for (case, outcome), values in zip(pairs, wrong, strict=True) if not (outcome.error or values)]
    explained = explanations(exercise, pairs, open_cases, right, matches)
    for i, (best, *_) in explained.items():
        detail = best.diagnosis.detail or f"{cases[i].name}: {wrong[i].name}"
        if outcomes[i].findings:
            detail += f"\nbesides: {of_finding(exercise, _cause(outcomes[i].findings), source).name}"
        verdicts[i] = replace(best.diagnosis, detail=detail)
    open_cases = [i for i in open_cases if i not in explained]
    words = {i: _explained(cases[i], outcomes[i]) for i in open_cases}
    said = [(cases[i], words[i]) for i in open_cases]
    for i in open_cases:
        other = None if outcomes[i].findings else _of_another(cases[i], said)
        verdicts[i] = words[i] or other or verdicts[i]
    return verdicts


def explanations(
    exercise: Exercise,
    pairs: Sequence[tuple[Case, Outcome]],
    open_cases: Sequence[int],
    right: Sequence[Case],
    matches: Matches,
) -> dict[int, list[Mistake]]:
    """The known mistakes that explain the open cases, by case: the first of them is named, the others explain as much.

    All mistakes are tried on the first open case, and what is left of them on the others; then again on the next case
    that is still open. Where no mistake explains the first case of a part that could tell one, only those that are
    simulated are tried on its others: the variants of a kernel take a launch for each.
    right: cases in which none of the mistakes may show.
    """
    found: dict[int, list[Mistake]] = {}
    unknown_parts: set[str] = set()
    for first in open_cases:
        case, outcome = pairs[first]
        if first in found or not case.names or not _tells(case, outcome):
            continue
        tried = [one for one in exercise.mistakes if one.variant is None or case.part not in unknown_parts]
        candidates = matches.among(tried, case, outcome)
        for other in right:
            give(candidates, other)
            candidates = [mistake for mistake in candidates if not _shows(mistake, other)]
        left = [i for i in open_cases if i not in found]
        hits = [(i, mistake) for i in left for mistake in matches.among(candidates, *pairs[i])]
        counts = Counter(mistake for _, mistake in hits)
        if not candidates:
            unknown_parts.add(case.part)
            continue
        best = [mistake for mistake in candidates if counts[mistake] == max(counts.values())]
        found |= {i: best for i, mistake in hits if mistake == best[0]}
    return found


def _of_findings(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome]) -> dict[int, Diagnosis]:
    """What the exercise itself has to say of findings, and of launches that did not end, by case."""
    if exercise.diagnose_findings is None or not any(outcome.findings or outcome.error for outcome in outcomes):
        return {}
    said = enumerate(exercise.diagnose_findings(cases, outcomes))
    return {i: one for i, one in said if one is not None and (outcomes[i].findings or outcomes[i].error)}


def _of_another(case: Case, words: Sequence[tuple[Case, Diagnosis | None]]) -> Diagnosis | None:
    """What another case says, best one of the same part; else its name goes before, for it may not be true here."""
    there_are = [(other, said) for other, said in words if said]
    for other, said in there_are:
        if other.part == case.part:
            return said
    return next((replace(said, name=f"{other.name}: {said.name}") for other, said in there_are), None)


def _explained(case: Case, outcome: Outcome) -> Diagnosis | None:
    """What a case of unknown mistake says for itself, unless a finding says it."""
    if case.explain is None or outcome.findings:
        return None
    said = case.explain(case, outcome.outputs)
    return said and replace(said, detail=f"{case.name}: {said.detail}")


def unsettled(exercise: Exercise, cases: Sequence[Case], outcomes: Sequence[Outcome], matches: Matches) -> bool:
    """Whether the exercise's experiments are to say more: wrong values with no name yet, or with more than one."""
    pairs = [pair for pair in zip(cases, outcomes, strict=True) if not pair[1].error]
    wrong = [wrong_values(case, outcome.outputs) is not None for case, outcome in pairs]
    open_cases = [
        i
        for i, (_, outcome) in enumerate(pairs)
        # a kernel that writes nothing here says no more elsewhere
        if wrong[i] and not outcome.findings and not all(still_blank(x).all() for x in outcome.outputs.values())
    ]
    right = [case for (case, _), is_wrong in zip(pairs, wrong, strict=True) if not is_wrong]
    explained = explanations(exercise, pairs, open_cases, right, matches)
    return any(len({mistake.diagnosis.name for mistake in explained.get(i, ())}) != 1 for i in open_cases)


def right_in_step(case: Case, outcome: Outcome) -> bool:
    """Whether nothing but a barrier is missing: the case is right where the threads go in step."""
    if outcome.in_step is None or wrong_values(case, outcome.in_step) is not None:
        return False
    return case.review is None or case.review(case, outcome) is None


def _verdict(
    exercise: Exercise, case: Case, outcome: Outcome, wrong: Diagnosis | None, source: str
) -> Diagnosis | None:
    """What is wrong in one case, without looking for known mistakes. wrong: what `wrong_values` says."""
    if outcome.error:
        return of_error(exercise, case, outcome, source)
    found = of_finding(exercise, _cause(outcome.findings), source, right=wrong is None) if outcome.findings else None
    if wrong is not None:
        if found is not None:
            return replace(found, detail=f"{case.name}: {wrong.name}\n{found.detail}")
        return Diagnosis(outcome.unset, wrong.detail) if outcome.unset else _hidden(case, outcome, source) or wrong
    if found is not None and case.must_be_clean:
        return found
    if outcome.in_reverse is not None and (other := wrong_values(case, outcome.in_reverse)) is not None:
        words = (
            f"{case.name}: right where the first thread of a block runs first; where the last one does: {other.name}"
        )
        return Diagnosis("the result depends on the order in which threads run", words, READING_A_FINDING)
    return case.review(case, outcome) if case.review else None


def _hidden(case: Case, outcome: Outcome, source: str) -> Diagnosis | None:
    """For an output that is never written: the local variable of its name that is written in its place, if any."""
    for name in case.outputs:
        line = line_that_hides(source, name) if still_blank(outcome.outputs[name]).all() else None
        if line is not None:
            detail = f"{case.name}: {name} is never written. The variable {name} of line {line} is another one."
            return Diagnosis(f"a variable {name} hides the parameter {name} (line {line})", detail)
    return None


def _cause(findings: Sequence[Finding]) -> Finding:
    """The finding to name: one that causes others if there is one, else the first.

    Barriers that threads miss cause races in other lines, and misaligned vectors also leave the array.
    """
    first = (lambda finding: finding.tool == "synccheck", _is_misaligned_vector)
    return next((finding for is_first in first for finding in findings if is_first(finding)), findings[0])


def _is_misaligned_vector(finding: Finding) -> bool:
    return finding.kind == "misaligned" and finding.by != "a cp.async"


# ---- errors


def of_error(exercise: Exercise, case: Case, outcome: Outcome, source: str = "") -> Diagnosis:
    """A launch that did not finish."""
    at = f", line {outcome.line}" if outcome.line else ""
    file = exercise.place or f"{exercise.name}.cu"
    names = {
        "missing": outcome.error,
        "rule": f"{file}{at}: {outcome.error}",
        "compile": f"{file} does not compile{at}",
        "undefined": f"{file} must define {' and '.join(f'{name}()' for name in exercise.kernels)}",
        "interface": "the kernel's parameters are not those that it is launched with",
        "launch": "the kernel cannot be launched as the exercise launches it",
        "crash": f"the kernel crashes{at}",
        "time limit": f"the kernel does not end in time{at}",
        "too long": "grading took longer than it may",
        "deadlock": f"threads wait at a barrier that the others never reach{at}",
        "divergent barrier": f"threads wait at different barriers{at}",
        "bad collective": f"not all lanes of a warp take part in a shuffle or vote{at}",
        "gpu": "the kernel fails on the GPU",
        "trap": f"the kernel stops itself{at}",
    }
    if (special := exercise.findings.get(outcome.kind)) is not None:
        return replace(special, detail=f"{case.name}: {outcome.error}")
    name = names.get(outcome.kind, f"the kernel took its process down: {outcome.kind}")
    if outcome.kind in ("rule", "missing"):
        return Diagnosis(name, kind=OF_A_FILE)
    if outcome.kind in ("crash", "died", "gpu") and outcome.findings:
        cause = of_finding(exercise, _cause(outcome.findings), source)
        return replace(cause, detail=f"{case.name}: {outcome.error}\n{cause.detail}")
    finding = f"\n{outcome.findings[0]}" if outcome.findings else ""
    where = "" if outcome.kind in ("compile", "undefined", "interface") else f"{case.name}: "
    kind = OF_A_FILE if outcome.kind in ("compile", "undefined") else ""
    return Diagnosis(name, f"{where}{outcome.error}{finding}", kind=kind)


# ---- the sanitizer


def of_finding(exercise: Exercise, finding: Finding, source: str = "", *, right: bool = False) -> Diagnosis:
    """A finding, in the exercise's words for its tool or in its own. The report itself is the evidence.

    right: whether the values are, so that what threads write twice is the same.
    """
    line = f" (line {finding.line})" if finding.line else ""
    special = exercise.findings.get(finding.tool)
    if special is not None:
        return replace(special, detail=str(finding))
    name = f"{finding.tool}: {finding.message}{line}"
    between_blocks = finding.space == "global" and finding.is_between_blocks
    if finding.kind in HAZARDS and between_blocks:
        too = finding.kind == "write after write"
        name = f"several blocks write the same memory{line}" if too else f"a block needs what another writes{line}"
    elif finding.kind in HAZARDS and finding.line and finding.other_line:
        name = _missing_barrier(*sorted((finding.line, finding.other_line)), source)
        if finding.line == finding.other_line and finding.kind == "write after write":
            name = f"several threads write the same place{line}{': one of them is enough' if right else ''}"
    elif finding.tool == "memcheck":
        verb = "written" if finding.is_write else "read"
        if finding.array:
            where = "before its start" if finding.side == "before" else "past its end"
            name = f"{finding.array} is {verb} {where}{line}"
        elif finding.kind == "index out of bounds":
            where = "before its start" if min(finding.numbers, default=0) < 0 else "past its end"
            name = f"an array of the kernel is used {where}{line}"
        elif finding.kind == "out of bounds" and finding.space == "global" and not finding.side:
            name = f"memory that belongs to no argument is {verb}{line}"
        elif _is_misaligned_vector(finding):
            what = finding.by or finding.name.removeprefix("const ").removeprefix("struct ")
            name = f"{what} at an address that is no multiple of {finding.alignment} bytes{line}"
    elif finding.tool == "initcheck":
        name = f"shared memory is read before it is written{line}"
    elif finding.kind in ABSENT_LANES:
        name = f"a shuffle reads a lane that {ABSENT_LANES[finding.kind]}{line}"
    return Diagnosis(name, str(finding), READING_A_FINDING)


def _missing_barrier(first: int, second: int, source: str) -> str:
    """Between two lines; where a barrier surely stands between them, it is the way back of a loop that lacks one."""
    if first == second:
        return f"missing barrier: two threads meet at line {first}"
    between = blank_comments(source).splitlines()[first : second - 1]
    if _surely_waits("\n".join(between)):
        return f"missing barrier between line {second} and line {first}, around the loop"
    return f"missing barrier between line {first} and line {second}"


def _surely_waits(between: str) -> bool:
    """Whether a thread that passes these lines always reaches a __syncthreads().

    A barrier does not count if it depends on an `if`, or if its loop ends before the last of the lines.
    """
    opened: list[int] = []  # the braces that are open
    waits: list[list[int]] = []  # those around each barrier
    for found in re.finditer(r"[{}]|__syncthreads", between):
        if found[0] == "{":
            opened.append(found.start())
        elif found[0] == "}":
            opened = opened[:-1]
        elif not re.split(r"[;{}]", between[: found.start()])[-1].strip():  # else it is what an `if` chooses
            waits.append(opened)
    return any(opened[: len(around)] == around for around in waits)


# ---- values


def wrong_values(case: Case, outputs: Mapping[str, Tensor]) -> Diagnosis | None:
    """What is wrong with the outputs of a case; None where nothing is."""
    if case.compare is not None:
        return case.compare(case, outputs)
    for name, output in case.outputs.items():
        got = outputs[name]
        if output.kind == "scratch":
            continue
        unwritten = still_blank(got)
        if unwritten.any():
            some = "" if unwritten.all() else " in places"
            count = f"{int(unwritten.sum())} of {unwritten.numel()} elements: {places(unwritten, output.axes)}"
            kind = UNWRITTEN if unwritten.all() else ""
            return Diagnosis(f"{name} is never written{some}", f"{case.name}: {count}", kind=kind)
        if output.kind == "exact":
            where = got != output.expected.to(got.dtype)
            if where.any():
                difference = _difference(where, got, output.expected, output.axes)
                return Diagnosis(f"{name} is wrong", f"{case.name}: {difference}")
            continue
        expected = output.expected
        if output.kind == "values" and (hidden := torch.isneginf(expected)).any():
            if (where := torch.isneginf(got) != hidden).any():
                difference = _difference(where, got, expected, output.axes)
                how = "not −∞ where it must be" if not (where & ~hidden).any() else "−∞ in the wrong places"
                return Diagnosis(f"{name} is {how}", f"{case.name}: {difference}")
            got, expected = got.masked_fill(hidden, 0), expected.masked_fill(hidden, 0)
        if output.kind == "lse":
            report = lse_report(got, expected, name=name)
        else:
            empty = case.facts.get("empty_rows")
            report = error_report(
                got,
                expected,
                output.same_dtype,
                empty_rows=empty if isinstance(empty, Tensor) else None,
                name=name,
            )
        if not report.passed:
            where = ~((got == expected) | ((got - expected).abs() <= report.allowed))
            difference = f"{_difference(where, got, expected, output.axes)}\n" if where.any() else ""
            return Diagnosis(f"{name} is {_how(got, expected)}", f"{case.name}: {difference}{report}")
    return None


def unwritten_or_empty(
    case: Case, outputs: Mapping[str, Tensor], *, names: Sequence[str], what: str
) -> Diagnosis | None:
    """For a part that is about findings only: the outputs `names`, each of which is `what` ("a gradient"), must be
    there, right or not.
    """
    for name in names:
        got = outputs[name]
        unwritten = still_blank(got)
        if unwritten.any():
            return Diagnosis(f"{name} is never written{'' if unwritten.all() else ' in places'}", case.name)
        if not torch.isfinite(got).all() or not got.std() > 0:
            words = f"{case.name}: it is not finite, or always the same"
            return Diagnosis(f"nothing like {what} stands in {name}", words)
    return None


def _difference(where: Tensor, got: Tensor, expected: Tensor, axes: Sequence[str]) -> str:
    """How many elements differ, where, and what stands at the first."""
    at = places(where, axes)
    count = f"{int(where.sum())} of {where.numel()} elements differ{': ' if at else ''}{at}"
    return f"{count}\nthe first at {first_of(where, got, expected, axes)}"


def _how(got: Tensor, expected: Tensor) -> str:
    if torch.isnan(got).any():
        return "NaN in places" if not torch.isnan(got).all() else "NaN everywhere"
    infinite = torch.isposinf(got) | (torch.isneginf(got) & ~torch.isneginf(expected))
    if infinite.any():
        return "infinite everywhere" if infinite.all() else "infinite in places"
    if not got.any() and expected.any():
        return "all zeros"
    return "wrong"


def _matches(mistake: Mistake, case: Case, outputs: Mapping[str, Tensor], unwritten: frozenset[str]) -> bool:
    """Whether the outputs are those that the mistake would give, and these are not the right ones. unwritten: those in
    which an element was never written.
    """
    if mistake.shows_in is not None:
        return _shows(mistake, case) and mistake.shows_in(case, outputs)
    if unwritten.issuperset(_judged(case)):
        return False
    simulated = _simulated(mistake, case)
    if not simulated or not unwritten.isdisjoint(simulated):
        return False
    if not any(_is_evidence(wanted) for wanted in simulated.values()):
        return False  # many roads lead to an output that is nothing but NaN, or one infinity
    return all(_near(outputs[name], wanted) for name, wanted in simulated.items()) and _shows(mistake, case)


def _is_evidence(wanted: Tensor) -> bool:
    """Whether there is a number among them, or they are all infinite, and their signs differ."""
    signs = torch.isposinf(wanted).any() and torch.isneginf(wanted).any() and torch.isinf(wanted).all()
    return bool(torch.isfinite(wanted).any() or signs)


def _shows(mistake: Mistake, case: Case) -> bool:
    """Whether a kernel with this mistake would lose the case by its values."""
    if mistake.variant is not None:
        return bool(case.given[mistake]) and wrong_values(case, case.given[mistake]) is not None
    simulated = _simulated(mistake, case)
    return any(not _near(wanted, case.outputs[name].expected) for name, wanted in simulated.items())


def _tells(case: Case, outcome: Outcome) -> bool:
    """Whether a known mistake could be told by these outputs."""
    return any(_is_evidence(outcome.outputs[name]) for name in _judged(case))


def _simulated(mistake: Mistake, case: Case) -> dict[str, Tensor]:
    """The judged outputs of a case, as the mistake would give them; none where it does not show."""
    return {name: wanted for name, wanted in case.given[mistake].items() if name in _judged(case)}


def _judged(case: Case) -> list[str]:
    """The outputs that count: all where a case whose outputs are but scratch compares them by itself."""
    judged = [name for name, output in case.outputs.items() if output.kind != "scratch"]
    return judged or (list(case.outputs) if case.compare is not None else [])


def _near_where_written(got: Tensor | None, wanted: Tensor) -> bool:
    written = ~still_blank(wanted)
    return got is not None and _near(got[written], wanted[written])


def _near(got: Tensor, wanted: Tensor) -> bool:
    got, wanted = got.double(), wanted.double()
    if got.shape != wanted.shape:
        return False
    finite = torch.isfinite(wanted)
    largest = wanted[finite].abs().max().item() if finite.any() else 1.0
    return torch.allclose(got, wanted, rtol=EQUAL, atol=EQUAL * max(largest, 1e-30), equal_nan=True)


def most_common(found: Sequence[Diagnosis]) -> Diagnosis:
    """The one whose name occurs most often; of these, the first."""
    counts = Counter(diagnosis.name for diagnosis in found)
    return max(found, key=lambda diagnosis: counts[diagnosis.name])
