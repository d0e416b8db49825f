"""What the examples print."""

from typing import Final

WITH_SPARK: Final = {
    "backfill": """\
        from 202601050900 6000 to 202601050959 11900
        rows: 60
        """,
    "dead_letters": """\
        written:
          1 book
          2 pens
          3 books
        dead letters:
          TUBEMQ_SINK_NULL_VALUE for orders
          TUBEMQ_TOPIC_UNKNOWN for ordres
        """,
    "files_to_parquet": """\
        messages in the topic, which has the lines of the killed job twice: 200
        rows in Parquet: 100
        different rows: 100
        """,
    "join": """\
        {"id":"a1","euros":30}
        {"id":"a3","euros":7}
        orders paid: 2
        """,
    "json_events": """\
        10:00 home 2
        10:00 prices 1
        10:30 home 1
        visits in time: 4
        """,
    "word_count": """\
        end 1
        is 2
        kept 1
        log 2
        read 1
        the 3
        words: 10
        """,
}
WITHOUT_SPARK: Final = {
    "copy_last": """\
        orders 3000
        trial 2000
        sold in: {'web'}
        """,
    "hours": """\
        20 hours ago: 2
        2 hours ago: 1
        0 hours ago: 1
        """,
    "service": """\
        {"customer": "anna", "item": "book", "price": 12}
        {"customer": "anna", "item": "lamp", "refused": "no such item"}
        {"customer": "ben", "item": "pen", "price": 2}
        orders answered: 3
        """,
    "tail_json": """\
        events/1:0 anna login
        events/1:0 ben login
        events/1:0 anna order
        """,
    "visits": """\
        home 20
        prices 10
        rows in Parquet: 60
        """,
    "yesterday": """\
        read: ['a1', 'a2', 'a3']
        again: ['a2', 'a3']
        """,
}


def lines(text: str) -> list[str]:
    """Return the lines of a text without their indentation, and without blank ones."""
    return [line.strip() for line in text.splitlines() if line.strip()]
