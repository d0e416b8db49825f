"""A member of a group whose partitions the master shares out again whenever a member comes or goes."""

from tubemq_spark.client.consumer.consumer import Consumer


class GroupConsumer(Consumer):
    """Reads the partitions that the master gives it; threads may share it.

    The first partitions come with the master's next balancing, up to a minute after ``open``; then they come
    and go with the other members of the group. Batches come from all partitions in turn (``fetch``), one at a
    time from each, and are confirmed (``confirm``).

    **At least once**: what was not confirmed comes again, to this member or to another. Before a partition
    goes to another member its batch has ``rebalance_wait_ms`` to be confirmed.

    **Errors** of one partition do not hold up the others. A partition whose broker is away rests and comes
    back; one that another member has taken is given up, and the master is told.

    As a context manager it opens and closes itself.

        with client.group_consumer("clicks") as consumer:  # or consumer.open() and consumer.close()
            consumer.wait_until_ready(timeout_ms=60_000)
            while (batch := consumer.fetch(timeout_ms=1000)) is not None:
                consumer.confirm(batch)

    With less code, of which the first confirms when the function returns, and the second as it goes on:

        consumer.run(handle_batch)
        for record in consumer.messages(limit=100):
            print(record.text())

    The other calls:

        consumer.positions()
        consumer.committed(partition)
        consumer.lag(partition)
        consumer.seek(partition, 2800)
        consumer.seek_to_beginning(partition)
        consumer.seek_to_end()
        consumer.seek_to_time(datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC))
        consumer.pause(partition)
        consumer.resume()
        consumer.is_filtered("clicks")
        consumer.missed_heartbeats()
        consumer.stop()
    """

    _kind = "group consumer"
