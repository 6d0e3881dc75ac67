"""Ranks of a training job under DistributedDataParallel share what is compiled."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from processes import HERE


def _ranks(width: str, directory: Path) -> list[dict[str, Any]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The first rank's own pool would not know of the second's compiles: the host's, and it ends with the test.
    world = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    pool = {"FXPOOL_POOL": "host", "FXPOOL_IDLE_TIMEOUT": "0.5", "FXPOOL_CACHE_DIR": str(directory / "c")}
    common = {**os.environ, **world, **pool}
    command = [sys.executable, str(HERE / "ddp_child.py"), width]
    ranks = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**common, "RANK": str(rank)}
        )
        for rank in range(2)
    ]
    found = []
    for rank in ranks:
        out, err = rank.communicate(timeout=240)
        assert rank.returncode == 0, err[-4000:]
        found.append(json.loads(out.strip().splitlines()[-1]))
    return found


@pytest.mark.parametrize("width", ["96", "1024"], ids=["one graph", "split by DDPOptimizer"])
def test_each_graph_is_compiled_once_for_both_ranks(width: str, tmp_path: Path) -> None:
    first, second = _ranks(width, tmp_path)
    assert first["bypasses"] == second["bypasses"] == {}
    compiles = [rank["compiles"]["worker"] for rank in (first, second)]
    others = [rank["hits"] + rank["joined"] for rank in (first, second)]
    graphs = compiles[0] + others[0]
    assert compiles[1] + others[1] == graphs, "both have the same graphs"
    assert first["compiles"]["in_process"] == second["compiles"]["in_process"] == 0
    assert sum(compiles) == graphs, "one compile each"
    if width == "96":
        assert (graphs, first["fallbacks"]) == (1, {})
    else:
        assert graphs == 4, "two graphs, forward and backward"
        assert set(first["fallbacks"]) == {"fakify_first_call"}, "the way over AOTAutograd's graphs, counted"
