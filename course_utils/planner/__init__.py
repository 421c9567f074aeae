"""Which attention fits on a device, how fast it can be at best, and what to try next."""

from course_utils.planner.decode import Decode, decode
from course_utils.planner.plan import (
    TARGET_MS,
    TITLES,
    WINDOW,
    Advice,
    Method,
    Plan,
    advice,
    amount,
    chunked_bytes,
    duration,
    flash_kernel,
    order,
    plan,
)

__all__ = [
    "TARGET_MS",
    "TITLES",
    "WINDOW",
    "Advice",
    "Decode",
    "Method",
    "Plan",
    "advice",
    "amount",
    "chunked_bytes",
    "decode",
    "duration",
    "flash_kernel",
    "order",
    "plan",
]
