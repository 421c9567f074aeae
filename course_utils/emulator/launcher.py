"""A small process that starts the worker of each launch. Run as a script, with the standard library alone.

Workers are forked, so that a kernel may crash or hang. Forked from the notebook's own process, each would cost a copy
of PyTorch's page tables (5 ms here), and would inherit its threads' locks; forked from this one, it costs half a
millisecond. Requests come over a socket, each with the file that holds the arguments (see launch.py and memory.py).
"""

import ctypes
import mmap
import os
import pickle
import signal
import socket
import sys

MESSAGE_BYTES = 1 << 16
LOOK_SECONDS = 0.5  # until a worker ends whose launch nobody waits for any more, at most
MOST_LIBRARIES = 64  # loaded at a time: each makes every fork a little dearer, and a thousand double it
_PROT_NONE, _MAP_FIXED, _MAP_NORESERVE, _MAP_FIXED_NOREPLACE = 0, 0x10, 0x4000, 0x100000

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Dim3(ctypes.Structure):
    _fields_ = [("x", ctypes.c_uint), ("y", ctypes.c_uint), ("z", ctypes.c_uint)]

    def as_tuple(self) -> tuple[int, int, int]:
        return self.x, self.y, self.z


class Span(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64)]


class ArraySpan(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64), ("element_bytes", ctypes.c_uint64)]


class StaticShared(ctypes.Structure):
    _fields_ = [("offset", ctypes.c_uint32), ("bytes", ctypes.c_uint32), ("is_guard", ctypes.c_uint32)]


class Tracing(ctypes.Structure):
    """The mirror of emu_tracing in runtime/launch.h."""

    _fields_ = [
        ("sanitize", ctypes.c_uint32),
        ("profile", ctypes.c_uint32),
        ("in_step", ctypes.c_uint32),
        ("hopper", ctypes.c_uint32),
        ("fences", ctypes.c_uint32),
        ("arrays", ctypes.POINTER(ArraySpan)),
        ("array_count", ctypes.c_uint64),
        ("reserved", Span),
        ("blocks", ctypes.c_void_p),
        ("block_count", ctypes.c_uint64),
        ("statics", ctypes.POINTER(StaticShared)),
        ("static_count", ctypes.c_uint64),
        ("results", ctypes.c_void_p),
        ("recording", ctypes.c_void_p),
        ("preferred", ctypes.POINTER(Dim3)),
    ]


class LaunchRequest(ctypes.Structure):
    """The mirror of emu_launch in runtime/launch.h."""

    _fields_ = [
        ("kernel", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(ctypes.c_void_p)),
        ("grid", Dim3),
        ("block", Dim3),
        ("cluster", Dim3),
        ("dynamic_shared", ctypes.c_uint32),
        ("os_threads", ctypes.c_uint32),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint32),
        ("thread_order", ctypes.c_uint32),
        ("time_limit", ctypes.c_double),
        ("exact_sums", ctypes.c_uint32),
        ("dynamic_shared_base", ctypes.c_void_p),
        ("globals", ctypes.POINTER(Span)),
        ("global_values", ctypes.c_void_p),
        ("global_count", ctypes.c_uint64),
        ("report", ctypes.c_void_p),
        ("tracing", ctypes.POINTER(Tracing)),
    ]


def map_memory(address: int | None, size: int, protection: int, flags: int, file: int = -1, offset: int = 0) -> int:
    """mmap; raises OSError, which says what could not be had."""
    mapped = _libc.mmap(address, size, protection, flags, file, offset)
    if mapped in (None, ctypes.c_void_p(-1).value):
        error = ctypes.get_errno()
        raise OSError(error, f"the emulator could not map {size:,} bytes: {os.strerror(error)}")
    return mapped


def tracing_of(request: dict, front: int) -> Tracing | None:
    """What the request says about the sanitizer and the profiler; None: a plain launch."""
    asked = request["tracing"]
    if asked is None:
        return None
    spans, statics = asked["arrays"], asked["statics"]
    return Tracing(
        sanitize=asked["sanitize"],
        profile=asked["profile"],
        in_step=asked["in_step"],
        hopper=asked["hopper"],
        fences=asked["fences"],
        arrays=(ArraySpan * max(1, len(spans)))(*[ArraySpan(*span) for span in spans]),
        array_count=len(spans),
        reserved=Span(*request["reserved"]),
        blocks=front + asked["blocks_offset"],
        block_count=asked["block_count"],
        statics=(StaticShared * max(1, len(statics)))(*[StaticShared(*variable) for variable in statics]),
        static_count=len(statics),
        results=front + asked["results_offset"],
        recording=front + asked["recording_offset"] if asked["recording_offset"] else None,
        preferred=ctypes.pointer(Dim3(*asked["preferred"])) if asked["preferred"] else None,
    )


def aligned(values: list[bytes]) -> tuple[ctypes.Array, ctypes.Array]:
    """Memory with the arguments, each at a multiple of 64 bytes, as a tensor map wants it; and pointers to them."""
    sizes = [-(-len(value) // 64) * 64 for value in values]
    memory = ctypes.create_string_buffer(sum(sizes) + 64)
    at = -(-ctypes.addressof(memory) // 64) * 64
    pointers = (ctypes.c_void_p * max(1, len(values)))()
    for i, (value, size) in enumerate(zip(values, sizes, strict=True)):
        ctypes.memmove(at, value, len(value))
        pointers[i] = at
        at += size
    return memory, pointers


def loaded(path: str, libraries: dict[str, ctypes.CDLL]) -> ctypes.CDLL:
    """The library, loaded once for its name, which says what is in it. A kernel is bound to the first runtime of its
    name that was loaded here, and another process may have built the file again since."""
    name = os.path.basename(path)
    if name not in libraries:
        libraries[name] = ctypes.CDLL(path)
    return libraries[name]


def wait_for(worker: int, parent: int) -> int:
    """The exit status of the worker. Once the process `parent` is gone, nobody waits for that: the worker is killed."""
    while (ended := os.waitpid(worker, os.WNOHANG))[0] == 0:
        if os.getppid() != parent:  # the connection does not tell: children of the parent may have inherited it
            os.kill(worker, signal.SIGKILL)
            sys.exit()
        signal.sigtimedwait({signal.SIGCHLD}, LOOK_SECONDS)
    return ended[1]


def launch(request: dict, file: int, libraries: dict[str, ctypes.CDLL], parent: int) -> tuple[int, int]:
    """Runs one launch in a worker; returns the worker's exit status and where the kernel's library is loaded."""
    runtime, library = (loaded(request[which], libraries) for which in ("runtime", "library"))
    base_symbol = ctypes.cast(library.emu_dynamic_shared_base, ctypes.c_void_p).value
    load_address = base_symbol - request["dynamic_shared_base"]

    arguments, pointers = aligned(request["arguments"])
    spans = [Span(load_address + offset, size) for offset, size, _ in request["globals"]]

    read_write = mmap.PROT_READ | mmap.PROT_WRITE
    front = map_memory(None, request["front_bytes"], read_write, mmap.MAP_SHARED, file)
    global_values = at = front + request["report_bytes"]
    for offset, size, untouched in request["globals"]:
        if untouched:
            ctypes.memmove(at, load_address + offset, size)
        at += size
    tracing = tracing_of(request, front)
    reserved, reserved_bytes = request["reserved"]
    nothing = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED_NOREPLACE
    try:
        map_memory(reserved, reserved_bytes, _PROT_NONE, nothing)
        for address, offset, size in request["regions"]:
            map_memory(address, size, read_write, mmap.MAP_SHARED | _MAP_FIXED, file, offset)
        started = runtime.emu_start(
            ctypes.byref(
                LaunchRequest(
                    kernel=load_address + request["kernel"],
                    arguments=ctypes.cast(pointers, ctypes.POINTER(ctypes.c_void_p)),
                    grid=Dim3(*request["grid"]),
                    block=Dim3(*request["block"]),
                    cluster=Dim3(*request["cluster"]),
                    dynamic_shared=request["shared_mem"],
                    os_threads=request["threads"],
                    order=request["order"],
                    seed=request["seed"],
                    thread_order=request["thread_order"],
                    time_limit=request["time_limit"],
                    exact_sums=request["exact_sums"],
                    dynamic_shared_base=base_symbol,
                    globals=(Span * max(1, len(spans)))(*spans),
                    global_values=global_values,
                    global_count=len(spans),
                    report=front,
                    tracing=None if tracing is None else ctypes.pointer(tracing),
                )
            )
        )
        if started < 0:
            raise OSError(-started, "the emulator could not start a worker process: " + os.strerror(-started))
        return wait_for(started, parent), load_address
    finally:
        _libc.munmap(reserved, reserved_bytes)
        _libc.munmap(front, request["front_bytes"])


def serve(connection: socket.socket, parent: int) -> None:
    """Answers requests of the process `parent` until it hangs up."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})  # wait_for() takes it
    ctypes.CDLL("libm.so.6", mode=ctypes.RTLD_GLOBAL)  # the libraries name no libm: see compiler._link
    libraries: dict[str, ctypes.CDLL] = {}
    while True:
        message, files, _, _ = socket.recv_fds(connection, MESSAGE_BYTES, 1)
        if not message:
            return
        try:
            answer: object = launch(pickle.loads(message), files[0], libraries, parent)
        except OSError as error:
            answer = error
        finally:
            os.close(files[0])
        try:
            connection.send(pickle.dumps(answer))
        except BrokenPipeError:  # it did not wait for this one
            return
        if len(libraries) > MOST_LIBRARIES:  # as the same process, with the same connection
            os.execv(sys.executable, [sys.executable, "-I", "-S", *sys.argv])


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), parent=int(sys.argv[2]))
