"""Nothing here is about what the compiler makes of a program."""

import pytest


@pytest.fixture(autouse=True)
def quick(quick_compilation):
    pass
