"""Commands for this host's servers: serve, status, stop.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Group
from rich.live import Live
from rich.text import Text

from fxpool import config, forks, quantities, temporary
from fxpool.commands.output import Duration, Listen, console, width, wrapped

__all__ = ["runtime_root", "serve", "status", "stop"]


@click.command()
@click.option("--detach", is_flag=True, help="Return once the server is ready; it ends when it is idle for a while.")
@click.option(
    "--metrics", "listen", type=Listen(), metavar="[ADDRESS:]PORT", help="Serve Prometheus metrics at /metrics."
)
def serve(detach: bool, listen: tuple[str, int] | None) -> None:
    """Start this environment's server and keep it running.

    Processes with the same interpreter, torch and runtime directory use it. On SIGTERM or Ctrl-C it accepts no new
    jobs, finishes those it has, and ends.
    """
    if detach and listen is not None:
        raise click.UsageError("--metrics and --detach exclude each other: metrics are served until this command ends")
    with contextlib.ExitStack() as stack:
        if listen is not None:
            from fxpool.dashboard import metrics

            port = stack.enter_context(metrics.in_background(runtime_root(), config.current().cache_dir, *listen))
            click.echo(f"http://{listen[0]}:{port}/metrics", err=True)
        _serve(detach)


def _serve(detach: bool) -> None:
    from fxpool.lowering.core.runtime import runtime
    from fxpool.pool.client import hosts
    from fxpool.pool.host import runtime_dir

    ended = forks.event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    config.configure(pool="host")
    client = runtime.pool()
    client.start(wait=True)
    facts = client.status()
    ready = f"{quantities.counted(facts['slots'], 'worker')} ({facts['slots_rule']}), in {facts['directory']}"
    if client.joined:
        others = len({pid for pid in facts["clients"] if pid != os.getpid()})
        ready += f"; it was already running and has {quantities.counted(others, 'other client')}"
    click.echo(f"server {facts['server_pid']} is ready: {ready}", err=True)
    if not detach:
        # The connection keeps the server from leaving.
        while not ended.wait(0.5) and client.started:
            pass
        if not ended.is_set():
            raise click.ClickException("the server ended; see its log (`fxpool status` names it)")
        hosts.stop(runtime_dir.link_of(runtime_root(), client.config.host))
    client.close()


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per server.")
@click.option("--watch", is_flag=True, help="Refresh until Ctrl-C; in a pipe, print repeatedly.")
@click.option("--interval", type=Duration(), default="1s", show_default=True, help="Time between refreshes.")
def status(as_json: bool, watch: bool, interval: float) -> None:
    """Show this host's servers: workers, queue, memory and limits."""
    root, shown = runtime_root(), console()
    if not watch:
        _print_json(root) if as_json else shown.print(_shown(root), soft_wrap=True)
        return
    with contextlib.suppress(KeyboardInterrupt):
        if as_json or not shown.is_terminal or shown.is_dumb_terminal:
            # Never overwrite: each refresh prints new lines, for a pipe or a file.
            while True:
                if as_json:
                    _print_json(root)
                else:
                    click.echo(f"{quantities.moment(time.time())}")
                    shown.print(_shown(root), soft_wrap=True)
                time.sleep(interval)
        with Live(_shown(root), console=shown, auto_refresh=False) as live:
            while True:
                time.sleep(interval)
                live.update(_shown(root), refresh=True)


def _print_json(root: Path) -> None:
    from fxpool.pool.client import hosts

    for link in hosts.links(root):
        click.echo(json.dumps({"link": str(link), **hosts.status(link)}))


def _shown(root: Path) -> Group:
    from fxpool.pool.client import hosts
    from fxpool.pool.host import measurement_lock

    # Each line with its label, which the continuation of a long line is indented by.
    lines: list[tuple[str, str]] = []
    for link in hosts.links(root):
        facts = hosts.status(link)
        name = hosts.shown(link)
        if facts["state"] == "running":
            lines += _lines(name, facts)
        else:
            state = {"silent": "does not answer", "gone": "is gone"}.get(facts["state"], facts.get("reason", "?"))
            lines.append((f"{name}  ", f"the server {state}"))
    if not lines:
        lines.append(("", f"no server is running on this host (pool = {config.current().pool})"))
    asked: list[str] = []
    for device, pid in measurement_lock.listed(root):
        # A measurement on the CPU waits for all earlier ones, and all later ones wait for it.
        waits = bool(asked) and (measurement_lock.CPU in (device, *asked) or device in asked)
        lines.append(("", f"process {pid} {'waits to measure' if waits else 'is measuring'} on {device}"))
        asked.append(device)
    columns = width()
    return Group(*(Text(wrapped(label, text, columns), no_wrap=True) for label, text in lines))


def _lines(name: str, facts: dict[str, Any]) -> list[tuple[str, str]]:
    limits, rules, memory, zygote = facts["limits"], facts["limits"]["rules"], facts["memory"], facts["zygote"]
    processes = len({pid for pid in facts["clients"] if pid != os.getpid()})
    ready = f"ready after {zygote['preload_seconds']:.1f} s" if "preload_seconds" in zygote else zygote["state"]
    seconds = (
        f"{quantities.span(limits['job_seconds'])} ({rules['job_seconds']})" if limits["job_seconds"] else "any time"
    )
    rows = {
        "clients": quantities.counted(processes, "process", "processes"),
        "workers": f"{facts['slots'] - facts['slots_free']} of {facts['slots']} busy ({facts['slots_rule']})",
        "queue": quantities.counted(facts["queued"], "job")
        + (", all paused for a measurement" if facts["paused"] else ""),
        "memory": f"server {_mb(memory['server'])}, zygote {_mb(memory['zygote'])}, workers {_mb(memory['workers'])}",
        "host": f"{quantities.percent(limits['host_used'])} of {limits['host_used_of']} in use; {_mark(limits)}",
        "a job": f"at most {_mb(limits['job_bytes'])} ({rules['job_bytes']}) and {seconds}",
        "zygote": ready,
        "log": f"{facts['directory']}/server.log",
    }
    state = (
        f"server {facts['server_pid']}{', ending' if facts['draining'] else ''}, up {quantities.span(facts['seconds'])}"
    )
    lines = [(f"{name}  ", state), *((f"  {label:<9}", text) for label, text in rows.items())]
    for job in facts["running"]:
        kind = "sub-job for" if job["sub_job"] else "for"
        who = ", ".join(map(str, job["wanted_by"])) or "no client"
        attempt = f", attempt {job['attempt']}" if job["attempt"] > 1 else ""
        phase = f", {job['phase']}" if job["phase"] else ""
        text = f"{job['label']}{phase}, {quantities.span(job['seconds'])}{attempt}, {kind} {who}"
        lines.append((f"  worker {job['pid']}  ", text))
    away = {job["job"] for farm in facts["farms"] for job in farm["jobs"]}
    for farm in facts["farms"]:
        lines.append((f"  {'farm':<9}", _farm(farm)))
        for job in farm["jobs"]:
            late = ", late: it runs here, too" if job["late"] else ""
            lines.append((f"  {'away':<9}", f"{job['label']}, {quantities.span(job['seconds'])}{late}"))
    for ask in facts["waiting"]:
        if not ask["running"] and ask["job"] not in away:
            background = ", in the background" if ask["priority"] < 0 else ""
            text = f"{ask['label']}, {quantities.span(ask['seconds'])}, for {ask['client']}{background}"
            lines.append((f"  {'waits':<9}", text))
    return lines


def _farm(farm: dict[str, Any]) -> str:
    """Return a sentence about a farm."""
    if farm["state"] == "gone":
        return f"{farm['address']} is gone: {farm['reason']}"
    able = [machine for machine in farm["machines"] if not machine["differs"]]
    machines = quantities.counted(len(able), "machine")
    if others := len(farm["machines"]) - len(able):
        machines += f", {others} more with other builds (`fxpool farm status`)"
    return f"{farm['address']} ({farm['state']}): {machines}, {farm['counters'].get('results', 0)} jobs done"


def _mark(limits: dict[str, Any]) -> str:
    """Return the memory mark above which no jobs start, and whether usage is above it, as the server saw it last."""
    mark = quantities.percent(limits["host_mark"])
    if not limits["pressed"]:
        return f"no new jobs above {mark}"
    if limits["host_used"] > limits["host_mark"]:
        return f"above {mark}: no new jobs while others run"
    return f"was above {mark}: the next job waits until the server checks again"


def _mb(size: float) -> str:
    return f"{size / 2**20:.0f} MB" if size < 10 << 30 else f"{size / 2**30:.1f} GB"


@click.command()
@click.option("--all", "everything", is_flag=True, help="Wait for their end, and remove all their files.")
def stop(everything: bool) -> None:
    """Stop this host's servers after their current jobs.

    A server that hangs is killed.
    """
    from fxpool.pool.client import hosts
    from fxpool.pool.host import runtime_dir

    root = runtime_root()
    links = hosts.links(root)
    directories = [hosts.directory_of(link) for link in links]
    ended = [hosts.end(link) for link in links]
    for one in ended:
        if one.detail:
            click.echo(one.detail, err=True)
    count = sum(one.result in ("told", "killed") for one in ended)
    click.echo(f"{quantities.counted(count, 'server')} stopped or stopping")
    if failed := sum(one.result == "failed" for one in ended):
        raise click.ClickException(f"could not stop {failed} of this host's servers")
    if not everything:
        return
    for directory in filter(None, directories):
        hosts.wait(directory)
    temporary.sweep()
    if left := runtime_dir.remove_root(root):
        raise click.ClickException(f"in use by running programs, in {root}: {', '.join(left)}")


def runtime_root() -> Path:
    """Return the directory of this host's servers. Raises PoolUnavailableError if it is unsafe."""
    from fxpool.pool.host import runtime_dir

    return runtime_dir.runtime_root(config.current().runtime_dir)
