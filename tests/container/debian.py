"""A clean Debian in a folder, and programs in it.

bwrap gives a program this Debian as its root, a /proc of its own, this machine's /sys to read, and the rights that
Docker gives. Where it is of another processor, proot does so inside bwrap, and hands each program to qemu.
"""

from __future__ import annotations

import errno
import os
import shutil
import struct
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

RELEASE, MIRROR = "bookworm", "http://deb.debian.org/debian"
PACKAGES = ("ca-certificates", "python3", "python3-venv")
TOOLS, TO_EMULATE = ("debootstrap",), ("qemu-user-static", "proot", "libtalloc2")
# The processor that qemu is, and what PyTorch reads of it in /proc/cpuinfo: with this machine's there it crashes.
QEMU = "qemu-aarch64-static -cpu neoverse-n1"
CPUINFO = """processor\t: 0
Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp ssbs
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x3
CPU part\t: 0xd0c
CPU revision\t: 1
"""
BASE = {"PATH": "/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"}
CAPABILITIES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "SETGID", "SETUID", "SYS_CHROOT")
# renameat2, openat2, faccessat2, and statx of a path: this proot would leave their paths as they are. Told that the
# kernel has none of them, qemu and Debian's programs take the older calls. zig looks at open files by statx alone.
_NEWER_THAN_PROOT = (316, 437, 439)
_STATX, _AT_FDCWD = 332, 0xFFFFFF9C


@dataclass(frozen=True)
class Debian:
    """One for an architecture ("amd64", "arm64") in a folder, with the tools beside it. `make` fills it."""

    folder: Path
    architecture: str

    @property
    def home(self) -> Path:
        """What belongs to this architecture."""
        return self.folder / self.architecture

    @property
    def root(self) -> Path:
        """The root folder of the programs in it."""
        return self.home / "root"

    @property
    def emulated(self) -> bool:
        """Whether it is of another processor than this machine's."""
        return self.architecture != own_architecture()

    def make(self) -> None:
        """Downloads and unpacks the tools and the Debian, whose `python` and `pip` are those of /usr/local, as in the
        image. Raises CalledProcessError."""
        packages = self.folder / "packages"
        packages.mkdir(parents=True, exist_ok=True)
        names = [*TOOLS, *(TO_EMULATE if self.emulated else ())]
        subprocess.run(["apt-get", "download", *names], cwd=packages, check=True)
        for package in packages.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, self._tools], check=True)
        (self._tools / "cpuinfo").write_text(CPUINFO)
        shutil.rmtree(self.root, ignore_errors=True)
        debootstrap = [self._tools / "usr/sbin/debootstrap", "--foreign", f"--arch={self.architecture}"]
        debootstrap += ["--variant=minbase", f"--include={','.join(PACKAGES)}", RELEASE, self.root, MIRROR]
        scripts = {**os.environ, "DEBOOTSTRAP_DIR": str(self._tools / "usr/share/debootstrap")}
        subprocess.run(debootstrap, env=scripts, check=True)
        (self.root / "proc").unlink()  # a link to /proc, until the second stage
        (self.root / "proc").mkdir()
        # lxc: it makes no device files, and mounts nothing
        self.run(["/debootstrap/debootstrap", "--second-stage"], {"container": "lxc"})
        self.run(["python3", "-m", "venv", "/usr/local"])
        self.run(["apt-get", "clean"])

    def run(self, words: Sequence[str], environment: Mapping[str, str] = {}, read_only: Sequence[str] = ()) -> None:
        """Runs a program to its end. Raises CalledProcessError where it fails. All else as `start`."""
        status = self.start(words, environment, read_only).wait()
        if status:
            raise subprocess.CalledProcessError(status, words)

    def start(
        self,
        words: Sequence[str],
        environment: Mapping[str, str],
        read_only: Sequence[str] = (),
        volumes: Mapping[str, Path] = {},
        output: IO | int | None = None,
    ) -> subprocess.Popen:
        """Starts a program as the first process of its own, with this environment and no input.

        read_only: files and folders of this machine that it sees at the same place. volumes: folders by the place where
        it sees them; with them, it may write there alone, and to a /root and a /tmp that are empty at its start.
        output: where its output and its errors go.
        """
        command = ["bwrap", "--die-with-parent", "--unshare-pid", "--as-pid-1", "--clearenv"]
        for name, value in {**BASE, **environment}.items():
            command += ["--setenv", name, value]
        for capability in CAPABILITIES:
            command += ["--cap-add", f"CAP_{capability}"]
        top = ""  # where bwrap lays the Debian's root folder: as its own root, or where it is, for proot
        if self.emulated:
            top = str(self.root)
            command += ["--ro-bind", "/", "/", "--tmpfs", "/tmp", "--ro-bind", str(self._tools), str(self._tools)]
        command += ["--ro-bind" if volumes else "--bind", str(self.root), top or "/"]
        command += ["--proc", "/proc", "--dev", "/dev", "--ro-bind", "/sys", "/sys"]
        if volumes:
            command += ["--tmpfs", f"{top}/root", "--tmpfs", f"{top}/tmp"]
        for path in read_only:
            command += ["--ro-bind", path, f"{top}{path}"]
        for place, folder in volumes.items():
            (self.root / place.lstrip("/")).mkdir(exist_ok=True)
            command += ["--bind", str(folder), f"{top}{place}"]
        with _older_kernel() as steps:
            if self.emulated:
                command += ["--seccomp", str(steps.fileno()), *self._proot()]
            return subprocess.Popen(
                [*command, *words], stdin=subprocess.DEVNULL, stdout=output, stderr=output, pass_fds=[steps.fileno()]
            )

    @property
    def _tools(self) -> Path:
        return self.folder / "tools"

    def _proot(self) -> list[str]:
        libraries = self._tools / "usr/lib/x86_64-linux-gnu"
        loader = ["/lib64/ld-linux-x86-64.so.2", "--library-path", str(libraries)]
        programs = self._tools / "usr/bin"
        folders = ["-r", str(self.root), "-b", "/proc", "-b", "/dev", "-b", "/sys", "-w", "/"]
        folders += ["-b", f"{self._tools / 'cpuinfo'}:/proc/cpuinfo"]
        return [*loader, str(programs / "proot"), "-q", str(programs / QEMU), *folders]


def _older_kernel() -> IO[bytes]:
    """A file with a filter (linux/filter.h) by which the calls of x86-64 that proot does not know are not there."""
    load, equal, give = 0x20, 0x15, 0x06  # of linux/seccomp.h, the call's number is at 0, its first argument at 16
    many = len(_NEWER_THAN_PROOT)
    steps = [(load, 0, 0, 0)]
    steps += [(equal, many + 3 - place, 0, number) for place, number in enumerate(_NEWER_THAN_PROOT)]
    steps += [(equal, 0, 2, _STATX), (load, 0, 0, 16), (equal, 1, 0, _AT_FDCWD)]
    steps += [(give, 0, 0, 0x7FFF0000), (give, 0, 0, 0x00050000 | errno.ENOSYS)]
    file = os.fdopen(os.memfd_create("filter"), "w+b")
    file.write(b"".join(struct.pack("=HBBI", *step) for step in steps))
    file.seek(0)
    return file


def own_architecture() -> str:
    """Debian's word for this machine's processor."""
    words = ["dpkg", "--print-architecture"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def why_not() -> str:
    """Why no such Debian can be made here; empty if one can."""
    missing = [name for name in ("apt-get", "bwrap", "dpkg") if shutil.which(name) is None]
    if missing:
        return f"no {' and no '.join(missing)} on this machine"
    return "only root may unpack one" if os.geteuid() else ""
