"""The server of the demonstration: a run waits until it is quiet, and none of it is left."""

from __future__ import annotations

from collections.abc import Callable

import psutil
from pool_place import Place, until

from fxpool.bench.demo import own_server
from fxpool.pool import JobSpec, PoolClient

Make = Callable[..., PoolClient]


def test_it_is_quiet_when_nothing_of_it_takes_a_cpu_and_gone_after_the_demonstration(
    make_client: Make, place: Place
) -> None:
    assert own_server.quiet(place.runtime, patience=0.0)  # there is none
    with own_server.own_server(place.runtime):
        client = make_client(host="env", idle_timeout=60.0)
        busy = client.submit("pool_jobs:spin", b"", JobSpec(label="spin"))
        assert until(lambda: any(row["label"] == "spin" for row in client.status()["running"]))
        assert not own_server.quiet(place.runtime, patience=0.5)
        busy.cancel()
        assert own_server.quiet(place.runtime, patience=30.0)
        server = psutil.Process(client.server_pid)
        client.close()
        assert server.is_running()
    assert not server.is_running() and not place.processes()
    (place.runtime / "host.lock").unlink(missing_ok=True)
