"""The command ``fxpool build``: compiles the graphs that ``fxpool capture`` recorded.

torch is imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from fxpool import config, quantities
from fxpool.commands.output import FOUND_WRONG, SHORT, fail, width, wrapped

if TYPE_CHECKING:
    from fxpool.codecache.bundle.authentication import Keyring
    from fxpool.codecache.bundle.capture_directory import Capture
    from fxpool.lowering.build_ahead import Built
    from fxpool.torch_compat.cuda.device_facts import DeviceFacts

__all__ = ["build"]


@click.command()
@click.argument("directory", type=click.Path(exists=True, file_okay=False))
@click.option("--to", "bundle_file", type=click.Path(dir_okay=False), help="Write the entries to this bundle.")
@click.option(
    "--device",
    "facts_file",
    type=click.Path(exists=True, dir_okay=False),
    metavar="FACTS",
    help="Compile for this device instead of the one that captured: a file with the output of `fxpool device --json`.",
)
@click.option(
    "--key-file", type=click.Path(), help="Authenticate with this file's keys (default: FXPOOL_REMOTE_KEY_FILE)."
)
@click.option("--trust", is_flag=True, help="Accept files that others could have written. Requests run as code.")
@click.option("--json", "as_json", is_flag=True, help="Output one JSON object per graph.")
def build(
    directory: str, bundle_file: str | None, facts_file: str | None, key_file: str | None, trust: bool, as_json: bool
) -> None:
    """Compile the graphs that `fxpool capture` recorded in DIRECTORY.

    Compiles on this machine's workers, or on the farm, and needs no GPU. The entries are in this machine's cache, in
    the remote cache if there is one, and in the bundle of --to. Exit status 1: a graph could not be compiled.
    """
    from fxpool.codecache.bundle import bundle
    from fxpool.codecache.bundle.authentication import keyring_of
    from fxpool.lowering import build_ahead
    from fxpool.lowering.core.runtime import runtime

    if config.current().pool == "off":
        fail("building needs workers, which FXPOOL_POOL=off disables")
    keyring = keyring_of(key_file or config.current().remote_key_file)
    captures = _captures(directory, keyring, trust)
    device = _device(facts_file) if facts_file is not None else None
    store = runtime.store()
    if store is None:
        fail(f"{config.current().cache_dir} cannot be used as a cache directory: run `fxpool doctor`")
    done: list[Built] = []
    for built in build_ahead.build(captures, store, device):
        done.append(built)
        click.echo(_as_json(built) if as_json else _line(built))
    entries = [built.entry for built in done if built.entry is not None]
    failed = len(done) - len(entries)
    if not as_json:
        click.echo(_summary(done, failed))
    if bundle_file is not None and entries:
        written = bundle.export(bundle_file, store, entries, keyring=keyring)
        if not as_json:
            parts = [quantities.counted(written.entries, "entry", "entries"), quantities.size(written.bytes)]
            sealed = ", sealed" if keyring is not None else ""
            click.echo(f"wrote {bundle_file}: {', '.join(parts)}{sealed}; import it with `fxpool cache import`")
    raise SystemExit(FOUND_WRONG if failed else 0)


def _captures(directory: str, keyring: Keyring | None, trust: bool) -> list[Capture]:
    """Return the requests in a directory. Ends the command if there are no files, or if one cannot be trusted."""
    from fxpool.codecache.bundle import capture_directory
    from fxpool.errors import CaptureError

    files = capture_directory.paths(directory)
    if not files:
        fail(f"{directory} has no recorded graphs\n  record some with `fxpool capture --to {directory} PROGRAM`")
    try:
        return [capture_directory.read(path, keyring=keyring, trust=trust) for path in files]
    except CaptureError as error:  # a problem was found, the usage is right
        fail(str(error), FOUND_WRONG)


def _device(path: str) -> DeviceFacts:
    """Return the facts of the first device in a file. Ends the command if it has other content."""
    import msgspec

    from fxpool.torch_compat.cuda.device_facts import DeviceFacts

    try:
        with open(path, "rb") as file:
            return msgspec.convert(json.loads(file.readline()), DeviceFacts, strict=False)
    except (ValueError, msgspec.ValidationError) as error:
        fail(f"{path} has no facts of a device: {error}\n  write it with `fxpool device --json` on a machine with one")


def _line(built: Built) -> str:
    name = quantities.one_line(built.capture.function or built.capture.label)
    if built.entry is None:
        return wrapped(f"{built.capture.key[:SHORT]}  ", f"{name}  not compiled: {built.error}", width())
    if not built.compiled:
        state = "in the cache"
    else:
        by = f" by {built.machine}" if built.machine else ""
        state = f"compiled{by} in {quantities.span(built.entry.metadata.compile_seconds)}"
    return wrapped(f"{built.entry.key[:SHORT]}  ", f"{name}  {state}", width())


def _summary(done: list[Built], failed: int) -> str:
    compiled = sum(built.compiled for built in done)
    parts = [f"{compiled} compiled", f"{len(done) - compiled - failed} in the cache", f"{failed} not compiled"]
    text = f"{quantities.counted(len(done), 'graph')}: {', '.join(parts)}"
    unmeasured = sum(built.unmeasured for built in done)
    if unmeasured:
        products = quantities.counted(unmeasured, "matrix product")
        text += f"\n{products} not padded: only a device could time whether padding pays"
    return text


def _as_json(built: Built) -> str:
    facts = {
        "key": built.entry.key if built.entry is not None else None,
        "captured": built.capture.key,
        "function": built.capture.function,
        "devices": list(built.capture.devices),
        "compiled": built.compiled,
        "machine": built.machine or None,
        "seconds": built.entry.metadata.compile_seconds if built.entry is not None else None,
        "unmeasured": built.unmeasured,
        "error": built.error or None,
    }
    return json.dumps(facts)
