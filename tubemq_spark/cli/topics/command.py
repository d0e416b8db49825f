"""The command ``tubemq-spark topics`` and its actions."""

from typing import Final

from tubemq_spark.cli.parser import Commands, add_group
from tubemq_spark.cli.topics import altering, creating, deleting, describing, listing

_ACTIONS: Final = (listing, describing, creating, altering, deleting)


def add_command(commands: Commands) -> None:
    """Describe the command and the arguments of its actions."""
    actions = add_group(
        commands,
        "topics",
        summary="list, describe, create, alter and delete topics",
        description="List and describe topics, create and delete them, and change what they are made of.",
    )
    for action in _ACTIONS:
        action.add_action(actions)
