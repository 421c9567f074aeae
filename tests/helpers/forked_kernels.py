"""A plugin for nbval (`-p tests.helpers.forked_kernels`): kernels that have imported PyTorch, as forks of one process.

A kernel takes 4 s to start, nearly all of it for imports that are the same in each chapter. The chapter that a learner
opens first starts as in JupyterLab, and `make test-all` runs the others there. No module of the course is imported
before a fork: each chapter imports its own. In `make test` the kernels of JupyterLab are such forks, too
(`serve_forks`).
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from jupyter_client.provisioning import KernelProvisionerFactory, LocalProvisioner

# torch imports its compiler when it makes an optimizer or an operator's gradient.
# What the course imports of others, too, takes a tenth of a second in each chapter.
IMPORTED = (
    *("ipykernel.kernelapp", "matplotlib.pyplot", "ipywidgets", "anywidget", "torch", "torch._dynamo", __name__),
    *("elftools.elf.elffile", "cuda.bindings.nvrtc", "sqlite3", "pdb"),
)
STARTS_FROM_NOTHING = "00_start_here"
ROOT = str(Path(__file__).resolve().parents[2])
FORKS = multiprocessing.get_context("forkserver")


def pytest_configure(config):
    register()


def register(*left_out: str) -> None:
    """Lets kernels of this process be "forked", with what is in IMPORTED but for these modules."""
    KernelProvisionerFactory.provisioners["forked"] = EntryPoint(
        "forked", f"{__name__}:{ForkedProvisioner.__name__}", KernelProvisionerFactory.GROUP_NAME
    )
    FORKS.set_forkserver_preload([name for name in IMPORTED if name not in left_out])


@contextmanager
def kernels_as_forks(*imported: str) -> Iterator[None]:
    """Kernels that this process starts meanwhile are forks of a process that has imported these modules alone, and that
    ends with the last of them."""
    from unittest import mock  # a kernel does without

    server = forkserver.ForkServer()  # this process may have one for another test
    functions = "connect_to_new_process", "ensure_running", "set_forkserver_preload"
    factory = KernelProvisionerFactory.instance()
    before = factory.default_provisioner_name
    with (
        mock.patch.multiple(forkserver, **{name: getattr(server, name) for name in functions}),
        mock.patch(f"{__name__}.IMPORTED", imported),
    ):
        register()
        factory.default_provisioner_name = "forked"
        try:
            yield
        finally:
            factory.default_provisioner_name = before
            server._stop()


def serve_forks(config) -> None:
    """In a Jupyter server's configuration file: each of its kernels is a fork. The first need not wait for imports.

    None of the cells that `make test` runs there trains: torch's compiler, 2 s to import, is left out.
    """
    register("torch._dynamo")
    config.KernelProvisionerFactory.default_provisioner_name = "forked"
    forkserver.ensure_running()


def pytest_runtest_setup(item):
    """Chooses before nbval starts the kernel of the item's notebook."""
    factory = KernelProvisionerFactory.instance()
    factory.default_provisioner_name = "local-provisioner" if item.path.stem == STARTS_FROM_NOTHING else "forked"


FIRST_PUZZLE = "%%puzzle 00_start_here/guard"
# For a kernel that is to grade without sandboxes, each of which imports PyTorch. `builtins` has the `setattr` that is
# asked of a monkeypatch, for good.
GRADE_HERE = f"import builtins, sys; sys.path.append({ROOT!r})\n"
GRADE_HERE += "from tests.helpers import runner_here; runner_here.grade_here(builtins); sys.path.pop()"


def pytest_runtest_call(item):
    """The first puzzle of the course is graded in a sandbox, the others by their kernel itself."""
    source, kernel = item.cell.source, item.parent.kernel
    if source.startswith("%%puzzle") and not source.startswith(FIRST_PUZZLE):
        asked = kernel.kc.execute(GRADE_HERE, silent=True)
        reply = kernel.get_message("shell", timeout=60)
        assert reply["content"]["status"] == "ok", reply
        kernel.await_idle(asked, timeout=60)


def _own_ports() -> Iterator[int]:
    """Ports that no other process of a test run asks for, and below those that the system gives to connections: a
    kernel whose port was taken since it was looked for ends at its start, without a word."""
    first = 10_000 + 100 * (os.getpid() % 220)
    for port in itertools.cycle(range(first, first + 100)):
        with socket.socket() as asked:
            is_free = asked.connect_ex(("127.0.0.1", port)) != 0
        if is_free:
            yield port


class ForkedProvisioner(LocalProvisioner):
    """Starts a kernel as a fork, and looks after it as after any other."""

    _ports = _own_ports()

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        for channel in ("shell", "iopub", "stdin", "hb", "control"):
            setattr(self.parent, f"{channel}_port", next(self._ports))
        self.ports_cached = True  # they are chosen
        return await super().pre_launch(**kwargs)

    async def launch_kernel(self, cmd: list[str], *, env: dict[str, str], cwd: str, **_: Any) -> dict[str, Any]:
        self.process = ForkedKernel(cmd, env, cwd)
        self.process.start()
        self.pid = self.pgid = self.process.pid
        self.cwd = cwd
        return self.connection_info


class ForkedKernel(FORKS.Process):
    """A kernel's process, with what LocalProvisioner asks of a subprocess.Popen."""

    stdin = stdout = stderr = None

    def __init__(self, cmd: list[str], env: dict[str, str], cwd: str) -> None:
        super().__init__()
        self._arguments, self._env, self._cwd = cmd[cmd.index("-f") :], env, cwd
        added = {"", os.getcwd(), ROOT} - set(env.get("PYTHONPATH", "").split(os.pathsep))  # by `-m`, and for this file
        self._path = [place for place in sys.path if place not in added]

    def poll(self) -> int | None:
        return self.exitcode

    def wait(self) -> int | None:
        self.join()
        return self.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def run(self) -> None:
        """Makes the fork what a new process would be, and begins."""
        from ipykernel.kernelapp import launch_new_instance
        from matplotlib import rcParams

        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.__stderr__.fileno())
        os.environ.clear()
        os.environ.update(self._env)
        os.chdir(self._cwd)
        sys.path[:] = self._path
        rcParams["backend"] = "module://matplotlib_inline.backend_inline"  # asked of the environment by an import only
        threading.Thread(target=_end_with, args=(multiprocessing.parent_process(),), daemon=True).start()
        launch_new_instance(
            argv=[*self._arguments, "--IPKernelApp.parent_handle=1"]
        )  # no terminal's, nor to be watched


def _end_with(parent) -> None:
    parent.join()
    os._exit(1)
