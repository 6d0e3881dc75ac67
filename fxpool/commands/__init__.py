"""The command `fxpool`.

main       all commands together, and the demonstration
output     shared by all: exit statuses, widths, errors
build      `build`
program    `run`, `warm` and `capture`
settings   `config` and `device`
cache      `stats`, and `cache` with `quarantine`, `gc` and `clear`
entries    `cache` with `ls`, `show`, `explain`, `verify` and `rm`
bundles    `cache export`, `cache import` and `cache key`
frames     `frames`
farm       `farm`
server     `serve`, `status` and `stop`
bench      `bench`
doctor     `doctor`
report     `bug-report`
dashboard  `dashboard` and `metrics`
"""

from fxpool import errors

try:
    errors.require_linux()
except errors.UnsupportedTorchError as refused:
    raise SystemExit(f"fxpool: {refused}") from None
