"""A kernel that nbval gets as a fork is, for whoever runs it, one that was started."""

import os

import pytest
from jupyter_client.manager import start_new_kernel

from tests.helpers import forked_kernels

LOOKS_ROUND = f"""
import os, sys, matplotlib
print(os.getcwd(), os.environ["OF_THIS_NOTEBOOK"], os.getsid(0), sep="\\n")
print([name for name in sys.modules if name.partition(".")[0] in ("course_utils", "pytest")])
print({os.getcwd()!r} in sys.path)
print("inline" in matplotlib.get_backend())
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Manager and client of a fork that works in tmp_path."""
    monkeypatch.setenv("OF_THIS_NOTEBOOK", "yes")
    with forked_kernels.kernels_as_forks():  # as quick without imports
        manager, client = start_new_kernel(kernel_name="python3", cwd=str(tmp_path))
        yield manager, client
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def run(client, code, on_output=lambda text: None):
    """What the code prints, and the reply to it."""
    printed = []

    def keep(message):
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])
            on_output(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=keep, timeout=60)
    return "".join(printed), reply["content"]


def test_a_forked_kernel_works_is_interrupted_and_ends(kernel, tmp_path):
    manager, client = kernel
    pid = manager.provisioner.pid
    printed, _ = run(client, LOOKS_ROUND)
    on_path = os.getcwd() in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    assert printed.splitlines() == [str(tmp_path), "yes", str(pid), "[]", str(on_path), "True"]

    ports = {getattr(manager, f"{channel}_port") for channel in ("shell", "iopub", "stdin", "hb", "control")}
    assert len(ports) == 5 and max(ports) < 32_768  # none that the system may give to a connection meanwhile

    def interrupt(text):
        manager.interrupt_kernel()

    _, reply = run(client, "import time\nprint('begun', flush=True)\ntime.sleep(50)", interrupt)
    assert reply["ename"] == "KeyboardInterrupt"
    assert run(client, "print(1 + 1)")[0] == "2\n" and manager.is_alive()

    manager.shutdown_kernel(now=True)
    assert not manager.is_alive()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
