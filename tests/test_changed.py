"""The unit tests of changed files run first."""

from tests.changed import NEAR, NEAREST, REST, distance_from


def test_tests_of_a_changed_module_come_first():
    distance = distance_from(["tubemq_spark/client/broker/lease.py"])

    assert distance("tests/client/broker/test_lease.py") == NEAREST
    assert distance("tests/client/broker/test_cursor.py") == NEAR
    assert distance("tests/net/test_loop.py") == REST


def test_a_changed_test_comes_first_itself():
    distance = distance_from(["tests/net/test_loop.py", "README.md"])

    assert distance("tests/net/test_loop.py") == NEAREST
    assert distance("tests/test_design.py") == REST


def test_without_a_change_all_are_alike():
    assert distance_from([])("tests/net/test_loop.py") == REST
