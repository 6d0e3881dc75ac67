"""What ``torch.compile(backend="fxpool", mode=..., options={...})`` may say, and what it means.

`mode` takes torch.compile's names (``reduce-overhead``, ``max-autotune``, ...) or a compile mode in
the grammar of ``TORCHINDUCTOR_FX_COMPILE_MODE``. `options` takes the names below, and every option
of Inductor's.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from fxpool import config
from fxpool.errors import ConfigurationError, UnknownNameError
from fxpool.torch_compat import configs

#: options of fxpool's own, and the type each takes
OWN_OPTIONS: dict[str, type] = {"mode": str, "strict": bool, "cache": bool}

COMPILE_MODES = config.WORKING_MODES


@dataclasses.dataclass(frozen=True)
class Options:
    """One call's wishes: how to compile, whether steps down are errors, and Inductor's options.

    `mode` is without ``async+``; `asynchronous` says that it was there.
    """

    mode: str
    strict: bool
    cache: bool
    inductor: dict[str, Any]
    asynchronous: bool = False


def parse(mode: str | None = None, options: Mapping[str, Any] | None = None) -> Options:
    """Options of one backend call; settings of the environment fill in what is not said.

    Raises:
        ConfigurationError: an unknown name (the known ones are listed), or a value of a wrong type.
    """
    settings = config.current()
    own: dict[str, Any] = {"mode": settings.mode, "strict": settings.strict, "cache": True}
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
                raise ConfigurationError(f"option {name!r} takes {expected.__name__}, not {type(value).__name__}")
            own[name] = _compile_mode(str(value), COMPILE_MODES) if name == "mode" else value
            continue
        try:
            attribute, checked = configs.check_inductor_option(name, value)
        except KeyError:
            raise UnknownNameError("option", name, [*OWN_OPTIONS, *configs.inductor_option_names()]) from None
        except TypeError as error:
            raise ConfigurationError(str(error)) from None
        inductor[attribute] = checked
    base = own["mode"].removeprefix("async+")
    return Options(base, own["strict"], own["cache"], inductor, asynchronous=base != own["mode"])


def _compile_mode(text: str, known: Any) -> str:
    """A mode that is built. `config` knows the grammar, and refuses what is not built yet by name."""
    if text in COMPILE_MODES:
        return text
    if "+" in text:
        return config.override(config.current(), {"mode": text}).mode
    raise UnknownNameError("mode", text, known)
