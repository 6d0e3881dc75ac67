"""The commands ``fxpool config``, for settings and their sources, and ``fxpool device``, for facts about GPUs.

torch is imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from fxpool import config, setting_values
from fxpool.commands.output import show_rows
from fxpool.errors import UnknownNameError
from fxpool.setting_values import without_secrets

__all__ = ["device", "settings"]

_VALUE = 28  # columns of a value before its source; longer values push the source to the right
_MODES = ", ".join(f"`{mode}`" for mode in setting_values.WORKING_MODES)


class _Documented(click.Command):
    """A command whose help describes each setting."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Settings, with their environment variables"):
            for name, text in config.descriptions().items():
                formatter.write_text(f"{name} ({config.variable(name)})")
                with formatter.indentation():
                    formatter.write_text(_described(text))


@click.command("config", cls=_Documented)
@click.argument("names", nargs=-1, metavar="[SETTING]...")
@click.option("--json", "as_json", is_flag=True, help="Output JSON.")
def settings(names: tuple[str, ...], as_json: bool) -> None:
    """Show the settings, and where each comes from.

    The sources, the first match first: configure() in a program, the environment, the settings file, the default. The
    file is $FXPOOL_CONFIG or ~/.config/fxpool/config.toml. Passwords in addresses are not shown.
    """
    current, sources = config.current(), config.sources()
    for name in names:
        if name not in sources:
            raise UnknownNameError("setting", name, sources)
    chosen = {name: source for name, source in sources.items() if not names or name in names}
    if as_json:
        texts = config.descriptions()
        rows = {
            name: {
                "value": _plain(getattr(current, name)),
                "source": source,
                "variable": config.variable(name),
                "description": _described(texts[name]),
            }
            for name, source in chosen.items()
        }
        click.echo(json.dumps(rows))
        return
    show_rows(
        [(name, f"{_shown(name, getattr(current, name)):<{_VALUE}}  {source}") for name, source in chosen.items()]
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Path | str):
        return without_secrets(str(value))
    return list(value) if isinstance(value, tuple) else value


def _shown(name: str, value: Any) -> str:
    """Return a value as it is written in the environment; ``not set`` for none."""
    parse = config.parser(name)
    if value is None:
        return setting_values.NONE_WORDS.get(parse, "not set")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if parse is setting_values.as_part else f"{value:g}s"
    if parse in setting_values.SIZES:
        return setting_values.size_text(value)
    if name == "trusted_owners":
        return ",".join(map(str, value)) or "not set"
    if isinstance(value, tuple):
        return json.dumps(value)
    return without_secrets(str(value)) or "off"


def _described(text: str) -> str:
    plain = text.replace("one of `WORKING_MODES`", _MODES).replace("``", "`")
    return plain.replace("; None: ", "; if not set: ").replace(" None: ", " If not set: ")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Output all facts, one JSON object per device.")
def device(as_json: bool) -> None:
    """Show the facts of CUDA devices that compiled code depends on.

    Workers answer Inductor and Triton from these facts without opening a device. Devices with equal facts
    share compiled graphs.
    """
    import torch

    if not torch.cuda.is_available():
        raise click.ClickException("torch sees no CUDA device")
    if torch.version.hip:
        raise click.ClickException("facts exist for NVIDIA devices only; workers open AMD devices themselves")
    from fxpool.torch_compat.cuda import device_facts

    seen: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        facts = device_facts.capture(index)
        if as_json:
            click.echo(json.dumps({"index": index, **device_facts.plain(facts)}))
            continue
        same = seen.setdefault(facts.described(), index)
        shared = "" if same == index else f"  shares compiled graphs with device {same}"
        memory = int(facts.properties.get("total_memory", 0)) >> 20
        processors = facts.driver["multiprocessor_count"]
        click.echo(
            f"{index}  {facts.name}  {facts.target}  {processors} processors  {facts.clock} MHz  {memory} MiB{shared}"
        )
