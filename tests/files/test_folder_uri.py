import pickle

import pytest

from tests.cases import in_one_test
from tubemq_spark.files.folder_uri import FolderUri, redacted

SECRET = "s3://AKIAKEY:S3cret%2Fkey@bucket/losses?region=eu-1&token=T0k3n"


@in_one_test(
    ("text", "taken"),
    [
        ("/data/losses", "/data/losses"),
        ("  /data/losses ", "/data/losses"),
        ("/data/with blank?and#hash", "/data/with blank?and#hash"),
        ("file:///data/losses", "file:///data/losses"),
        ("file:/data/losses", "file:/data/losses"),
        ("FILE:///data", "file:///data"),
        ("hdfs://name:8020/losses", "hdfs://name:8020/losses"),
        ("s3://bucket/losses", "s3://bucket/losses"),
        ("s3a://bucket/losses", "s3://bucket/losses"),
        ("gs://bucket/losses", "gs://bucket/losses"),
        ("abfss://box@account.dfs.core.windows.net/l", "abfss://box@account.dfs.core.windows.net/l"),
        ("abfs://box@account.dfs.core.windows.net/l", "abfs://box@account.dfs.core.windows.net/l"),
        (SECRET, SECRET),
    ],
)
def test_paths_and_uris_of_known_file_systems_are_taken(text, taken):
    folder = FolderUri.parse(text)
    assert folder is not None
    assert folder.text == taken
    assert pickle.loads(pickle.dumps(folder)) == folder


@in_one_test(
    "text",
    [
        "",
        "losses",
        "C:/losses",
        "http://host/losses",
        "s4://bucket/losses",
        "s3:///losses",
        "abfss:///losses",
        "hdfs://:8020/losses",
        "hdfs://name:port/losses",
        "file://host/losses",
        "file://losses",
        "file:///losses?x=1",
        "s3://bucket/los ses",
        "s3://bucket/losses#1",
        "/data\x00",
    ],
)
def test_other_texts_are_not(text):
    assert FolderUri.parse(text) is None


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("/data/a@b?c", "/data/a@b?c"),
        ("s3://bucket/losses", "s3://bucket/losses"),
        (SECRET, "s3://***@bucket/losses?***"),
        ("s3://key:sec/ret@bucket/losses", "s3://***@bucket/losses"),
        ("s5://key:sec ret@bucket/losses", "s5://***@bucket/losses"),
    ],
)
def test_credentials_are_not_shown(text, shown):
    assert redacted(text) == shown
    folder = FolderUri.parse(text)
    if folder is not None:
        assert str(folder) == shown
        assert repr(folder) == f"FolderUri({shown!r})"


def test_credentials_are_taken_out_of_what_others_say():
    folder = FolderUri.parse(SECRET)
    said = (
        f"cannot open {SECRET}: key 'AKIAKEY', secret S3cret/key (S3cret%2Fkey), token T0k3n, bucket bucket"
    )
    assert folder.hide_in(said) == (
        "cannot open s3://***@bucket/losses?***: key '***', secret *** (***), token ***, bucket bucket"
    )


def test_a_secret_that_begins_with_another_is_taken_out_whole():
    assert FolderUri.parse("s3://key:keyhole@bucket/losses").hide_in("key, keyhole") == "***, ***"
