"""A broker's web calls about its stores: where they begin and end, and their sizes."""

import time
from collections.abc import Mapping
from typing import Any, Final

from tubemq_spark.embedded.admin.parameters import Call, Parameters, bad_request
from tubemq_spark.embedded.broker.state import BrokerState
from tubemq_spark.embedded.log.store import Store
from tubemq_spark.model import PARTITIONS_PER_STORE

_LEAST: Final = (1 << 63) - 1
_MOST: Final = -(1 << 63)
_NO_HISTOGRAM: Final = {"count": 0, "min": _LEAST, "max": _MOST}
_NO_TIMES: Final = {**_NO_HISTOGRAM, "cells": {}, "P99": 0, "P999": 0, "P9999": 0}
_NO_STATISTICS: Final[Mapping[str, Any]] = {
    "isClosed": True,
    "msg_append_size": _NO_HISTOGRAM,
    "msg_append_dlt": _NO_TIMES,
    "msg_append_fail": 0,
    "cache_data_full": 0,
    "cache_count_full": 0,
    "cache_time_full": 0,
    "cache_flush_pending": 0,
    "cache_realloc": 0,
    "file_total_msg_cnt": 0,
    "file_total_data_size": 0,
    "file_total_index_size": 0,
    "file_flush_dlt": _NO_TIMES,
    "file_flush_data_size": _NO_HISTOGRAM,
    "file_flush_msg_cnt": _NO_HISTOGRAM,
    "file_data_seg": 0,
    "file_index_seg": 0,
    "file_meta_flush": 0,
    "file_data_full": 0,
    "file_count_full": 0,
    "file_time_full": 0,
}
"""Statistics that are switched off (MsgStoreStatsHolder), because nothing is counted here."""


class StoreCalls:
    """The calls of BrokerAdminServlet about stores; none needs a token."""

    def __init__(self, state: BrokerState) -> None:
        """Take what the broker's handlers share."""
        self._state = state
        self.calls: Mapping[str, Call] = {
            "admin_query_pubinfo": self.query_pubinfo,
            "admin_query_broker_all_store_info": self.query_all_store_info,
            "admin_query_broker_memstore_info": self.query_memstore_info,
            "admin_get_msgstore_stats": self.get_msgstore_stats,
        }

    def query_pubinfo(self, parameters: Parameters) -> dict[str, Any]:
        """Return the bounds of the open stores, by partition."""
        data = []
        for topic, stores in self._open_stores(parameters).items():
            partitions = self._partitions(topic)
            items = [item for number, store in stores.items() for item in _bounds(store, number, partitions)]
            data.append({"topicName": topic, "offsetInfo": items, "itemCount": len(items)})
        return _success(dataSet=data, dataCount=len(data))

    def query_all_store_info(self, parameters: Parameters) -> dict[str, Any]:
        """Return the sizes of the open stores; partitions are numbered within their store."""
        data = [
            {
                "index": index,
                "topicName": topic,
                "storeInfo": [
                    _sizes(store, number, self._partitions(topic)) for number, store in stores.items()
                ],
            }
            for index, (topic, stores) in enumerate(self._open_stores(parameters).items(), 1)
        ]
        return _success(dataSet=data, totalCnt=len(data))

    def query_memstore_info(self, _parameters: Parameters) -> dict[str, Any]:
        """Refuse, as TubeMQ does."""
        raise bad_request("The method is deprecated, please use admin_get_msgstore_stats")

    def get_msgstore_stats(self, parameters: Parameters) -> dict[str, Any]:
        """Return the statistics of the open stores twice: for the previous and for the present period."""
        parameters.flag("needRefresh", default=False)
        now = time.strftime("%Y%m%d%H%M%S")
        statistics = {"reset_time": now, **_NO_STATISTICS, "end_time": now}
        stores = self._open_stores(parameters)
        data = [
            {
                "topicName": topic,
                "details": [
                    {"storeId": number, "msgStore": [statistics, statistics]}
                    for number in stores.get(topic, ())
                ],
            }
            for topic in parameters.items("topicName") or stores
        ]
        return {"result": True, "errCode": 0, "errMsg": "OK", "data": data, "count": len(data)}

    def _open_stores(self, parameters: Parameters) -> dict[str, dict[int, Store]]:
        """Return the open stores of the topics in the call, or of all topics, by topic and number."""
        wanted = parameters.items("topicName")
        topics: dict[str, dict[int, Store]] = {}
        for (topic, number), store in self._state.stores.all().items():
            if (not wanted or topic in wanted) and self._state.catalog.get(topic) is not None:
                topics.setdefault(topic, {})[number] = store
        return topics

    def _partitions(self, topic: str) -> int:
        spec = self._state.catalog.get(topic)
        return 0 if spec is None else spec.partitions


def _bounds(store: Store, number: int, partitions: int) -> list[dict[str, int]]:
    bounds = store.bounds
    return [
        {
            "partitionId": number * PARTITIONS_PER_STORE + index,
            "offsetMin": bounds.earliest,
            "offsetMax": bounds.latest,
            "dataMin": bounds.data_earliest,
            "dataMax": bounds.data_latest,
        }
        for index in range(partitions)
    ]


def _sizes(store: Store, number: int, partitions: int) -> dict[str, Any]:
    bounds = store.bounds
    return {
        "storeId": number,
        "numPartition": partitions,
        "minDataOffset": bounds.data_earliest,
        "maxDataOffset": bounds.data_latest,
        "sizeInBytes": bounds.data_latest - bounds.data_earliest,
        "partitionInfo": [
            {
                "partitionId": index,
                "minOffset": bounds.earliest,
                "maxOffset": bounds.latest,
                "sizeInBytes": bounds.latest - bounds.earliest,
            }
            for index in range(partitions)
        ],
    }


def _success(**fields: object) -> dict[str, Any]:
    return {"result": True, "errCode": 0, "errMsg": "Success!", **fields}
