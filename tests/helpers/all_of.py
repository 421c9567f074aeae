"""Many small cases in one test: pytest takes some milliseconds for each test, which is more than such a case needs."""

import functools
import inspect
from collections.abc import Callable, Iterable


def all_of(name: str, cases: Iterable) -> Callable[[Callable], Callable]:
    """Runs a test for each case, which it takes as the argument `name`; the test fails with all that failed.

    Its fixtures are made once for all cases. Raises ValueError where there is no case.
    """
    cases = list(cases)
    if not cases:
        raise ValueError("there is no case")

    def decorated(test: Callable) -> Callable:
        signature = inspect.signature(test)

        @functools.wraps(test)
        def run(**fixtures: object) -> None:
            failed = []
            for case in cases:
                try:
                    test(**fixtures, **{name: case})
                except Exception as error:
                    error.add_note(f"{name}: {case}")
                    failed.append(error)
            if failed:
                raise ExceptionGroup(f"{len(failed)} of {len(cases)} cases failed", failed)

        parameters = [one for one in signature.parameters.values() if one.name != name]
        run.__signature__ = signature.replace(parameters=parameters)
        return run

    return decorated
