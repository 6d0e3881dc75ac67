"""The `mode` and `options` of ``torch.compile(backend="fxpool", mode=..., options={...})``, checked and parsed.

`mode` takes torch.compile's names (``reduce-overhead``, ``max-autotune``, ...) or a compile mode in the grammar of
``TORCHINDUCTOR_FX_COMPILE_MODE``. `options` takes the names below, and every option of Inductor's.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fxpool import config
from fxpool.errors import ConfigurationError, UnknownNameError
from fxpool.torch_compat.state import configs

#: fxpool's own options, and their types.
OWN_OPTIONS: dict[str, type | tuple[type, ...]] = {
    "mode": str,
    "strict": bool,
    "cache": bool,
    "stages": list,
    "stage_calls": int,
    "regions": (bool, str),
}

COMPILE_MODES = config.WORKING_MODES


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one call: how to compile, whether fallbacks are errors, and Inductor's options.

    `mode` is without ``progressive+`` and ``async+``; `asynchronous` stands for the latter. `stages` are Inductor's
    options for each stage of a progressive mode, including those of `inductor`; empty in other modes. `regions` says
    whether graphs are compiled in pieces (in background modes, until the whole graph's code is ready): ``on``,
    ``off``, or ``auto``, which does so if it is clearly faster.
    """

    mode: str
    strict: bool
    cache: bool
    inductor: dict[str, Any]
    asynchronous: bool = False
    stages: tuple[dict[str, Any], ...] = ()
    stage_calls: int = 0
    regions: str = "off"

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Apply the call's options for Inductor inside the ``with`` block."""
        with configs.patched(self.inductor):
            yield


def parse(
    mode: str | None = None, options: Mapping[str, Any] | None = None, settings: config.Settings | None = None
) -> Options:
    """Return the options of one backend call; the settings, by default those in force now, are the defaults.

    Raises:
        ConfigurationError: an unknown name (the message lists the valid names), or a value of a wrong type.
    """
    settings = settings or config.current()
    own: dict[str, Any] = {
        "mode": settings.mode,
        "strict": settings.strict,
        "cache": True,
        "stages": settings.stages,
        "stage_calls": settings.stage_calls,
        "regions": settings.regions,
    }
    inductor: dict[str, Any] = {}
    if mode is not None:
        if mode in configs.mode_names():
            inductor.update(configs.mode_options(mode))
        else:
            own["mode"] = _compile_mode(mode, [*configs.mode_names(), *COMPILE_MODES])
    for name, value in (options or {}).items():
        if name in OWN_OPTIONS:
            expected = OWN_OPTIONS[name]
            if not isinstance(value, expected):
                kinds = " or ".join(
                    kind.__name__ for kind in (expected if isinstance(expected, tuple) else (expected,))
                )
                raise ConfigurationError(f"option {name!r} takes {kinds}, not {type(value).__name__}")
            own[name] = _own(name, value)
            continue
        try:
            attribute, checked = configs.check_inductor_option(name, value)
        except KeyError:
            raise UnknownNameError("option", name, [*OWN_OPTIONS, *configs.inductor_option_names()]) from None
        except TypeError as error:
            raise ConfigurationError(str(error)) from None
        inductor[attribute] = checked
    *prefixes, base = own["mode"].split("+")
    stages: tuple[dict[str, Any], ...] = ()
    if "progressive" in prefixes:
        stages = merged(own["stages"], inductor)
    return Options(
        base,
        own["strict"],
        own["cache"],
        inductor,
        "async" in prefixes,
        stages,
        own["stage_calls"] if stages else 0,
        regions="off" if own["regions"] == "auto" and not prefixes else own["regions"],
    )


def _own(name: str, value: Any) -> Any:
    if name == "mode":
        return _compile_mode(value, COMPILE_MODES)
    if name in ("stages", "stage_calls", "regions"):
        return getattr(config.override(config.current(), {name: value}), name)
    return value


def _compile_mode(text: str, names: Any) -> str:
    """Return a mode that is implemented. `config` parses the grammar, and refuses other modes by name."""
    if text in COMPILE_MODES:
        return text
    if "+" in text:
        return config.override(config.current(), {"mode": text}).mode
    raise UnknownNameError("mode", text, names)


def merged(stages: Sequence[str | Mapping[str, Any]], common: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return Inductor's options of each stage, with the call's. A stage equal to the one before it is left out.

    Raises:
        ConfigurationError: an unknown option or mode, or a value of a wrong type.
    """
    distinct: list[dict[str, Any]] = []
    for number, stage in enumerate(stages):
        options = {**common, **_checked(stage, f"stage {number}")}
        if not distinct or options != distinct[-1]:
            distinct.append(options)
    return tuple(distinct)


def _checked(stage: str | Mapping[str, Any], where: str) -> dict[str, Any]:
    if isinstance(stage, str):
        if stage not in configs.mode_names():
            raise UnknownNameError(f"mode of {where}", stage, configs.mode_names())
        return configs.mode_options(stage)
    try:
        return dict(configs.check_inductor_option(name, value) for name, value in stage.items())
    except KeyError as error:
        raise UnknownNameError(f"option of {where}", error.args[0], configs.inductor_option_names()) from None
    except TypeError as error:
        raise ConfigurationError(f"{where}: {error}") from None
