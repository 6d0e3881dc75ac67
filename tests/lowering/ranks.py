"""Two ranks of a job on gloo, as processes that share the host's pool and a cache."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from processes import HERE


def reports(program: str, *arguments: str, directory: Path) -> list[dict[str, Any]]:
    """Return what each rank of a program beside this file prints last: one line of JSON."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The first rank's own pool would not know of the second's compiles: the host's, and it ends with the test.
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pool = {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "0.5", "FXPOOL_CACHE_DIR": str(directory / "c")}
    common = {**os.environ, **world, **pool}
    command = [sys.executable, str(HERE / program), *arguments]
    ranks = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**common, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    made = []
    for rank in ranks:
        out, err = rank.communicate(timeout=240)
        assert rank.returncode == 0, err[-4000:]
        made.append(json.loads(out.strip().splitlines()[-1]))
    return made
