"""All small kernels, the safest first."""

from __future__ import annotations

import functools

from tests.nvidia.silicon import copies, others, products
from tests.nvidia.silicon.case import Case


@functools.cache
def cases() -> tuple[Case, ...]:
    """Every case; no two of a group have one name."""
    found = [case for made in (*products.ALL, *copies.ALL, *others.ALL) for case in made()]
    assert len({(case.group, case.name) for case in found}) == len(found)
    return tuple(found)
