"""One gateway for all tests of a module, as in ``tests/gateway/shared``."""

from tests.gateway.shared.conftest import nothing_left_behind, nothing_left_behind_by_the_module

__all__ = ["nothing_left_behind", "nothing_left_behind_by_the_module"]
