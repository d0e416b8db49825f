"""Answers of web calls, as tests of both servers expect them."""

from integration_tests.real.servers import ADMIN_TOKEN

WHO = {"confModAuthToken": ADMIN_TOKEN, "createUser": "me", "modifyUser": "me"}
"""What every changing call carries."""

PROPERTIES = {
    "numTopicStores": int,
    "numPartitions": int,
    "unflushThreshold": int,
    "unflushInterval": int,
    "unflushDataHold": int,
    "memCacheMsgSizeInMB": int,
    "memCacheMsgCntInK": int,
    "memCacheFlushIntvl": int,
    "acceptPublish": bool,
    "acceptSubscribe": bool,
    "deletePolicy": str,
    "dataStoreType": int,
    "dataPath": str,
}
STAMP = {
    "dataVersionId": int,
    "serialId": int,
    "createUser": str,
    "createDate": str,
    "modifyUser": str,
    "modifyDate": str,
}


def done(*items):
    """Return the answer of a call that does something for several topics or brokers."""
    data = [
        {name: value for name, value in item.items() if name not in ("code", "text")}
        | {"success": item["code"] == 200, "errCode": item["code"], "errInfo": item["text"]}
        for item in items
    ]
    return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}


def refused(text):
    return {"result": False, "errCode": 400, "errMsg": text}


def shape(value):
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value[:1]]
    return type(value)
