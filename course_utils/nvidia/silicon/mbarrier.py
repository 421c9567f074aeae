"""What small kernels call an mbarrier by, for those that are a text in Python."""

from pathlib import Path

HEADER = Path(__file__).with_name("mbarrier.cuh")
MBARRIER = HEADER.read_text(encoding="utf-8").replace("#pragma once\n", "")
