"""The command ``fxpool device``: facts about this machine's GPUs that compiled code depends on.

torch is imported inside functions, so that `fxpool --help` answers at once.
"""

from __future__ import annotations

import json

import click

__all__ = ["device"]


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
