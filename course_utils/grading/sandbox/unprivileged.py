"""A grader that is root gives its rights away before a submission's process starts, whichever isolation follows.

Namespaces and dropped capabilities are not enough: the files below /proc/sys go by the user outside of all namespaces.
So the child's user is one that owns nothing. It must still reach Python and this package; where a folder above them is
closed to others, as /root mostly is, the child's mounts show an empty folder in its place, and in it only what is
needed. Run as a script, this file does so:
`python unprivileged.py SETTINGS -- COMMAND ...`.
"""

from __future__ import annotations

import ctypes
import json
import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

NOBODY = 65534  # user and group, as Linux calls those that own nothing
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
_CLONE_NEWNS = 0x20000


def child_user() -> int | None:
    """The user, and group, that a child runs as; None: the grader's own, which is not root outside, either.

    Raises RuntimeError where root cannot become anybody else.
    """
    if sys.platform != "linux" or os.geteuid() != 0:
        return None
    maps = [list(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    if any(first <= NOBODY < first + count for first, _, count in maps):
        return NOBODY
    if next(outside for first, outside, count in maps if first <= 0 < first + count):
        return None
    raise RuntimeError("the grader is root and cannot start a process as another user; grade as an ordinary user")


def command_as(user: int, reachable: Iterable[str], command: list[str]) -> list[str]:
    """The command line that runs `command` as `user`, to whom these files and folders are open, read-only.

    Raises RuntimeError, with what to do, for one whose own rights close it.
    """
    there = [path for path in dict.fromkeys(map(os.path.abspath, reachable)) if os.path.exists(path)]
    for path in there:
        needed = stat.S_IROTH | stat.S_IXOTH if os.path.isdir(path) else stat.S_IROTH
        if ~os.stat(path).st_mode & needed:
            raise RuntimeError(
                f"the grader is root, and submissions run as a user who may not read {path}: "
                f"`chmod -R go+rX {path}`, or grade as an ordinary user"
            )
    settings = json.dumps({"user": user, "shown": _shown(there)})
    return [os.path.abspath(sys.executable), "-I", "-S", "-B", os.path.abspath(__file__), settings, "--", *command]


def _shown(paths: list[str]) -> dict[str, list[str]]:
    """For each folder that is closed to others, the topmost above some of the paths: which of them must be seen in it.

    A path inside another of them is left out.
    """
    shown: dict[str, list[str]] = {}
    for path in sorted(paths):
        closed = next((str(p) for p in reversed(Path(path).parents) if not p.stat().st_mode & stat.S_IXOTH), None)
        if closed and not any(Path(path).is_relative_to(other) for other in shown.get(closed, ())):
            shown.setdefault(closed, []).append(path)
    return shown


def _show_only(folder: str, paths: list[str]) -> None:
    """Puts an empty folder over this one, and these paths back into it, for this process and those that it starts."""
    places = [(path, os.open(path, os.O_PATH), os.path.isdir(path)) for path in paths]
    _mount("tmpfs", folder, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    for path, place, is_folder in places:
        os.makedirs(path if is_folder else os.path.dirname(path), exist_ok=True)
        if not is_folder:
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))
        _mount(f"/proc/self/fd/{place}", path, None, _MS_BIND | _MS_REC)
        _mount(None, path, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
        os.close(place)
    _mount(None, folder, None, _MS_REMOUNT | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [word if word is None else word.encode() for word in (source, target, kind, options)]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(words[0], words[1], words[2], ctypes.c_ulong(flags), words[3]):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _show(shown: dict[str, list[str]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        if libc.unshare(_CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        _mount(None, "/", None, _MS_REC | _MS_PRIVATE)  # nothing of what follows is seen outside
        for folder, paths in shown.items():
            _show_only(folder, paths)
    except OSError as error:
        closed = " ".join(sorted(shown))
        sys.exit(
            f"the grader is root, submissions run as another user, and {closed} is closed to others ({error}): "
            f"`chmod o+x {closed}`, or grade as an ordinary user"
        )


def main() -> None:
    settings, command = json.loads(sys.argv[1]), sys.argv[3:]
    if settings["shown"]:
        _show(settings["shown"])
    os.setgroups([])
    os.setresgid(settings["user"], settings["user"], settings["user"])
    os.setresuid(settings["user"], settings["user"], settings["user"])
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
