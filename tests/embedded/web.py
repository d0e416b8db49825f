"""Helpers for web calls."""

import json
from urllib.parse import urlencode
from urllib.request import urlopen

TOKEN = {"confModAuthToken": "abc", "createUser": "me", "modifyUser": "me"}


def ask(address, **parameters):
    with urlopen(f"http://{address}/webapi.htm?{urlencode(parameters)}", timeout=5) as response:
        assert response.status == 200
        return json.loads(response.read())


def change(server, method, **parameters):
    """Make a call that changes one topic or broker; return the code and text of its only item."""
    answer = ask(server.master_web, method=method, **TOKEN, **parameters)
    assert answer["result"], answer
    (item,) = answer["data"]
    assert item["success"] == (item["errCode"] == 200)
    return item["errCode"], item["errInfo"]


def close_topic(server, topic):
    """Close a topic, which is the first step of its removal; its data is kept."""
    closed = {"acceptPublish": "false", "acceptSubscribe": "false"}
    assert change(server, "admin_modify_topic_info", topicName=topic, brokerId=1, **closed)[0] == 200
    assert change(server, "admin_delete_topic_info", topicName=topic, brokerId=1)[0] == 200


def remove_topic(server, topic):
    """Remove a closed topic with its data."""
    assert change(server, "admin_remove_topic_info", topicName=topic, brokerId=1)[0] == 200
