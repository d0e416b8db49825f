"""Answers of web calls that do something for several topics or brokers: one may fail while others succeed."""

import enum
from collections.abc import Callable
from typing import Any, TypeVarTuple

Target = TypeVarTuple("Target")


class ItemCode(enum.IntEnum):
    """How it went for one item (DataOpErrCode)."""

    SUCCESS = 200
    NOT_FOUND = 401
    EXISTS = 402
    UNCHANGED = 403
    NOT_CLEAN = 404
    CONDITION_LACKING = 405
    ILLEGAL_STATUS = 406
    ILLEGAL_VALUE = 407


class ItemError(Exception):
    """One item fails; the call goes on with the others."""

    def __init__(self, code: ItemCode, text: str) -> None:
        """Take the code and the text of the item."""
        super().__init__(text)
        self.code = code


def outcome_of(change: Callable[[*Target], None], *target: *Target, done: str = "Ok!") -> dict[str, Any]:
    """Do something for one item and return the part of the item that says how it went."""
    try:
        change(*target)
    except ItemError as error:
        return {"success": False, "errCode": int(error.code), "errInfo": str(error)}
    return {"success": True, "errCode": int(ItemCode.SUCCESS), "errInfo": done}


def success(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole answer; TubeMQ says so too when all items failed."""
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}
