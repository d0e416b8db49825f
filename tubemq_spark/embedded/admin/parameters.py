"""The parameters of TubeMQ's web calls: names, aliases, valid values, and the texts of refusals and answers.

See WebFieldDef and WebParameterUtils. Of a call that changes several items some may fail while others
succeed.
"""

import dataclasses
import datetime
import enum
import hmac
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVarTuple

from tubemq_spark.embedded.dispatch import RefusedError
from tubemq_spark.protocol.constants import OFFSET_HISTORY_TOPIC
from tubemq_spark.protocol.errcodes import ErrCode

_MAX_LIST_ITEMS: Final = 100
_DATE_FORMAT: Final = "%Y%m%d%H%M%S"
_DATE: Final = re.compile(r"\d{14}", re.ASCII)
_BYTE: Final = r"(?:25[0-5]|2[0-4]\d|1\d{2}|[1-9]?\d)"


@dataclasses.dataclass(frozen=True, slots=True)
class _Pattern:
    """The form of a value, and the text about it in a refusal (RegexDef)."""

    regex: re.Pattern[str]
    rule: str


_WORD: Final = _Pattern(
    re.compile(r"[a-zA-Z]\w+", re.ASCII),
    "value must begin with a letter, can only contain English letters, numbers, and underscores",
)
_GROUP: Final = _Pattern(
    re.compile(r"[a-zA-Z][\w-]+", re.ASCII),
    "value must begin with a letter, can only contain English letters, numbers, hyphens, and underscores",
)
_FILTER: Final = _Pattern(
    re.compile(r"[\w-]+", re.ASCII),
    "value must only contain English letters, numbers, hyphens, and underscores",
)
_NUMBER: Final = _Pattern(re.compile(r"-?\d{1,64}", re.ASCII), "value must only contain numbers")
_ADDRESS: Final = _Pattern(
    re.compile(rf"(?:{_BYTE}\.){{3}}{_BYTE}", re.ASCII), "value must matches the IPv4 address regulation"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    alias: str
    pattern: _Pattern | None = None
    max_characters: int | None = None


_FIELDS: Final[Mapping[str, _Field]] = {
    "acceptPublish": _Field("accPub"),
    "acceptSubscribe": _Field("accSub"),
    "alwdBrokerClientRate": _Field("abcr", _NUMBER),
    "brokerId": _Field("brokerId", _NUMBER),
    "brokerIp": _Field("bIp", _ADDRESS, 32),
    "brokerPort": _Field("brokerPort", _NUMBER),
    "brokerTLSPort": _Field("brokerTLSPort", _NUMBER),
    "brokerWebPort": _Field("bWebPort", _NUMBER),
    "confModAuthToken": _Field("authToken", None, 128),
    "consumeEnable": _Field("csmEn"),
    "consumeGroup": _Field("group", _GROUP, 1024),
    "createDate": _Field("cDate", None, 14),
    "createUser": _Field("cur", _WORD, 64),
    "dataVersionId": _Field("dataVerId", _NUMBER),
    "deletePolicy": _Field("delPolicy", None, 1024),
    "disableCsmRsn": _Field("dsCsmRsn", None, 1024),
    "enableAuthControl": _Field("acEn"),
    "filterConds": _Field("flts", _FILTER, 256),
    "filterEnable": _Field("fltEn"),
    "flowCtrlEnable": _Field("fCtrlEn"),
    "flowCtrlInfo": _Field("flowCtrlSet"),
    "groupId": _Field("gId", _NUMBER),
    "groupName": _Field("group", _GROUP, 1024),
    "manageStatus": _Field("mSts"),
    "maxMsgSizeInMB": _Field("maxMsgSizeInMB", _NUMBER),
    "memCacheFlushIntvl": _Field("unfMemInt", _NUMBER),
    "memCacheMsgCntInK": _Field("unfMemMsgCnt", _NUMBER),
    "memCacheMsgSizeInMB": _Field("cacheSizeInMB", _NUMBER),
    "modifyDate": _Field("mDate", None, 14),
    "modifyUser": _Field("mur", _WORD, 64),
    "numPartitions": _Field("numPart", _NUMBER),
    "numTopicStores": _Field("numStore", _NUMBER),
    "partitionId": _Field("pid", _NUMBER),
    "qryPriorityId": _Field("qryPriId", _NUMBER),
    "regionId": _Field("regionId", _NUMBER),
    "requireRealOffset": _Field("dko"),
    "resCheckEnable": _Field("resChkEn"),
    "topicName": _Field("topic", _WORD, 64),
    "topicStatusId": _Field("tStsId", _NUMBER),
    "unflushDataHold": _Field("unfDskDataSize", _NUMBER),
    "unflushInterval": _Field("unfDskInt", _NUMBER),
    "unflushThreshold": _Field("unfDskMsgCnt", _NUMBER),
    "withDetail": _Field("wDtl"),
}
"""A parameter that is not here has no alias and may have any value."""


class Parameters:
    """The parameters of one call; all methods refuse what TubeMQ refuses, with TubeMQ's texts."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Take the values as they were sent."""
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        """Return a text without the blanks around it, or the default."""
        value = self._raw(name)
        if value:
            _check(name, value)
        return value or default

    def required(self, name: str) -> str:
        """Return a text that is required."""
        value = self.text(name)
        if not value:
            raise _missing(name)
        return value

    def items(self, name: str) -> list[str]:
        """Return the items of a comma-separated list, sorted and without repetitions."""
        items = {item.strip() for item in self._raw(name).split(",")} - {""}
        for item in items:
            _check(name, item)
        # TubeMQ has this limit too, but 2.4.0 does not enforce it.
        if len(items) > _MAX_LIST_ITEMS:
            raise bad_request(f"Parameter {name}'s item count over max allowed count ({_MAX_LIST_ITEMS})!")
        return sorted(items)

    def required_items(self, name: str) -> list[str]:
        """Return a comma-separated list that must not be empty."""
        items = self.items(name)
        if not items:
            raise _missing(name)
        return items

    def numbers(self, name: str) -> list[int]:
        """Return the whole numbers of a comma-separated list, sorted and without repetitions."""
        return sorted({int(item) for item in self.items(name)})

    def required_numbers(self, name: str) -> list[int]:
        """Return the whole numbers of a list that must not be empty."""
        self.required_items(name)
        return self.numbers(name)

    def number(
        self, name: str, default: int | None = None, *, least: int | None = None, most: int | None = None
    ) -> int:
        """Return a whole number, which is required if there is no default."""
        value = self.optional_number(name, least=least, most=most)
        if value is None and default is None:
            raise _missing(name)
        return value if value is not None else default or 0

    def optional_number(self, name: str, *, least: int | None = None, most: int | None = None) -> int | None:
        """Return a whole number; None if it is missing."""
        text = self._raw(name)
        if not text:
            return None
        _check(name, text)
        if _NUMBER.regex.fullmatch(text) is None:
            raise bad_request(f"illegal value for {name}, {_NUMBER.rule}")
        value = int(text)
        if least is not None and value < least:
            raise bad_request(f"Parameter {name} value must >= {least}")
        if most is not None and value > most:
            raise bad_request(f"Parameter {name} value must <= {most}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false; numbers other than 0 are true, and anything else counts as missing."""
        value = self.optional_flag(name)
        return default if value is None else value

    def optional_flag(self, name: str) -> bool | None:
        """Return true or false; None if it is missing or neither."""
        text = self.text(name).lower()
        if text in ("true", "false"):
            return text == "true"
        return int(text) != 0 if _NUMBER.regex.fullmatch(text) else None

    def date(self, name: str) -> str | None:
        """Return a time as ``yyyyMMddHHmmss``; None if it is missing."""
        text = self.text(name)
        if not text:
            return None
        if _DATE.fullmatch(text) is None or not _is_moment(text):
            what = f"Parameter {name}'s value {text} parse error"
            raise bad_request(f"{what}, required value format is yyyyMMddHHmmss")
        return text

    def _raw(self, name: str) -> str:
        """Return the value of a name, or else of its alias."""
        value = self._values.get(name)
        if value is None and name in _FIELDS:
            value = self._values.get(_FIELDS[name].alias)
        return (value or "").strip()


Call = Callable[[Parameters], dict[str, Any]]
"""Answers one method with the whole JSON object, or raises RefusedError."""


@dataclasses.dataclass(frozen=True, slots=True)
class GuardedCall:
    """A call that needs the token."""

    token: str = dataclasses.field(repr=False)
    call: Call

    def check(self, parameters: Parameters) -> None:
        """Check the token (WebParameterUtils.validReqAuthorizeInfo)."""
        if not hmac.compare_digest(parameters.required("confModAuthToken").encode(), self.token.encode()):
            raise bad_request("illegal access, unauthorized request!")

    def __call__(self, parameters: Parameters) -> dict[str, Any]:
        """Answer the call, after ``check``."""
        return self.call(parameters)


@dataclasses.dataclass(frozen=True, slots=True)
class Author:
    """Who changes something, and when."""

    user: str
    date: str | None
    """``yyyyMMddHHmmss``, None for now."""


def author_of(parameters: Parameters, *, adding: bool) -> Author:
    """Return the author of a call that changes something (WebParameterUtils.getAUDBaseInfo)."""
    parameters.optional_number("dataVersionId")
    if adding:
        return Author(parameters.required("createUser"), parameters.date("createDate"))
    return Author(parameters.required("modifyUser"), parameters.date("modifyDate"))


def bad_request(text: str) -> RefusedError:
    """Return an error with the code that TubeMQ has for all bad calls."""
    return RefusedError(ErrCode.BAD_REQUEST, text)


def _missing(name: str) -> RefusedError:
    return bad_request(f"Parameter {name} is missing or value is blank!")


def _check(name: str, value: str) -> None:
    """Refuse an invalid value of a parameter (WebParameterUtils.checkStrValueNorms)."""
    field = _FIELDS.get(name)
    if field is None:
        return
    if field.max_characters is not None and len(value) > field.max_characters:
        raise bad_request(f"over max length for {name}, only allow {field.max_characters} length")
    if name == "topicName" and value == OFFSET_HISTORY_TOPIC:
        return
    if field.pattern is not None and field.pattern.regex.fullmatch(value) is None:
        raise bad_request(f"illegal value for {name}, {field.pattern.rule}")


def _is_moment(text: str) -> bool:
    try:
        datetime.datetime.strptime(text, _DATE_FORMAT).astimezone()
    except (ValueError, OverflowError):
        return False
    return True


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


Key = Mapping[str, Any]
"""An item of a call, as its answer names it."""
Values = Mapping[str, Any]
"""Fields of a record."""


class RecordChanges:
    """The calls that change records of one kind, one item of the call after the other."""

    def __init__(self, token: str) -> None:
        """The calls need ``token``."""
        self._token = token
        self.lock = threading.Lock()
        """Held by each change: of two at once, both could find a record to be new, or one undo the other."""

    def call(
        self,
        keys: Callable[[Parameters], Sequence[Key]],
        change: Callable[[Key, Values, Author], None],
        values: Callable[[Parameters], Values] = lambda _parameters: {},
        *,
        adding: bool = False,
    ) -> Call:
        """Return a call that applies a change to each of its items; a failure affects only its item."""

        def answer(parameters: Parameters) -> dict[str, Any]:
            who = author_of(parameters, adding=adding)
            items, fields = keys(parameters), values(parameters)
            with self.lock:
                return success([{**item, **outcome_of(change, item, fields, who)} for item in items])

        return GuardedCall(self._token, answer)


def success(data: list[dict[str, Any]]) -> dict[str, Any]:
    """Return a whole answer; as in TubeMQ, it is a success even if all items failed."""
    return ok("OK", data=data, count=len(data))


def ok(text: str, **fields: object) -> dict[str, Any]:
    """Return an answer to a call that succeeded, by one of TubeMQ's texts for that."""
    return {"result": True, "errCode": 0, "errMsg": text, **fields}
