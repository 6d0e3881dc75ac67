"""Ranks of a training job under DistributedDataParallel share what is compiled."""

from __future__ import annotations

from pathlib import Path

import pytest
import ranks
from tiers import first_tier


@pytest.mark.slow
@pytest.mark.parametrize("width", first_tier(["96", "1024"], "1024"), ids=["one graph", "split by DDPOptimizer"])
def test_each_graph_is_compiled_once_for_both_ranks(width: str, tmp_path: Path) -> None:
    first, second = ranks.reports("ddp_child.py", width, directory=tmp_path)
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
