"""A program whose standard streams are closed: what it opens gets their numbers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pool_place import HERE, Place

_PROGRAM = """
import json, os, sys
from fxpool.pool import JobSpec, PoolClient, PoolConfig
from fxpool.pool.host import fork_inheritance

settings = json.loads(sys.argv[1])
with PoolClient(PoolConfig(sys_path=(sys.argv[2],), **settings)) as pool:
    answers = [pool.submit("pool_jobs:echo", b"x", JobSpec(label="echo")).result(timeout=40)]
    if settings.get("host"):  # and once more, to the server that is found
        with PoolClient(PoolConfig(sys_path=(sys.argv[2],), **settings)) as other:
            answers.append(other.submit("pool_jobs:echo", b"y", JobSpec(label="echo")).result(timeout=40))
    numbers = sorted(sock.fileno() for sock in fork_inheritance.sockets)
with open(sys.argv[3], "w") as file:
    json.dump([[bytes(answer).decode() for answer in answers], numbers], file)
"""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("host", ["", "env"])
def test_a_server_is_started_and_found_where_streams_are_closed(place: Place, closed: str, host: str) -> None:
    settings = {"workers": 1, "runtime_dir": str(place.runtime), "environment": place.environment, "host": host}
    answer = place.mark("mark-answer")
    command = [sys.executable, "-c", _PROGRAM, json.dumps({**settings, "idle_timeout": 0.2}), str(HERE), str(answer)]
    ended = subprocess.run(
        ["bash", "-c", f'exec "$@" {closed}', "bash", *command], env={**os.environ, **place.environment}, timeout=50
    )
    assert ended.returncode == 0
    said, numbers = json.loads(Path(answer).read_text())
    assert said == (["x", "y"] if host else ["x"])
    # A connection that has a stream's number is what the program's output would be written to.
    assert numbers and min(numbers) > 2
    (place.runtime / "host.lock").unlink(missing_ok=True)
