"""What a directory over its bounds loses: a decision about plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fxpool.codecache.store.cache_limits import Bounds
from fxpool.codecache.store.catalogue import Size, StoredEntry, StoredFile, sum_of
from fxpool.codecache.store.eviction import Plan, orphans, plan

NOW, GRACE = 1000.0, 100.0


def entry(key: str, used: float, *blobs: str, size: int = 10, seconds: float = 1.0) -> StoredEntry:
    return StoredEntry(f"entries/ab/{key}/n.entry", Size(1, size), used, seconds=seconds, blobs=blobs)


def unreadable(key: str, used: float) -> StoredEntry:
    return StoredEntry(f"entries/ab/{key}/n.entry", Size(1, 10), used)


def blob(name: str, written: float = 0.0, size: int = 10) -> StoredFile:
    return StoredFile(f"blobs/ab/{name}", Size(1, size), written)


def decide(
    entries: Sequence[StoredEntry] = (),
    blobs: Sequence[StoredFile] = (),
    others: Sequence[StoredFile] = (),
    rest: int = 0,
    **bounds: Any,
) -> Plan:
    return plan(
        entries, blobs, others, total((entries, blobs, others, Size(0, rest))), Bounds(grace=GRACE, **bounds), NOW
    )


def keys(removed: Plan) -> list[str]:
    return [one.key for one in removed.entries]


def names(blobs: Sequence[StoredFile]) -> list[str]:
    return [one.name for one in blobs]


# ---------------------------------------------------------------- by hand


def test_nothing_goes_within_the_bounds() -> None:
    entries = [entry("a", 1, "x"), entry("b", 2, "y")]
    blobs = [blob("x"), blob("y")]
    assert decide(entries, blobs, max_bytes=40, max_files=4) == Plan()
    assert decide(entries, blobs) == Plan()


def test_the_least_recently_used_goes_first_with_its_blobs() -> None:
    entries = [entry("new", 30, "z"), entry("old", 10, "x"), entry("middle", 20, "y")]
    removed = decide(entries, [blob("x"), blob("y"), blob("z")], max_bytes=45)
    assert keys(removed) == ["old"] and names(removed.blobs) == ["x"]
    assert removed.freed == Size(2, 20) and not removed.over


def test_of_two_used_at_one_time_the_one_compiled_faster_goes() -> None:
    entries = [entry("slow", 10, seconds=9), entry("fast", 10, seconds=0.1)]
    assert keys(decide(entries, max_files=1)) == ["fast", "slow"]  # one file is more than 90 % of one
    assert keys(decide([*entries, entry("c", 11), entry("d", 12)], max_files=3)) == ["fast", "slow"]


def test_it_goes_on_to_the_low_watermark() -> None:
    entries = [entry(f"{n:03}", n) for n in range(100)]
    assert len(decide(entries, max_files=100).entries) == 0
    assert len(decide([*entries, entry("x", 200)], max_files=100).entries) == 11
    assert len(decide([*entries, entry("x", 200)], max_bytes=1000).entries) == 11


def test_a_bound_that_is_not_exceeded_asks_for_nothing() -> None:
    entries = [entry(f"{n:03}", n, size=1) for n in range(101)]
    assert len(decide(entries, max_files=101, max_bytes=100).entries) == 11
    assert len(decide(entries, max_files=101, max_bytes=101).entries) == 0


def test_a_shared_blob_goes_with_the_last_that_names_it() -> None:
    entries = [entry("a", 1, "x"), entry("b", 2, "x"), entry("c", 3, "x"), entry("d", 4, "y")]
    blobs = [blob("x", size=100), blob("y")]
    removed = decide(entries, blobs, max_bytes=140)
    assert keys(removed) == ["a", "b", "c"] and names(removed.blobs) == ["x"]
    removed = decide(entries, blobs, max_bytes=149)
    assert keys(removed) == ["a", "b"] and not removed.blobs
    assert keys(decide(entries, blobs, max_files=5)) == ["a", "b"] and not decide(entries, blobs, max_files=5).blobs


def test_what_was_used_lately_stays_and_is_said_to_be_over() -> None:
    entries = [entry("lately", NOW - GRACE + 1, "x"), entry("old", NOW - GRACE, "y")]
    removed = decide(entries, [blob("x"), blob("y")], max_files=1)
    assert keys(removed) == ["old"] and names(removed.blobs) == ["y"] and removed.over


def test_a_blob_written_lately_stays_though_its_entry_goes() -> None:
    removed = decide([entry("a", 1, "x")], [blob("x", NOW - 1)], max_bytes=15)
    assert keys(removed) == ["a"] and not removed.blobs and not removed.over


def test_a_time_in_the_future_protects_nothing() -> None:
    assert keys(decide([entry("a", NOW + 10 * GRACE)], max_files=0)) == ["a"]
    assert keys(decide([entry("a", NOW + GRACE / 2)], max_files=0)) == []


def test_blobs_that_no_entry_names_go_in_any_case_but_recent_ones() -> None:
    removed = decide([entry("a", 1, "x")], [blob("x"), blob("lost"), blob("being published", NOW - 1)])
    assert not removed.entries and names(removed.blobs) == ["lost"]


def test_an_unreadable_entry_may_need_what_is_not_younger() -> None:
    entries, blobs = [unreadable("theirs", 500)], [blob("old", 499), blob("same", 500), blob("younger", 501)]
    rubbish, doubtful = orphans(entries, blobs, NOW, GRACE)
    assert names(rubbish) == ["younger"] and names(doubtful) == ["old", "same"]
    removed = decide(entries, blobs, max_files=2)
    assert names(removed.blobs) == ["younger", "old", "same"] and not removed.entries
    assert keys(decide(entries, max_files=0)) == ["theirs"]


def test_other_files_age_as_entries_do() -> None:
    others = [StoredFile("slower/a", Size(1, 10), 5.0), StoredFile("headers/h", Size(3, 150), 15.0)]
    removed = decide([entry("a", 10), entry("b", 20)], others=others, max_files=4)
    assert [one.path for one in removed.others] == ["slower/a", "headers/h"] and keys(removed) == ["a"]


def test_what_can_not_be_removed_counts() -> None:
    removed = decide([entry("a", 1), entry("b", 2)], rest=100, max_bytes=110)
    assert keys(removed) == ["a", "b"] and removed.over is False
    removed = decide([entry("a", 1), entry("b", 2)], rest=100, max_bytes=90)
    assert keys(removed) == ["a", "b"] and removed.over is True


# ---------------------------------------------------------------- for any directory

blob_names = st.sampled_from("uvwxyz")
times = st.floats(0, NOW + 2 * GRACE)
sizes = st.builds(Size, st.just(1), st.integers(0, 50))
entry_lists = st.lists(
    st.builds(
        StoredEntry,
        st.sampled_from("abcdefghijkl").map("entries/ab/{}/n.entry".format),
        sizes,
        times,
        seconds=st.floats(0, 10),
        blobs=st.none() | st.lists(blob_names, max_size=3).map(tuple),
    ),
    max_size=12,
    unique_by=lambda one: one.key,
)
blob_lists = st.lists(
    st.builds(StoredFile, blob_names.map("blobs/ab/{}".format), sizes, times),
    max_size=6,
    unique_by=lambda one: one.name,
)
other_lists = st.lists(
    st.builds(StoredFile, st.sampled_from("123456"), sizes, times), max_size=4, unique_by=lambda one: one.path
)
limits = st.builds(
    Bounds, st.none() | st.integers(0, 400), st.none() | st.integers(0, 20), st.just(0.0), st.just(GRACE)
)
directories = st.tuples(entry_lists, blob_lists, other_lists, st.builds(Size, st.integers(0, 3), st.integers(0, 60)))
Directory = tuple[Sequence[StoredEntry], Sequence[StoredFile], Sequence[StoredFile], Size]


def total(directory: Directory) -> Size:
    entries, blobs, others, rest = directory
    return sum_of([*(e.size for e in entries), *(b.size for b in blobs), *(o.size for o in others), rest])


def decided(directory: Directory, bounds: Bounds) -> Plan:
    return plan(*directory[:3], total(directory), bounds, NOW)


def after(directory: Directory, removed: Plan) -> Directory:
    entries, blobs, others, rest = directory
    return (
        [one for one in entries if one not in removed.entries],
        [one for one in blobs if one not in removed.blobs],
        [one for one in others if one not in removed.others],
        rest,
    )


def lately(when: float) -> bool:
    return abs(NOW - when) < GRACE


@given(directories, limits)
def test_what_stays_is_whole_and_what_was_in_use_stays(directory: Directory, bounds: Bounds) -> None:
    removed = decided(directory, bounds)
    entries, blobs, _, _ = after(directory, removed)
    there = {one.name for one in directory[1]}
    left = {one.name for one in blobs}
    for one in entries:
        assert not (set(one.blobs or ()) & there) - left, "an entry that stays has lost a blob"
    gone = [*(one.used for one in removed.entries), *(one.used for one in removed.blobs)]
    assert not any(map(lately, [*gone, *(one.used for one in removed.others)]))


@given(directories, limits)
def test_it_says_what_it_frees_and_whether_that_is_enough(directory: Directory, bounds: Bounds) -> None:
    removed = decided(directory, bounds)
    for group in (removed.entries, removed.blobs, removed.others):
        assert len(set(map(repr, group))) == len(group), "removed twice"
    left = after(directory, removed)
    assert total(directory) - total(left) == removed.freed
    assert removed.over == total(left).over(bounds)
    if removed.over:  # then all that may go has gone
        assert all(lately(one.used) for one in left[0]) and all(lately(one.used) for one in left[2])


@given(directories, limits)
def test_least_recently_used_first(directory: Directory, bounds: Bounds) -> None:
    removed = decided(directory, bounds)
    times = [one.used for one in removed.entries]
    assert times == sorted(times)
    if times:
        kept = [one.used for one in after(directory, removed)[0] if not lately(one.used)]
        assert all(used >= times[-1] for used in kept)


@given(directories, limits)
def test_a_directory_that_was_brought_within_its_bounds_loses_no_more(directory: Directory, bounds: Bounds) -> None:
    first = decided(directory, bounds)
    again = decided(after(directory, first), bounds)
    assert again.entries == [] and again.others == []


@given(directories, limits)
def test_the_order_of_a_listing_decides_nothing(directory: Directory, bounds: Bounds) -> None:
    entries, blobs, others, rest = directory
    one = decided(directory, bounds)
    two = decided((entries[::-1], blobs[::-1], others[::-1], rest), bounds)
    assert one.entries == two.entries and one.others == two.others
    assert {blob.name for blob in one.blobs} == {blob.name for blob in two.blobs}


@given(directories, limits)
def test_it_stops_when_it_has_enough(directory: Directory, bounds: Bounds) -> None:
    """Without the last entry that goes, the directory would be above the low watermark."""
    removed = decided(directory, bounds)
    others_age_too = removed.others or any(one.blobs is None for one in directory[0])
    if not removed.entries or removed.over or others_age_too:
        return
    before, last = total(directory), removed.entries[-1]
    without = before - removed.freed + last.size
    named = {one.name for one in directory[1]} & set(last.blobs or ())
    without += sum_of(one.size for one in removed.blobs if one.name in named)
    limits_reached = [
        bound is not None and value > bound and value_after > bound * 0.9 - 1
        for bound, value, value_after in (
            (bounds.max_bytes, before.bytes, without.bytes),
            (bounds.max_files, before.files, without.files),
        )
    ]
    assert any(limits_reached)
