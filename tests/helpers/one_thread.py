"""A fixture for a conftest.py whose tests work on small tensors: PyTorch takes one thread for them."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    """Sharing out small tensors costs more than the work, most where other tests run beside these."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
