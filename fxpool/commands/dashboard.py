"""Commands for monitoring: dashboard, metrics.

Each command imports its modules inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
from collections.abc import Iterator

import click

from fxpool import config
from fxpool.commands.output import Listen, fail
from fxpool.commands.server import runtime_root

__all__ = ["dashboard", "metrics"]


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port on 127.0.0.1 (default: a free one).")
@click.option("--no-open", is_flag=True, help="Print the URL without opening a browser.")
def dashboard(port: int, no_open: bool) -> None:
    """Show jobs, memory, the store and code on a local page.

    Runs until Ctrl-C, with or without a server. The URL holds a secret and works on this machine only.
    """
    from fxpool.dashboard.application import Application

    async def run() -> None:
        application = Application(runtime_root(), config.current().cache_dir)
        stop = _stopped()
        await application.start(port)
        try:
            click.echo(application.address)
            click.echo(
                "keep this URL private: anyone who has it can see your graphs and code; Ctrl-C stops it",
                err=True,
            )
            if not no_open:
                await asyncio.to_thread(_open, application.address)
            await stop.wait()
        finally:
            await application.close()

    with _port_is_named(port):
        asyncio.run(run())


def _open(address: str) -> None:
    import webbrowser

    # Without a browser, the printed URL is enough.
    with contextlib.suppress(webbrowser.Error, OSError):
        webbrowser.open(address)


@click.command()
@click.option("--listen", type=Listen(), metavar="[ADDRESS:]PORT", help="Serve /metrics on this port until Ctrl-C.")
def metrics(listen: tuple[str, int] | None) -> None:
    """Print or serve Prometheus metrics of servers and store."""
    from fxpool.dashboard.metrics import Source, serve

    source = Source(runtime_root(), config.current().cache_dir)
    with contextlib.closing(source):
        if listen is None:
            click.echo(source.text().decode(), nl=False)
            return
        address, port = listen

        async def run() -> None:
            stop = _stopped()
            await serve(source, address, port, lambda port: click.echo(f"http://{address}:{port}/metrics"), stop)

        with _port_is_named(port):
            asyncio.run(run())


def _stopped() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextlib.contextmanager
def _port_is_named(port: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EADDRINUSE, errno.EACCES, errno.EADDRNOTAVAIL):
            raise
        what = os.strerror(error.errno)
        fail(f"cannot listen on port {port}: {what}\n  choose another port, or leave it out to use a free one")
