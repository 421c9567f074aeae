"""What NVIDIA's compiler says of a kernel that is to run on the emulator: one truth for what CUDA is.

It is asked in a thread, which lets a host compiler build the same kernel at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from course_utils.toolchain.errors import CompileError
from course_utils.toolchain.source import source_name


class Verdict:
    """Whether NVRTC takes a kernel for one of these architectures: known from before, or being asked from now on.

    The other arguments are as of `compile_kernel`.
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
        asking = ThreadPoolExecutor(1)
        self._answer = asking.submit(_ask, *question)
        asking.shutdown(wait=False)

    def is_taken(self) -> bool:
        """Waits for the answer; False where there is no NVRTC to ask, as `doctor` says. Raises CompileError, with
        NVRTC's words, where it refuses the kernel."""
        try:
            return self._answer.result()
        except CompileError as refused:
            said = re.sub(r"^ptxas (info|\s*\.).*\n?", "", refused.log, flags=re.MULTILINE)  # of registers and the like
            raise CompileError(f"{self._name} did not compile: NVIDIA's compiler says\n{said}", refused.log) from None


_NO_NVRTC = (ImportError, OSError, RuntimeError)  # no package; a library that does not load, or lacks a part


def _ask(code: str, architectures: Sequence[str], options: Sequence[str], name_expressions: Sequence[str]) -> bool:
    from course_utils.toolchain import nvrtc

    try:
        nvrtc.check_kernel(code, architectures, options, name_expressions)
    except (*_NO_NVRTC, nvrtc.NvrtcFailure):
        return False
    return True
