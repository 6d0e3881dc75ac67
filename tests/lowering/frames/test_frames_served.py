"""A program whose frames are kept: the next process traces nothing, lowers nothing and computes the same."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from frame_runs import arguments, run
from processes import run_python, run_with_errors


@pytest.mark.timeout(600)
@pytest.mark.parametrize("train", [pytest.param(False, marks=pytest.mark.slow), True], ids=["inference", "training"])
@pytest.mark.parametrize("model", ["net", pytest.param("broken", marks=pytest.mark.slow)])
def test_the_second_process_traces_nothing(shared_pool: Path, cache: Path, model: str, train: bool) -> None:
    first = run(model, train=train)
    count = {"net": 1, "broken": 2}[model]
    assert first["frames"] == {"traced": count, "kept": count} and first["captured"] == count
    again = run(model, train=train)
    assert again["frames"] == {"served": count}
    assert (again["captured"], again["lowered"], again["misses"], again["fallbacks"]) == (0, 0, 0, {})


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_change_is_traced_and_kept_beside_the_other(shared_pool: Path, cache: Path) -> None:
    change = "for model in models: model.blocks[1].rate = 0.25"
    run("net")
    explained = (
        "import fxpool\ntext = str(fxpool.explain())\nassert 'frames: unfit (1)' in text and 'rate' in text, text"
    )
    changed = run("net", change=change, end=explained)
    assert changed["frames"] == {"unfit": 1, "traced": 1, "kept": 1} and changed["captured"] == 1
    again = run("net", change=change)
    assert again["frames"].pop("served") == 1 and again["captured"] == 0
    assert run("net")["frames"]["served"] == 1


@pytest.mark.timeout(600)
def test_without_the_setting_nothing_is_kept(shared_pool: Path, cache: Path) -> None:
    for _ in range(2):
        report = run("net", frames="off")
        assert report["frames"] == {} and report["modules"] == [] and report["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_record_that_is_damaged_is_not_served(shared_pool: Path, cache: Path) -> None:
    run("net")
    for path in cache.rglob("blobs/*/*"):
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
    report = run("net")
    assert "served" not in report["frames"] and report["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_frame_whose_graph_is_gone_is_traced(shared_pool: Path, cache: Path) -> None:
    run("net")
    listed = map(json.loads, run_python(["-m", "fxpool", "cache", "ls", "--json"]).splitlines())
    (graph,) = [entry["key"] for entry in listed if entry["compile_seconds"]]
    run_python(["-m", "fxpool", "cache", "rm", "--yes", graph])
    report = run("net")
    assert report["frames"]["unfit"] == 1 and report["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_verify_traces_and_compares(shared_pool: Path, cache: Path) -> None:
    run("net")
    report = run("net", frames="verify")
    assert report["frames"] == {"traced": 1, "verified": 1} and report["captured"] == 1


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_frame_that_is_wrong_is_traced_until_it_is_released(shared_pool: Path, cache: Path) -> None:
    run("net")
    # A guard that the record has and Dynamo does not.
    forget = "from fxpool.frames import record\nrecord.difference = lambda then, now: 'made up'"
    printed, errors = run_with_errors(arguments("net", change=forget), FXPOOL_FRAMES="verify")
    assert json.loads(printed.splitlines()[-1])["frames"] == {"traced": 1, "wrong": 1}
    assert "is not what Dynamo makes of it now: made up. It was removed" in errors
    aside = run("net")
    assert aside["frames"] == {"refused:set_aside": 1} and aside["captured"] == 1
    (listed,) = map(json.loads, run_python(["-m", "fxpool", "cache", "quarantine", "--json"]).splitlines())
    assert "made up" in listed["error"] and "Net.forward" in listed["label"]
    run_python(["-m", "fxpool", "cache", "quarantine", "--release-all"])
    assert run("net")["frames"] == {"traced": 1, "kept": 1}


DYNAMIC = """
import sys, torch
import fxpool
from fxpool.frames import serving
serving._DOUBTED = 0.0
def function(x):
    return (x * 2).sum(0) + x.shape[0]
compiled = torch.compile(function, backend="fxpool")
for size in map(int, sys.argv[1:]):
    x = torch.arange(size * 8.0).view(size, 8)
    torch.testing.assert_close(compiled(x), function(x))
print(fxpool.stats()["frames"], fxpool.stats()["misses"])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_sizes_that_change(shared_pool: Path, cache: Path) -> None:
    def sizes(*sizes: int, frames: str = "on") -> str:
        return run_python(["-c", DYNAMIC, *map(str, sizes)], FXPOOL_FRAMES=frames).splitlines()[-1]

    assert sizes(4, 5, 6) == "{'traced': 2, 'kept': 2, 'unfit': 1} 2"
    assert sizes(7, 9) == "{'served': 1} 0" or sizes(7, 9) == "{'unfit': 1, 'served': 1} 0"
    assert "wrong" not in sizes(7, frames="verify")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_some_frames_are_doubted_with_all_that_follow_them(shared_pool: Path, cache: Path) -> None:
    doubted = (
        "import types\nserving._DOUBTED = 0.5\n"
        "serving._chance = types.SimpleNamespace(random=iter([{}]).__next__)  # raises after that"
    )
    run("broken")
    assert run("broken", change=doubted.format(0.1))["frames"] == {"traced": 2, "verified": 2}
    assert run("broken", change=doubted.format(0.9))["frames"] == {"served": 2}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_frames_are_listed_shown_and_compared(shared_pool: Path, cache: Path) -> None:
    assert "no frames in" in run_python(["-m", "fxpool", "frames", "ls"])
    run("net")
    run("net", change="for model in models: model.blocks[1].rate = 0.25")
    frames = [*map(json.loads, run_python(["-m", "fxpool", "frames", "ls", "--json"]).splitlines())]
    assert [(one["function"], one["graphs"]) for one in frames] == [("Net.forward", 1)] * 2
    assert all(one["facts"] > one["guards"] > 20 for one in frames)
    first, second = (one["frame"] for one in frames)
    shown = run_python(["-m", "fxpool", "frames", "show", first, "--code"])
    assert "L['self']._modules['blocks']" in shown and "RETURN_VALUE" in shown
    facts = json.loads(run_python(["-m", "fxpool", "frames", "show", second, "--json"]))["facts"]
    assert ["guard", "L['self']._modules['blocks']._modules['1'].rate == 0.5"] in facts
    compared = subprocess.run(
        [sys.executable, "-m", "fxpool", "frames", "diff", first, second], capture_output=True, text=True, check=False
    )
    rates = [line for line in compared.stdout.splitlines() if ".rate == " in line]
    assert compared.returncode == 1 and {line[0] for line in rates} == {"-", "+"}
    assert "imported torch" not in run_python(
        ["-c", "import sys\nsys.argv[1:] = ['frames', 'ls']\nimport atexit\n"
         "atexit.register(lambda: print('imported torch') if 'torch' in sys.modules else None)\n"
         "from fxpool.commands.main import main\nmain()"]
    )  # fmt: skip


_OVERLAPPING = """
for model in models:
    buffer = torch.linspace(-1, 1, 40)
    model.seen, model.input = buffer[4:12], buffer[:32].view(4, 8)
with torch.no_grad():
    torch.testing.assert_close(compiled(models[0].input), models[1](models[1].input))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_inputs_that_the_graph_changes(shared_pool: Path, cache: Path) -> None:
    """A call in whose memory they overlap runs the graph as it was, which the entry has (the program compares)."""
    assert run("changing", end=_OVERLAPPING)["frames"] == {"traced": 1, "kept": 1}
    again = run("changing", end=_OVERLAPPING)
    assert again["frames"] == {"served": 1}
    assert (again["captured"], again["lowered"], again["misses"], again["fallbacks"]) == (0, 0, 0, {})
    assert again["eager_calls"] == {"overlap": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("mode", "first"),
    [
        ("async+subprocess", {"traced": 1, "kept": 1}),
        ("progressive+async+subprocess", {"traced": 1, "kept": 1}),
        ("progressive+subprocess", {"traced": 1, "kept": 1}),
        ("serialize", {"traced": 1, "refused:graph": 1}),  # its entry is written, and not loaded
        ("normal", {"traced": 1, "refused:graph": 1}),
    ],
)
def test_modes(shared_pool: Path, cache: Path, mode: str, first: dict[str, int]) -> None:
    settings: dict[str, Any] = {"TORCHINDUCTOR_FX_COMPILE_MODE": mode}
    wait = "import fxpool; fxpool.wait(300)"
    assert run("net", end=wait, **settings)["frames"] == first
    if "kept" not in first:
        assert run("net", end=wait, **settings)["frames"] == {"traced": 1, "kept": 1}
    again = run("net", **settings)
    assert again["frames"] == {"served": 1} and (again["captured"], again["misses"]) == (0, 0)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_pieces(shared_pool: Path, cache: Path, train: bool) -> None:
    settings: dict[str, Any] = {"FXPOOL_REGIONS": "on"}
    first = run("net", train=train, **settings)
    assert first["frames"] == {"traced": 1, "kept": 1}
    again = run("net", train=train, **settings)
    assert again["frames"] == {"served": 1} and (again["captured"], again["lowered"], again["misses"]) == (0, 0, 0)
    whole = run("net", train=train)
    assert whole["frames"] == {"traced": 1, "kept": 1}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("train", [False, True], ids=["inference", "training"])
def test_rests_with_variables_of_closures(shared_pool: Path, cache: Path, train: bool) -> None:
    first = run("closing", train=train)
    assert set(first["frames"]) == {"traced", "kept"} and first["frames"]["traced"] == first["frames"]["kept"] > 2
    again = run("closing", train=train)
    assert again["frames"] == {"served": first["frames"]["kept"]}
    assert (again["captured"], again["lowered"], again["misses"]) == (0, 0, 0)
    verified = run("closing", train=train, frames="verify")["frames"]
    assert verified == {"traced": first["frames"]["kept"], "verified": first["frames"]["kept"]}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("broken", "counted"),
    [
        ("from fxpool.frames import serving\nserving.key_of = None", {"error:TypeError": 1}),
        ("from fxpool.frames import record_making\nrecord_making.make = None", {"traced": 1, "error:TypeError": 1}),
        (
            "from fxpool.torch_compat.frames import recording\nrecording.Recorder.keys = property(lambda _: 1 / 0)\n"
            "recording.Recorder.keys = recording.Recorder.keys.setter(lambda *_: None)",
            {"traced": 1, "error:InternalTorchDynamoError": 1},
        ),
    ],
    ids=["lookup", "record", "hearing"],
)
def test_an_error_here_costs_the_frame_and_not_the_compile(
    shared_pool: Path, cache: Path, broken: str, counted: dict[str, int]
) -> None:
    printed, errors = run_with_errors(arguments("net", change=broken), FXPOOL_FRAMES="on")
    assert json.loads(printed.splitlines()[-1])["frames"] == counted
    (reason,) = (name for name in counted if name.startswith("error:"))
    assert f"is not kept ({reason})" in errors


SHARING = """
import sys, torch
import fxpool
from fxpool.frames import serving
serving._DOUBTED = 0.0
def make(rate):
    def function(x, flag):
        x = x * (2 if flag else 3)
        torch._dynamo.graph_break()
        return x + 1 INSIDE
    return function
function = make(4)
compiled = torch.compile(function, backend="fxpool")
x = torch.arange(8.0)
for flag in map(int, sys.argv[1:]):
    torch.testing.assert_close(compiled(x, bool(flag)), function(x, bool(flag)))
print(fxpool.stats()["frames"])
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("inside", ["", "* rate"], ids=["plain", "closure"])
def test_two_frames_have_one_rest(shared_pool: Path, cache: Path, inside: str) -> None:
    """Dynamo makes the rest after a graph break once, and traces it for the first frame that comes to it."""

    def flags(*flags: int) -> str:
        program = SHARING.replace("INSIDE", inside)
        return run_python(["-c", program, *map(str, flags)], FXPOOL_FRAMES="on").splitlines()[-1]

    assert flags(1, 0) == "{'traced': 3, 'kept': 3, 'unfit': 1}"
    assert flags(0) in ("{'served': 2}", "{'unfit': 1, 'served': 2}")
    assert flags(1, 0).endswith("'served': 4}")
