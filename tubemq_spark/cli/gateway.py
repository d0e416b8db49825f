"""The command ``tubemq-spark gateway``: one gRPC service between many clients and a TubeMQ cluster.

Exit codes, besides the usual ones: 2 the configuration is wrong, 3 it cannot listen, 4 no master can be
reached.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tubemq_spark.cli.parser import SECONDS, WRONG_ARGUMENTS, Argument, argument, command, one_of
from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.gateway.settings import SETTINGS, load_settings
from tubemq_spark.settings.kinds import BOOLEAN


def _settings_arguments() -> Iterator[Argument]:
    for name, meaning in SETTINGS.items():
        # Other users of the host see the arguments of a process.
        if meaning.secret:
            continue
        named = f"--{name.replace('_', '-')}"
        if meaning.kind is BOOLEAN:
            yield argument(f"{named} BOOLEAN", meaning.doc, nargs="?", const="true")
        else:
            yield argument(f"{named} VALUE", meaning.doc)


@command(
    name="gateway",
    summary="run a gateway: one gRPC service between many clients and a TubeMQ cluster",
    description="Run a gateway until SIGTERM or SIGINT; it then drains. Each setting may stand in the "
    "file of --config (TOML), in the environment (TUBEMQ_GATEWAY_LEASE_MS=30000) or in an argument, and "
    "the last of these counts.",
    example="--master-servers 10.1.2.3 --listen 0.0.0.0:11911",
    more_exit_codes={2: "wrong arguments or settings", 3: "it cannot listen", 4: "no master answers"},
    arguments=(
        argument("--config FILE", "a TOML file with settings", Path),
        one_of(
            argument("--check-config", "only say whether the settings are sound"),
            argument("--print-config", "only print all settings, secrets hidden"),
        ),
        argument(
            "--report-seconds SECONDS",
            "write a line about what the gateway is doing so often, to stdout",
            SECONDS,
        ),
        *_settings_arguments(),
    ),
)
def gateway(arguments: argparse.Namespace) -> int:
    """Serve, or look at the settings; return the exit code."""
    flags = {name: text for name in SETTINGS if (text := getattr(arguments, name, None)) is not None}
    try:
        settings = load_settings(arguments.config, os.environ, flags)
    except GatewayError as error:
        sys.stderr.write(f"tubemq-spark: {error}\n")
        return WRONG_ARGUMENTS
    if arguments.print_config:
        # A text in JSON is one in TOML too.
        lines = [f"{name} = {json.dumps(text)}\n" for name, text in settings.shown().items()]
        sys.stdout.write("".join(lines))
        return 0
    if arguments.check_config:
        sys.stdout.write("the settings are sound\n")
        return 0
    try:
        from tubemq_spark.gateway.process import run_gateway
    except ModuleNotFoundError as error:
        raise OptionError("TUBEMQ_GATEWAY_MISSING", package=error.name) from error
    return run_gateway(settings, arguments.report_seconds)
