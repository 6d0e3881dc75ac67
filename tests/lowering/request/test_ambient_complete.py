"""Everything that can be set in torch is in the key, or there is a reason why it need not be.

Nothing is compiled: inside one call of a backend each state is set to something else, the graph is captured, and its
key is compared. What torch offers is found in torch (`torch_state`); what was decided is in `switch_decisions` and in
`fxpool.torch_compat.state.config_decisions`. A switch that a new release adds fails here until somebody has decided.
"""

from __future__ import annotations

import ast
import json
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import switch_decisions
import torch
import torch_state
from processes import run_python
from torch_state import CannotSetError, Flip

from fxpool.errors import CannotTravelError, NoHalideError
from fxpool.lowering.core.attempt import Destination
from fxpool.lowering.request import ambient_state, capture
from fxpool.torch_compat.state import config_decisions, global_state

pytestmark = pytest.mark.filterwarnings("ignore")


def in_a_backend(look: Callable[[Callable[[], str]], None]) -> None:
    """Call `look` in a backend's call, with a function that says what the graph's key is now, or why it has none."""
    errors: list[BaseException] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def now() -> str:
            try:
                found = capture.capture(gm, inputs, label="test", into=Destination())
            except CannotTravelError as error:
                return f"refused: {error.reason}"
            except NoHalideError:
                return "refused: no Halide"
            return found.key.digest if found.key is not None else f"bypassed: {found.bypass}"

        try:
            look(now)
        except BaseException as error:  # Dynamo would wrap it
            errors.append(error)
        return gm.forward

    torch._dynamo.reset()
    torch.compile(lambda x: x @ x + 1, backend=backend)(torch.ones(4, 4))
    if errors:
        raise errors[0]


def tried(flips: Iterable[Flip]) -> dict[str, set[str]]:
    """Name -> what became of the key over all of its values: ``changed``, ``same``, ``cannot``."""
    outcomes: dict[str, set[str]] = {}
    # All at once: a flip knows what was there before any other was tried.
    known = [flip for flip in flips if flip.name not in switch_decisions.ALLOWED]

    def look(now: Callable[[], str]) -> None:
        plain = now()
        assert not plain.startswith(("refused", "bypassed")), plain
        for flip in known:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    with flip.enter():
                        changed = now()
            except CannotSetError:
                outcomes.setdefault(flip.name, set()).add("cannot")
                continue
            outcomes.setdefault(flip.name, set()).add("changed" if changed != plain else f"same at {flip.value}")
            assert now() == plain, f"{flip.name} was not put back"

    in_a_backend(look)
    return outcomes


def undecided(names: Iterable[str], outcomes: dict[str, set[str]], allowed: Callable[[str], bool]) -> list[str]:
    """What neither changes the key at every value nor is allowed not to."""
    return [
        f"{name}: {sorted(outcomes.get(name, {'not tried'}))}"
        for name in names
        if outcomes.get(name, set()) - {"cannot"} != {"changed"} and not allowed(name)
    ]


def is_allowed(name: str) -> bool:
    """Whether there is a reason why a key need not change; of what can't be set here, the record is looked at."""
    if name in switch_decisions.RECORDED:
        return switch_decisions.RECORDED[name] in global_state.TABLE
    return name in switch_decisions.ALLOWED or name.startswith(tuple(switch_decisions.ALLOWED_PREFIXES))


@pytest.fixture(scope="module")
def names() -> dict[str, list[str]]:
    """What a fresh process finds: other tests import more of torch into this one."""
    program = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torch._dynamo, torch._inductor.compile_fx, torch.utils.checkpoint
import torch_state
print(json.dumps({
    "setters": sorted(torch_state.setters()),
    "backends": sorted([*torch_state.backend_attributes(), *torch_state.backend_functions()]),
    "plain configuration": sorted(torch_state.plain_configuration_modules()),
}))
"""
    found: dict[str, list[str]] = json.loads(run_python(["-c", program]).splitlines()[-1])
    return found


@pytest.mark.slow
def test_whatever_sets_something_is_decided(names: dict[str, list[str]]) -> None:
    setters = names["setters"]
    assert len([name for name in setters if name.startswith("core.")]) > 100
    assert len([name for name in setters if name.startswith("torch.")]) > 80
    assert {"core._set_grad_enabled", "torch.set_autocast_dtype", "core._set_sdp_use_flash"} <= set(setters)
    outcomes = tried(torch_state.setter_flips())
    assert len([name for name, seen in outcomes.items() if "changed" in seen]) > 60
    left = undecided(setters, outcomes, is_allowed)
    assert not left, "\n".join(left)


@pytest.mark.slow
def test_every_switch_of_a_backend_is_decided(names: dict[str, list[str]]) -> None:
    switches_below = names["backends"]
    assert len(switches_below) > 25
    assert {
        "backends.cudnn.enabled", "backends.mkldnn.deterministic", "backends.cuda.matmul.allow_tf32",
        "backends.mkldnn.conv.fp32_precision", "backends.cuda.enable_flash_sdp", "backends.quantized.engine",
    } <= set(switches_below)  # fmt: skip
    outcomes = tried(torch_state.backend_flips())
    assert len(outcomes) > 20
    left = undecided(switches_below, outcomes, is_allowed)
    assert not left, "\n".join(left)


def test_reasons_are_of_names_that_exist(names: dict[str, list[str]]) -> None:
    assert all(reason for reason in switch_decisions.ALLOWED.values())
    of_other_releases = set(switch_decisions.ALLOWED) - set(names["setters"]) - set(names["backends"])
    assert len(of_other_releases) < 25, sorted(of_other_releases)


# ---------------------------------------------------------------- configuration


def configuration() -> Iterator[tuple[str, str, Any]]:
    for path, module in torch_state.configuration_modules().items():
        for short, known in config_decisions.MODULES.items():
            if known == path:
                yield short, path, module


def test_every_configuration_module_is_decided(names: dict[str, list[str]]) -> None:
    found = set(torch_state.configuration_modules())
    assert {"torch._inductor.config", "torch._dynamo.config", "torch._functorch.config"} <= found
    assert found - set(config_decisions.MODULES.values()) - set(config_decisions.UNREAD) == set()
    plain = set(names["plain configuration"])
    assert plain - set(config_decisions.UNREAD) == set()


@pytest.mark.slow
@pytest.mark.parametrize("short", sorted(config_decisions.MODULES))
def test_every_entry_of_a_configuration_is_decided(short: str) -> None:
    modules = {name: (path, module) for name, path, module in configuration()}
    if short not in modules:
        pytest.skip("this release has no such module")
    path, module = modules[short]
    least = {"inductor": 400, "dynamo": 100, "functorch": 40, "fx": 10, "compiler": 10}
    assert len(module._config) >= least.get(short, 1)
    allowed = {**config_decisions.STAYS[short], **config_decisions.ONLY_TRAVELS[short]}
    assert all(allowed.values())

    def is_decided(name: str) -> bool:
        entry = name.removeprefix(f"{path}.")
        target = module._config[entry].alias
        while target is not None:  # what it is another name of
            home, _, entry = target.rpartition(".")
            of = next(one for one, known in config_decisions.MODULES.items() if known == home)
            if entry in {**config_decisions.STAYS[of], **config_decisions.ONLY_TRAVELS[of]}:
                return True
            target = sys.modules[home]._config[entry].alias
        return entry in allowed

    outcomes = tried(torch_state.configuration_flips(path, module))
    assert len(outcomes) == len(module._config)
    left = undecided(outcomes, outcomes, is_decided)
    assert not left, "\n".join(left)


# ---------------------------------------------------------------- what is captured is re-entered


def settable() -> Iterator[Flip]:
    """Flips of what a worker is put into."""
    yield from torch_state.setter_flips()
    yield from torch_state.backend_flips()


def test_whatever_is_captured_can_be_entered_again() -> None:
    entered = 0
    for flip in list(settable()):
        if flip.name in switch_decisions.ALLOWED or "dispatch_key" in flip.name:
            continue
        plain = global_state.capture()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with flip.enter():
                    changed = global_state.capture()
            except CannotSetError:
                continue
        assert global_state.capture() == plain, flip.name
        with global_state.entered(changed):
            here = global_state.capture()
            assert {name for name in changed if here.get(name) != changed[name]} == set(), flip.name
            entered += changed != plain
        assert global_state.capture() == plain, f"{flip.name} was not put back"
    assert entered > 80


def test_states_that_are_set_once() -> None:
    """Those that can't be set here are read from the record: another value is another key. So is inference mode."""
    once = {name for name, (_, write) in global_state.TABLE.items() if write is None}
    assert once == {"flash_implementation", "inference", "private_device", "process_group"}
    in_a_backend(lambda now: _records_are_in_keys())


def _records_are_in_keys() -> None:
    state = ambient_state.capture(before_autograd=True)
    plain = ambient_state.key_parts(state)
    for name in global_state.TABLE:
        if name in state.switches and name != "default_device":
            before, state.switches[name] = state.switches[name], "another"
            assert ambient_state.key_parts(state) != plain, name
            state.switches[name] = before
    assert ambient_state.key_parts(state) == plain


# Entries of Dynamo's that other parts of torch read, and whose reasons in `config_decisions` hold there as well.
READ_ELSEWHERE_AS_WELL = {
    "_unsafe_skip_fsdp_module_guards",  # guards
    "debug_dir_root",  # where files for a person go
    "fake_tensor_cache_crosscheck_enabled",
    "fake_tensor_cache_enabled",
    "inline_inbuilt_nn_modules",  # 2.11: whether a CUDA graph is recorded again, where the program runs
    "strict_precompile",  # an error in place of torch's own bypass of its own cache
    "verbose",  # what is logged
}


@pytest.mark.slow
def test_what_is_said_to_be_dynamos_own_is_read_by_dynamo_alone() -> None:
    read = read_of(
        "torch._dynamo.config", outside=("_dynamo", "testing", "onnx", "export", "_export", "ao", "compiler")
    )
    assert {"numpy_default_float", "force_compile_during_fx_trace"} <= read
    assert read & set(config_decisions.STAYS["dynamo"]) <= READ_ELSEWHERE_AS_WELL


def read_of(module: str, *, outside: tuple[str, ...]) -> set[str]:
    """Attributes of a module that torch's sources read, but for those of some packages."""
    package, _, leaf = module.rpartition(".")
    root = Path(torch.__file__).parent
    found: set[str] = set()
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] in outside or leaf not in (text := path.read_text(encoding="utf-8")):
            continue
        if package.rpartition(".")[2] not in text:
            continue
        tree = ast.parse(text)
        names = {module}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names.update(alias.asname for alias in node.names if alias.name == module and alias.asname)
            elif isinstance(node, ast.ImportFrom) and node.module == package:
                names.update(alias.asname or alias.name for alias in node.names if alias.name == leaf)
        attributes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute))
        found.update(node.attr for node in attributes if ast.unparse(node.value) in names)
    return found
