"""Sources for Sphinx, written from the repository: each file of the course becomes a page at the same place.

`notebooks/01_x.ipynb` → `notebooks/01_x.html`, `docs/y.md` → `docs/y.html`, `kernels/01_x/z.cu` →
`kernels/01_x/z.cu.html`, a folder → its `index.html`. A broken kernel, `kernels/01_x/broken/z.diff`, has its page where
the kernel would have it: `kernels/01_x/broken/z.cu.html`.
So a relative link of the repository needs only a new ending (`site_link`).
"""

from __future__ import annotations

import base64
import html
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

import nbformat
from docutils.nodes import make_id
from nbformat import NotebookNode

from course_utils.course import CHAPTERS, Chapter
from course_utils.reading.folded import TAG
from course_utils.site import front, games, guesses, widgets
from course_utils.site.pictures import Picture, to_html
from course_utils.toolchain.source import read_kernel

LEFT_OUT = {"navigation", "badges", "colab-setup"}  # the site has bars of its own, and nothing to set up
PROGRESS = re.compile(r"progress\.\w+\(")  # a card of what the reader did: no reader of a page has one
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PICTURES = ("image/svg+xml", "image/png", "image/jpeg")
CODE = re.compile(r"(```.*?```|`(?:[^`\n]|\n(?!\n))*`)", re.DOTALL)  # `code` may go on in the next line
LINK = re.compile(r"(?<!!)(\]\()([^)\s]+)")
HREF = re.compile(r"(<a\b[^>]*?\bhref=[\"'])([^\"']+)")
HEADING = re.compile(r"^#{1,6} +(.*?)[ #]*$", re.MULTILINE)
GUIDES = (
    "docs/machines.md",
    "docs/first_steps.md",
    "docs/updating.md",
    "docs/in_your_model.md",
    "docs/teaching.md",
    "docs/server.md",
    "docs/grading.md",
    "docs/sandbox.md",
    "docs/validation.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)
SHEETS = ("docs/glossary.md", "docs/notation.md")


@dataclass
class Sources:
    """Where Sphinx reads. pages: folder of the sources; extra: files copied as they are; missing_alt: one line each."""

    pages: Path
    extra: Path
    missing_alt: list[str] = field(default_factory=list)


def write_sources(
    root: Path, chapters: Mapping[Path, NotebookNode], folder: Path, badges: Mapping[str, str] | None = None
) -> Sources:
    """Writes all sources below `folder`. chapters: path → notebook with outputs; badges: slug → Markdown."""
    sources = Sources(folder / "pages", folder / "extra")
    written = [chapter for chapter in CHAPTERS if root / "notebooks" / f"{chapter.slug}.ipynb" in chapters]
    for path, notebook in chapters.items():
        _write_notebook(sources, root, path, notebook, (badges or {}).get(path.stem, ""))
    exercises = sorted((root / "exercises").glob("*/*.ipynb"), key=_title)
    for path in exercises:
        _write_notebook(sources, root, path, nbformat.read(path, as_version=4))
    sheets = [root / name for name in SHEETS] + sorted((root / "docs" / "cheat_sheets").glob("*.md"))
    guides = [root / name for name in GUIDES]
    texts = [path for path in [*sheets, *guides] if path.exists()]
    for path in texts:
        _write(
            sources.pages / path.relative_to(root),
            markdown(path.read_text(encoding="utf-8"), path, root, _github, _jupyterlab),
        )
    played = [game for game in games.GAMES if (root / game.file).exists()]
    for game in played:
        _write(sources.pages / game.file, _game_page(game, root, sources.extra))
    for picture in (path for suffix in ("png", "svg", "gif") for path in root.glob(f"docs/**/*.{suffix}")):
        _copy(picture, sources.pages / picture.relative_to(root))
    for source in sorted([*root.glob("kernels/**/*.cu*"), *root.glob("exercises/*/*.cu")]):
        _write(sources.pages / f"{source.relative_to(root)}.md", _kernel_page(source, root))
    for diff in sorted(root.glob("kernels/**/*.diff")):
        kernel = diff.with_suffix(".cu")
        _write(sources.pages / f"{kernel.relative_to(root)}.md", _kernel_page(kernel, root, diff))
    _write_folders(sources, root)
    shown = [root / game.file for game in played]
    _write_start(sources, root, written, exercises, shown, [path for path in sheets if path in texts], guides)
    return sources


# ---- links and anchors


def site_link(link: str, page: Path, root: Path) -> str:
    """A link in the file `page` of the repository → the same link on the site. Other links stay as they are."""
    if re.match(r"[a-zA-Z][a-zA-Z+.-]*:|//|#", link):
        return link
    file, hash_mark, anchor = link.partition("#")
    target = (page.parent / unquote(file)).resolve()
    if not target.is_relative_to(root.resolve()):
        return link
    file = file.rstrip("/")
    if target.is_dir():
        file = f"{file}/index.html"
    elif target == (root / "README.md").resolve():
        file = PurePosixPath(file).with_name("index.html").as_posix()
    elif target.suffix in (".ipynb", ".md"):
        file = f"{file.removesuffix(target.suffix)}.html"
    elif target.suffix in (".cu", ".cuh"):
        file = f"{file}.html"
    elif target.suffix == ".diff":
        file = f"{file.removesuffix('.diff')}.cu.html"
    return f"{file}{hash_mark}{anchor}"


def markdown(text: str, page: Path, root: Path, *anchors: Callable[[str], str]) -> str:
    """Markdown with the site's links, and before each heading the anchors by which the repository links to it."""
    parts = CODE.split(text)
    for number, part in enumerate(parts):
        if number % 2 == 0:
            part = LINK.sub(lambda m: m[1] + site_link(m[2], page, root), part)
            parts[number] = HREF.sub(lambda m: m[1] + site_link(m[2], page, root), part)
    return _anchored("".join(parts), anchors)


def _anchored(text: str, anchors: Iterable[Callable[[str], str]]) -> str:
    """`text` with a `<span id=...>` before a heading for each anchor that differs from Sphinx's own id."""
    lines, fenced = [], False
    for line in text.split("\n"):
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else HEADING.match(line)
        if heading:
            title = re.sub(r"[`*$]|\[([^]]*)\]\([^)]*\)", r"\1", heading[1])
            for name in dict.fromkeys(anchor(title) for anchor in anchors):
                if name != make_id(title):
                    lines += [f'<span id="{html.escape(name)}"></span>', ""]
        lines.append(line)
    return "\n".join(lines)


def _jupyterlab(title: str) -> str:
    return title.strip().replace(" ", "-")


def _github(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-")


# ---- notebooks


def _write_notebook(sources: Sources, root: Path, path: Path, notebook: NotebookNode, badges: str = "") -> None:
    inside = path.relative_to(root)
    page = nbformat.v4.new_notebook(metadata={"language_info": {"name": "python", "pygments_lexer": "ipython3"}})
    for number, cell in enumerate(notebook.cells):
        if LEFT_OUT & set(cell.metadata.get("tags", ())) or PROGRESS.match(cell.source):
            continue
        if cell.cell_type == "markdown":
            page.cells.append(nbformat.v4.new_markdown_cell(markdown(cell.source, path, root, _jupyterlab)))
        elif cell.cell_type == "code" and (cell.source.strip() or cell.outputs):
            folded = {"tags": [TAG]} if TAG in cell.metadata.get("tags", ()) else {}
            shown = nbformat.v4.new_code_cell(cell.source, execution_count=cell.execution_count, metadata=folded)
            shown.outputs, missing = outputs(cell, path, root, sources.extra)
            sources.missing_alt += [f"{inside}, cell {number} (id {cell.get('id')}): {what}" for what in missing]
            page.cells.append(shown)
    if (game := games.of_chapter(path.stem)) and (root / game.file).exists():
        link = site_link(os.path.relpath(root / game.file, path.parent), path, root)
        page.cells.insert(1, nbformat.v4.new_markdown_cell(game.invitation.format(link=link)))
    if badges:
        page.cells.insert(1, nbformat.v4.new_markdown_cell(badges))
    target = sources.pages / inside
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(page, target)


def _title(path: Path) -> str:
    """A notebook's title; an exercise's title begins with its number."""
    cells = nbformat.read(path, as_version=4).cells
    return next((cell.source for cell in cells if cell.cell_type == "markdown" and cell.source.startswith("# ")), "")


def outputs(cell: NotebookNode, path: Path, root: Path, extra: Path) -> tuple[list[NotebookNode], list[str]]:
    """A code cell's outputs as a page shows them, and what its alt text lacks.

    A widget becomes its still picture, with its state if it has one, or its HTML; a picture becomes a file below
    `extra` and an `<img>`; progress bars are removed.
    """
    alts = cell.metadata.get("alt", [])
    alts = [alts] if isinstance(alts, str) else list(alts)
    shown, pictures = [], 0
    for output in cell.outputs:
        if output.output_type == "stream":
            if output.name == "stdout":
                shown.append(output)
            continue
        if output.output_type == "error":
            shown.append(output)
            continue
        data = dict(output.data)
        was_widget, state = data.pop(WIDGET_VIEW, None) is not None, data.pop(widgets.STATE, None)
        kind = next((kind for kind in PICTURES if kind in data), None)
        if "text/html" in data:
            page = HREF.sub(lambda m: m[1] + site_link(m[2], path, root), _text(data["text/html"]))
            shown_alone = guesses.described(page, [alt.strip() for alt in alts[pictures:]])
            data = {"text/html": widgets.alive(state, shown_alone) if state else shown_alone}
            pictures += guesses.held_pictures(page)
        elif kind:
            alt = alts[pictures].strip() if pictures < len(alts) else ""
            pictures += 1
            name = f"{path.stem}-{cell.get('id')}-{pictures}"
            picture = to_html(_picture(output, kind), name, alt, path, root, extra)
            data = {"text/html": widgets.alive(state, picture) if state else picture}
        elif was_widget:
            continue  # a progress bar: its last state says nothing
        shown.append(nbformat.v4.new_output("display_data", data=data))
    given = len([alt for alt in alts if alt.strip()])
    missing = [f"{pictures} pictures, alt text for {given}"] if pictures > given else []
    return shown, missing


def _text(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else "".join(value)


def _picture(output: NotebookNode, kind: str) -> Picture:
    """The picture of this kind in an output, with its size on the page if it is drawn at twice that size."""
    png = base64.b64decode(_text(output.data.get("image/png", "")))
    size = output.metadata.get(kind) or output.metadata.get("image/png") or {}
    if kind == "image/svg+xml":
        return Picture(_text(output.data[kind]).encode(), kind, size.get("width"), size.get("height"), png)
    return Picture(base64.b64decode(_text(output.data[kind])), kind, size.get("width"), size.get("height"))


# ---- games, kernels, folders, start


def _game_page(game: games.Game, root: Path, extra: Path) -> str:
    """The page of a game: its text, with the game itself in place of the mark."""
    path = root / game.file
    words = markdown(path.read_text(encoding="utf-8"), path, root, _github)
    (shown,), _ = outputs(games.cell_of(game), path, root, extra)
    return words.replace(games.MARK, shown.data["text/html"])


def _kernel_page(source: Path, root: Path, diff: Path | None = None) -> str:
    """The page of a kernel; `diff`: the diff that makes a broken kernel, shown before it."""
    inside = source.relative_to(root)
    up = os.path.relpath(root / inside.parent, source.parent)
    change = f"````diff\n{diff.read_text(encoding='utf-8').rstrip()}\n````\n\nThe whole kernel:\n\n" if diff else ""
    return (
        f"---\norphan: true\n---\n\n# {source.name}\n\n"
        f"`{inside}` · [all files of {inside.parent}]({up}/index.html){_chapter_link(inside, source, root)}\n\n"
        f"{change}````cuda\n{read_kernel(source).rstrip()}\n````\n"
    )


def _chapter_link(inside: Path, source: Path, root: Path) -> str:
    """A link to the chapter or the exercise that a kernel belongs to, if it has one."""
    exercise = source.with_suffix(".ipynb")
    chapter = root / "notebooks" / f"{inside.parts[1]}.ipynb"
    for name, target in (("exercise", exercise), ("chapter", chapter)):
        if target.exists():
            return f" · [its {name}]({site_link(os.path.relpath(target, source.parent), source, root)})"
    return ""


def _write_folders(sources: Sources, root: Path) -> None:
    """An index.md for each folder of kernels and exercises, and for the cheat sheets."""
    globs = ("kernels/**/*.cu*", "kernels/**/*.diff", "exercises/**/*.cu*")
    folders = {path.parent for pattern in globs for path in root.glob(pattern)}
    folders |= {above for folder in folders for above in folder.parents if root / "kernels" in [above, *above.parents]}
    folders |= {folder for folder in (root / "exercises", root / "docs" / "cheat_sheets") if folder.is_dir()}
    for folder in sorted(folders):
        inside = folder.relative_to(root)
        entries = sorted(folder.iterdir(), key=lambda path: (path.is_dir(), path.name))
        wanted = [e for e in entries if e in folders or e.suffix in (".cu", ".cuh", ".diff", ".ipynb", ".md")]
        lines = [f"- [{entry.name}]({site_link(entry.name, folder / 'x', root)})" for entry in wanted]
        _write(
            sources.pages / inside / "index.md", f"---\norphan: true\n---\n\n# {inside}\n\n" + "\n".join(lines) + "\n"
        )


def _write_start(
    sources: Sources,
    root: Path,
    chapters: Sequence[Chapter],
    exercises: Sequence[Path],
    played: Sequence[Path],
    sheets: Sequence[Path],
    guides: Sequence[Path],
) -> None:
    """Writes index.md: the README, after its title and first paragraph a running kernel and links, and the order of the
    pages."""
    readme = root / "README.md"
    text = markdown(readme.read_text(encoding="utf-8"), readme, root, _github)
    title, lead, rest = [*text.split("\n\n", 2), ""][:3]
    (shown,), _ = outputs(front.cell(), readme, root, sources.extra)
    ways = [(f"{chapter.number} {chapter.title}", f"notebooks/{chapter.slug}.html") for chapter in chapters]
    to_games = [(_heading(path), site_link(path.relative_to(root).as_posix(), readme, root)) for path in played]
    opening = front.part(lead, shown.data["text/html"], ways, to_games)
    text = f"{title}\n\n{opening}\n{rest}"
    blocks = {
        "Chapters": [f"notebooks/{chapter.slug}" for chapter in chapters],
        "Exercises": [path.relative_to(root).with_suffix("").as_posix() for path in exercises],
        "Games": [path.relative_to(root).with_suffix("").as_posix() for path in played],
        "To look up": [path.relative_to(root).with_suffix("").as_posix() for path in sheets],
        "Behind the course": [path.relative_to(root).with_suffix("").as_posix() for path in guides if path.exists()],
    }
    _write(sources.pages / "index.md", text + "\n" + "\n".join(_toctrees(blocks)))


def _heading(path: Path) -> str:
    """The title of a Markdown file."""
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _toctrees(blocks: Mapping[str, Sequence[str]]) -> Iterator[str]:
    for caption, pages in blocks.items():
        if pages:
            listed = "\n".join(pages)
            yield f"```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {caption}\n\n{listed}\n```\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(source.read_bytes())
