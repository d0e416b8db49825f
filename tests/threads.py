"""A machine on which no more threads can be started."""

import threading


def refuse_threads(monkeypatch, prefix, times):
    """Fail the next starts of threads whose names begin so, as the system does; return their names."""
    refused, start = [], threading.Thread.start

    def start_or_fail(thread):
        if thread.name.startswith(prefix) and len(refused) < times:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_or_fail)
    return refused
