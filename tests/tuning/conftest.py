"""Bundles are checked in this process, and PyTorch computes on one thread."""

from collections.abc import Iterator

import pytest
import torch
from checking import checks_in_this_process

__all__ = ["checks_in_this_process"]


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Sums in the same order in every run."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
