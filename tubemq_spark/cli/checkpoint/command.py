"""The actions of ``tubemq-spark checkpoint``."""

from tubemq_spark.cli.checkpoint import rewinding, showing
from tubemq_spark.cli.parser import Commands, add_group


def add_command(commands: Commands) -> None:
    """Describe the actions."""
    actions = add_group(
        commands,
        "checkpoint",
        summary="show where a streaming query stands, or let it go on elsewhere",
        description="Work with the checkpoint of a streaming query that reads from TubeMQ: its "
        "checkpointLocation, a path or a URI. It is never changed.",
    )
    for action in (showing, rewinding):
        action.add_action(actions)
