"""What a real S3 server refuses is told: the action, the URI, the reason and the way out, and no secret."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paddlewheel.errors import RecipeError, StorageError
from paddlewheel.storage import open_store, s3_errors
from paddlewheel.storage.s3 import S3Store

from .s3.proxy import Proxy, Refuse
from .s3.server import Keys, S3Server, free_port

pytestmark = pytest.mark.services
ABC_DIGEST = "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
MIB = 1 << 20
ACTIONS: dict[str, tuple[str, Callable[[S3Store], object]]] = {
    "stat": ("GetObject", lambda store: store.stat("a/b")),
    "read": ("GetObject", lambda store: store.read("a/b")),
    "find": ("GetObject", lambda store: store.find("a/b")),
    "local_path": ("GetObject", lambda store: store.local_path("a/b")),
    "list": ("ListBucket", lambda store: list(store.list("a"))),
    "children": ("ListBucket", lambda store: store.children("a")),
    "publish": ("PutObject", lambda store: store.publish("a/b", b"x")),
    "swap": ("PutObject", lambda store: store.swap("a/b", b"x", expected=None)),
    "remove": ("DeleteObject", lambda store: store.remove("a/b")),
}


def connect(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection)


def refusals(store: S3Store, *names: str) -> dict[str, str]:
    """What each action is told, having been refused as the action that it is."""
    told = {}
    for name in names or ACTIONS:
        permission, act = ACTIONS[name]
        with pytest.raises(StorageError) as caught:
            act(store)
        told[name] = str(caught.value)
        assert told[name].startswith(f"{permission} was refused on {store.root}/a"), name
    return told


def test_a_wrong_secret_is_told(s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Keys(key_id=s3_server.admin.key_id, secret="sEcReT/of+nobody")
    connect(monkeypatch, s3_server.connection(wrong))
    for text in refusals(store).values():
        assert "SignatureDoesNotMatch" in text
        assert "the secret does not belong to the key id: correct it in the connection 'mine'" in text
        assert wrong.secret not in text


def test_an_unknown_key_is_told(s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, s3_server.connection(Keys(key_id="NOBODY", secret="sEcReT/of+nobody")))
    for text in refusals(store).values():
        assert "InvalidAccessKeyId" in text
        assert "the server does not know this key id: correct it in the connection 'mine'" in text


def test_a_key_that_may_only_read_reads_and_no_more(
    s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch, large: Path
) -> None:
    store.publish("a/abc", b"abc")
    connect(monkeypatch, s3_server.connection(s3_server.reader))
    reader = S3Store(store.root)
    assert reader.read("a/abc") == b"abc"
    assert reader.digest("a/abc") == ABC_DIGEST
    assert [stat.key for stat in reader.list("")] == ["a/abc"]
    assert reader.stat("a/b") is None
    for text in refusals(reader, "publish", "swap", "remove").values():
        assert "AccessDenied" in text
        assert "or name another key in the connection 'mine'" in text
    assert "grant it s3:PutObject there" in refusals(reader, "publish")["publish"]
    middle = large.with_name("middle")
    middle.write_bytes(large.read_bytes()[: 20 * MIB])
    for path in (middle, large):
        with pytest.raises(StorageError, match=r"^PutObject was refused on \S+/a/large: AccessDenied"):
            reader.publish("a/large", path)
    assert [stat.key for stat in store.list("")] == ["a/abc"]


def test_a_bucket_that_is_not_there_is_told(store: S3Store) -> None:
    elsewhere = S3Store("s3://mine@no-such-bucket/root")
    for text in refusals(elsewhere).values():
        assert "NoSuchBucket" in text
        assert "create the bucket, or correct the root" in text


def test_a_bucket_that_went_meanwhile_is_told(store: S3Store, s3_server: S3Server, s3_bucket: str) -> None:
    """A HEAD's 404 looks the same for a key and for a bucket that is not there."""
    store.publish("a/b", b"abc")
    assert store.stat("a/other") is None
    folder = s3_server.object_path(s3_bucket, "")
    folder.rename(folder.with_name(f"{s3_bucket}-gone"))
    for name in ("find", "read", "local_path", "list", "publish"):
        told = refusals(store, name)[name]
        assert "NoSuchBucket" in told
        assert "create the bucket, or correct the root" in told


def test_the_servers_full_disk_is_not_taken_for_ones_own(store: S3Store, proxy: Proxy) -> None:
    full = {"status": "507 Insufficient Storage", "code": "InsufficientStorage", "words": "No space left on device"}
    proxy.refuse = Refuse(**full, only=b"PUT ")
    with (
        pytest.raises(
            StorageError, match=r"^PutObject was refused on \S+/a: InsufficientStorage .*free some space there"
        ),
        store.staging(),
    ):
        store.publish("a", b"abc")


def test_a_clock_that_is_off_is_told(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    import datetime

    from botocore import auth

    class Behind(datetime.datetime):
        """This machine's clock, an hour slow; the server's is right."""

        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return datetime.datetime.now(tz) - datetime.timedelta(hours=1)

    monkeypatch.setattr(auth, "get_current_datetime", lambda: Behind.now(datetime.UTC))
    monkeypatch.setattr(s3_errors, "datetime", Behind)
    for text in refusals(store).values():
        assert "RequestTimeTooSkewed" in text
        assert re.search(r"set this machine's clock: it is (359\d|360\d) seconds behind the server's", text)


def test_the_aws_configuration_serves_when_no_connection_is_named(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AIRFLOW_CONN_MINE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", s3_server.endpoint_url.replace("127.0.0.1", "localhost"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    store = open_store(f"s3://{s3_bucket}")
    with pytest.raises(StorageError) as caught:
        store.publish("a", b"abc")
    assert f"PutObject on s3://{s3_bucket}/a was not asked for: Unable to locate credentials" in str(caught.value)
    assert "name a connection: s3://CONNECTION@BUCKET" in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.admin.key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.admin.secret)
    store = open_store(f"s3://{s3_bucket}")
    store.publish("a", b"abc")
    assert store.uri("a") == f"s3://{s3_bucket}/a"
    assert store.read("a") == b"abc"
    assert [stat.key for stat in store.list("")] == ["a"]


def test_a_server_that_does_not_answer_is_told(
    s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch, hasty: None
) -> None:
    connect(monkeypatch, s3_server.connection(endpoint_url=f"http://127.0.0.1:{free_port()}"))
    for name in ("stat", "publish", "list"):
        with pytest.raises(StorageError, match=r" got no answer: Could not connect .* is the server up, and its"):
            ACTIONS[name][1](store)


@pytest.mark.parametrize(
    ("root", "told"),
    [
        ("s3://mine@bucket/../x", ". and .. lead nowhere"),
        ("s3://mine@bucket/a/./b", ". and .. lead nowhere"),
        ("s3://KEYID:sEcReT@bucket/x", "a root on 'bucket' names a key and its secret; put them into a connection"),
        ("s3://mine@/x", "is no root on S3"),
        ("s3:/bucket/x", "is no root on S3"),
    ],
)
def test_a_root_that_cannot_be_is_told_without_its_secret(root: str, told: str) -> None:
    with pytest.raises(RecipeError) as caught:
        open_store(root)
    assert told in str(caught.value)
    assert "sEcReT" not in str(caught.value)


def test_a_bucket_that_no_server_can_have_is_told(s3_bucket: str) -> None:
    with pytest.raises(StorageError, match=r"no bucket can have this name: correct the root$"):
        open_store(f"s3://mine@{s3_bucket}:80/x").stat("a")


def test_a_key_that_was_copied_with_its_line_end_is_told(
    s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, s3_server.connection(Keys(key_id=s3_server.admin.key_id, secret="sEcReT/of+nobody\n")))
    with pytest.raises(RecipeError, match=r"'mine' cannot be used for S3: its aws_secret_access_key has white space"):
        store.stat("a")


def test_a_server_without_tls_is_told_at_once(
    s3_server: S3Server, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect(monkeypatch, s3_server.connection(endpoint_url=s3_server.endpoint_url.replace("http:", "https:")))
    monkeypatch.setattr(s3_errors, "pause", lambda *_: pytest.fail("asked again"))
    with pytest.raises(StorageError, match=r"that address speaks no TLS: write it with http:// in the connection"):
        store.stat("a")
