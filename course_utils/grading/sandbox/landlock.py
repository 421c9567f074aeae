"""Landlock: a process gives up rights, for itself and all that it starts. Any user may do so (Linux 5.13 and newer).

The numbers are those of linux/landlock.h. What the kernel is too old for is left out.
"""

from __future__ import annotations

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # system calls, the same on every processor
_VERSION = 1  # a flag: do nothing, say the version
_PATH_BENEATH = 1  # a type of rule
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READING = _EXECUTE | _READ_FILE | _READ_DIR
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_NETWORK = 0b11  # bind and connect, TCP
_SCOPES = 0b11  # abstract Unix sockets, signals to processes outside


def version() -> int:
    """The version of Landlock in the running Linux kernel; 0: it has none."""
    return max(0, ctypes.CDLL(None).syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), _VERSION))


def restrict(readable: Iterable[str], writable: Iterable[str]) -> None:
    """From now on, this process sees nothing but these files and folders. They must exist; a missing one is left out.

    Where the kernel can (6.7, 6.12), TCP and signals to others go, too. Needs no_new_privs. Raises OSError.
    """
    known = version()
    if not known:
        return
    files = (1 << (13 if known < 2 else 14 if known < 3 else 15)) - 1
    rules = struct.pack("=QQQ", files, _NETWORK if known >= 4 else 0, _SCOPES if known >= 6 else 0)
    ruleset = _call(_CREATE_RULESET, rules, ctypes.c_size_t(len(rules)), 0)
    try:
        for paths, access in ((readable, _READING), (writable, files)):
            for path in paths:
                _allow(ruleset, path, access & files)
        _call(_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            access &= _OF_A_FILE
        _call(_ADD_RULE, ruleset, _PATH_BENEATH, struct.pack("=Qi", access, place), 0)
    finally:
        os.close(place)


def _call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), f"Landlock: {os.strerror(ctypes.get_errno())}")
    return result
