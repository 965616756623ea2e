"""Bodies that are cut off, answers that are lost, servers and writers that are killed in the middle of an upload."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from paddlewheel.errors import StorageError
from paddlewheel.storage import SwapConflict, digest_file
from paddlewheel.storage.s3 import S3Store

from .s3.proxy import Cut, Proxy, Refuse
from .s3.server import S3Server

pytestmark = pytest.mark.services
MIB = 1 << 20


@pytest.mark.parametrize("size", [8 * MIB, 80 * MIB])
def test_an_upload_that_is_cut_off_half_way_is_made_again(
    store: S3Store, proxy: Proxy, large: Path, size: int, s3_server: S3Server
) -> None:
    os.truncate(large, size)
    proxy.cut = Cut(way="up", after_bytes=4 * MIB, times=2, only=b"PUT ")
    store.publish("a/b", large)
    assert proxy.cut.times == 0
    assert digest_file(s3_server.object_path(store.bucket.bucket, "root/a/b")) == digest_file(large)
    assert store.audit("a/b") == digest_file(large)


@pytest.mark.parametrize("size", [8 * MIB, 80 * MIB])
def test_nothing_is_stored_when_every_upload_is_cut_off(store: S3Store, proxy: Proxy, large: Path, size: int) -> None:
    os.truncate(large, size)
    proxy.cut = Cut(way="up", after_bytes=4 * MIB, times=-1, only=b"PUT ")
    with pytest.raises(StorageError, match=r"^PutObject on \S+/root/a/b got no answer: "):
        store.publish("a/b", large)
    proxy.cut = None
    assert store.stat("a/b") is None
    assert list(store.list("")) == []
    assert store.bucket.client.list_multipart_uploads(Bucket=store.bucket.bucket).get("Uploads", []) == []
    assert store.publish("a/b", large).bytes == size


def test_a_write_whose_answer_is_lost_is_found_done(store: S3Store, proxy: Proxy) -> None:
    proxy.cut = Cut(way="down", after_bytes=0, only=b"PUT ")
    assert store.publish("a/b", b"abc") == store.stat("a/b")
    proxy.cut = Cut(way="down", after_bytes=0, only=b"PUT ")
    first = store.swap("p", b"1", expected=None)
    proxy.cut = Cut(way="down", after_bytes=0, only=b"PUT ")
    second = store.swap("p", b"2", expected=first.version)
    assert store.stat("p") == second
    assert store.read("p") == b"2"
    assert proxy.cut.times == 0


@pytest.mark.parametrize("after_bytes", [10, 20, 60, 110, 150, 200])
def test_an_answer_is_asked_for_again_when_its_head_is_cut_off(store: S3Store, proxy: Proxy, after_bytes: int) -> None:
    """The server's whole heads have 200 to 400 bytes; http.client takes the first of their lines for all of them."""

    def cut(only: bytes) -> None:
        assert proxy.cut is None or proxy.cut.times == 0
        before = len(b"HTTP/1.1 100 Continue\r\n\r\n") if only == b"PUT " else 0
        proxy.cut = Cut(way="down", after_bytes=before + after_bytes, only=only)

    cut(b"PUT ")
    written = store.publish("a/b", b"abc")
    cut(b"HEAD ")
    assert store.stat("a/b") == written
    cut(b"GET ")
    assert store.read("a/b") == b"abc"
    cut(b"GET ")
    assert [stat.key for stat in store.list("a")] == ["a/b"]
    cut(b"GET ")
    assert store.children("") == ["a"]
    cut(b"PUT ")
    first = store.swap("p", b"1", expected=None)
    assert store.stat("p") == first
    assert proxy.cut is not None
    assert proxy.cut.times == 0


def test_a_swap_is_lost_when_another_had_the_same_idea_and_the_answer_is_lost_too(
    store: S3Store, proxy: Proxy, s3_bucket: str
) -> None:
    """Equal bytes are no proof of who wrote them: a counter that two raise from 5 to 6 would lose one of them."""
    other = S3Store(store.root, cache=store.cache)
    other.swap("p", b"6", expected=None)
    proxy.cut = Cut(way="down", after_bytes=0, only=b"PUT ")
    with pytest.raises(SwapConflict):
        store.swap("p", b"6", expected=None)
    assert proxy.cut.times == 0


@pytest.mark.parametrize("act", ["read", "digest", "local_path"])
def test_a_download_that_is_cut_off_half_way_is_made_again(
    store: S3Store, proxy: Proxy, act: str, tmp_path: Path
) -> None:
    content = os.urandom(4 * MIB)
    store.publish("a/b", content)
    proxy.cut = Cut(way="down", after_bytes=2 * MIB, times=2, only=b"GET ")
    result = getattr(store, act)("a/b")
    assert proxy.cut.times == 0
    (tmp_path / "own").write_bytes(content)
    expected = {"read": content, "digest": digest_file(tmp_path / "own")}
    assert (result.read_bytes() if isinstance(result, Path) else result) == expected.get(act, content)


def test_half_a_download_gets_no_name(store: S3Store, proxy: Proxy) -> None:
    store.publish("a/b", os.urandom(4 * MIB))
    proxy.cut = Cut(way="down", after_bytes=2 * MIB, times=-1, only=b"GET ")
    with pytest.raises(StorageError, match=r"^GetObject on \S+/root/a/b "):
        store.local_path("a/b")
    with pytest.raises(StorageError, match=r"^GetObject on \S+/root/a/b "):
        store.read("a/b")
    assert [path for path in (store.cache.folder / "objects").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("only", "status", "code"),
    [
        (b"PUT ", "503 Slow Down", "SlowDown"),
        (b"PUT ", "409 Conflict", "ConditionalRequestConflict"),  # two conditional writes at once, on AWS
        (b"GET ", "500 Internal Server Error", "InternalError"),
        (b"HEAD ", "503 Service Unavailable", "ServiceUnavailable"),
        (b"DELETE ", "503 Slow Down", "SlowDown"),
    ],
)
def test_a_server_that_asks_for_patience_is_asked_again(
    store: S3Store, proxy: Proxy, only: bytes, status: str, code: str
) -> None:
    """By a stand-in's answers: the real server never says so."""
    proxy.refuse = Refuse(status=status, code=code, times=2, only=only)
    store.publish("a/b", b"abc")
    first = store.swap("p", b"1", expected=None)
    assert store.swap("p", b"2", expected=first.version) == store.stat("p")
    assert store.read("a/b") == b"abc"
    assert [stat.key for stat in store.list("")] == ["a/b", "p"]
    store.remove("p")
    assert proxy.refuse.times == 0


def test_parts_are_sent_anew_when_the_completion_fails_inside_a_good_status(
    store: S3Store, proxy: Proxy, large: Path
) -> None:
    """CompleteMultipartUpload may begin with 200 and end in an error: by a stand-in's answer, again."""
    proxy.refuse = Refuse(
        status="200 OK", code="InternalError", only=b"POST /" + store.bucket.bucket.encode() + b"/root/a/b?uploadId"
    )
    store.publish("a/b", large)
    assert proxy.refuse.times == 0
    assert store.audit("a/b") == digest_file(large)
    assert store.bucket.client.list_multipart_uploads(Bucket=store.bucket.bucket).get("Uploads", []) == []


def test_an_upload_ends_well_when_the_server_is_killed_in_its_middle(
    s3_server: S3Server, store: S3Store, large: Path
) -> None:
    done: list[object] = []
    upload = threading.Thread(target=lambda: done.append(store.publish("a/large", large)))
    data = s3_server.folder / "data" / store.bucket.bucket
    upload.start()
    while not any(path.stat().st_size >= 16 * MIB for path in data.rglob("*") if path.is_file()):
        assert upload.is_alive()
        time.sleep(0.005)
    s3_server.kill()
    assert upload.is_alive()
    time.sleep(0.5)
    s3_server.start()
    upload.join(120)
    assert done == [store.stat("a/large")]
    assert digest_file(s3_server.object_path(store.bucket.bucket, "root/a/large")) == digest_file(large)
    assert [stat.key for stat in store.list("")] == ["a/large"]


def test_an_abandoned_upload_is_swept_when_it_is_old(s3_server: S3Server, store: S3Store, large: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from paddlewheel.storage import open_store;"
        "open_store(sys.argv[1]).publish('runs/large', Path(sys.argv[2]))"
    )
    writer = subprocess.Popen([sys.executable, "-c", script, store.root, str(large)])
    client = s3_server.client()
    while not client.list_multipart_uploads(Bucket=store.bucket.bucket).get("Uploads"):
        assert writer.poll() is None
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    foreign = client.create_multipart_upload(Bucket=store.bucket.bucket, Key="root/landing/theirs")["UploadId"]
    assert store.stat("runs/large") is None
    assert store.sweep(3600) == []
    (told,) = store.sweep(0)
    assert told.startswith(f"an upload of {store.root}/runs/large, begun at 20")
    left = client.list_multipart_uploads(Bucket=store.bucket.bucket)["Uploads"]
    assert [upload["UploadId"] for upload in left] == [foreign]
    assert store.publish("runs/large", large).bytes == 80 * MIB
