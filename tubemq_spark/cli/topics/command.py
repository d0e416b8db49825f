"""The command ``tubemq-spark topics`` and its actions."""

from typing import Final

from tubemq_spark.cli.parser import Commands, add_group
from tubemq_spark.cli.topics import describing, listing

_ACTIONS: Final = (listing, describing)


def add_command(commands: Commands) -> None:
    """Describe the command and the arguments of its actions."""
    actions = add_group(
        commands,
        "topics",
        summary="list and describe topics",
        description="List and describe topics.",
    )
    for action in _ACTIONS:
        action.add_action(actions)
