"""Brokers tell where groups stand, but for groups of which they refuse to tell."""

import pytest
from hypothesis import given, strategies as st

from tubemq_spark.client.metadata.admin import BrokerAdmin
from tubemq_spark.client.metadata.admin_questions import _places
from tubemq_spark.errors import AdminError


class PartlyRefusing(BrokerAdmin):
    """The API of a broker that refuses each question about some groups, as a Java broker does."""

    def __init__(self, booked, refused):
        super().__init__("127.0.0.1:1")
        self.booked = booked
        self.refused = refused
        self.calls = 0

    def call(self, method, **parameters):
        self.calls += 1
        if method == "admin_query_group":
            return {
                "dataSet": [{"type": "online", "groupName": []}, {"type": "all", "groupName": self.booked}]
            }
        asked = parameters["groupName"].split(",") if "groupName" in parameters else self.booked
        if not asked or self.refused.intersection(asked):
            raise AdminError("TUBEMQ_ADMIN_REFUSED", server="b:8081", method=method, code=400, reason="null")
        offsets = [{"partitionId": 0, "curOffset": 28}]
        info = [{"topicName": "demo", "offsets": offsets}]
        return {"dataSet": [{"groupName": group, "subInfo": info} for group in asked]}


@given(st.integers(1, 400), st.data())
def test_one_group_keeps_no_other_from_being_told(count, data):
    booked = [f"g{number}" for number in range(count)]
    refused = data.draw(st.frozensets(st.sampled_from(booked), max_size=min(count, 20)))
    admin, refusals = PartlyRefusing(booked, refused), {}
    places = _places(admin, [], [], refusals)
    assert sorted(group for group, _, _ in places) == sorted(set(booked) - refused)
    assert refusals.keys() == refused
    assert admin.calls <= 2 + len(refused) * 30


def test_a_broker_that_refuses_everything_is_not_asked_for_each_group():
    booked = [f"g{number}" for number in range(1000)]
    admin = PartlyRefusing(booked, frozenset(booked))
    with pytest.raises(AdminError, match="TUBEMQ_ADMIN_REFUSED"):
        _places(admin, [], [], {})
    assert admin.calls < 300


def test_a_refusal_is_no_empty_answer():
    with pytest.raises(AdminError, match="TUBEMQ_ADMIN_REFUSED"):
        _places(PartlyRefusing([], frozenset()), [], [], {})
