"""The command ``fxpool device``: facts about this machine's GPUs that compiles use.

torch is imported inside functions: `fxpool --help` is to answer at once.
"""

from __future__ import annotations

import json

import click

__all__ = ["device"]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="All facts, one device per line.")
def device(as_json: bool) -> None:
    """The facts of each CUDA device that graphs are compiled from.

    Workers answer Inductor and Triton from these and open no device. Devices with the same facts share compiled graphs.
    """
    import torch

    if not torch.cuda.is_available():
        raise click.ClickException("torch sees no CUDA device here; graphs for the CPU need no facts")
    if torch.version.hip:
        raise click.ClickException("facts are for NVIDIA's devices; workers that compile for others see the device")
    from fxpool.torch_compat.cuda import device_facts

    seen: dict[str, int] = {}
    for index in range(torch.cuda.device_count()):
        facts = device_facts.capture(index)
        if as_json:
            click.echo(json.dumps({"index": index, **device_facts.plain(facts)}))
            continue
        same = seen.setdefault(facts.described(), index)
        shared = "" if same == index else f"  shares what is compiled with device {same}"
        memory = int(facts.properties.get("total_memory", 0)) >> 20
        processors = facts.driver["multiprocessor_count"]
        click.echo(
            f"{index}  {facts.name}  {facts.target}  {processors} processors  {facts.clock} MHz  {memory} MiB{shared}"
        )
