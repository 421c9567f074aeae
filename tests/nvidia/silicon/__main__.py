"""python -m tests.nvidia.silicon: as the package says."""

import torch

from course_utils import measured
from tests.nvidia.silicon import compare, summary
from tests.nvidia.silicon.record import measure

if __name__ == "__main__":  # and not in the children, which import this module
    if torch.cuda.is_available():
        measured.save("silicon", measure(), "python -m tests.nvidia.silicon")
    found = compare(measured.load("silicon").rows)
    print(*summary(found), *(row for row in found if row["difference"]), sep="\n")
