"""Several gateways before three embedded brokers, which a test stops and starts one by one."""

import contextlib
import dataclasses
import threading
from unittest import mock

import numpy as np

from testkit.gateway_caller import GatewayProcess
from tests.gateway.running import settings, tubemq
from tests.waiting import wait_until
from tubemq_spark.client.config import ClientConfig
from tubemq_spark.client.remote.gateways import close_process_gateways
from tubemq_spark.cluster.config import ClusterConfig
from tubemq_spark.cluster.open import open_cluster
from tubemq_spark.gateway.process import BackgroundGateway
from tubemq_spark.model import Endpoint
from tubemq_spark.protocol.send_batch import Coded, SendBatch


class Parts:
    """The gateways, and a cluster that goes through them."""

    def __init__(self, server, gateways, **changes):
        self.server = server
        self._changes = changes
        self.running = [self._start() for _ in range(gateways)]
        self.addresses = tuple(Endpoint.parse(one.address) for one in self.running)
        self.config = ClientConfig(
            (), "gateways", rpc_timeout_ms=2_000, register_attempts=2, register_retry_ms=10, checksums=True
        )

    @property
    def cluster(self):
        return open_cluster(ClusterConfig(self.config, self.addresses).validate())

    def with_settings(self, **changes):
        self.config = dataclasses.replace(self.config, **changes)
        return self

    def kill(self, gateway):
        """Stop it without any patience: calls that run are cut."""
        self._stop(gateway, 0)

    def drain(self, gateway):
        self._stop(gateway, 10_000)

    def drain_in_background(self, gateway):
        """Begin to drain, and return when the gateway says so, with the thread that waits for its end."""
        stopped, self.running[gateway] = self.running[gateway], None
        thread = threading.Thread(target=stopped.stop, args=(10_000,))
        thread.start()
        wait_until(lambda: stopped.server._calls.draining)
        return thread

    def _stop(self, gateway, drain_ms):
        stopped, self.running[gateway] = self.running[gateway], None
        stopped.stop(drain_ms)

    def restart(self, gateway):
        """Start one again at the address of the one that was killed."""
        self.running[gateway] = self._start(listen=self.addresses[gateway])

    def _start(self, **listen):
        running = BackgroundGateway(settings(self.server, **self._changes, **listen))
        running.start()
        return running

    def close(self):
        """Stop the gateways that run."""
        for gateway, running in enumerate(self.running):
            if running is not None:
                self.kill(gateway)

    def batch(self, values, partition=None, **how):
        batch = SendBatch.of("demo", values, **how)
        if partition is None:
            return batch
        named = Coded((tuple(partition[1:]),), np.zeros(len(values), np.int64))
        return dataclasses.replace(batch, partitions=named)


class Processes(Parts):
    """Gateways in processes of their own, which end as by a crash when they are killed."""

    def _start(self, listen="127.0.0.1:0"):
        return GatewayProcess(
            self.server.master, "--listen", str(listen), "--log-level=WARNING", web=self.server.master_web
        )

    def kill(self, gateway):
        """End it as a crash does."""
        self.running[gateway].kill()
        self.drain(gateway)

    def drain(self, gateway):
        stopped, self.running[gateway] = self.running[gateway], None
        stopped.stop()


@contextlib.contextmanager
def three_brokers(gateways=2, kind=Parts, **changes):
    """Clients ask the gateways in the order of the list."""
    with tubemq(demo=(1, 1)) as server, mock.patch("tubemq_spark.client.remote.gateways.shuffle"):
        parts = kind(server, gateways, **changes)
        try:
            yield parts
        finally:
            close_process_gateways()
            parts.close()
