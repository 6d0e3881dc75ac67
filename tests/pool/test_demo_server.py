"""The servers of a suite's runs: a run waits until they are idle, and none of the demonstration's is left."""

from __future__ import annotations

import time
from collections.abc import Callable

import psutil
from pool_place import Place, until

from fxpool.bench import servers
from fxpool.pool import JobSpec, PoolClient

Make = Callable[..., PoolClient]


def test_servers_are_idle_when_their_processes_take_no_cpu_and_gone_after_the_demonstration(
    make_client: Make, place: Place
) -> None:
    assert servers.Idleness(place.runtime).reached()  # there are no servers
    with servers.ended(place.runtime):
        client = make_client(host="env", idle_timeout=60.0)
        busy = client.submit("pool_jobs:spin", b"", JobSpec(label="spin"))
        assert until(lambda: any(row["label"] == "spin" for row in client.status()["running"]))
        idleness = servers.Idleness(place.runtime)
        time.sleep(0.5)
        assert not idleness.reached()
        busy.cancel()
        assert until(idleness.reached)
        server = psutil.Process(client.server_pid)
        client.close()
        assert server.is_running()
    assert not server.is_running() and not place.processes()
    (place.runtime / "host.lock").unlink(missing_ok=True)
