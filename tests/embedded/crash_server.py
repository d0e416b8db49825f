"""A server in a separate process that is to be killed: prints its broker's address and runs."""

import sys
import time
from pathlib import Path

from tubemq_spark.embedded.server import EmbeddedSettings, EmbeddedTubeMQ

SETTINGS = EmbeddedSettings(data_segment_bytes=64 << 10, index_segment_bytes=28 * 200)

if __name__ == "__main__":
    server = EmbeddedTubeMQ(Path(sys.argv[1]), {"demo": (2, 1)}, settings=SETTINGS)
    sys.stdout.write(server.broker + "\n")
    sys.stdout.flush()
    time.sleep(600)
