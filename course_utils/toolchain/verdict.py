"""Asks NVIDIA's compiler about a kernel that is to run on the emulator, so that both take the same language.

It is asked in a thread, while a host compiler builds the same kernel.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NoAnswer  # Python 3.10 has two of this name

from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import source_name

DYNAMIC_PARALLELISM = "it knows no kernel that launches another (dynamic parallelism); Python can launch both"
PATIENCE = 60.0  # seconds for NVRTC when the host compiler is done; with the largest public files it needs a third


class Verdict:
    """Whether NVRTC takes a kernel for one of these architectures. If that is not known yet, NVRTC is asked from now
    on.

    The other arguments are as for `compile_kernel`.
    """

    def __init__(
        self, code: str, architectures: Sequence[str], options: Sequence[str], name_expressions: Sequence[str]
    ) -> None:
        self._name = source_name(code)
        self._answer: Future[bool] = Future()
        question = code, architectures, options, name_expressions
        try:
            from course_utils.toolchain import nvrtc

            if nvrtc.is_known_to_compile(*question):
                self._answer.set_result(True)
                return
        except _NO_NVRTC:
            self._answer.set_result(False)
            return
        # A daemon, so that Python can end even if NVRTC never returns.
        threading.Thread(target=_answer, args=(self._answer, question), daemon=True).start()

    def is_taken(self) -> bool:
        """Waits for the answer. False if there is no NVRTC, as `doctor` says, or, with a warning, if it gives none
        within `PATIENCE`. Raises CompileError with NVRTC's words if it refuses the kernel."""
        try:
            return self._answer.result(PATIENCE)
        except NoAnswer:
            self._answer = Future()  # so that a second call does not wait again
            self._answer.set_result(False)
            warnings.warn(
                f"{self._name}: NVIDIA's compiler gave no answer within {PATIENCE:g} s; the emulator goes on without",
                stacklevel=2,
            )
            return False
        except CompileError as refused:
            said = re.sub(r"^ptxas (info|\s*\.).*\n?", "", refused.log, flags=re.MULTILINE)  # of registers and the like
            if "device-side kernel launch could not be processed" in said:
                said += f"\nThe emulator does not take it either: {DYNAMIC_PARALLELISM}"
            raise CompileError(f"{self._name} did not compile: NVIDIA's compiler says\n{said}", refused.log) from None


_NO_NVRTC = (ImportError, OSError, RuntimeError)  # no package; a library that does not load, or lacks a part


def _answer(answer: Future[bool], question: tuple[str, Sequence[str], Sequence[str], Sequence[str]]) -> None:
    try:
        answer.set_result(_ask(*question))
    except BaseException as error:  # for the thread that waits
        answer.set_exception(error)


def _ask(code: str, architectures: Sequence[str], options: Sequence[str], name_expressions: Sequence[str]) -> bool:
    from course_utils.toolchain import nvrtc

    try:
        nvrtc.check_kernel(code, architectures, options, name_expressions)
    except (*_NO_NVRTC, nvrtc.NvrtcFailure):
        return False
    return True
