"""The process state that affects compiled code, in one record.

It is captured once per request, hashed into the key, and re-entered in the worker and in any thread that loads an
entry. It consists of global switches (`torch_compat.state.global_state`), configuration (`torch_compat.configs`), the
code that the configuration refers to, and the environment variables that torch and Triton read at every compile
(`environment_variables`). State that cannot be re-entered (`torch_compat.thread_state`) is refused by name.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import Any

from fxpool.codecache.key import cacheable, configured_code, system_facts, toolchain
from fxpool.errors import CannotTravelError
from fxpool.lowering.request import environment_variables
from fxpool.torch_compat.cpp import cpp_toolchain
from fxpool.torch_compat.cuda import device_facts
from fxpool.torch_compat.operators import pickled_definitions
from fxpool.torch_compat.state import configs, global_state, thread_state


@dataclasses.dataclass
class AmbientState:
    """`switches` and `configuration` are plain; `code` is a pickle of configured values that are not plain, or None.

    `configured` are these values as objects, in the process that captured them; they are not sent.
    """

    switches: dict[str, Any]
    configuration: dict[str, dict[str, Any]]
    environment: dict[str, str]
    code: bytes | None = None
    configured: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "configured": {}}

    def elsewhere(self) -> AmbientState:
        """Return the state for a process that answers for devices instead of seeing them, without device indices."""
        hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "")
        return dataclasses.replace(
            self,
            switches={**self.switches, "default_device": without_index(self.switches["default_device"])},
            environment={**self.environment, **hidden},
        )

    def on_this_machine(self) -> AmbientState:
        """Return the state of another machine, for a compile on this one: with this one's compiler.

        Its path may be another although its digest, which is in the key, is the same.
        """
        return self.configured_with(cpp_toolchain.of_this_machine())

    def configured_with(self, values: Mapping[str, Any]) -> AmbientState:
        """Return the state with other values for entries of Inductor's configuration."""
        changed = {**self.configuration["inductor"], **values}
        return dataclasses.replace(self, configuration={**self.configuration, "inductor": changed})


def without_index(device: str | None) -> str | None:
    """Return the default device without its index: the graph already names the devices of its tensors."""
    return device.partition(":")[0] if device is not None else None


def capture(*, before_autograd: bool, toolchain_dir: str | None = None) -> AmbientState:
    """Return the current state of this thread. `before_autograd`: AOTAutograd has not run on the graph yet.

    `toolchain_dir` is the directory of facts about the tool chain.

    Raises:
        CannotTravelError: the state includes something that exists only in this process.
    """
    if (tied := thread_state.tied_to_thread(before_autograd=before_autograd)) is not None:
        raise CannotTravelError(*tied)
    if before_autograd and thread_state.saved_tensor_hooks_compiled():
        raise CannotTravelError("saved_tensor_hooks", "default hooks for saved tensors would be part of the graph")
    configuration, code = configs.captured()
    environment = _environment(toolchain_dir)
    if (library := device_facts.requested_libdevice()) is not None:
        environment[device_facts.LIBDEVICE_VARIABLE] = library
    return AmbientState(global_state.capture(), configuration, environment, _dump_code(code), code)


def _environment(toolchain_dir: str | None) -> dict[str, str]:
    read = toolchain.variables_read(toolchain_dir)
    wanted = [name for name in os.environ if name in read or environment_variables.travels(name)]
    return {name: os.environ[name] for name in sorted(wanted)}


def _dump_code(code: dict[str, Any]) -> bytes | None:
    if not code:
        return None
    data = pickled_definitions.as_bytes(code)
    if data is None:
        raise CannotTravelError("custom_pass", ", ".join(code))
    return data


def code_digests(state: AmbientState | None = None) -> dict[str, str]:
    """Return the digest of each configured value's code that is in use in this process, by name; usually empty.

    Pass `state` in the process that captured it. A worker calls this without `state`, inside `entered`, and compares:
    objects that it got by name are the same as the program's only if the digests are equal.
    """
    return configured_code.digests(configs.code_values() if state is None else state.configured)


def key_parts(state: AmbientState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (ambient, configuration) as they go into a key.

    Call it only in the process that captured `state`.

    Raises:
        Bypass: a configured value has no digest that distinguishes it from other code.
    """
    for name in environment_variables.FROM_FILES:
        if state.environment.get(name, "").lower() not in ("", "0", "off", "false"):
            raise cacheable.Bypass("triton_override", f"{name}: kernels are taken from files")
    counting = {name: value for name, value in state.environment.items() if environment_variables.in_key(name)}
    ambient = {**state.switches, "environment": counting}
    ambient["default_device"] = without_index(ambient["default_device"])
    if device_facts.LIBDEVICE_VARIABLE in state.environment and device_facts.LIBDEVICE_VARIABLE not in os.environ:
        ambient["libdevice"] = system_facts.file_given_to_triton(state.environment[device_facts.LIBDEVICE_VARIABLE])
    passes = {name: configured_code.identity(name, value) for name, value in state.configured.items()}
    return ambient, {**configs.key_values(state.configuration), "passes": passes}


def shaping(state: AmbientState) -> list[Any]:
    """Return the switches and configuration that compiled code depends on, as plain data, in any process."""
    return [state.switches, configs.key_values(state.configuration)]


@contextlib.contextmanager
def entered_by_thread(state: AmbientState) -> Iterator[None]:
    """Put this thread into the per-thread part of `state`, in the process that captured it.

    The other parts are not changed, because other threads run under them. Loading an entry does not depend on them.
    """
    own = configs.entered(state.configuration, state.configured) if configs.per_thread() else contextlib.nullcontext()
    with (
        own,
        global_state.entered(state.switches, thread_only=True),
    ):
        yield


@contextlib.contextmanager
def compiler_entered(state: AmbientState) -> Iterator[None]:
    """Use the C++ compiler of `state` in this block, and nothing else of it."""
    configured = state.configuration["inductor"]
    names = cpp_toolchain.of_this_machine().keys() & configured.keys()
    with configs.entered({"inductor": {name: configured[name] for name in names}}):
        yield


@contextlib.contextmanager
def entered(state: AmbientState) -> Iterator[None]:
    """Put this process and thread into `state`, except for the environment, which the pool sets."""
    try:
        code = pickled_definitions.from_bytes(state.code) if state.code is not None else None
    except pickled_definitions.NotBroughtError as error:
        raise CannotTravelError("code_not_importable", f"a custom pass: {error}") from error
    with configs.entered(state.configuration, code), global_state.entered(state.switches):
        yield
