"""Who created a record of a master, who changed it last, and when."""

import dataclasses
import datetime
from typing import Final

from tubemq_spark.protocol.constants import UNDEFINED

SYSTEM_USER: Final = "systemSelf"
"""The user of what was not created by an operator (MetaConfigMapper.addSystemTopicDeploy)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stamp:
    """Who created a record, and who changed it last (BaseEntity)."""

    serial_id: int = UNDEFINED
    """Rises with every change of the record; clients compare it to learn that flow rules are new."""
    create_user: str = ""
    create_date: str = ""
    """``yyyyMMddHHmmss``, here and below."""
    modify_user: str = ""
    modify_date: str = ""


def next_stamp(old: Stamp | None, by: str, date: str | None, now_ms: int) -> Stamp:
    """Return the stamp after a change by a user, who is its creator if there was none; date None: now."""
    when = date or _date(now_ms)
    first = Stamp(create_user=by, create_date=when) if old is None else old
    serial_id = max(now_ms, first.serial_id + 1)
    return dataclasses.replace(first, serial_id=serial_id, modify_user=by, modify_date=when)


def dates(stamp: Stamp) -> dict[str, str]:
    """Return users and times in the form of query answers."""
    return {
        "createUser": stamp.create_user,
        "createDate": stamp.create_date,
        "modifyUser": stamp.modify_user,
        "modifyDate": stamp.modify_date,
    }


def shown(stamp: Stamp) -> dict[str, int | str]:
    """Return a whole stamp in the form of query answers."""
    return {"serialId": stamp.serial_id, **dates(stamp)}


def _date(now_ms: int) -> str:
    moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).astimezone()
    return moment.strftime("%Y%m%d%H%M%S")
