"""JupyterLab as the Dockerfile's command starts it: its address, what a page asks it for, and its end."""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from pathlib import Path

import psutil

from tests.container.debian import Debian

WRAPPERS = ("bwrap", "proot", "ld-linux-x86-64", "ld-linux-x86-64.so.2")
ADDRESS = r"(http://127\.0\.0\.1:(\d+))/\S*?[?&]token=(\w+)"
STOP_SECONDS = 10  # as long as Docker waits before it kills


class Lab:
    """A command that runs in a Debian until `stop`. Raises RuntimeError if it prints no address in this time."""

    def __init__(
        self,
        debian: Debian,
        command: Sequence[str],
        environment: dict[str, str],
        volumes: dict[str, Path],
        seconds: float,
    ) -> None:
        self._log = debian.home / "lab.log"
        with self._log.open("wb") as log:
            self._process = debian.start(command, environment, volumes=volumes, output=log)
        deadline = time.monotonic() + seconds
        while not (found := re.search(ADDRESS, self.said)):
            if time.monotonic() > deadline or self._process.poll() is not None:
                self.stop()
                raise RuntimeError(f"no address in {seconds:.0f} s:\n{self.said[-4000:]}")
            time.sleep(0.2)
        self.address, self.url, self.port, self._token = found[0], found[1], int(found[2]), found[3]

    @property
    def said(self) -> str:
        """What the command has printed."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def notebook(self, path: str) -> dict:
        """A notebook below JupyterLab's folder, as its page reads it."""
        return self._ask("GET", path)["content"]

    def save(self, path: str, notebook: dict) -> None:
        """Saves a notebook, as the page does."""
        self._ask("PUT", path, {"type": "notebook", "content": notebook})

    def stop(self) -> bool:
        """Ends the command as `docker stop` does. Whether it ended in time, by itself."""
        inside = psutil.Process(self._process.pid).children(recursive=True) if self._process.poll() is None else []
        for process in [one for one in inside if one.name() not in WRAPPERS][:1]:
            process.terminate()
        try:
            self._process.wait(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()  # and with it all inside
            self._process.wait()
            return False
        return True

    def _ask(self, method: str, path: str, content: dict | None = None) -> dict:
        data = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/contents/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)
