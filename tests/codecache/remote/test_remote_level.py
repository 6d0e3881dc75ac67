"""A remote cache between two stores, on real servers: what one publishes the other finds, and nothing else."""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from remote_servers import redis_and_s3

from fxpool import counters
from fxpool.codecache import remote
from fxpool.codecache.bundle.authentication import KEY_BYTES, Keyring
from fxpool.codecache.remote import pending_uploads, remote_values, uploads
from fxpool.codecache.remote.client import Client, Deadline, RemoteError
from fxpool.codecache.remote.remote_level import RemoteLevel
from fxpool.codecache.store.blobs import BlobRef
from fxpool.codecache.store.entry import Entry
from fxpool.codecache.store.store import LocalStore

KEY = hashlib.sha256(b"a graph").hexdigest()
OTHER_KEY = hashlib.sha256(b"another graph").hexdigest()
GUARDS = [["StrictLessThan", ["symbol", "s0", "integer", "positive"], bound] for bound in (8, 16, 32)]
RING = Keyring([b"k" * KEY_BYTES])
OTHER_RING = Keyring([b"o" * KEY_BYTES])
ROTATED = Keyring([b"n" * KEY_BYTES, b"k" * KEY_BYTES])
# Long enough for a loaded machine; nothing here waits for it.
DELAY = 20.0

Connect = Callable[[float], Client]


@pytest.fixture(scope="module")
def servers() -> Iterator[dict[str, str]]:
    with redis_and_s3() as found:
        yield found


@pytest.fixture(params=["redis", "s3"])
def connect(request: pytest.FixtureRequest, servers: dict[str, str]) -> Connect:
    """Connects to a remote that is of this test alone."""
    address = servers[request.param]
    if request.param == "s3":
        address += "/" + hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:16]
    else:
        import redis

        redis.Redis.from_url(address).flushall()
    return lambda seconds: remote.connect(address, seconds)


@pytest.fixture
def levels() -> Iterator[Callable[..., RemoteLevel]]:
    """Makes levels, and closes them. Their threads end too, as what they count belongs to this test."""
    made: list[RemoteLevel] = []
    before = set(threading.enumerate())

    def level(connect: Connect, ring: Keyring = RING, **settings: Any) -> RemoteLevel:
        made.append(RemoteLevel(connect, ring, **{"delay": DELAY, **settings}))
        return made[-1]

    yield level
    for one in made:
        one.close()
    for thread in set(threading.enumerate()) - before:
        thread.join(DELAY)


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "one"))


@pytest.fixture
def other(tmp_path: Path) -> LocalStore:
    return LocalStore(str(tmp_path / "two"))


BLOBS = {"result": b"some code " * 1000, "kernels": os.urandom(5000), "empty": b""}


def published(store: LocalStore, key: str = KEY, guards: Any = (), blobs: dict[str, bytes] = BLOBS) -> Entry:
    return store.publish(Entry(key=key, guards=list(guards), content={"level": "aot"}), blobs)


def uploaded(level: RemoteLevel, store: LocalStore, entry: Entry) -> Entry:
    level.uploads.offer(store.root, entry.key, entry.name)
    assert level.uploads.flush(60)
    return entry


def any_fits(entry: Entry) -> bool:
    return True


def counted() -> dict[str, int]:
    """What was counted, without what is 0."""
    return {name: count for name, count in counters.snapshot()["remote"].items() if count}


def test_what_one_machine_publishes_another_finds(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore, other: LocalStore
) -> None:
    entry = uploaded(levels(connect), store, published(store))
    level = levels(connect)
    found = level.find([OTHER_KEY, KEY], any_fits)
    assert found is not None and found.written_to(other) == entry
    assert other.complete(entry) and other.entries(KEY) == [entry]
    for role, ref in entry.blobs.items():
        assert other.read_blob(ref) == BLOBS[role]
    assert counted() == {"hits": 1, "writes": 1}
    assert counters.snapshot()["remote_seconds"] > 0


def test_what_is_not_there_is_a_miss(connect: Connect, levels: Callable[..., RemoteLevel]) -> None:
    level = levels(connect)
    assert level.find([KEY], any_fits) is None
    assert counted() == {"misses": 1} and level.state == "closed"


def test_entries_of_one_key_are_told_apart(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    entries = [uploaded(level, store, published(store, guards=[guard])) for guard in GUARDS]

    def fits(guards: Any, one: Entry) -> bool:
        return bool(one.guards == guards)

    for entry in entries:
        found = level.find([KEY], functools.partial(fits, entry.guards))
        assert found is not None and found.entry == entry
    seen: list[str] = []

    def seen_only(one: Entry) -> bool:
        seen.append(one.name)
        return False

    assert level.find([KEY], seen_only, {(KEY, entries[0].name)}) is None
    assert sorted(seen) == sorted(entry.name for entry in entries[1:]), "those known not to fit are not fetched"


def test_what_is_there_is_not_written_again(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore, other: LocalStore
) -> None:
    level = levels(connect)
    entry = uploaded(level, store, published(store))
    again = published(other)
    before = connect(DELAY).get(remote_values.entry_name(KEY, entry.name), 1 << 20, Deadline(DELAY))
    uploaded(level, other, again)
    assert connect(DELAY).get(remote_values.entry_name(KEY, entry.name), 1 << 20, Deadline(DELAY)) == before
    assert counted() == {"writes": 1}


def test_a_key_that_is_not_accepted_is_a_miss_and_what_it_sealed_is_replaced(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    entry = uploaded(levels(connect, OTHER_RING), store, published(store))
    level = levels(connect)
    assert level.find([KEY], any_fits) is None
    assert counted() == {"misses": 1, "writes": 1, "error:not_authentic": 1}
    uploaded(level, store, entry)
    found = levels(connect).find([KEY], any_fits)
    assert found is None, "the blobs are the other's yet"
    assert level.find([KEY], any_fits) is None
    uploaded(level, store, entry)


def test_keys_are_rotated(connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore) -> None:
    """The new key is in front while the old one is still accepted; who has only the old one reads old values."""
    old = uploaded(levels(connect), store, published(store))
    new = levels(connect, ROTATED)
    assert (found := new.find([KEY], any_fits)) is not None and found.entry == old
    uploaded(new, store, published(store, OTHER_KEY, blobs={"result": b"other"}))
    assert new.find([OTHER_KEY], any_fits) is not None
    assert levels(connect).find([OTHER_KEY], any_fits) is None


def _swapped(connect: Connect, one: str, two: str) -> None:
    client, deadline = connect(DELAY), Deadline(DELAY)
    values_there = [client.get(name, 1 << 20, deadline) for name in (one, two)]
    for name, value in zip((two, one), values_there, strict=True):
        assert value is not None and client.put(name, value, deadline, replace=True)
    client.close()


def test_another_key_s_value_in_an_entry_s_place_does_not_pass(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    one = uploaded(level, store, published(store))
    two = uploaded(level, store, published(store, OTHER_KEY))
    assert one.name == two.name, "they differ in their keys only"
    _swapped(connect, remote_values.entry_name(KEY, one.name), remote_values.entry_name(OTHER_KEY, two.name))
    assert level.find([KEY], any_fits) is None
    assert counted()["error:not_authentic"] == 1


def test_another_blob_in_a_blob_s_place_does_not_pass(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    blobs = {"result": os.urandom(100), "kernels": os.urandom(100)}
    entry = uploaded(level, store, published(store, blobs=blobs))
    _swapped(connect, *(remote_values.blob_name(ref) for ref in entry.blobs.values()))
    assert level.find([KEY], any_fits) is None
    assert counted()["error:not_authentic"] == 1
    uploaded(level, store, entry)
    assert level.find([KEY], any_fits) is None, "one of the two is still in the wrong place"
    uploaded(level, store, entry)
    assert level.find([KEY], any_fits) is not None, "bad values were replaced"


@pytest.mark.parametrize("what", ["entry", "blob"])
def test_a_value_that_was_cut_is_a_miss(
    what: str, connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    entry = uploaded(level, store, published(store))
    name = (
        remote_values.entry_name(KEY, entry.name) if what == "entry" else remote_values.blob_name(entry.blobs["result"])
    )
    client = connect(DELAY)
    whole = client.get(name, 1 << 20, Deadline(DELAY))
    assert whole is not None and client.put(name, whole[:-1], Deadline(DELAY), replace=True)
    assert level.find([KEY], any_fits) is None
    assert counted()["error:not_authentic"] == 1
    client.close()


@pytest.mark.parametrize("kind", ["entry", "blob"])
def test_a_value_that_is_too_large_is_not_read(
    kind: str, connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    entry = uploaded(level, store, published(store))
    name = (
        remote_values.entry_name(KEY, entry.name) if kind == "entry" else remote_values.blob_name(entry.blobs["empty"])
    )
    client = connect(DELAY)
    client.put(name, b"x" * ((16 << 20) + 200 if kind == "entry" else 200), Deadline(DELAY), replace=True)
    assert level.find([KEY], any_fits) is None
    assert counted()["error:too_large"] == 1
    with pytest.raises(RemoteError, match="too_large"):
        client.get(name, 100, Deadline(DELAY))
    client.close()


def test_an_entry_whose_blob_the_server_has_removed_is_a_miss_until_it_is_uploaded_again(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    import redis

    server = redis.Redis.from_url(servers["redis"])
    server.flushall()
    level = levels(functools.partial(remote.connect, servers["redis"]))
    entry = uploaded(level, store, published(store))
    assert server.delete(remote_values.blob_name(entry.blobs["kernels"])) == 1
    assert level.find([KEY], any_fits) is None and level.state == "closed"
    uploaded(level, store, entry)
    assert level.find([KEY], any_fits) is not None
    assert counted() == {"writes": 2, "misses": 1, "hits": 1}
    assert server.delete(remote_values.entry_name(KEY, entry.name)) == 1
    assert level.find([KEY], any_fits) is None, "its name is still in the index"
    server.close()


def test_an_index_of_nonsense_leads_to_nothing(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    import redis

    server = redis.Redis.from_url(servers["redis"])
    server.flushall()
    server.sadd(remote_values.entry_index(KEY), "../../etc/passwd", b"\xff\xfe", "x" * 200, "ab" * 32)
    level = levels(functools.partial(remote.connect, servers["redis"]))
    assert level.find([KEY], any_fits) is None and level.state == "closed"
    server.set(remote_values.entry_index(OTHER_KEY), "not even a set")
    assert level.find([OTHER_KEY], any_fits) is None and level.state == "open"
    assert counted() == {"misses": 1, "error:answer": 1, "left_alone": 1}
    server.close()


def test_three_values_that_do_not_verify_end_the_use(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(4)]
    level, others = levels(connect), levels(connect, OTHER_RING)
    for key in keys:
        uploaded(others, store, published(store, key, blobs={}))
    states = [(level.find([key], any_fits), level.state)[1] for key in keys]
    assert states == ["closed", "closed", "open", "open"]
    assert counted() == {"writes": 4, "misses": 3, "error:not_authentic": 3, "left_alone": 1, "not_asked": 1}


def test_at_most_64_entries_of_a_key_are_read(servers: dict[str, str], levels: Callable[..., RemoteLevel]) -> None:
    import redis

    server = redis.Redis.from_url(servers["redis"])
    server.flushall()
    server.sadd(remote_values.entry_index(KEY), *(hashlib.sha256(bytes([number])).hexdigest() for number in range(100)))
    server.config_resetstat()
    assert levels(functools.partial(remote.connect, servers["redis"])).find([KEY], any_fits) is None
    assert server.info("commandstats")["cmdstat_getrange"]["calls"] == 64
    server.close()


def test_a_server_that_refuses_writes_is_read(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    address = servers["redis"]
    server = redis.Redis.from_url(address)
    server.flushall()
    server.acl_setuser("reader", enabled=True, reset=True, passwords=["+secret"], keys=["*"], categories=["+@read"])
    as_reader = f"{address.replace('unix://', 'unix://reader:secret@')}"
    uploaded(levels(functools.partial(remote.connect, address)), store, published(store))
    reader = levels(functools.partial(remote.connect, as_reader))
    assert reader.find([KEY], any_fits) is not None
    uploaded(reader, store, published(store, OTHER_KEY))
    assert reader.find([KEY], any_fits) is not None and reader.state == "closed"
    assert counted() == {"writes": 1, "hits": 2, "error:upload_answer": 1, "not_uploaded": 1}
    assert "FXPOOL_REMOTE_USE=read-only" in caplog.text
    server.close()


def test_what_is_not_uploaded_at_the_end_is_left_to_the_next_process(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    import redis

    redis.Redis.from_url(servers["redis"]).flushall()
    nobody = levels(lambda seconds: remote.connect("redis://127.0.0.1:1/0", seconds))
    entries = [published(store), published(store, OTHER_KEY)]
    for entry in entries:
        nobody.uploads.offer(store.root, entry.key, entry.name)
    nobody.close()
    assert sorted(pending_uploads.listed(store.root)) == sorted((entry.key, entry.name) for entry in entries)
    assert counted()["postponed"] == 2
    level = levels(functools.partial(remote.connect, servers["redis"]))
    uploaded(level, store, published(store, hashlib.sha256(b"a third").hexdigest()))
    assert pending_uploads.listed(store.root) == [] and counted()["writes"] == 3
    assert level.find([KEY], any_fits) is not None


def test_marks_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending_uploads, "MOST", 2)
    names = [hashlib.sha256(bytes([number])).hexdigest() for number in range(3)]
    assert pending_uploads.leave(str(tmp_path), [(KEY, name) for name in names]) == 2
    (tmp_path / "pending" / "something else").touch()
    assert all(name in names for _, name in pending_uploads.listed(str(tmp_path)))
    pending_uploads.remove(str(tmp_path), KEY, names[0])
    pending_uploads.remove(str(tmp_path), KEY, names[0])
    (tmp_path / "not a directory").touch()
    assert pending_uploads.leave(str(tmp_path / "not a directory"), [(KEY, names[0])]) == 0
    assert [name for _, name in pending_uploads.listed(str(tmp_path))] == [names[1]]


def test_a_long_queue_is_marked_too(
    levels: Callable[..., RemoteLevel], store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MOST_WAITING", 1)
    nobody = levels(lambda seconds: remote.connect("redis://127.0.0.1:1/0", seconds))
    first, second = published(store), published(store, OTHER_KEY)
    nobody.uploads._waiting.append((store.root, first.key, first.name))
    nobody.uploads.offer(store.root, second.key, second.name)
    assert pending_uploads.listed(store.root) == [(second.key, second.name)]


def test_an_entry_that_was_cleared_meanwhile_is_not_uploaded(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    level = levels(connect)
    entry = published(store)
    store.clear()
    uploaded(level, store, entry)
    assert counted() == {}


def test_a_forked_child_has_connections_of_its_own(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    import redis

    redis.Redis.from_url(servers["redis"]).flushall()
    connect = functools.partial(remote.connect, servers["redis"])
    level = levels(connect)
    uploaded(level, store, published(store))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            found = RemoteLevel(connect, RING, delay=DELAY).find([KEY], any_fits)
            level.close()
            code = 0 if found is not None else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert level.find([KEY], any_fits) is not None, "the parent's connection is as it was"


def test_a_child_of_who_has_used_obstore_does_without(servers: dict[str, str]) -> None:
    client = remote.connect(servers["s3"], DELAY)
    assert client.get("nothing", 10, Deadline(DELAY)) is None
    child = os.fork()
    if child == 0:
        code = 1
        try:
            remote.connect(servers["s3"], DELAY).get("nothing", 10, Deadline(DELAY))
        except RemoteError as error:
            code = 0 if error.reason == "forked" else 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_bucket_that_does_not_exist(servers: dict[str, str], levels: Callable[..., RemoteLevel]) -> None:
    connect = functools.partial(remote.connect, "s3://no-such-bucket/x")
    level = levels(connect)
    assert level.find([KEY], any_fits) is None
    assert counted() == {"error:answer": 1, "left_alone": 1}
    with pytest.raises(RemoteError, match="answer"):
        connect(DELAY).put("name", b"value", Deadline(DELAY), replace=False)


def test_the_key_is_in_no_value_name_or_log(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore, caplog: pytest.LogCaptureFixture
) -> None:
    import redis

    server = redis.Redis.from_url(servers["redis"])
    server.flushall()
    connect = functools.partial(remote.connect, servers["redis"])
    secret, other = os.urandom(KEY_BYTES), os.urandom(KEY_BYTES)
    with caplog.at_level(logging.DEBUG):
        entry = uploaded(levels(connect, Keyring([secret])), store, published(store))
        assert levels(connect, Keyring([secret])).find([KEY], any_fits) is not None
        assert levels(connect, Keyring([other])).find([KEY], any_fits) is None
        server.set(remote_values.entry_name(KEY, entry.name), b"damaged")
        assert levels(connect, Keyring([secret])).find([KEY], any_fits) is None
    assert "ignoring a value of the remote cache" in caplog.text
    names = [name for name in server.scan_iter() if server.type(name) == b"string"]
    assert len(names) == 4
    everything = b"\n".join([*server.keys(), *map(server.get, names), caplog.text.encode()])
    server.close()
    for key in (secret, other):
        for form in (key, key.hex().encode(), key.hex().upper().encode(), repr(key)[2:-1].encode()):
            assert form not in everything


def test_a_server_that_grants_only_the_documented_rights_is_used(
    servers: dict[str, str], levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    import redis

    server = redis.Redis.from_url(servers["redis"])
    server.flushall()
    rights = ["+getrange", "+srandmember"]
    for name, more in (("reader", []), ("writer", ["+set", "+sadd"])):
        server.acl_setuser(name, enabled=True, reset=True, passwords=["+secret"], keys=["fxpool/*"],
                           commands=[*rights, *more])  # fmt: skip
    server.close()

    def level_of(name: str) -> RemoteLevel:
        address = servers["redis"].replace("unix://", f"unix://{name}:secret@")
        return levels(functools.partial(remote.connect, address))

    entry = uploaded(level_of("writer"), store, published(store))
    assert (found := level_of("reader").find([KEY], any_fits)) is not None and found.entry == entry
    assert counted() == {"writes": 1, "hits": 1}


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("redis://user:secret@host:6379/0?x=secret", "redis://host:6379/0"),
        ("unix://:secret@/run/redis.sock", "unix:///run/redis.sock"),
        ("s3://bucket/prefix", "s3://bucket/prefix"),
    ],
)
def test_what_is_shown_of_an_address_has_no_secret(address: str, shown: str) -> None:
    assert remote.shown(address) == shown


@pytest.mark.parametrize(("address", "extra"), [("redis://host", "redis"), ("s3://bucket", "s3")])
def test_a_missing_package_is_named(address: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from fxpool.errors import ConfigurationError

    package = {"redis": "redis", "s3": "obstore"}[extra]
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"pip install 'fxpool\[{extra}\]'"):
        remote.connect(address, 1.0)


@pytest.mark.parametrize("address", ["redis://host:port/0", "redis://host:6379/zero?db=many"])
def test_an_address_that_the_client_does_not_take(address: str) -> None:
    from fxpool.errors import ConfigurationError

    with pytest.raises(ConfigurationError, match="not the address of a remote cache"):
        remote.connect(address, 1.0)


def test_a_digest_is_compared_with_the_content(
    connect: Connect, levels: Callable[..., RemoteLevel], store: LocalStore
) -> None:
    """Who has the key has sealed another content under a blob's name."""
    level = levels(connect)
    entry = uploaded(level, store, published(store))
    name = remote_values.blob_name(entry.blobs["result"])
    content = bytes(len(BLOBS["result"]))
    assert BlobRef.of(content) != entry.blobs["result"]
    client = connect(DELAY)
    client.put(name, remote_values.pack(RING, name, content), Deadline(DELAY), replace=True)
    assert level.find([KEY], any_fits) is None
    assert counted()["error:damaged"] == 1
    client.close()
