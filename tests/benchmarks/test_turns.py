"""Ratios of a benchmark's rounds."""

from benchmarks.turns import Line, Section


def test_ratios_are_taken_round_by_round_and_not_of_the_medians():
    # The machine was slow in the second round, for both.
    line = Line("batch", "rows/s", {"ours": [30, 10, 20], "Kafka's": [10, 4, 20]})
    found = Section("reading", ("ours", "Kafka's"), [line]).to_json()["lines"][0]
    assert found["ratio"] == {"median": 2.5, "least": 1.0, "greatest": 3.0}
    assert found["median"] == {"ours": 20, "Kafka's": 10}
    assert found["rounds"] == {"ours": [30, 10, 20], "Kafka's": [10, 4, 20]}


def test_a_line_without_its_peer_or_with_a_peer_of_zero_has_no_ratio():
    assert Line("x", "s", {"ours": [1.0]}).ratios("ours", "Kafka's") == []
    assert Line("x", "s", {"ours": [1.0], "Kafka's": [0.0]}).ratios("ours", "Kafka's") == []
