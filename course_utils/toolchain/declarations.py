"""The declarations of a CUDA file at namespace scope, one after the other, as far as they can be told without a
compiler: where each begins and ends, which names it declares, and whether it is marked for the device."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from course_utils.toolchain.source import blank_comments, closing, split_outside_brackets

DEVICE_WORD = re.compile(r"__(?:global|device|constant|shared|managed)__")
WORD = re.compile(r"[A-Za-z_]\w*")
_UNQUALIFIED = re.compile(r"(?<![\w.])(?<!->)(?<!::)[A-Za-z_]\w*")  # no member, no name of a namespace
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\[\s\S])*", flags=re.MULTILINE)  # with the lines that continue it
_SCOPE = re.compile(r"(?:inline\s+)?namespace\b[\s\w:]*(?:\[\[[^\]]*\]\]\s*)?\{|extern\s+\{")  # extern "C": blanked
_TEMPLATE = re.compile(r"template\s*<")
_TYPE = re.compile(r"(?:typedef\s+)?(?:struct|class|union|enum)\b")
_ATTRIBUTE = re.compile(
    r"(?:__launch_bounds__|__align__|alignas|__attribute__|__declspec|__cluster_dims__|__maxnreg__|__block_size__"
    r"|decltype)\s*(?=\()"
)


@dataclass(frozen=True)
class Declaration:
    """One declaration or preprocessor line: `code[start:end]`.

    kind: "include", "define", "directive" (another preprocessor line), "function", "type" (struct, class, union, enum),
    "alias" (typedef, using), "variable", "call" (`NAME(...)` without a type, a macro by its form) or "other".
    names: what it declares. head: how far what stands before a function's body reaches. words: the identifiers in it
    that may name another declaration: no members, and not its own parameters and variables.
    """

    kind: str
    start: int
    end: int
    names: frozenset[str]
    head: int
    text: str  # without comments and strings
    line: int
    last_line: int

    @property
    def declared(self) -> str:
        """The text before a function's body; all of another declaration."""
        return self.text[: self.head - self.start]

    @functools.cached_property
    def words(self) -> frozenset[str]:
        return frozenset(_UNQUALIFIED.findall(self.text)) - self._own_names

    @functools.cached_property
    def _own_names(self) -> frozenset[str]:
        """A function's parameters and local variables, as far as their form tells."""
        if self.kind != "function":
            return frozenset()
        opening = _parameter_list(self.declared)
        listed = self.declared[opening + 1 : closing(self.declared, opening)] if opening is not None else ""
        names = (
            re.search(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:=.*)?$", p.strip(), re.DOTALL) for p in split_arguments(listed)
        )
        variables = re.findall(
            r"\b(?!return\b|else\b|case\b|goto\b|throw\b|new\b|delete\b|typename\b)\w+>?(?:\s+|\s*[*&]+\s*(?=\w+\s*=[^=]))(\w+)"
            r"\s*[=;,\[]",
            self.text[self.head - self.start :],
        )
        return frozenset(variables).union(name[1] for name in names if name)


def split_arguments(text: str) -> list[str]:
    """What stands between the commas of a list of arguments or parameters; nothing for an empty list."""
    return [part.strip() for part in split_outside_brackets(text, brackets="()[]{}<>") if part.strip()]


@functools.lru_cache(maxsize=128)
def declarations(code: str) -> tuple[Declaration, ...]:
    """The declarations at namespace scope, also in namespaces and `extern "C"`, in their order.

    Where a brace is missing, they end before the declaration with it: nothing is known of the rest.
    """
    return tuple(_declarations(code))


def _declarations(code: str) -> Iterator[Declaration]:
    plain = blank_comments(code)
    flat, depths = _without_directives(plain)
    defined = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(", plain, flags=re.MULTILINE))
    directives = {match.start() + len(match[0]) - len(match[0].lstrip()): match for match in DIRECTIVE.finditer(plain)}
    at = 0

    def made(kind: str, start: int, end: int, names: set[str], head: int | None = None) -> Declaration:
        line = code.count("\n", 0, start) + 1
        last = line + code.count("\n", start, end)
        head = end if head is None else head
        return Declaration(kind, start, end, frozenset(names), head, plain[start:end], line, last)

    while True:
        at = re.compile(r"\s*").match(plain, at).end()
        if at >= len(plain):
            return
        if at in directives:
            yield _directive(directives[at].end(), at, code, made)
            at = directives[at].end()
        elif flat[at] in "};":
            at += 1
        elif scope := _SCOPE.match(flat, at):
            at = scope.end()
        elif (call := _macro_call(flat, at, defined)) is not None:
            yield made("call", at, call, set())
            at = call
        else:
            found = _statement(flat, depths, at)
            if found is None:
                return
            end, body = found
            head = body if body is not None else end
            kind, names = _kind(flat[at:head], flat[at:end], body is not None)
            yield made(kind, at, end, names, head if kind == "function" else None)
            at = end


def _directive(end: int, at: int, code: str, made) -> Declaration:
    word = re.match(r"#[ \t]*(\w*)[ \t]*(\w*)", code[at:end])
    if word[1] == "define":
        return made("define", at, end, {word[2]})
    return made("include" if word[1] == "include" else "directive", at, end, set())


def _macro_call(flat: str, at: int, defined: set[str]) -> int | None:
    """The end of `NAME(...)` on lines of its own, where NAME is a macro of this file."""
    word = re.compile(r"(\w+)[ \t]*\(").match(flat, at)
    if not word or word[1] not in defined:
        return None
    end = closing(flat, word.end() - 1) + 1
    behind = re.compile(r"[ \t]*(;|\n|$)").match(flat, end)
    return behind.end(1) if behind and not re.compile(r"\s*\{").match(flat, end) else None


def _without_directives(plain: str) -> tuple[str, list[int]]:
    """The text with preprocessor lines blanked, too, and how many braces are open before each character.

    Each branch of an `#if` begins with as many open braces as the first.
    """
    pieces, position, depth, before_branches = [], 0, 0, []
    depths: list[int] = []

    def count(text: str) -> None:
        nonlocal depth
        for c in text:
            depths.append(depth)
            depth += (c == "{") - (c == "}")

    for match in DIRECTIVE.finditer(plain):
        text = plain[position : match.start()]
        pieces.append(text)
        count(text)
        word = re.match(r"\s*#\s*(\w*)", match[0])[1]
        if word in ("if", "ifdef", "ifndef"):
            before_branches.append(depth)
        elif word in ("else", "elif") and before_branches:
            depth = before_branches[-1]
        elif word == "endif" and before_branches:
            before_branches.pop()
        pieces.append(re.sub(r"[^\n]", " ", match[0]))
        depths.extend([depth] * len(match[0]))
        position = match.end()
    pieces.append(plain[position:])
    count(plain[position:])
    return "".join(pieces), depths


def _close(flat: str, depths: list[int], brace: int) -> int | None:
    """The index of the brace that closes the one there, whichever branch the preprocessor takes."""
    for i in re.finditer(r"\}", flat[brace:]):
        if depths[brace + i.start()] == depths[brace] + 1:
            return brace + i.start()
    return None


def _statement(flat: str, depths: list[int], start: int) -> tuple[int, int | None] | None:
    """The end of a declaration, and where the body begins if it is a function's; None if a bracket is missing."""
    at = start
    while match := re.compile(r"[;({\[}]").search(flat, at):
        c, at = match[0], match.start()
        if c == ";":
            return at + 1, None
        if c == "}":  # a namespace ends in the middle of something
            return None
        if c == "{":
            end = _close(flat, depths, at)
            if end is None:
                return None
            if _is_function(flat[start:at]):
                return end + 1, at
        else:
            end = closing(flat, at)
            if end >= len(flat):
                return None
        at = end + 1
    return None


def _without_template(head: str) -> str:
    """The declaration without `template <...>` in front, and without `extern "C"` (whose string is blanked)."""
    head = head.lstrip()
    while match := _TEMPLATE.match(head):
        depth = 0
        for i in range(match.end() - 1, len(head)):
            depth += (head[i] == "<") - (head[i] == ">")
            if depth == 0:
                break
        head = head[i + 1 :].lstrip()
    return head


def _is_function(head: str) -> bool:
    """Whether what stands before a brace declares a function."""
    opening = _parameter_list(head)
    return opening is not None and "=" not in re.sub(r"operator\s*\S+?\s*\(|[<>!=]=", "(", _at_depth_0(head[:opening]))


def _at_depth_0(text: str) -> str:
    """The text outside of all brackets."""
    kept, depth = [], 0
    for c in text:
        depth += c in "([{<"
        if depth == 0:
            kept.append(c)
        depth -= c in ")]}>" and depth > 0
    return "".join(kept)


def _parameter_list(head: str) -> int | None:
    """The index of the parenthesis that opens the parameter list of what may be a function."""
    offset = len(head) - len(_without_template(head))
    rest, at = head[offset:], 0
    if _TYPE.match(rest) and not re.match(r"(?:struct|class|union|enum)\s+\w+[\s*&]+\w+\s*\(", rest):
        return None
    while match := re.compile(r"\(").search(rest, at):
        attribute = [a for a in _ATTRIBUTE.finditer(rest, at) if a.end() == match.start()]
        if not attribute:
            return offset + match.start()
        at = closing(rest, match.start()) + 1
    return None


def _kind(head: str, text: str, has_body: bool) -> tuple[str, set[str]]:
    head_only = _without_template(head)
    if re.match(r"typedef\b", head_only):
        name = re.findall(r"(\w+)\s*(?:\[[^\]]*\]\s*)*(?:\)\s*\([^;]*\))?\s*;\s*$", text)
        tag = re.match(r"typedef\s+(?:struct|union|enum|class)\s+(\w+)", head_only)
        members = _enumerators(text) if "enum" in text else set()
        return "alias", {*name, *([tag[1]] if tag else []), *members}
    if re.match(r"using\b", head_only):
        name = re.match(r"using\s+(\w+)\s*=", head_only)
        return "alias", {name[1]} if name else set(re.findall(r"::\s*(\w+)\s*;", text))
    if alias := re.match(r"namespace\s+(\w+)\s*=", head_only):
        return "alias", {alias[1]}
    if re.match(r"static_assert\b|asm\b|friend\b|(?:extern\s+)?template\s+(?:class|struct)\b", head_only):
        return "other", set()
    if has_body or (_is_function(head) and not re.search(r"\w\s*\(\s*\d", head_only)):  # not dim3 grid(4)
        opening = _parameter_list(head)
        before = _without_arguments(_without_template(head[:opening]).rstrip())
        operator = re.search(r"\boperator\b\s*\S*$", before)
        name = re.search(r"((?:\w+\s*(?:<[^<>]*>)?\s*::\s*)*)(~?\w+)$", before)
        words = WORD.findall(before)
        if not has_body and len(words) == 1 and not name[1]:
            return "call", set()
        if operator or name is None:
            return "function", {"operator"}
        owner = WORD.match(name[1].strip())
        return "function", {owner[0] if owner else name[2]}
    if _TYPE.match(head_only):
        tag = re.match(
            r"(?:struct|class|union|enum(?:\s+(?:class|struct))?)\s*((?:\w+\s*(?:\([^)]*\))?\s*)*)", head_only
        )
        words = [
            w for w in WORD.findall(_at_depth_0(tag[1])) if not w.startswith("__") and w not in ("alignas", "final")
        ]
        behind = re.search(r"\}\s*([\w\s,*\[\]]*);\s*$", text)
        names = {*words[-1:], *(WORD.findall(behind[1]) if behind else [])}
        return "type", names | (_enumerators(text) if head_only.startswith("enum") else set())
    return "variable", _variables(head_only if has_body else _without_template(text))


def _without_arguments(name: str) -> str:
    """The name without the template arguments at its end."""
    depth = 0
    for i in range(len(name) - 1, -1, -1):
        depth += (name[i] == ">") - (name[i] == "<")
        if depth == 0:
            return name[:i].rstrip() if name[i] == "<" else name
    return name


def _enumerators(text: str) -> set[str]:
    body = re.search(r"\{(.*)\}", text, flags=re.DOTALL)
    return {name for part in split_arguments(body[1]) for name in WORD.findall(part)[:1]} if body else set()


def _variables(text: str) -> set[str]:
    names = set()
    for part in split_outside_brackets(text.rstrip().rstrip(";"), brackets="()[]{}<>"):
        declared = re.split(r"[=({\[]", part)[0]
        names.update(WORD.findall(declared)[-1:])
    return names
