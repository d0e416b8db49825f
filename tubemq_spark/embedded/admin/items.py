"""Answers of web calls that change several topics or brokers: some may fail while others succeed."""

import enum
from collections.abc import Callable
from typing import Any, TypeVarTuple

Target = TypeVarTuple("Target")


class ItemCode(enum.IntEnum):
    """The result for one item (DataOpErrCode)."""

    SUCCESS = 200
    NOT_FOUND = 401
    EXISTS = 402
    UNCHANGED = 403
    ILLEGAL_STATUS = 406
    ILLEGAL_VALUE = 407


class ItemError(Exception):
    """One item failed; the call continues with the others."""

    def __init__(self, code: ItemCode, text: str) -> None:
        """Take the code and the text for the item."""
        super().__init__(text)
        self.code = code


def outcome_of(change: Callable[[*Target], None], *target: *Target) -> dict[str, Any]:
    """Apply a change to one item and return the fields that say whether it succeeded."""
    try:
        change(*target)
    except ItemError as error:
        return {"success": False, "errCode": int(error.code), "errInfo": str(error)}
    return {"success": True, "errCode": int(ItemCode.SUCCESS), "errInfo": "Ok!"}


def success(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole answer; as in TubeMQ, it is a success even if all items failed."""
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}
