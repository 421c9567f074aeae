"""seccomp: a process gives up system calls, for itself and all that it starts. Any user may do so (Linux 3.5).

What goes is what reaches other processes but by files: sockets of every kind (a service's, an agent's, X11's, Docker's,
the host's of a virtual machine; Landlock knows TCP and abstract names only), System V and POSIX queues and shared
memory, the keys that the kernel keeps for a user, and the memory of other processes. They fail with "not permitted".
A pair of connected sockets, pipes and memory that is inherited stay. Only for the processors whose numbers are below.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct

# System calls by processor: linux/audit.h's number of it, then those of its table.
_REFUSED = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41,
            **{"shmget": 29, "shmat": 30, "shmctl": 31, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220},
            **{"msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71},
            **{"mq_open": 240, "mq_unlink": 241},
            **{"add_key": 248, "request_key": 249, "keyctl": 250},
            **{"ptrace": 101, "process_vm_readv": 310, "process_vm_writev": 311, "pidfd_getfd": 438, "kcmp": 312},
            "io_uring_setup": 425,  # makes sockets, too
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198,
            **{
                "shmget": 194,
                "shmctl": 195,
                "shmat": 196,
                "semget": 190,
                "semctl": 191,
                "semtimedop": 192,
                "semop": 193,
            },
            **{"msgget": 186, "msgctl": 187, "msgrcv": 188, "msgsnd": 189},
            **{"mq_open": 180, "mq_unlink": 181},
            **{"add_key": 217, "request_key": 218, "keyctl": 219},
            **{"ptrace": 117, "process_vm_readv": 270, "process_vm_writev": 271, "pidfd_getfd": 438, "kcmp": 272},
            "io_uring_setup": 425,
        },
    ),
}
_OTHER_TABLE = 0x40000000  # numbers from here on are those of x32, which has a table of its own
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # linux/filter.h, as one code each
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
_PR_SET_SECCOMP, _FILTER = 22, 2


def known() -> bool:
    """Whether this processor's system calls are listed here."""
    return os.uname().machine in _REFUSED and ctypes.sizeof(ctypes.c_void_p) == 8


def restrict() -> bool:
    """From now on, these system calls fail. Needs no_new_privs. False: not on this processor, or not in this kernel."""
    if not known():
        return False
    steps = b"".join(struct.pack("=HBBI", *step) for step in _program(*_REFUSED[os.uname().machine]))
    kept = ctypes.create_string_buffer(steps, len(steps))
    program = ctypes.create_string_buffer(struct.pack("@HP", len(steps) // 8, ctypes.addressof(kept)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER), program, 0, 0) == 0:
        return True
    if ctypes.get_errno() != errno.EINVAL:  # EINVAL: a kernel without
        raise OSError(ctypes.get_errno(), f"seccomp: {os.strerror(ctypes.get_errno())}")
    return False


def _program(processor: int, refused: dict[str, int]) -> list[tuple[int, int, int, int]]:
    """Steps of (code, steps to skip if true, if false, number): linux/seccomp.h has the call's number first."""
    numbers = sorted(refused.values())
    fail = len(numbers) + 1  # steps from the first comparison of a number to the last step
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 0, fail + 2, processor),  # calls of another processor's table, as 32-bit programs make them
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, fail, 0, _OTHER_TABLE),
    ]
    steps += [(_EQUAL, fail - 1 - i, 0, number) for i, number in enumerate(numbers)]
    return [*steps, (_RETURN, 0, 0, _ALLOW), (_RETURN, 0, 0, _FAIL | errno.EPERM)]
