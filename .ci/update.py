"""Brings a clone up to date and keeps what its owner changed. docs/updating.md says what becomes of which file.

    git fetch origin
    git show origin/HEAD:.ci/update.py | python3 -

Called so, the newest version of this file works in a clone of any age: it uses nothing of the course.
"""

import subprocess
import sys
from datetime import datetime
from pathlib import Path

NEW = "origin/HEAD"


def git(*words):
    """What git prints. Its own message about a failure goes to the terminal."""
    return subprocess.run(["git", *words], check=True, stdout=subprocess.PIPE, cwd=TOP).stdout


def files(*words):
    """The files that a git command lists."""
    return {name.decode() for name in git(*words, "-z").split(b"\0") if name}


def in_the_way(untracked, brought):
    """Files that git does not know and the update would replace: it brings a file or a folder of that name."""
    folders = {str(folder) for path in brought for folder in Path(path).parents}
    return sorted(
        path
        for path in untracked
        if path in brought | folders or brought & {str(folder) for folder in Path(path).parents}
    )


def update():
    """Returns the words to fail with, or None."""
    base = git("merge-base", "HEAD", NEW).decode().strip()
    if base == git("rev-parse", NEW).decode().strip():
        return print("The course is up to date already.")
    changes = ("diff", "--name-only", "--no-renames")
    mine = files(*changes, "--diff-filter=d", base)
    updated = files(*changes, base, NEW)
    if found := in_the_way(files("ls-files", "--others"), files(*changes, "--diff-filter=d", base, NEW)):
        return f"Nothing is changed. The update brings files of these names; rename yours first: {', '.join(found)}"

    branch = datetime.now().strftime("my-work-%Y-%m-%d-%H%M%S")
    git("branch", branch, git("stash", "create").decode().strip() or "HEAD")
    print(f"Your work as it was is in the git branch {branch}.")
    git("reset", "--quiet", "--hard", NEW)

    for name in sorted(mine):
        path = place = Path(name)
        if name in updated and path.parts[0] != "exercises":
            place = path.with_name(f"{path.stem}.{branch}{path.suffix}")
        (TOP / place).parent.mkdir(parents=True, exist_ok=True)
        (TOP / place).write_bytes(git("show", f"{branch}:{name}"))
        print(f"  {name}: " + ("yours" if place == path else f"the new one; yours is {place}"))
    print("The course is up to date.")


if __name__ == "__main__":
    TOP = Path.cwd()
    try:
        TOP = Path(git("rev-parse", "--show-toplevel").decode().rstrip("\n"))
        sys.exit(update())
    except subprocess.CalledProcessError as error:
        sys.exit(f"Stopped, because this failed: {' '.join(error.cmd)}")
