"""What Prometheus is told: in its own parser's words, from a real server and a real store."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from click.testing import CliRunner
from dashboard_place import Place, fill, place, pool

from fxpool.commands.main import main
from fxpool.commands.output import Listen
from fxpool.dashboard import metrics
from fxpool.errors import MissingExtraError, WorkerDiedError
from fxpool.pool import JobSpec

parser = pytest.importorskip("prometheus_client.parser")


@pytest.fixture
def here() -> Iterator[Place]:
    with place() as made:
        yield made


def values(text: str) -> dict[tuple[str, ...], float]:
    """By (name, label values, in the order of the labels' names): what a scrape has."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_jobs_memory_and_store(here: Place) -> None:
    fill(here, 3)
    source = metrics.Source(here.runtime, here.store)
    with contextlib.closing(source), pool(here, workers=2) as client:
        client.submit("pool_jobs:echo", b"", JobSpec(label="<b>secret</b>")).result()
        with pytest.raises(WorkerDiedError):
            client.submit("pool_jobs:die", b"", JobSpec(label="dies", retries=0)).result()
        text = source.text().decode()
    found = values(text)
    assert "secret" not in text, "no name of a graph"
    (server,) = {key[1] for key in found if key[0] == "fxpool_server_up"}
    for name, expected in {
        "server_up": 1.0, "slots": 2.0, "slots_busy": 0.0, "clients": 1.0, "jobs_submitted_total": 2.0,
        "deaths_total": 1.0, "job_seconds_count": 2.0, "job_wait_seconds_count": 2.0, "paused": 0.0,
    }.items():  # fmt: skip
        assert found[f"fxpool_{name}", server] == expected, name
    assert found["fxpool_jobs_ended_total", "done", server] == 1.0 == found["fxpool_jobs_ended_total", "died", server]
    assert found["fxpool_jobs", server, "queued"] == 0.0 and found["fxpool_memory_bytes", "server", server] > 1 << 20
    assert found["fxpool_job_seconds_bucket", "+Inf", server] == 2.0
    assert 0 < found["fxpool_host_memory_used_ratio", server] < 1
    assert found["fxpool_store_entries",] == 3.0 and found["fxpool_store_bytes", "entries"] > 0
    assert found["fxpool_quarantined_graphs",] == 0.0


def test_without_a_server_and_a_store(here: Place) -> None:
    source = metrics.Source(here.runtime, here.store)
    found = values(source.text().decode())
    assert found["fxpool_store_up",] == 0.0 and found["fxpool_store_entries",] == 0.0
    assert not [key for key in found if key[0] == "fxpool_server_up"]


def get(address: str, **headers: str) -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(urllib.request.Request(address, headers=headers), timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def test_it_is_scraped(here: Place) -> None:
    fill(here, 2)
    with metrics.in_background(here.runtime, here.store, "127.0.0.1", 0) as port:
        address = f"http://127.0.0.1:{port}"
        status, text = get(f"{address}/metrics")
        assert status == 200 and values(text.decode())["fxpool_store_entries",] == 2.0
        assert get(f"{address}/")[0] == 404
        assert get(f"{address}/metrics", Host="evil.example")[0] == 403
        with pytest.raises(OSError):
            with metrics.in_background(here.runtime, here.store, "127.0.0.1", port):
                pass
    with pytest.raises(OSError):
        get(f"{address}/metrics")


def test_the_command_serves_until_it_is_stopped(here: Place) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "fxpool", "metrics", "--listen", "0"],
        env=here.environment,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stdout is not None
        address = child.stdout.readline().strip()
        status, text = get(address)
        assert status == 200 and b"fxpool_store_up" in text
        with pytest.raises(ConnectionRefusedError):  # a server on all addresses has this one
            socket.create_connection(("127.0.0.2", urllib.parse.urlsplit(address).port or 0))
        child.send_signal(signal.SIGTERM)
        assert child.wait(20) == 0
    finally:
        child.kill()
        child.communicate()


def test_the_command_prints_once(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["metrics"])
    assert result.exit_code == 0 and ("fxpool_store_up",) in values(result.output)


def test_a_missing_library_is_said(here: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(MissingExtraError, match="prometheus-client") as raised:
        metrics.Source(here.runtime, here.store)
    assert raised.value.remedy == "pip install 'fxpool[metrics]'"
    result: Any = CliRunner().invoke(main, ["metrics"])
    assert result.exit_code == 2 and "fxpool[metrics]" in result.output


@pytest.mark.parametrize("value", ["x", "-1", "70000", "127.0.0.1:", "127.0.0.1"])
def test_where_to_listen_is_checked(value: str) -> None:
    result = CliRunner().invoke(main, ["metrics", "--listen", value])
    assert result.exit_code == 2 and "is not a port" in result.output
    result = CliRunner().invoke(main, ["serve", "--detach", "--metrics", "9000"])
    assert result.exit_code == 2 and "--detach" in result.output


def test_a_port_is_of_this_machine_only_unless_an_address_is_given() -> None:
    assert Listen().convert("9464", None, None) == ("127.0.0.1", 9464)
    assert Listen().convert("10.0.0.7:9464", None, None) == ("10.0.0.7", 9464)
    assert Listen().convert("[::1]:9464", None, None) == ("::1", 9464)
