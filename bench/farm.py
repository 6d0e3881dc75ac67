"""Farms: the cost of a job on a farm, the number of graphs from which a farm pays, and many clients.

    python bench/farm.py overhead [--graphs 20]      a farm of one machine beside the host alone, in pairs; also empty
                                                     jobs, which leave out the noise of compiles
    python bench/farm.py crossover                   from how many graphs on a farm of 2 machines beats the host alone:
                                                     simulated; --real measures it with small graphs, one slot each
    python bench/farm.py simulate [--clients 1000]   clients on many hosts: compiles, queues, times, messages; alone,
                                                     with leases in a remote cache, on a farm, on a farm with leases
    python bench/farm.py fleet [--hosts 4 --ranks 2] real processes of several hosts on one farm, which compiles each
                                                     graph once
    python bench/farm.py lengths                     seconds of jobs of small models, for `--lengths`

A real farm is a Dask scheduler and `fxpool farm worker` on this machine; every machine and host has its own cache and
runtime directory, and all of it ends with the command. Simulations print their assumptions (`farm_simulation`). With
`--out FILE`, each row is appended to a file as a line of JSON. `fleet` exits with 1 if a graph was compiled twice.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farm_machines import entries, local_farm
from farm_simulation import ASSUMPTIONS, LENGTHS, LENGTHS_FROM, POLICIES, Scenario, simulated
from harness.children import ChildError, orderly_end

TESTS = Path(__file__).parents[1] / "tests"
#: Seconds by which a job on the farm may take longer than one at home, in the median.
GOAL_OVERHEAD = 0.030
#: The models of `lengths`, as suites of `fxpool bench` name them, with two layers each.
MODELS = tuple(
    f"{model}/{what}"
    for what, models in {
        "inference": "gpt2 bert roberta llama qwen2 gemma gpt_neox opt resnet mobilenet unet causal rotary",
        "training": "gpt2 bert llama gemma opt resnet causal",
    }.items()
    for model in models.split()
)
_FLEET_LIMIT = 300.0


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Return rows with equal keys as a text table."""
    names = list(rows[0])
    lines = [names, *([_shown(row[name]) for name in names] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(names))]
    shown = ["| " + " | ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
    shown.insert(1, "|-" + "-|-".join("-" * width for width in widths))
    return "\n".join(f"{line} |" if line[1] == " " else f"{line}-|" for line in shown)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{name} {number}" for name, number in value.items()) or "-"
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 10 else f"{value:.1f}"
    return str(value)


def report(rows: Sequence[dict[str, Any]], command: str, out: Path | None) -> None:
    """Print a table, and append its rows to the file `out`."""
    print(table(rows), flush=True)
    if out is not None:
        with open(out, "a") as file:
            file.writelines(json.dumps({"command": command, **row}) + "\n" for row in rows)


def difference(name: str, home: Sequence[float], farm: Sequence[float]) -> dict[str, Any]:
    """Return a row: medians of both sides in milliseconds, and the paired differences."""
    pairs = [1e3 * (there - own) for own, there in zip(home, farm, strict=True)]
    return {
        "ms": name,
        "pairs": len(pairs),
        "home p50": 1e3 * statistics.median(home),
        "farm p50": 1e3 * statistics.median(farm),
        "difference p50": statistics.median(pairs),
        "p90": statistics.quantiles(pairs, n=10)[8] if len(pairs) > 1 else pairs[0],
    }


def overhead(options: argparse.Namespace) -> bool:
    with local_farm(machines=1, slots=options.slots) as farm:
        host = farm.host("host", options.slots)
        farm.wait_until_listed(host)
        measured = farm.child(
            "overhead", host, graphs=options.graphs, warm=options.warm, empty=options.empty, bytes=options.bytes
        )
    names = ("first call", "compile", "empty job")
    rows = [difference(name, measured[name]["home"], measured[name]["farm"]) for name in names]
    print(f"Slots of host and machine: {options.slots} each. Bytes of an empty job: {options.bytes:,}.")
    report(rows, "overhead", options.out)
    met = rows[-1]["difference p50"] <= 1e3 * GOAL_OVERHEAD
    print(f"A farm's job over a local one: at most {1e3 * GOAL_OVERHEAD:.0f} ms: {'met' if met else 'not met'}.")
    print(f"The host's first job for the farm, which starts the bridge: {measured['bridge']:.1f} s more.")
    return True


def crossover(options: argparse.Namespace) -> bool:
    if options.real:
        return _real_crossover(options)
    rows = []
    for count in options.graphs:
        seconds: dict[str, list[float]] = {"alone": [], "farm": [], "new bridge": []}
        for seed in range(options.repeats):
            scenario = Scenario(
                clients=1, hosts=1, host_slots=options.host_slots, machines=options.machines, slots=options.slots,
                graphs=count, ahead=count, trace=0.0, spread=0.0, lengths=options.lengths, speed=options.speed,
                overhead=options.overhead, bridge=0.0, seed=seed,
            )  # fmt: skip
            later = dataclasses.replace(scenario, bridge=options.bridge)
            for name, run, policy in (
                ("alone", scenario, "alone"), ("farm", scenario, "farm"), ("new bridge", later, "farm"),
            ):  # fmt: skip
                seconds[name].append(simulated(run, policy)["until all"])
        means = {name: statistics.mean(values) for name, values in seconds.items()}
        ratios = {f"{name} / alone": means[name] / means["alone"] for name in ("farm", "new bridge")}
        rows.append({"graphs": count, **{f"{name}, s": mean for name, mean in means.items()}, **ratios})
    print(
        f"Simulated: {options.machines} machines of {options.slots} slots and a host of {options.host_slots}; all "
        f"graphs wanted at once; means of {options.repeats} draws of lengths."
    )
    _print_assumptions(options)
    report(rows, "crossover", options.out)
    for name, label in (("farm", "with a running bridge"), ("new bridge", f"starting it in {options.bridge:g} s")):
        print(f"{label}: {_from(rows, f'{name} / alone')}")
    return True


def _from(rows: Sequence[dict[str, Any]], ratio: str) -> str:
    """Return the number of graphs from which on the farm is faster."""
    slower = [row["graphs"] for row in rows if row[ratio] >= 1.0]
    counts = [row["graphs"] for row in rows if row["graphs"] > max(slower, default=0)]
    return f"the farm is faster from {counts[0]} graphs on" if counts else "the farm is not faster"


def _real_crossover(options: argparse.Namespace) -> bool:
    with local_farm(machines=options.machines, slots=1) as farm:
        host = farm.host("host", 1)
        farm.wait_until_listed(host)
        counts = [count for _ in range(options.pairs) for count in options.graphs]
        # The warm-up has as many graphs at once as both machines need to get ready.
        measured = farm.child("background", host, counts=counts, warm=[2 * options.machines] * 2)["rows"]
    rows = []
    for count in options.graphs:
        home, away = (
            [row["seconds"] for row in measured if row["graphs"] == count and row["side"] == side]
            for side in ("home", "farm")
        )
        ratios = [there / own for own, there in zip(home, away, strict=True)]
        of_farm = [row["farm"] for row in measured if row["graphs"] == count and row["side"] == "farm"]
        names = sorted({name for counters in of_farm for name in counters})
        rows.append({
            "graphs": count, "pairs": len(home),
            "alone, s": statistics.median(home), "farm, s": statistics.median(away),
            "farm / alone": statistics.median(ratios),
            "jobs": {name: sum(counters.get(name, 0) for counters in of_farm) for name in names},
        })  # fmt: skip
    print(f"Measured on {_cores()} cores: a host of 1 slot, {options.machines} machines of 1 slot, small graphs.")
    report(rows, "crossover --real", options.out)
    print(_from(rows, "farm / alone"))
    return True


def simulate(options: argparse.Namespace) -> bool:
    base = Scenario(
        clients=options.clients, hosts=options.hosts, host_slots=options.host_slots, machines=options.machines,
        slots=options.slots, programs=options.programs, graphs=options.graphs, lengths=options.lengths,
        arrival=options.arrival, spread=options.spread, rate=options.rate, ahead=options.ahead, speed=options.speed,
        overhead=options.overhead, bridge=options.bridge, wait=options.wait, remote_wait=options.remote_wait,
        seed=options.seed,
    )  # fmt: skip
    scenarios = {"as the options say": base}
    if not options.single:
        many = dataclasses.replace(base, programs=options.hosts, ahead=options.graphs)
        scenarios |= {
            "64 hosts of 8 ranks": dataclasses.replace(base, clients=512, hosts=64),
            "Poisson arrivals": dataclasses.replace(base, arrival="poisson"),
            "each host has its own program, all graphs at once": many,
            "the same with 8 machines": dataclasses.replace(many, machines=8),
        }
    _print_assumptions(options)
    for name, scenario in scenarios.items():
        arrival = f"within {scenario.spread:g} s" if scenario.arrival == "together" else f"{scenario.rate:g} a second"
        print(
            f"\n{name}: {scenario.clients} clients ({arrival}) on {scenario.hosts} hosts of {scenario.host_slots} "
            f"slots, {scenario.machines} machines of {scenario.slots} slots, {scenario.programs * scenario.graphs} "
            f"graphs, up to {scenario.ahead} at a time for each client"
        )
        rows = [simulated(scenario, policy) for policy in options.policies]
        for columns in (slice(0, 9), slice(9, None)):
            shown = [dict([("policy", row["policy"]), *list(row.items())[1:][columns]]) for row in rows]
            report(shown, f"simulate: {name}", None)
        if options.out is not None:
            with open(options.out, "a") as file:
                file.writelines(
                    json.dumps({"command": "simulate", "scenario": name, **dataclasses.asdict(scenario), **row}) + "\n"
                    for row in rows
                )
    return True


def _print_assumptions(options: argparse.Namespace) -> None:
    lengths = sorted(options.lengths)
    measured = f"`{LENGTHS_FROM}`" if tuple(options.lengths) == LENGTHS else "`--lengths`"
    print(
        f"Lengths of jobs, s: {len(lengths)} of {measured}, {lengths[0]:g} to {lengths[-1]:g}, median "
        f"{statistics.median(lengths):g}. A job on the farm: {1e3 * options.overhead:g} ms more; starting a bridge: "
        f"{options.bridge:g} s."
    )
    print("Assumptions:")
    for assumption in ASSUMPTIONS:
        print(textwrap.fill(assumption, 110, initial_indent="  - ", subsequent_indent="    "))


def fleet(options: argparse.Namespace) -> bool:
    """Fork the processes of all hosts from one that has imported torch, and count compiles."""
    with local_farm(machines=1, slots=options.slots) as farm:
        warmed = farm.host("warmed", 1)
        farm.wait_until_listed(warmed)
        farm.child("warm", warmed)
        before = entries(farm.machines[0])
        processes = []
        for number in range(options.hosts):
            name = f"host{number}"
            environment = farm.host(name, 1, uses_farm=True)
            # Facts of the tool chain are of this machine, so that not every host has to find them out.
            (farm.root / name / "fxpool" / "toolchain").symlink_to(farm.root / "warmed" / "fxpool" / "toolchain")
            processes += [
                {
                    "environment": {key: value for key, value in environment.items() if os.environ.get(key) != value},
                    "graphs": options.graphs, "take": 0.0, "report": str(farm.root / f"{name}-{rank}"),
                }
                for rank in range(options.ranks)
            ]  # fmt: skip
        seconds, reports = _forked(farm.root, processes, warmed)
        compiled = entries(farm.machines[0]) - before
    every = [one["stats"] for one in reports]
    counts: Counter[str] = Counter()
    for stats in every:
        for name in ("farm", "fallbacks"):
            counts.update({f"{name} {reason}": number for reason, number in stats[name].items()})
    at_hosts = sum(stats["compiles"]["worker"] for stats in every)
    row = {
        "hosts": options.hosts, "processes": len(reports), "graphs": options.graphs, "compiles at farm": compiled,
        "compiles at hosts": at_hosts,
        "joined": sum(stats["joined"] for stats in every), "hits": sum(stats["hits"] for stats in every),
        "until all, s": seconds, "first call p50, s": statistics.median(one["seconds"][0] for one in reports),
        "right": all(all(one["right"]) for one in reports), "counters": dict(counts),
    }  # fmt: skip
    print(f"Measured on {_cores()} cores: a farm of 1 machine with {options.slots} slots.")
    report([row], "fleet", options.out)
    return bool(compiled == options.graphs and row["right"] and len(reports) == len(processes))


def _forked(
    root: Path, processes: Sequence[dict[str, Any]], host: dict[str, str]
) -> tuple[float, list[dict[str, Any]]]:
    """Run processes of `tests/lowering/fleet_child.py`; return their wall time and reports."""
    command = [sys.executable, str(TESTS / "lowering" / "fleet_child.py"), json.dumps(processes)]
    paths = [Path(process["report"]) for process in processes]
    with open(root / "fleet.log", "wb") as log:
        forks = subprocess.Popen(
            command, env={name: value for name, value in host.items() if not name.startswith("FXPOOL_")},
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        end = time.monotonic() + _FLEET_LIMIT
        while not all(path.with_suffix(".pid").exists() for path in paths):
            if forks.poll() is not None or time.monotonic() > end:
                raise RuntimeError((root / "fleet.log").read_text(errors="replace")[-4000:])
            time.sleep(0.05)
        time.sleep(1.0)  # each imports fxpool
        begin = time.perf_counter()
        for path in paths:
            path.with_suffix(".go").touch()
        forks.wait(_FLEET_LIMIT)
        seconds = time.perf_counter() - begin
    finally:
        if forks.poll() is None:
            os.killpg(forks.pid, 9)
            forks.wait()
    reports = [
        json.loads(path.with_suffix(".json").read_text()) for path in paths if path.with_suffix(".json").exists()
    ]
    if len(reports) != len(paths):
        print((root / "fleet.log").read_text(errors="replace")[-4000:])
    return seconds, reports


def lengths(options: argparse.Namespace) -> bool:
    runs = []
    with local_farm(machines=0, slots=options.slots) as farm:
        for number in range(options.runs):
            host = farm.host(f"host{number}", options.slots)
            runs.append(farm.child("lengths", host, suite=options.models)["seconds"])
    names = [name for name in options.models if all(name in run for run in runs)]
    rows: list[dict[str, Any]] = [{"model": name, "s": min(run[name] for run in runs)} for name in names]
    print(f"Measured on {_cores()} cores, each alone: the shortest of {options.runs} runs with empty caches.")
    report(rows, "lengths", options.out)
    print(f"--lengths {','.join(f'{value:.1f}' for value in sorted(row['s'] for row in rows))}")
    return True


def _cores() -> int:
    return len(os.sched_getaffinity(0))


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(number) for number in text.split(","))


def _counts(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(","))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    by_name = {}
    for run in (overhead, crossover, simulate, fleet, lengths):
        command = by_name[run.__name__] = commands.add_parser(run.__name__)
        command.set_defaults(run=run)
        command.add_argument("--out", type=Path, help="file to which rows are appended as JSON")
        command.add_argument("--slots", type=int, default=8 if run in (crossover, simulate) else 2, help="of a machine")
        if run in (crossover, simulate):
            command.add_argument("--lengths", type=_numbers, default=LENGTHS, help="seconds of jobs, with commas")
            command.add_argument("--host-slots", type=int, default=8)
            command.add_argument("--machines", type=int, default=2 if run is crossover else 64)
            command.add_argument("--speed", type=float, default=1.0, help="of a machine, as a multiple of a host's")
            command.add_argument("--overhead", type=float, default=Scenario.overhead, help="seconds of a farm's job")
            command.add_argument("--bridge", type=float, default=Scenario.bridge, help="seconds to start a bridge")
        if run in (overhead, simulate, fleet):
            command.add_argument("--graphs", type=int, default=6 if run is fleet else 20)
    by_name["overhead"].add_argument("--warm", type=int, default=3, help="first pairs, which do not count")
    by_name["overhead"].add_argument("--empty", type=int, default=200, help="pairs of empty jobs")
    by_name["overhead"].add_argument("--bytes", type=int, default=50_000, help="payload of an empty job")
    by_name["crossover"].add_argument("--graphs", type=_counts, default=(1, 2, 4, 6, 8, 9, 10, 12, 16, 20, 24, 32, 64))
    by_name["crossover"].add_argument("--repeats", type=int, default=50, help="draws of lengths")
    by_name["crossover"].add_argument("--real", action="store_true", help="measure, on this machine")
    by_name["crossover"].add_argument("--pairs", type=int, default=3, help="with --real")
    command = by_name["simulate"]
    command.add_argument("--clients", type=int, default=1000)
    command.add_argument("--hosts", type=int, default=125)
    command.add_argument("--programs", type=int, default=1, help="distinct ones, each with its own graphs")
    command.add_argument("--arrival", choices=("together", "poisson"), default="together")
    command.add_argument("--spread", type=float, default=0.5, help="seconds within which clients start together")
    command.add_argument("--rate", type=float, default=10.0, help="clients a second (poisson)")
    command.add_argument("--ahead", type=int, default=1, help="graphs that a client has under way")
    command.add_argument("--wait", type=float, default=Scenario.wait, help="FXPOOL_FARM_WAIT")
    command.add_argument("--remote-wait", type=float, help="FXPOOL_REMOTE_WAIT")
    command.add_argument("--policies", type=_words, default=POLICIES)
    command.add_argument("--single", action="store_true", help="only the scenario of the options")
    command.add_argument("--seed", type=int, default=0)
    by_name["fleet"].add_argument("--hosts", type=int, default=4)
    by_name["fleet"].add_argument("--ranks", type=int, default=2)
    by_name["lengths"].add_argument("--runs", type=int, default=2)
    by_name["lengths"].add_argument("--models", type=_words, default=MODELS, help="MODEL/inference or MODEL/training")
    options = parser.parse_args(arguments)
    try:
        with orderly_end():
            return 0 if options.run(options) else 1
    except ChildError as error:
        print(f"{error.message}; the end of its output:\n{error.output}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
