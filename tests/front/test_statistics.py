from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import fxpool
from fxpool import statistics


def test_the_names_are_there_before_anything_was_counted() -> None:
    snapshot = statistics.snapshot()
    assert [snapshot[name] for name in ("hits", "misses", "guard_misses")] == [0, 0, 0]
    assert snapshot["bypasses"] == snapshot["fallbacks"] == {}
    assert snapshot["compiles"] == {"worker": 0, "in_process": 0}
    assert (snapshot["seconds_saved"], snapshot["graphs"]) == (0.0, [])


def test_numbers_and_tables_of_reasons() -> None:
    statistics.count("hits")
    statistics.count("hits", n=2)
    statistics.count("bypasses", "has_hop")
    statistics.count("compiles", "worker")
    statistics.count("something_new", "why")
    statistics.add_seconds_saved(2.5)
    statistics.add_seconds_saved(-1.0)
    snapshot = statistics.snapshot()
    assert snapshot["hits"] == 3
    assert snapshot["bypasses"] == {"has_hop": 1}
    assert snapshot["compiles"] == {"worker": 1, "in_process": 0}
    assert snapshot["something_new"] == {"why": 1}
    assert snapshot["seconds_saved"] == 2.5


def test_a_name_is_a_number_or_a_table() -> None:
    with pytest.raises(ValueError, match="takes no reason"):
        statistics.count("hits", "why")
    with pytest.raises(ValueError, match="needs a reason"):
        statistics.count("fallbacks")


def test_graphs_are_kept_in_order_and_bounded() -> None:
    for number in range(statistics.KEPT_GRAPHS + 5):
        statistics.record_graph({"label": number})
    graphs = statistics.snapshot()["graphs"]
    assert len(graphs) == statistics.KEPT_GRAPHS
    assert (graphs[0]["label"], graphs[-1]["label"]) == (5, statistics.KEPT_GRAPHS + 4)


def test_a_snapshot_is_a_copy() -> None:
    statistics.record_graph({"label": "a"})
    snapshot = statistics.snapshot()
    snapshot["compiles"]["worker"] = 9
    snapshot["graphs"][0]["label"] = "b"
    assert statistics.snapshot()["compiles"]["worker"] == 0
    assert statistics.snapshot()["graphs"][0]["label"] == "a"


def test_counting_from_many_threads_loses_nothing() -> None:
    def work() -> None:
        for _ in range(2000):
            statistics.count("misses")
            statistics.count("fallbacks", "x")

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = statistics.snapshot()
    assert (snapshot["misses"], snapshot["fallbacks"]["x"]) == (16000, 16000)


def test_stats_is_plain_data_with_the_stores_sizes(tmp_path: Path) -> None:
    statistics.count("misses")
    assert fxpool.stats()["store"] is None  # asking does not create the directory
    cache = tmp_path / "made"
    cache.mkdir(mode=0o700)
    fxpool.configure(cache_dir=cache)
    stats = fxpool.stats()
    assert stats["store"] == {"entries": 0, "blobs": 0, "bytes": 0}
    assert json.loads(json.dumps(stats)) == stats
    (cache / "toolchain").mkdir()
    (cache / "toolchain" / "header.gch").write_bytes(b"h" * 10_000_000)
    assert fxpool.stats()["cache_disk_bytes"] > 10_000_000 > stats["cache_disk_bytes"]
