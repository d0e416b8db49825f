"""The command ``tubemq-spark groups`` and its actions."""

from typing import Final

from tubemq_spark.cli.groups import describing, listing, resetting
from tubemq_spark.cli.parser import Commands, add_group

_ACTIONS: Final = (listing, describing, resetting)


def add_command(commands: Commands) -> None:
    """Describe the command and the arguments of its actions."""
    actions = add_group(
        commands,
        "groups",
        summary="list, describe and reset consumer groups",
        description="List consumer groups, show where they stand and who their members are, and set where "
        "they go on.",
    )
    for action in _ACTIONS:
        action.add_action(actions)
