"""The reader of the Dockerfile: it has the steps as Docker carries them out, and refuses what it does not know."""

import shutil
from pathlib import Path

import pytest

from tests.container.dockerfile import Step, command, environment, left_out, read_steps

ROOT = Path(__file__).resolve().parents[2]


def test_steps_are_in_order_with_comments_left_out_and_lines_joined():
    steps = read_steps(
        '# x\nFROM a:1\nRUN one && \\\n    # of RUN\n    two\nENV A=1 B=2\nENV A=3\nCMD ["b"]\nCMD ["c"]\n'
    )
    assert steps[:2] == [Step("FROM", "a:1"), Step("RUN", "one && two")]
    assert environment(steps[:3]) == {"A": "1", "B": "2"} and environment(steps) == {"A": "3", "B": "2"}
    assert command(steps) == ["c"]


def test_the_courses_dockerfile_is_known():
    steps = read_steps((ROOT / "Dockerfile").read_text(encoding="utf-8"))
    assert {step.instruction for step in steps} == {"FROM", "COPY", "RUN", "ENV", "EXPOSE", "CMD"}
    left_out((ROOT / ".dockerignore").read_text(encoding="utf-8"), ROOT)


@pytest.mark.parametrize(
    "line",
    [
        *("USER learner", "run true", "COPY --chown=1 . /x", "COPY . x", 'RUN ["true"]', "RUN --mount=type=cache true"),
        *("ENV A $B", "ENV A=$B", "EXPOSE 8888/udp", "CMD python", "FROM b:1 AS second", "FROM b:1"),
    ],
)
def test_what_is_not_known_is_refused(line):
    with pytest.raises(ValueError, match="Dockerfile: "):
        read_steps(f"FROM a:1\n{line}\n")


def test_a_copy_leaves_out_what_dockerignore_names(tmp_path):
    context = tmp_path / "context"
    names = ("build/a", "b/build/a", "b/__pycache__/c", "d", "b/e.my-work-1")
    for name in names:
        (context / name).parent.mkdir(parents=True, exist_ok=True)
        (context / name).touch()
    ignored = left_out("build\n**/__pycache__\n**/*.my-work-*\n", context)
    shutil.copytree(context, tmp_path / "copy", ignore=ignored)
    copied = {str(path.relative_to(tmp_path / "copy")) for path in tmp_path.glob("copy/**/*") if path.is_file()}
    assert copied == {"b/build/a", "d"}
    for pattern in ("b/build", "!d"):
        with pytest.raises(ValueError, match="no such pattern"):
            left_out(pattern, context)
