import logging
import pickle

import pytest

from tests.offsets.strategies import tp
from tubemq_spark.errors import CONDITIONS, DataLossError
from tubemq_spark.offsets.loss import Loss, LossRecord, LossRecorder, fail_on_loss

DEMO = tp("demo/1:0")


@pytest.mark.parametrize("loss", Loss)
def test_failing_names_what_where_and_the_option(loss):
    with pytest.raises(DataLossError) as caught:
        fail_on_loss(LossRecord(loss, DEMO, 2800, 5600))
    error = caught.value
    assert error.condition == f"TUBEMQ_DATA_LOSS.{loss.name}"
    for part in ("demo/1:0", "2800", "5600", "failOnDataLoss=false"):
        assert part in str(error)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_every_kind_has_a_condition_and_every_condition_a_kind():
    conditions = {name for name in CONDITIONS if name.startswith("TUBEMQ_DATA_LOSS.")}
    assert conditions == {loss.condition for loss in Loss}


def test_the_recorder_warns_and_remembers_a_loss_once(caplog):
    recorder = LossRecorder()
    with caplog.at_level(logging.WARNING):
        recorder(LossRecord(Loss.EXPIRED, DEMO, 0, 280))
        recorder(LossRecord(Loss.EXPIRED, DEMO, 0, 280))
        recorder(LossRecord(Loss.EXPIRED, DEMO, 0, 308))
    assert recorder.records == [
        LossRecord(Loss.EXPIRED, DEMO, 0, 280),
        LossRecord(Loss.EXPIRED, DEMO, 0, 308),
    ]
    assert [record.getMessage() for record in caplog.records] == [
        "data is lost; reading continues because failOnDataLoss=false: EXPIRED demo/1:0 [0, 280)",
        "data is lost; reading continues because failOnDataLoss=false: EXPIRED demo/1:0 [0, 308)",
    ]


def test_the_recorder_remembers_the_last_losses_only():
    recorder = LossRecorder()
    for number in range(2_500):
        recorder(LossRecord(Loss.EXPIRED, DEMO, 28 * number, 28 * number + 28))
    assert recorder.records == [
        LossRecord(Loss.EXPIRED, DEMO, 28 * number, 28 * number + 28) for number in range(1_500, 2_500)
    ]
