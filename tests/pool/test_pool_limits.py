"""The number of workers, read from made-up cgroup trees."""

from __future__ import annotations

from pathlib import Path

import pytest

from fxpool.pool.host.limits import cpu_quota, default_workers, memory_groups


def proc(tmp_path: Path, groups: str, *mounts: tuple[str, str, str, str]) -> Path:
    """A /proc/self with these cgroup lines and (root, mount point, type, super options) mounts."""
    here = tmp_path / "proc"
    here.mkdir()
    (here / "cgroup").write_text(groups)
    lines = ["22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda rw"]
    for number, (root, point, kind, options) in enumerate(mounts):
        lines.append(f"{30 + number} 22 0:{number} {root} {point} rw,nosuid shared:{number} - {kind} cgroup {options}")
    (here / "mountinfo").write_text("\n".join(lines) + "\n")
    return here


def group(path: Path, **files: str) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (path / name.replace("cpu_", "cpu.", 1)).write_text(text)
    return path


def test_the_machine_itself() -> None:
    count, rule = default_workers()
    assert count >= 1
    assert rule


def test_affinity_without_a_quota(tmp_path: Path) -> None:
    assert default_workers(affinity=6, proc=proc(tmp_path, "0::/\n")) == (6, "CPU affinity")
    assert default_workers(affinity=6, proc=tmp_path / "nothing") == (6, "CPU affinity")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200000 100000\n", 2),
        ("150000 100000\n", 2),
        ("50000 100000\n", 1),
        ("max 100000\n", 64),
        ("9900000 100000\n", 64),
        ("rubbish", 64),
        ("", 64),
    ],
)
def test_v2_quota(tmp_path: Path, text: str, expected: int) -> None:
    mount = tmp_path / "cg"
    group(mount / "a" / "b", cpu_max=text)
    where = proc(tmp_path, "0::/a/b\n", ("/", str(mount), "cgroup2", "rw"))
    count, rule = default_workers(affinity=64, proc=where)
    assert count == expected
    assert (rule == f"CPU quota in {mount}/a/b/cpu.max") == (expected < 64)


def test_v2_the_tightest_group_on_the_path_counts(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    group(mount / "a", cpu_max="300000 100000")
    group(mount / "a" / "b", cpu_max="800000 100000")
    where = proc(tmp_path, "0::/a/b\n", ("/", str(mount), "cgroup2", "rw"))
    assert cpu_quota(where) == (3.0, f"CPU quota in {mount}/a/cpu.max")


def test_v2_inside_a_container(tmp_path: Path) -> None:
    # The mount shows the container's part only, and the path is the host's.
    mount = tmp_path / "cg"
    group(mount, cpu_max="400000 100000")
    group(mount / "inner", cpu_max="max 100000")
    where = proc(tmp_path, "0::/docker/123/inner\n", ("/docker/123", str(mount), "cgroup2", "rw"))
    assert cpu_quota(where) == (4.0, f"CPU quota in {mount}/cpu.max")


def test_v2_path_that_is_not_there(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    group(mount, cpu_max="400000 100000")
    where = proc(tmp_path, "0::/../other\n", ("/", str(mount), "cgroup2", "rw"))
    assert cpu_quota(where) == (4.0, f"CPU quota in {mount}/cpu.max")


def test_v1_quota(tmp_path: Path) -> None:
    mount = tmp_path / "cpu,cpuacct"
    group(mount, cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    group(mount / "job", cpu_cfs_quota_us="250000\n", cpu_cfs_period_us="100000\n")
    groups = "5:memory:/x\n4:cpu,cpuacct:/job\n1:name=systemd:/\n0::/\n"
    where = proc(tmp_path, groups, ("/", str(mount), "cgroup", "rw,cpu,cpuacct"))
    assert default_workers(affinity=64, proc=where) == (3, f"CPU quota in {mount}/job/cpu.cfs_quota_us")


def test_v1_without_a_quota(tmp_path: Path) -> None:
    mount = tmp_path / "cpu"
    group(mount, cpu_cfs_quota_us="-1\n", cpu_cfs_period_us="100000\n")
    where = proc(tmp_path, "4:cpu:/\n", ("/", str(mount), "cgroup", "rw,cpu"))
    assert cpu_quota(where) is None


def test_mount_points_with_spaces(tmp_path: Path) -> None:
    mount = group(tmp_path / "c g", cpu_max="100000 100000")
    where = proc(tmp_path, "0::/\n", ("/", str(mount).replace(" ", "\\040"), "cgroup2", "rw"))
    assert cpu_quota(where) == (1.0, f"CPU quota in {mount}/cpu.max")


# ---------------------------------------------------------------- memory


def test_v2_memory(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    group(mount / "a", **{"memory.max": "1000\n"})
    group(mount / "a" / "b", **{"memory.max": "max\n"})
    where = proc(tmp_path, "0::/a/b\n", ("/", str(mount), "cgroup2", "rw"))
    (found,) = memory_groups(where)
    assert (found.limit, found.usage) == (1000, mount / "a" / "memory.current")


def test_v1_memory(tmp_path: Path) -> None:
    mount = tmp_path / "cg"
    group(mount / "a" / "b", **{"memory.limit_in_bytes": "1000\n"})
    group(mount / "a", **{"memory.limit_in_bytes": "9223372036854771712\n"})  # none
    where = proc(tmp_path, "4:memory:/a/b\n2:cpu:/\n0::/\n", ("/", str(mount), "cgroup", "rw,memory"))
    (found,) = memory_groups(where)
    assert (found.limit, found.usage) == (1000, mount / "a" / "b" / "memory.usage_in_bytes")


def test_no_memory_group(tmp_path: Path) -> None:
    assert memory_groups(tmp_path / "nothing") == []
    assert memory_groups(proc(tmp_path, "0::/\n")) == []
