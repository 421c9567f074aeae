"""What a CUDA graph has captured lives as long as the graph: each replay reads it again."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import torch
from torch.cuda import is_current_stream_capturing, is_initialized

# Locks of C: to release one takes no Python, which may be gone before the last graph.
_locks = ctypes.PyDLL(None)
_locks.PyThread_allocate_lock.restype = ctypes.c_void_p
_locks.PyThread_acquire_lock.argtypes = ctypes.c_void_p, ctypes.c_int
_locks.PyThread_free_lock.argtypes = (ctypes.c_void_p,)

ACTIVE, NO_WAITING, MOVE = 1, 1, 1  # the driver's own numbers: status of a capture; flags of user objects


class _Graph:
    """A CUDA graph, and what it has captured.

    It gets a user object of CUDA, which it shares with what is instantiated from it. When none of them is left, and no
    replay runs any more, the driver releases a lock.
    """

    def __init__(self, graph: Any) -> None:
        self.things: dict[int, object] = {}
        self._alive = _locks.PyThread_allocate_lock()
        _locks.PyThread_acquire_lock(self._alive, 0)
        driver = _driver()
        release = driver.CUhostFn(ctypes.cast(_locks.PyThread_release_lock, ctypes.c_void_p).value)
        (shared,) = _results(driver.cuUserObjectCreate(self._alive, release, 1, NO_WAITING))
        _results(driver.cuGraphRetainUserObject(graph, shared, 1, MOVE))

    def has_ended(self) -> bool:
        """To be asked no more once it has."""
        if not _locks.PyThread_acquire_lock(self._alive, 0):
            return False
        _locks.PyThread_free_lock(self._alive)
        return True


_graphs: dict[int, _Graph] = {}  # by the number that the driver gives a capture
_for_good: dict[int, object] = {}
_lock = threading.Lock()


def capturing() -> bool:
    """Whether a CUDA graph is captured on torch's current stream."""
    return is_initialized() and is_current_stream_capturing()


def keep(thing: object) -> None:
    """Lets the thing live as long as the graph that is captured on torch's current stream.

    The first call of `keep` or `forget` after the end of the graph lets go of it. Where the driver does not say when
    that is (no cuda-bindings, those of another version, or a call that fails), the thing stays as long as the process.
    """
    forget()
    with _lock:
        try:
            status, number, graph, *_ = _results(
                _driver().cuStreamGetCaptureInfo(torch.cuda.current_stream().cuda_stream)
            )
            if int(status) != ACTIVE:
                return  # the capture has failed: there will be no graph
            if int(number) not in _graphs:
                _graphs[int(number)] = _Graph(graph)
            _graphs[int(number)].things[id(thing)] = thing
        except (ImportError, AttributeError, TypeError, RuntimeError):
            _for_good[id(thing)] = thing


def forget() -> None:
    """Lets go of what graphs have captured that are no more."""
    if _graphs:
        with _lock:
            ended = [number for number, graph in _graphs.items() if graph.has_ended()]
            things = [_graphs.pop(number) for number in ended]
        del things  # not under the lock: what goes with them is not known here


def _driver() -> Any:
    from cuda.bindings import driver  # loads the driver

    return driver


def _results(returned: tuple[Any, ...]) -> tuple[Any, ...]:
    error, *results = returned
    if int(error):
        raise RuntimeError(f"the driver of CUDA says {error}")
    return tuple(results)
