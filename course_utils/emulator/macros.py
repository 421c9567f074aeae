"""Macros that stand for pieces of inline PTX: `asm` is translated before a preprocessor has seen the file."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from course_utils.toolchain.source import blank_comments, closing, split_outside_brackets


@dataclass(frozen=True)
class Macro:
    """One definition. parameters: None where it takes none; condition: what #if around it asks for, "" for nothing."""

    parameters: tuple[str, ...] | None
    body: str
    condition: str


def text_macros(files: Iterable[str]) -> dict[str, list[Macro]]:
    """The definitions, by name, of all macros that hold a string, themselves or through another macro."""
    found: dict[str, list[Macro]] = {}
    for text in files:
        for name, macro in _definitions(text):
            found.setdefault(name, []).append(macro)
    kept: dict[str, list[Macro]] = {}
    while True:
        more = {
            name: macros
            for name, macros in found.items()
            if name not in kept and any('"' in macro.body or _used(macro.body, kept) for macro in macros)
        }
        if not more:
            return kept
        kept |= more


def _definitions(text: str) -> Iterable[tuple[str, Macro]]:
    around: list[list[str]] = []  # of each open #if: the conditions so far, of which the last must hold
    for line in blank_comments(text, strings=False).replace("\\\n", " ").split("\n"):
        directive = re.match(r"\s*#\s*(\w+)\s*(.*?)\s*$", line)
        if not directive:
            continue
        word, rest = directive.groups()
        if word in ("if", "ifdef", "ifndef"):
            around.append([{"if": rest, "ifdef": f"defined({rest})", "ifndef": f"!defined({rest})"}[word]])
        elif word in ("elif", "else") and around:
            around[-1].append(rest if word == "elif" else "1")
        elif word == "endif" and around:
            around.pop()
        elif word == "define" and (named := re.match(r"(\w+)(?:\(([^)]*)\))?\s*(.*)$", rest)):
            name, parameters, body = named.groups()
            names = None if parameters is None else tuple(part.strip() for part in parameters.split(","))
            yield name, Macro(names, body, " && ".join(_holds(branches) for branches in around))


def _holds(branches: list[str]) -> str:
    return " && ".join([*(f"!({before})" for before in branches[:-1]), f"({branches[-1]})"])


def _used(text: str, macros: Mapping[str, list[Macro]]) -> set[str]:
    return set(re.findall(r"\b[A-Za-z_]\w*\b", blank_comments(text))) & macros.keys()


def variants(text: str, macros: Mapping[str, list[Macro]]) -> list[tuple[str, str]]:
    """(condition, text with the macros in their place): one for each choice of definitions."""
    used, seen = _used(text, macros), set()
    while used - seen:
        name = min(used - seen)
        seen.add(name)
        used |= {inner for macro in macros[name] for inner in _used(macro.body, macros)}
    found = []
    for choice in itertools.product(*(macros[name] for name in sorted(used))):
        chosen = dict(zip(sorted(used), choice, strict=True))
        conditions = dict.fromkeys(macro.condition for name, macro in chosen.items() if len(macros[name]) > 1)
        found.append((" && ".join(filter(None, conditions)), _expand(text, chosen)))
    return found


def _expand(text: str, macros: Mapping[str, Macro]) -> str:
    pieces, position = [], 0
    plain = blank_comments(text)
    for match in re.finditer(r"\b[A-Za-z_]\w*\b", plain):
        macro = macros.get(match[0])
        if macro is None or match.start() < position:
            continue
        pieces.append(text[position : match.start()])
        position, body = match.end(), macro.body
        if macro.parameters is not None:
            opening = position + len(plain[position:]) - len(plain[position:].lstrip())
            if plain[opening : opening + 1] != "(":
                pieces.append(match[0])
                continue
            end = closing(plain, opening)
            arguments = [part.strip() for part in split_outside_brackets(text[opening + 1 : end])]
            position = end + 1
            given = dict(zip(macro.parameters, arguments, strict=False))
            body = re.sub(r'"(?:\\.|[^"\\])*"|#?\b[A-Za-z_]\w*\b', lambda word, of=given: _argument(word[0], of), body)
        pieces.append(_expand(body, macros))
    return "".join(pieces) + text[position:]


def _argument(word: str, given: Mapping[str, str]) -> str:
    if word.startswith("#") and word[1:] in given:
        return f'"{given[word[1:]]}"'
    return given.get(word, word)
