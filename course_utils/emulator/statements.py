"""Which variables the statements of a kernel name: by its text alone, as a reader looks for them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from course_utils.emulator.conditions import HEAD, WORD, Conditions, closing
from course_utils.emulator.recorded import RecordedPlace, RecordedVariable
from course_utils.toolchain.source import blank_comments

POINTER = re.compile(r"[*&]\s*(?:(?:const|__restrict__)\s+)*([A-Za-z_]\w*)\s*=(?!=)")
REFERS = re.compile(
    r"([*&]|\bauto\b)\s*(?:(?:const|__restrict__)\s+)*([A-Za-z_]\w*)\)?\s*(?:\[[^\[\]]*\]\s*)*=(?!=)([^;]*)"
)
POINTER_ALONE = re.compile(r"^\s*(?:const\s+)?[A-Za-z_][\w:]*(?:\s*<[^<>]*>)?\s*\*\s*([A-Za-z_]\w*)\s*$")
SET_ANEW = re.compile(r"^\s*([A-Za-z_]\w*)\s*=(?!=)([^;]*)")
BINDS = re.compile(r"\bauto\s*&{0,2}\s*\[([^\[\]]*)\]\s*=([^;]*)")
OF_DEVICE = re.compile(r"\b__device__\s+(?!__)[\w:\s]*?\b([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*(?:=[^=]|;|\{)")
CAST = re.compile(r"^(?:\s|\w+_cast\s*<[^<>;]*>\s*\(|\([\w\s:]+[*&]+\s*\)|[(&*])+")
RANGE = re.compile(r"\bfor\s*\([^;()?]*&\s*([A-Za-z_]\w*)\s*:\s*([A-Za-z_]\w*)")
POINTS = re.compile(r"([A-Za-z_]\w*)\s*=(?:[^=;]*[(,])?\s*&\s*([A-Za-z_]\w*)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*(?:<[^;<>]*>\s*)?\(")
DEFINED = re.compile(r"\b([A-Za-z_]\w*)\s*\(([^;{}]*)\)\s*(?:const\s*)?\{")
CHANGING = re.compile(
    r"^(?!.*\bconst\b[^*&]*[*&]).*[*&]", re.DOTALL
)  # a parameter through which an argument is changed
BRACED = re.compile(r"(?!\s*return\b)[^=(){}]*?([A-Za-z_]\w*)\s*(?:\[[^\[\]]*\]\s*)*\{")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+([A-Za-z_]\w*)\(([^()]*)\)((?:[^\n\\]|\\\n)*)", re.MULTILINE)
MEMBER = re.compile(r"(?:\.|->)\s*[A-Za-z_]\w*")
INDEX = re.compile(r"\[[^\[\]=]*\]")
LIST = re.compile(r"(?:=|\breturn|[\w>]\s+[*&]?\w+\s*(?:\[[^\[\]]*\]\s*)*|=\s*[\w:<>]+)\s*$")
OPENS = re.compile(
    r"\b(?:struct|class|union|enum|namespace)\b|\)\s*->[^()]*$|\b(?:else|do|try|const|mutable|noexcept)\s*$"
)
LAMBDA = re.compile(r"\b([A-Za-z_]\w*)\s*=\s*\[[^\[\]]*\]")
HEADS = frozenset({"for", "if", "while", "switch"})
NEXT = re.compile(r",\s*(?=[*&]?\s*[A-Za-z_]\w*\s*(?:\[[^\]]*\]\s*)*(?:=(?!=)|,|\{|$))")
BEFORE = re.compile(r"(?<![\w\])])(\+\+|--)\s*([(*\s]*[A-Za-z_]\w*(?:\s*(?:\.|->)\s*\w+|\s*\[[^\[\]]*\])*)")
ASSIGNED = re.compile(r"(?<![=!<>\[])(?:<<|>>)?[-+*/%&|^]?=(?!=)|\+\+|--")


class Assignment(NamedTuple):
    """A part of a statement: the names that it may change, and all those from which they may be made, conditions among
    them. calls: it calls a function, and assigns nothing; counts: it stands in the head of a loop or a condition;
    chosen: the names by which it is chosen whether, and what in an array it changes: of conditions, and in indices."""

    changed: frozenset[str]
    words: frozenset[str]
    calls: bool = False
    counts: bool = False
    chosen: frozenset[str] = frozenset()


class Statement(NamedTuple):
    """From its first to its last line: the names in it, what it may change, the names that are called, the pairs
    (pointer, what it points to) of its declarations, and of its assignments if the first is a pointer (`anew`),
    (function, name in it) within a function that is a value, the pointers and references that it declares, (function,
    number of the argument, name in that) of its calls, and on which conditions it is executed. is_whole: it has other
    statements within."""

    first: int
    last: int
    words: frozenset[str]
    parts: tuple[Assignment, ...]
    called: frozenset[str]
    points: frozenset[tuple[str, str]]
    anew: frozenset[tuple[str, str]]
    captured: frozenset[tuple[str, str]]
    pointers: frozenset[str]
    given: frozenset[tuple[str, int, str]]
    conditions: frozenset[str]
    is_whole: bool

    @property
    def changed(self) -> frozenset[str]:
        return frozenset().union(*(part.changed for part in self.parts))

    @property
    def assignments(self) -> list[Assignment]:
        """Those of its parts that assign to a name, or make a condition."""
        return [] if self.is_whole else [part for part in self.parts if not part.calls]


class Statements:
    """The statements of a kernel's files."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        plain = {file: blank_comments(text) for file, text in sources.items()}
        macros = {name: words for text in plain.values() for name, words in _macros(text)}
        plain = {file: _with_macros(text, macros) for file, text in plain.items()}
        self._of_file = {
            file: list(_statements(text, f"{number}")) for number, (file, text) in enumerate(plain.items())
        }
        self._all = [statement for statements in self._of_file.values() for statement in statements]
        self._changing = {pair for text in plain.values() for pair in _changing(text)}
        self._values = {name for text in plain.values() for name in _values(text)}
        pointers = frozenset().union(*(one.pointers for one in self._all))
        self._all = [
            one._replace(points=one.points.union(pair for pair in one.anew if pair[0] in pointers)) for one in self._all
        ]
        self.of_device = frozenset(name for text in plain.values() for name in OF_DEVICE.findall(text))
        # of the name of a pointer or a reference those of what it may point to, and of functions that are values
        self._behind = _grouped(pair for one in self._all for pair in (*one.points, *one.captured))
        points = _grouped(pair for one in self._all for pair in one.points)
        self._parts = [  # a part, with what it may change by way of pointers
            part._replace(changed=part.changed.union(*(points[name] for name in part.changed if name in points)))
            for one in self._all
            for part in one.parts
        ]

    def _with_pointed(self, words: frozenset[str]) -> frozenset[str]:
        """Names, and those of what they point to, or of what a function that they are the name of takes from around it:
        pointers and functions themselves are no variables that are recorded."""
        return words.union(*(self._behind[word] for word in words if word in self._behind))

    @property
    def referring(self) -> frozenset[str]:
        """The pointers and references of which it is known to what they point."""
        return frozenset(name for one in self._all for name, _ in one.points)

    def unrecorded(self) -> list[RecordedVariable]:
        """What numbers may come by and no recording has, as if it were variables: conditions on which something is
        executed, and pointers."""
        made = (name for one in self._all for part in one.parts for name in part.changed if name.startswith("#"))
        pointers = (name for one in self._all for name in sorted(one.pointers))
        return [RecordedVariable("", name, "", 1, ()) for name in dict.fromkeys((*made, *pointers))]

    @property
    def changed(self) -> frozenset[str]:
        """The names that may be changed, but for conditions and pointers."""
        names = frozenset().union(*(part.changed for one in self._all for part in one.parts))
        pointers = frozenset().union(*(one.pointers for one in self._all))
        return frozenset(name for name in names if not name.startswith("#")) - pointers

    def conditions_at(self, file: str, line: int) -> frozenset[str]:
        """The conditions on which the statements that a line is part of are executed."""
        here = (one.conditions for one in self._of_file.get(file, ()) if one.first <= line <= one.last)
        return frozenset().union(*here)

    def words_at(self, file: str, line: int) -> frozenset[str]:
        """The names in the statements that a line is part of."""
        here = (one.words for one in self._of_file.get(file, ()) if one.first <= line <= one.last)
        return self._with_pointed(frozenset().union(*here))

    def new_at(self, file: str, line: int) -> frozenset[str]:
        """The names whose variables may be new behind the statements that a line is part of: those that are assigned
        to, and all where something is called, since a function may change its arguments."""
        here = (one for one in self._of_file.get(file, ()) if one.first <= line <= one.last)
        names = (one.words if one.called - HEADS else one.changed for one in here)
        return self._with_pointed(frozenset().union(*names))

    def assigned_at(self, file: str, line: int) -> frozenset[str]:
        """The names that are assigned to in the statements that a line is part of."""
        here = (one for one in self._of_file.get(file, ()) if one.first <= line <= one.last)
        return self._with_pointed(frozenset().union(*(part.changed for one in here for part in one.assignments)))

    def given_at(self, file: str, line: int) -> frozenset[str]:
        """The names in what the statements that a line is part of give to functions which may change it."""
        here = (one.given for one in self._of_file.get(file, ()) if one.first <= line <= one.last and not one.is_whole)
        return frozenset(word for given in here for *what, word in given if tuple(what) in self._changing)

    def words_assigned(self, names: set[str]) -> frozenset[str]:
        """The names in the statements that assign to one of these names."""
        here = (part.words for one in self._all for part in one.assignments if names & part.changed)
        return self._with_pointed(frozenset().union(*here))

    def around(self, file: str, line: int) -> int:
        """The first line of the statement that a line is part of: the longest one, but for calls with a function among
        their arguments. The line itself where there is none."""
        here = (one.first for one in self._of_file.get(file, ()) if one.first <= line <= one.last and not one.is_whole)
        return min(here, default=line)

    def words_with(self, names: set[str]) -> frozenset[str]:
        """The names from which statements may make a variable of one of these names."""
        here = (part.words for part in self._parts if names & part.changed)
        return self._with_pointed(frozenset().union(*here))

    def set_by_reads(self, places: Iterable[RecordedPlace]) -> frozenset[str]:
        """The names that are assigned to in statements that read at these places, but for those in heads of loops."""
        read = (one for place in places for one in self._at(place.file, place.line))
        return frozenset(name for one in read for part in one.assignments if not part.counts for name in part.changed)

    def _at(self, file: str, line: int) -> Iterator[Statement]:
        return (one for one in self._of_file.get(file, ()) if one.first <= line <= one.last)

    def choosing(self, array: str) -> frozenset[str]:
        """The names by which it is chosen whether, and where, something is written to an array, with those in the heads
        of conditions."""
        found = frozenset().union(*(part.chosen for part in self._parts if array in part.changed))
        before = 0
        while before != (before := len(found)):
            heads = {one for one in found if one.startswith("#")}
            found = found.union(*(part.words for part in self._parts if heads & part.changed))
        return found

    def words_of_calls(self, function: str) -> frozenset[str]:
        """The names in the statements that call a function, and their conditions. Of one that is a value, all calls by
        the name of such a one, or of a parameter."""
        called = self._values if function == "lambda" else {function.split("<")[0]}
        here = (one.words | one.conditions for one in self._all if called & one.called)
        return self._with_pointed(frozenset().union(*here))


def _grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, frozenset[str]]:
    """By the first of each pair the second ones, and those of which these are the first."""
    found: dict[str, frozenset[str]] = {}
    for first, second in pairs:
        found[first] = found.get(first, frozenset()) | {second}
    count = -1
    while count != (count := sum(map(len, found.values()))):
        found = {first: those.union(*(found[one] for one in those if one in found)) for first, those in found.items()}
    return found


def _statements(text: str, file: str) -> Iterator[Statement]:
    """What lies between semicolons and braces of a text without comments; the head of a loop is one, and a list of
    values in braces is a part. A call with a function in braces among its arguments is one as a whole, too."""
    conditions = Conditions(file)
    start, depth, lists, is_whole = 0, 0, 0, False
    functions = [""]  # of each open brace the name that has the function around it for a value, if one has
    around: list[tuple[int, int]] = []  # of each open brace: where the statement that it is part of begins, if it is
    for match in re.finditer(r"[;{}()]|^[ \t]*#.*$", text, flags=re.MULTILINE):
        mark = match[0]
        depth += (mark == "(") - (mark == ")")
        if mark in ("(", ")") or (mark == ";" and depth > 0):
            continue
        own = text[start : match.start()]
        if (mark == "{" and (lists or _begins_list(own))) or (mark == "}" and lists):
            lists += 1 if mark == "{" else -1
            continue
        if own.strip():
            begin = start + len(own) - len(own.lstrip())
            first, last = text.count("\n", 0, begin) + 1, text.count("\n", 0, match.start()) + 1
            words, called = frozenset(WORD.findall(own)), frozenset(CALLED.findall(own))
            points = frozenset((*POINTS.findall(own), *RANGE.findall(own), *_refers(own)))
            anew = frozenset((name, word) for name, made in SET_ANEW.findall(own) for word in _pointed(made))
            pointers = frozenset(POINTER.findall(own) + POINTER_ALONE.findall(own))
            captured = frozenset((functions[-1], word) for word in words if functions[-1])
            within, made = conditions.of(own.strip(), begin, opens=mark == "{")
            after = BEFORE.sub(r"\2\1", own)  # ++n changes what n++ does
            all_parts = [one._replace(words=one.words | within, chosen=one.chosen | within) for one in _parts(after)]
            all_parts += [Assignment(frozenset({name}), why) for name, why in made]
            yield Statement(
                *(first, last, words, tuple(all_parts), called, points, anew),
                *(captured, pointers, _given(own), within, is_whole),
            )
        elif mark == "{":
            conditions.open()
        if mark == "}":
            conditions.close()
        if mark == "{":
            around.append((start, depth))
            functions.append(function[1] if (function := LAMBDA.search(own)) else functions[-1])
        elif mark == "}" and len(functions) > 1:
            functions.pop()
        outer = around.pop() if mark == "}" and around else (0, 0)
        is_whole = outer[1] > 0
        start, depth = outer if is_whole else (match.end(), 0)


def _begins_list(text: str) -> bool:
    """Whether a brace behind a text begins values, not a block."""
    return bool(LIST.search(text)) and not OPENS.search(text)


def _refers(text: str) -> Iterator[tuple[str, str]]:
    """The pairs (pointer or reference, what it points to) of declarations."""
    for mark, name, made in REFERS.findall(text):
        yield from ((name, word) for word in _pointed(made, is_reference=mark == "&"))
    for names, made in BINDS.findall(text):
        yield from ((name, word) for name in WORD.findall(names) for word in _pointed(made, is_reference=True))


def _pointed(text: str, *, is_reference: bool = False) -> list[str]:
    """To what a value may point: the first name behind casts; of a reference, and where a condition, a function or a
    list gives it, all but those in indices."""
    value, count = CAST.sub("", _listed(text)[0]), 1
    while count:
        value, count = INDEX.subn("", value)
    words = WORD.findall(value)
    return words if is_reference or re.search(r"[?({]", value) else words[:1]


def _macros(text: str) -> Iterator[tuple[str, list[str]]]:
    """The macros with parameters that a text defines, each with the other names in it."""
    for name, parameters, body in MACRO.findall(text):
        yield name, [word for word in dict.fromkeys(WORD.findall(body)) if word not in WORD.findall(parameters)]


def _with_macros(text: str, macros: Mapping[str, list[str]]) -> str:
    """The text with the names in macros as further arguments where these are used."""
    names = "|".join(name for name, words in macros.items() if words)
    if not names:
        return text
    return re.sub(
        rf"\b({names})\s*\((?=\s*(\))?)",
        lambda use: f"{use[0]}{', '.join(macros[use[1]])}{'' if use[2] else ', '}",
        text,
    )


def _changing(text: str) -> Iterator[tuple[str, int]]:
    """The functions that a text defines, each with the numbers of the arguments that it may change."""
    for function, parameters in DEFINED.findall(text):
        if function not in HEADS:
            yield from ((function, n) for n, one in enumerate(_listed(parameters)) if CHANGING.match(one.strip()))


def _values(text: str) -> Iterator[str]:
    """The names of functions that are values, and of parameters that such a one may be given for."""
    yield from LAMBDA.findall(text)
    for _, parameters in DEFINED.findall(text):
        yield from (words[-1] for one in _listed(parameters) if (words := WORD.findall(one)))


def _given(text: str) -> frozenset[tuple[str, int, str]]:
    """Of the calls in a statement function, number of the argument, and the names in that, but for indices."""
    found = set()
    for call in CALLED.finditer(text):
        for n, argument in enumerate(_listed(text[call.end() : closing(text, call.end() - 1)])):
            found |= {(call[1], n, word) for word in WORD.findall(INDEX.sub("", argument))}
    return frozenset(found)


def _listed(text: str) -> list[str]:
    """What commas part that are in no brackets; without the arguments of templates."""
    found, depth = [""], 0
    for mark in re.sub(r"<[\w\s,:]*>", "", text):
        depth += (mark in "([{") - (mark in ")]}")
        if mark == "," and depth == 0:
            found.append("")
        else:
            found[-1] += mark
    return found


def _parts(text: str) -> Iterator[Assignment]:
    """Of a loop or a condition its head, which knows nothing of what it repeats, and the rest, which depends on the
    head. Of a declaration each variable; one without a value changes nothing."""
    if head := HEAD.search(text):
        end = closing(text, head.end() - 1)
        inner, rest = text[head.end() : end], text[: head.start()] + text[end + 1 :]
        words = frozenset(WORD.findall(inner))
        chosen = frozenset(WORD.findall(MEMBER.sub("", inner)))
        for part in inner.split(";"):
            if ASSIGNED.search(part):
                yield from (one._replace(words=words, counts=True) for one in _parts(part))
        if rest.strip():
            yield from (one._replace(words=one.words | words, chosen=one.chosen | chosen) for one in _parts(rest))
        return
    for part in _declared(text):
        if braced := BRACED.match(part):
            yield Assignment(frozenset({braced[1]}), frozenset(WORD.findall(part)))
            continue
        if "(" not in part and not ASSIGNED.search(part):
            continue
        assigned = [match.start() for match in ASSIGNED.finditer(part)]
        chosen = _indices(part[: assigned[-1]] if assigned else part)
        yield Assignment(_changed(part), frozenset(WORD.findall(part)), not assigned, chosen=chosen)


def _indices(text: str) -> frozenset[str]:
    """The names in brackets."""
    depth, inner = 0, ""
    for mark in text:
        depth += (mark == "[") - (mark == "]")
        inner += mark if depth > 0 else " "
    return frozenset(WORD.findall(MEMBER.sub("", inner)))


def _declared(text: str) -> Iterator[str]:
    """A text, cut at each comma, but for those in brackets, behind which a name is declared or given a value."""
    start = 0
    for comma in NEXT.finditer(text):
        before = text[: comma.start()]
        if all(before.count(left) == before.count(right) for left, right in ("()", "[]", "{}")):
            yield text[start : comma.start()]
            start = comma.end()
    yield text[start:]


def _changed(text: str) -> frozenset[str]:
    """What stands before an assignment, but for indices; all names where there is none, since a function may change its
    arguments."""
    if binds := BINDS.search(text):
        return frozenset(WORD.findall(binds[1]))
    assigned = [match.start() for match in ASSIGNED.finditer(text)]
    if not assigned:
        return frozenset(WORD.findall(text))
    before, count = text[: assigned[-1]], 1
    while count:  # an index may have an index
        before, count = INDEX.subn(lambda index: index[0][1:-1] if ASSIGNED.search(index[0]) else "", before)
    return frozenset(WORD.findall(before))


def parts(variable: RecordedVariable) -> set[str]:
    """By which a statement may name a variable: of a member, also the struct, and inside of it the member alone."""
    names = variable.name.split(".")
    return {names[0], names[-1]}


def named(
    places: Sequence[RecordedPlace], variables: Sequence[RecordedVariable], statements: Statements
) -> list[list[int]]:
    """For each place the variables that its statement names, or one of those from which its function was called, and
    the conditions on which these are executed."""
    found: list[list[int]] = []
    words_of: list[frozenset[str]] = []
    for place in places:  # a caller comes before its calls
        around = words_of[place.caller] if place.caller >= 0 else frozenset()
        here = place.file, place.line
        words_of.append(statements.words_at(*here) | statements.conditions_at(*here) | around)
        found.append([i for i, variable in enumerate(variables) if parts(variable) & words_of[-1]])
    return found


def made_from(variables: Sequence[RecordedVariable], statements: Statements) -> list[list[int]]:
    """For each variable those from which it may be made: they stand in a statement that may change it, or in one that
    calls its function."""
    found = []
    for variable in variables:
        words = statements.words_with(parts(variable)) | statements.words_of_calls(variable.function)
        found.append([i for i, other in enumerate(variables) if parts(other) & words])
    return found
