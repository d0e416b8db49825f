"""The web call that sets the cluster's setting, and the rights to topics."""

import pytest

ADD = {"confModAuthToken": "abc", "createUser": "me"}


@pytest.fixture
def server(start):
    return start(topics={"demo": (1, 1), "other": (1, 1)})


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "Parameter maxMsgSizeInMB value must >= 1"),
        (21, "Parameter maxMsgSizeInMB value must <= 20"),
    ],
)
def test_sizes_have_bounds(web, size, text):
    answer = web("admin_set_cluster_default_setting", **ADD, maxMsgSizeInMB=size)
    assert (answer["result"], answer["errCode"]) == (False, 400)
    assert answer["errMsg"].startswith(text)


def test_producers_are_told_of_the_clusters_size_limit(server, web, members):
    first = members.register_producer().appdConfig
    (shown,) = web("admin_set_cluster_default_setting", **ADD, maxMsgSizeInMB=4)["data"]
    assert shown["maxMsgSizeInMB"] == 4
    told = members.producer_heartbeat(topics=["demo"], appdConfig={"configId": first.configId})
    assert told.appdConfig.configId == shown["serialId"] != first.configId
    assert told.appdConfig.maxMsgSize == 4 << 20
    assert list(told.topicInfos) == [f"demo#1:1:1#{1 << 20}"], "old topics keep their limit, and say it"
    known = members.producer_heartbeat(appdConfig={"configId": shown["serialId"]}).appdConfig
    assert not known.HasField("maxMsgSize")


def test_a_topic_is_restricted_to_groups_with_rights_and_opened_again(web):
    method = "admin_set_topic_authorize_control"
    restrict, open_again = {"isEnable": "true"}, {"enableAuthControl": "false"}
    changes = (restrict, restrict, open_again)
    answers = [web(method, **ADD, topicName="demo", **fields)["data"] for fields in changes]
    assert [item["errCode"] for (item,) in answers] == [200, 403, 200]
    web(method, **ADD, topicName="demo", **restrict)
    rights = {"groupName": "grp", "topicName": "demo", "filterEnable": "true", "filterConds": "aa,bb"}
    web("admin_add_group_csmctrl_info", **ADD, **rights)
    (topic,) = web("admin_query_topic_info", topicName="demo")["data"]
    assert topic["authData"]["enableAuthControl"]
    assert [item["groupName"] for item in topic["authData"]["authConsumeGroup"]] == ["grp"]
    (filters,) = topic["authData"]["authFilterCondSet"]
    assert (filters["condStatus"], filters["filterConds"]) == (2, ",aa,bb,")
