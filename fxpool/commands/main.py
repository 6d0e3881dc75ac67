"""The command `fxpool`, with all its subcommands.

Code shared by all commands, such as exit statuses, is in `output`. Only the child processes of the demonstration,
`device`, `doctor` and `cache show --code` import torch.

The demonstration is imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import click

from fxpool.commands import (
    bench,
    build,
    bundles,
    cache,
    dashboard,
    doctor,
    entries,
    farm,
    frames,
    program,
    report,
    server,
    settings,
)
from fxpool.commands.output import Commands, console
from fxpool.version import __version__

__all__ = ["main"]


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="fxpool", message="%(prog)s %(version)s")
def main() -> None:
    """A compile service for torch.compile(model, backend="fxpool")."""


@main.command()
@click.option(
    "--backends",
    default="fxpool,inductor,eager",
    show_default=True,
    help="Backends of torch.compile to compare, separated by commas.",
)
def demo(backends: str) -> None:
    """Measure GPT-2 and BERT with fxpool, stock Inductor and eager.

    The models have random weights, nothing is downloaded. Caches are temporary, yours is not used. Takes a few minutes.
    """
    from fxpool.bench.demo import run_demo

    names = [name.strip() for name in backends.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("name at least one backend", param_hint="--backends")
    raise SystemExit(run_demo(console(), names))


for command in (*entries.commands, bundles.cache_export, bundles.cache_import, bundles.cache_key):
    cache.cache.add_command(command)
for command in (
    doctor.doctor,
    program.run,
    program.warm,
    program.capture,
    build.build,
    settings.settings,
    cache.stats,
    cache.cache,
    frames.frames,
    farm.farm,
    server.serve,
    server.status,
    server.stop,
    dashboard.dashboard,
    dashboard.metrics,
    settings.device,
    bench.bench,
    report.bug_report,
):
    main.add_command(command)
