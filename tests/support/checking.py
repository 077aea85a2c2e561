"""The fixture that checks bundles in this process."""

from collections.abc import Iterator

import pytest
from checked import checked_here

from attenuator.runtime import model

__all__ = ["checks_in_this_process"]


@pytest.fixture(scope="module", autouse=True)
def checks_in_this_process() -> Iterator[None]:
    """`load` of sound bundles, for tests of other things; tests/runtime has what the process is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "check_in_child", checked_here(model.check_in_child))
        yield
