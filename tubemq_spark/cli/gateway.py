"""The command ``tubemq-spark gateway``: one gRPC service between many clients and a TubeMQ cluster.

Exit codes, besides the usual ones: 2 the configuration is wrong, 3 it cannot listen, 4 no master can be
reached.
"""

import argparse
import json
import os
import sys
from pathlib import Path

from tubemq_spark.cli.arguments import SECONDS
from tubemq_spark.cli.parser import WRONG_ARGUMENTS, Commands, new_command
from tubemq_spark.errors import GatewayError, OptionError
from tubemq_spark.gateway.settings import SETTINGS
from tubemq_spark.settings.kinds import BOOLEAN


def add_command(commands: Commands) -> None:
    """Describe the command and its arguments."""
    parser = new_command(
        commands,
        "gateway",
        run,
        summary="run a gateway: one gRPC service between many clients and a TubeMQ cluster",
        description="Run a gateway until SIGTERM or SIGINT; it then drains. Each setting may stand in the "
        "file of --config (TOML), in the environment (TUBEMQ_GATEWAY_LEASE_MS=30000) or in an argument, and "
        "the last of these counts.",
        example="--master-servers 10.1.2.3 --listen 0.0.0.0:11911",
        more_exit_codes={
            2: "wrong arguments or settings",
            3: "it cannot listen",
            4: "no master answers",
        },
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a TOML file with settings")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check-config", action="store_true", help="only say whether the settings are sound")
    what.add_argument("--print-config", action="store_true", help="only print all settings, secrets hidden")
    parser.add_argument(
        "--report-seconds",
        type=SECONDS,
        metavar="SECONDS",
        help="write a line about what the gateway is doing so often, to stdout",
    )
    for name, meaning in SETTINGS.items():
        # Other users of the host see the arguments of a process.
        if meaning.secret:
            continue
        boolean = meaning.kind is BOOLEAN
        parser.add_argument(
            f"--{name.replace('_', '-')}",
            nargs="?" if boolean else None,
            const="true" if boolean else None,
            metavar="BOOLEAN" if boolean else "VALUE",
            help=meaning.doc,
        )


def run(arguments: argparse.Namespace) -> int:
    """Serve, or look at the settings; return the exit code.

    Raises:
        OptionError: a file cannot be used, or a package is missing.
    """
    from tubemq_spark.gateway.settings import load_settings

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
