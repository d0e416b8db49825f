"""What tests of producers share."""

import pytest

from tests.client.scripted_cluster import scripted_cluster


@pytest.fixture
def cluster():
    """One broker with three partitions of a topic."""
    with scripted_cluster() as made:
        yield made
