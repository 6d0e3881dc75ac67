"""Installs fxpool in each process of an inference engine, if ``FXPOOL_INSTALL=1`` asks for it.

    vLLM     entry point in the group ``vllm.general_plugins``    called in each of its processes, perhaps repeatedly
    SGLang   entry point in the group ``sglang.srt.plugins``      the same

Without the variable nothing happens, not even an import. With it, fxpool is installed once Inductor is imported: an
engine sets variables that torch reads at that time. An exception here would end the engine, so a failure is a warning.
"""

from __future__ import annotations

import os

__all__ = ["VARIABLE", "install"]

#: The variable; `fxpool.config` knows its name.
VARIABLE = "FXPOOL_INSTALL"
_OFF = ("", "0", "false", "no", "off")
_ON = ("1", "true", "yes", "on")
_awaited: list[bool] = []


def install() -> None:
    """Install fxpool now, or as soon as Inductor is imported, if the variable is set. Idempotent, never raises."""
    wanted = os.environ.get(VARIABLE, "").strip().lower()
    if wanted in _OFF or _awaited:
        return
    _awaited.append(True)
    try:
        if wanted not in _ON:
            raise ValueError(f"{VARIABLE}={wanted}: the value is neither 1 nor 0")
        from fxpool.torch_compat.patching import when_imported  # only if it is wanted

        when_imported("torch._inductor.compile_fx", lambda module: _install())
    except Exception as error:
        _warn(error)


def _install() -> None:
    try:
        import fxpool  # late: this is called in the middle of an import

        fxpool.install()
    except Exception as error:
        _warn(error)


def _warn(error: Exception) -> None:
    try:
        from fxpool import notices  # as above

        notices.warn(
            f"{VARIABLE} has no effect, stock Inductor compiles in this process: {type(error).__name__}: {error}"
        )
    except Exception:  # warnings may be errors
        pass
