"""Requests that a farm may take, the seals of both directions, and a machine's answers."""

from __future__ import annotations

import dataclasses
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from capturing import captured, complete

import fxpool
from fxpool import config, notices
from fxpool.codecache.bundle.authentication import Keyring, new_key
from fxpool.codecache.key import build_digests
from fxpool.codecache.remote import remote_values
from fxpool.codecache.store.store import FRESH
from fxpool.errors import (
    ConfigurationError,
    CorruptEntryError,
    JobCancelledError,
    NotAuthenticError,
    ServerLostError,
    WorkerDiedError,
)
from fxpool.farm import machine
from fxpool.farm.engine import Answer
from fxpool.farm.machine import LocalMachine
from fxpool.lowering.artifact.entry_parts import decode_reply
from fxpool.lowering.compiling import farm, remote
from fxpool.lowering.core.farm_orders import AWAY_JOB, FarmOrder, request_name, result_name
from fxpool.lowering.core.runtime import runtime
from fxpool.lowering.request.compile_request import FX, PACKAGE, CompileRequest
from fxpool.pool import JobSpec
from fxpool.pool.wire.farm import Away, Order
from fxpool.torch_compat.inductor.debug_files import DebugFiles

FARM = "dask://127.0.0.1:9"
# Seconds that end a broken test.
LIMIT = 60.0


def sines(x: torch.Tensor) -> torch.Tensor:
    return x.sin().sum(-1)


def key_file(directory: Path, name: str) -> Path:
    path = directory / name
    path.write_text(new_key())
    path.chmod(0o600)
    return path


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The key file of a process with a farm."""
    path = key_file(tmp_path, "key")
    monkeypatch.setenv("FXPOOL_FARM", FARM)
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(path))
    return path


@pytest.fixture
def request_of_sines(tmp_path: Path) -> CompileRequest:
    (only,) = captured(sines, torch.randn(4, 8), run=False)
    return complete(only, str(tmp_path / "c"))


def with_option(request: CompileRequest, name: str) -> dict[str, Any]:
    configuration = {**request.ambient.configuration}
    configuration["inductor"] = {**configuration["inductor"], name: True}
    return {"ambient": dataclasses.replace(request.ambient, configuration=configuration)}


def reasons() -> dict[str, int]:
    """Return the counted reasons for which graphs stayed at home."""
    table = fxpool.stats()["farm"]
    return {name.removeprefix("home:"): count for name, count in table.items() if count and name != "compiled"}


# ---------------------------------------------------------------- requests that a farm may take


@pytest.mark.parametrize(
    "changes",
    [
        lambda request: {},
        lambda request: {"level": FX},
        lambda request: with_option(request, "max_autotune"),  # templates of the CPU depend on the builds only
        lambda request: {"timing": "0", "visible": None},
        lambda request: {"store": "/elsewhere/store"},
    ],
    ids=["plain", "fx", "autotuned for the CPU", "GPU", "other store"],
)
def test_a_farm_may_take_a_request(
    changes: Callable[[CompileRequest], dict[str, Any]], key: Path, request_of_sines: CompileRequest
) -> None:
    assert farm.may_take(dataclasses.replace(request_of_sines, **changes(request_of_sines)), config.current())


@pytest.mark.parametrize(
    "changes",
    [
        lambda request: {"key": None},
        lambda request: {"store": None},
        lambda request: {"store": f"/tmp/torchinductor/{FRESH}"},
        lambda request: {"level": PACKAGE},
        lambda request: {"debug_files": DebugFiles.__new__(DebugFiles)},
        lambda request: {"visible": "0"},
        lambda request: {"timing": "0", **with_option(request, "max_autotune")},
        lambda request: {"timing": "0", **with_option(request, "max_autotune_gemm")},
    ],
    ids=[
        "bypassed",
        "no store",
        "fresh cache",
        "package",
        "debug files",
        "sees devices",
        "autotuned",
        "autotuned gemm",
    ],
)
def test_a_request_stays_at_home(
    changes: Callable[[CompileRequest], dict[str, Any]], key: Path, request_of_sines: CompileRequest
) -> None:
    assert not farm.may_take(dataclasses.replace(request_of_sines, **changes(request_of_sines)), config.current())


def test_without_the_setting_no_request_leaves(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert farm.may_take(request_of_sines, config.current())
    monkeypatch.delenv("FXPOOL_FARM")
    assert not farm.may_take(request_of_sines, config.current())


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        (None, "", "cannot be trusted without a key"),
        (0o644, new_key(), "other users can read"),
        (0o600, "not a key", "hexadecimal digits"),
    ],
    ids=["unset", "readable by others", "garbage"],
)
def test_a_farm_without_a_key_is_switched_off_once(
    mode: int | None,
    text: str,
    words: str,
    key: Path,
    request_of_sines: CompileRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if mode is None:
        monkeypatch.delenv("FXPOOL_REMOTE_KEY_FILE")
    else:
        key.write_text(text)
        key.chmod(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert [farm.may_take(request_of_sines, config.current()) for _ in range(3)] == [False] * 3
    assert fxpool.stats()["switched_off"]["farm_refused"] == 1
    assert any(words in said for said in notices.texts("farm_refused"))
    assert all(text not in said for said in notices.texts("farm_refused") if text), "a secret"
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(key_file(key.parent, "other")))
    assert farm.may_take(request_of_sines, config.current()), "another key file is read"


# ---------------------------------------------------------------- seals


def test_a_sealed_request(key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FXPOOL_FARM_WAIT", "7")
    environment = {"TORCHINDUCTOR_X": "1", "PATH": "/bin", "TORCHINDUCTOR_REDIS_URL": "secret", "TRITON_DEBUG": "1"}
    ambient = dataclasses.replace(request_of_sines.ambient, environment=environment)
    request = dataclasses.replace(request_of_sines, ambient=ambient)
    payload = request.dump()
    part = farm.away(request, "flight", payload, config.current())
    assert (part.farm, part.function, part.wait) == (FARM, AWAY_JOB, 7.0)
    assert part.environment == {"TORCHINDUCTOR_X": "1", "TRITON_DEBUG": "1"}, "paths and passwords stay here"
    assert part.builds == build_digests.digests(request.toolchain_dir)
    keyring = Keyring.load(key)
    assert keyring.open(request_name(part.key), part.seal + payload) == payload
    for name, data in ((request_name("other"), payload), (result_name(part.key), payload), (part.key, payload[:-1])):
        with pytest.raises(NotAuthenticError):
            keyring.open(name, part.seal + data)


def test_equal_flights_have_equal_keys(key: Path, request_of_sines: CompileRequest) -> None:
    asks = (("a/b", b"1"), ("a/b", b"2"), ("b", b"1"))
    first, second, third = (
        farm.away(request_of_sines, flight, payload, config.current()).key for flight, payload in asks
    )
    assert first == second != third
    assert first.isalnum(), "it is a part of names"


def test_code_for_devices_needs_no_builds_of_the_processor(key: Path, request_of_sines: CompileRequest) -> None:
    device: Any = object()
    part = farm.away(dataclasses.replace(request_of_sines, devices=(device,)), "flight", b"", config.current())
    everything = build_digests.digests(request_of_sines.toolchain_dir)
    assert part.builds == build_digests.digests(request_of_sines.toolchain_dir, cpp=False)
    assert part.builds.items() < everything.items()


def sealed(path: Path, name: str, content: bytes) -> bytes:
    return remote_values.pack(Keyring.load(path), name, content)


@pytest.mark.parametrize("content", [b"", b"short", b"long " * 10_000])
def test_a_result_is_opened(content: bytes, key: Path) -> None:
    assert farm.opened("k", sealed(key, result_name("k"), content), config.current()) == content


def test_a_result_that_is_not_authentic_is_refused(key: Path, tmp_path: Path) -> None:
    right = sealed(key, result_name("k"), b"result")
    forged = [
        sealed(key_file(tmp_path, "other"), result_name("k"), b"result"),
        sealed(key, result_name("another"), b"result"),
        sealed(key, request_name("k"), b"result"),  # a request, sent back
        right[:-1] + b"!",
        right[:20],
        b"",
    ]
    for data in forged:
        with pytest.raises(NotAuthenticError):
            farm.opened("k", data, config.current())


def test_a_result_that_is_too_large_is_refused(key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(farm, "_MOST", 1000)
    for content in (b"x" * 1001, bytes(range(256)) * 4):
        with pytest.raises(CorruptEntryError, match="maximum"):
            farm.opened("k", sealed(key, result_name("k"), content), config.current())


# ---------------------------------------------------------------- submitting


class Submitted:
    """Plays the pool: `outcomes` are a job's data and facts, or errors, of one submission each."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *outcomes: tuple[bytes, dict[str, Any]] | Exception) -> None:
        self.aways: list[Away | None] = []
        self._outcomes = list(outcomes)
        monkeypatch.setattr(remote, "_submit_once", self._submit_once)

    def _submit_once(
        self, request: CompileRequest, payload: bytes, attempt: Any, flight: str, away: Away | None, on_ask: Any
    ) -> tuple[bytes, Any]:
        self.aways.append(away)
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome[0], SimpleNamespace(**{"machine": "", "stayed": "", "why": "", "joined": False, **outcome[1]})


def submit(request: CompileRequest, flight: str = "f") -> tuple[bytes, Any]:
    attempt: Any = SimpleNamespace(label="graph", settings=config.current())
    return remote.submit(request, attempt, flight)


def farm_key(request: CompileRequest) -> str:
    return farm.away(request, "f", b"", config.current()).key


def test_a_farm_s_result_is_authenticated(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = sealed(key, result_name(farm_key(request_of_sines)), b"reply")
    pool = Submitted(monkeypatch, (result, {"machine": "m"}))
    assert submit(request_of_sines)[0] == b"reply"
    assert len(pool.aways) == 1 and reasons() == {}


def test_a_forged_result_has_the_graph_compiled_at_home(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    forged = sealed(key, result_name("another"), b"reply")
    pool = Submitted(monkeypatch, (forged, {"machine": "m"}), (b"at home", {}))
    assert submit(request_of_sines)[0] == b"at home"
    assert [away is not None for away in pool.aways] == [True, False]
    assert reasons() == {"not_authentic": 1}
    assert "not authentic" in caplog.text and "machine m" in caplog.text


def test_a_reason_to_stay_is_counted_by_the_first_ask(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    stayed = {"stayed": "full", "why": "x"}
    Submitted(monkeypatch, (b"at home", stayed), (b"at home", {**stayed, "joined": True}))
    assert [submit(request_of_sines)[0] for _ in range(2)] == [b"at home"] * 2
    assert reasons() == {"full": 1}


def test_a_lost_server_costs_no_farm(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Submitted(monkeypatch, ServerLostError("gone"), (b"at home", {"stayed": "paused"}))
    assert submit(request_of_sines)[0] == b"at home"
    assert pool.aways[0] == pool.aways[1] is not None


def test_a_job_without_a_flight_stays_at_home(
    key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its result is for this process only."""
    pool = Submitted(monkeypatch, (b"at home", {}))
    assert submit(request_of_sines, flight="")[0] == b"at home"
    assert pool.aways == [None] and reasons() == {}


# ---------------------------------------------------------------- a machine's answers


class PlayedPool:
    """A machine's pool, whose jobs return or raise what the test sets."""

    def __init__(self) -> None:
        self.jobs: list[tuple[str, FarmOrder, JobSpec]] = []
        self.outcomes: list[bytes | Exception] = []
        self.waits = threading.Event()
        self.cancelled = threading.Event()

    def start(self, wait: bool) -> None:
        pass

    def submit(self, function: str, payload: bytes, spec: JobSpec) -> PlayedPool:
        self.jobs.append((function, msgspec.msgpack.decode(payload, type=FarmOrder), spec))
        return self

    def result(self) -> bytes:
        if not self.outcomes:
            self.waits.set()
            assert self.cancelled.wait(LIMIT)
            raise JobCancelledError("by its caller")
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def cancel(self) -> None:
        self.cancelled.set()


@pytest.fixture
def played(key: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedPool:
    pool = PlayedPool()
    monkeypatch.setattr(runtime, "pool", lambda: pool)
    return pool


def order(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "key": "k",
        "label": "graph",
        "function": AWAY_JOB,
        "seal": b"seal",
        "environment": {"TRITON_DEBUG": "1"},
        "builds": {"torch": "1"},
        "timeout": 5.0,
        "payload": b"request",
    }
    return msgspec.msgpack.encode(Order(**{**fields, **changes}))


def answered(packed: bytes) -> Answer:
    return msgspec.msgpack.decode(packed, type=Answer)


def test_a_machine_runs_an_order(played: PlayedPool, key: Path) -> None:
    played.outcomes = [b"sealed result"]
    with machine.of_this_process(LocalMachine(3)) as this:
        answer = answered(machine.run(order()))
        assert (answer.machine, answer.error, answer.payload) == (this.name, "", b"sealed result")
        assert 0 <= answer.seconds < LIMIT
        facts = this.announced("tcp://m")
        assert (facts.name, facts.address, facts.slots, facts.jobs) == (this.name, "tcp://m", 3, 0)
        assert facts.builds == build_digests.digests(runtime.toolchain_directory(runtime.store()))
    ((sent, spec),) = [(sent, spec) for function, sent, spec in played.jobs if function == AWAY_JOB]
    assert (sent.seal, sent.request, sent.key_file) == (b"seal", b"request", str(key))
    assert sent.builds == {"torch": "1"}
    assert (spec.label, spec.timeout, spec.environment["TRITON_DEBUG"]) == ("graph", 5.0, "1")
    assert spec.dedup_key and not spec.best_effort
    assert all(spec.best_effort for function, _, spec in played.jobs if function != AWAY_JOB), (
        "it waits for no other job"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (NotAuthenticError("n", "its MAC is wrong"), "NotAuthenticError: n is not authentic"),
        (WorkerDiedError("graph", signal=11), "WorkerDiedError: "),
        (ValueError("x" * 10_000), "ValueError: xxx"),
        (RecursionError(), "RecursionError: "),
    ],
)
def test_an_error_is_an_answer(error: Exception, words: str, played: PlayedPool) -> None:
    played.outcomes = [error]
    with machine.of_this_process(LocalMachine(1)) as this:
        answer = answered(this.run(order()))
        assert this.announced().jobs == 0
    assert answer.error.startswith(words) and len(answer.error) <= 500
    assert (answer.machine, answer.payload) == (this.name, b"")


@pytest.mark.parametrize("packed", [b"", b"\xc1", msgspec.msgpack.encode({"key": "k"}), order()[:-1]])
def test_an_order_that_cannot_be_read_is_answered(packed: bytes, played: PlayedPool) -> None:
    with machine.of_this_process(LocalMachine(1)) as this:
        answer = answered(this.run(packed))
    assert answer.error and not played.jobs


def test_a_machine_s_lost_server_costs_a_retry(played: PlayedPool) -> None:
    played.outcomes = [ServerLostError("gone"), b"result"]
    with machine.of_this_process(LocalMachine(1)) as this:
        assert answered(this.run(order())).payload == b"result"
        played.outcomes = [ServerLostError("gone")] * 9
        assert "ServerLostError" in answered(this.run(order())).error
    assert 0 < len(played.outcomes) < 9, "it is not tried for ever"


def test_a_withdrawn_job_ends(played: PlayedPool) -> None:
    with machine.of_this_process(LocalMachine(1)) as this:
        this.cancel("k")  # it has not begun
        answers: list[Answer] = []
        thread = threading.Thread(target=lambda: answers.append(answered(this.run(order()))))
        thread.start()
        assert played.waits.wait(LIMIT)
        assert (this.announced().jobs, this.announced().running) == (1, ["k"])
        this.cancel("another")
        assert not played.cancelled.is_set()
        this.cancel("k")
        thread.join(LIMIT)
        assert answers[0].error.startswith("JobCancelledError")
        assert (this.announced().jobs, this.announced().running) == (0, [])


def test_a_machine_that_ends_withdraws_its_jobs(played: PlayedPool) -> None:
    with machine.of_this_process(LocalMachine(1)) as this:
        thread = threading.Thread(target=this.run, args=(order(),))
        thread.start()
        assert played.waits.wait(LIMIT)
    thread.join(LIMIT)
    assert not thread.is_alive()


def test_a_process_that_is_no_machine_says_so() -> None:
    assert "no farm's machine" in answered(machine.run(order())).error


def test_a_machine_needs_a_key_and_a_cache(played: PlayedPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FXPOOL_REMOTE_KEY_FILE")
    with pytest.raises(ConfigurationError, match="needs a key file"):
        LocalMachine(1)
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(tmp_path / "missing"))
    with pytest.raises(ConfigurationError, match="cannot read"):
        LocalMachine(1)
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(key_file(tmp_path, "key")))
    monkeypatch.setattr(runtime, "store", lambda: None)
    with pytest.raises(ConfigurationError, match="needs a cache"):
        LocalMachine(1)


def test_a_machine_compiles_for_its_own_key_and_builds_only(
    shared_pool: Path, cache: Path, key: Path, request_of_sines: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real workers: the host's part, the machine's, and back."""
    request = dataclasses.replace(request_of_sines, toolchain_dir=str(cache / "toolchain"))
    payload = request.dump()
    part = farm.away(request, "flight", payload, config.current())
    fields = {"key": part.key, "seal": part.seal, "builds": part.builds, "environment": {}, "payload": payload}
    with machine.of_this_process(LocalMachine(1)) as this:

        def run(**changes: Any) -> Answer:
            return answered(this.run(order(timeout=None, **{**fields, **changes})))

        assert "NotAuthenticError" in run(payload=payload[:-1] + b"!").error
        assert "NotAuthenticError" in run(key="another").error
        other = run(builds={**part.builds, "torch": "other"}).error
        assert "other builds" in other and other.endswith(": torch")
        answer = run()
        assert answer.error == ""
    reply = decode_reply(farm.opened(part.key, answer.payload, config.current()))
    assert reply.artifact is not None and reply.reference is None
    store = runtime.store()
    assert store is not None and sum(1 for _ in store.scan()) == 1, "the machine has it for the next host"
    monkeypatch.setenv("FXPOOL_REMOTE_KEY_FILE", str(key_file(cache, "other")))
    with pytest.raises(NotAuthenticError):
        farm.opened(part.key, answer.payload, config.current())
