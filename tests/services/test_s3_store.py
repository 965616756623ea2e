"""The store on a real S3 server: what is refused, what is cut off, what is damaged, and who dies in the middle."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from paddlewheel import s3_errors
from paddlewheel.errors import StorageError
from paddlewheel.manifest import Manifest, Shard, publish_file, publish_manifest, verify
from paddlewheel.object_cache import ObjectCache
from paddlewheel.s3_store import S3Store
from paddlewheel.storage import ObjectDamaged, SwapConflict, digest_file, open_store

from .s3.proxy import Cut, Proxy, Refuse, proxy_to
from .s3.server import Keys, S3Server, free_port

pytestmark = pytest.mark.services
ABC_DIGEST = "06b05ab6733a618578af5f94892f3950"  # xxh128sum of "abc"
MIB = 1 << 20


@pytest.fixture
def store(s3_bucket: str) -> S3Store:
    return S3Store(f"s3://mine@{s3_bucket}/root")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A file of 80 MiB: five parts."""
    path = tmp_path / "large"
    path.write_bytes(os.urandom(MIB) * 80)
    return path


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any pause between tries."""
    monkeypatch.setattr(s3_errors, "PAUSES_SECONDS", (0.01,) * 6)


def connect(monkeypatch: pytest.MonkeyPatch, connection: str) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MINE", connection)


# ---------- refused ----------

ACTIONS: dict[str, tuple[str, Callable[[S3Store], object]]] = {
    "stat": ("GetObject", lambda store: store.stat("a/b")),
    "read": ("GetObject", lambda store: store.read("a/b")),
    "local_path": ("GetObject", lambda store: store.local_path("a/b")),
    "list": ("ListBucket", lambda store: list(store.list("a"))),
    "children": ("ListBucket", lambda store: store.children("a")),
    "publish": ("PutObject", lambda store: store.publish("a/b", b"x")),
    "swap": ("PutObject", lambda store: store.swap("a/b", b"x", expected=None)),
    "remove": ("DeleteObject", lambda store: store.remove("a/b")),
}


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
        assert re.search(r"set this machine's clock: it is (3599|360\d) seconds behind the server's", text)


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


# ---------- cut off, killed ----------


@pytest.fixture
def proxy(s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, hasty: None) -> Iterator[Proxy]:
    """In front of the server, for all that `mine` does."""
    with proxy_to(s3_server.port) as proxy:
        connect(monkeypatch, s3_server.connection(endpoint_url=proxy.endpoint_url))
        yield proxy


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


# ---------- many, damaged ----------


def test_more_keys_than_a_page_holds_are_listed_in_order(s3_server: S3Server, store: S3Store) -> None:
    keys = [f"many/{number:04}" for number in range(1101)]
    client = s3_server.client()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: client.put_object(Bucket=store.bucket.bucket, Key=f"root/{key}", Body=b"x"), keys))
        folders = [f"folders/{number:04}/x" for number in range(1050)]
        list(pool.map(lambda key: client.put_object(Bucket=store.bucket.bucket, Key=f"root/{key}", Body=b""), folders))
    assert [stat.key for stat in store.list("many")] == keys
    assert list(store.children("folders")) == [f"{number:04}" for number in range(1050)]
    assert len(list(store.list(""))) == 2151


def flip(path: Path) -> None:
    """One bit of the file's last byte."""
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(raw)


def manifest_of(store: S3Store) -> Manifest:
    """A table of one file, published."""
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"abc")
        shard = publish_file(store, "d/K/rows", folder / "rows")
    manifest = Manifest(kind="table", name="flights", key="d/K", files=(shard,))
    publish_manifest(store, manifest)
    return manifest


def test_a_bit_that_flips_in_the_cache_is_noticed_and_healed(store: S3Store, caplog: pytest.LogCaptureFixture) -> None:
    manifest = manifest_of(store)
    cached = store.local_path("d/K/rows")
    flip(cached)
    assert store.digest("d/K/rows") == ABC_DIGEST
    assert "is damaged" in caplog.text
    flip(store.local_path("d/K/rows"))
    verify(store, manifest)
    flip(store.local_path("d/K/rows"))
    assert S3Store(store.root).local_path("d/K/rows").read_bytes() == b"abc"


def test_a_bit_that_flips_on_the_server_is_noticed_by_whoever_gets_it(
    s3_server: S3Server, store: S3Store, tmp_path: Path
) -> None:
    manifest = manifest_of(store)
    flip(s3_server.object_path(store.bucket.bucket, "root/d/K/rows"))
    verify(store, manifest)  # what this machine works with is whole
    with pytest.raises(ObjectDamaged, match=r"root/d/K/rows is damaged on the server"):
        store.audit("d/K/rows")
    elsewhere = S3Store(store.root, cache=ObjectCache(folder=tmp_path / "other machine"))
    for act in (elsewhere.audit, elsewhere.digest, elsewhere.local_path, elsewhere.read):
        with pytest.raises(ObjectDamaged, match=r"root/d/K/rows is damaged on the server"):
            act("d/K/rows")
    with pytest.raises(StorageError, match=r"rows is damaged on the server.*remove \S+/root/d/K so that the step"):
        verify(elsewhere, manifest)
    assert [path for path in (tmp_path / "other machine/objects").rglob("*") if path.is_file()] == []


def test_an_object_of_another_program_is_as_good(s3_server: S3Server, store: S3Store) -> None:
    """As a root that was copied into a bucket by other means: no digest of ours beside it."""
    s3_server.client().put_object(Bucket=store.bucket.bucket, Key="root/a", Body=b"abc")
    assert store.publish("a", b"abc") == store.stat("a")
    with pytest.raises(StorageError, match="already exists with other content"):
        store.publish("a", b"abd")
    flip(s3_server.object_path(store.bucket.bucket, "root/a"))
    with pytest.raises(ObjectDamaged):  # by the checksum that the server keeps
        store.read("a")


def _fetch(root: str, start: multiprocessing.Barrier, results: multiprocessing.Queue[str]) -> None:
    store = open_store(root)
    store.stat("a/b")
    start.wait(60)
    results.put(str(store.local_path("a/b")))


def test_one_of_many_processes_downloads_when_all_want_the_same(store: S3Store, proxy: Proxy) -> None:
    content = os.urandom(16 * MIB)
    store.publish("a/b", content)
    proxy.requests.clear()
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[str] = context.Queue()
    start = context.Barrier(4)
    racers = [context.Process(target=_fetch, args=(store.root, start, results)) for _ in range(4)]
    for racer in racers:
        racer.start()
    paths = {results.get(timeout=120) for _ in racers}
    for racer in racers:
        racer.join()
    (path,) = paths
    assert Path(path).read_bytes() == content
    assert [line.split()[0] for line in proxy.requests].count("GET") == 1
    assert list((store.cache.folder / "objects").glob(".tmp-*")) == []


def test_a_download_that_is_killed_leaves_nothing_that_counts(store: S3Store, proxy: Proxy) -> None:
    store.publish("a/b", bytes(64 * MIB))
    script = "import sys; from paddlewheel.storage import open_store; open_store(sys.argv[1]).local_path('a/b')"
    reader = subprocess.Popen([sys.executable, "-c", script, store.root])
    objects = store.cache.folder / "objects"
    while not any(path.stat().st_size for path in objects.glob(".tmp-*/new")):
        assert reader.poll() is None
        time.sleep(0.002)
    reader.send_signal(signal.SIGKILL)
    reader.wait()
    left = [path.as_uri() for path in objects.glob(".tmp-*")]
    assert len(left) == 1
    assert store.local_path("a/b").stat().st_size == 64 * MIB
    assert store.sweep(0) == left
    assert store.local_path("a/b").stat().st_size == 64 * MIB


def test_what_was_just_written_is_not_downloaded(store: S3Store, proxy: Proxy, large: Path) -> None:
    with store.staging() as folder:
        (folder / "rows").write_bytes(b"abc")
        stat = store.publish("a/rows", folder / "rows")
    proxy.requests.clear()
    assert store.local_path("a/rows", version=stat.version).read_bytes() == b"abc"
    assert proxy.requests == []
    assert store.digest("a/rows") == ABC_DIGEST
    assert [line.split()[0] for line in proxy.requests] == ["HEAD"]


def test_a_forked_child_has_a_client_of_its_own(store: S3Store) -> None:
    store.publish("a", b"abc")
    child = multiprocessing.get_context("fork").Process(target=lambda: store.publish("b", store.read("a")))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.read("b") == b"abc"


def test_damage_names_the_file_and_the_way_out(store: S3Store) -> None:
    manifest = manifest_of(store)
    store.remove("d/K/rows")
    with pytest.raises(StorageError, match=r"root/d/K/rows is missing\. Restore them, or remove \S+/root/d/K so that"):
        verify(store, manifest)
    other = Manifest(kind="table", name="f", key="d/L", files=(Shard(key="d/K/manifest.json", bytes=1, digest="0"),))
    with pytest.raises(StorageError, match=r"manifest\.json has \d+ bytes, not 1"):
        verify(store, other)
