"""The kinds of stores that can be a remote cache, by the schemes of their addresses.

A new store is a module of `fxpool.codecache.remote` with a client, a row here, and an extra in ``pyproject.toml``.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["STORES", "RemoteStore", "by_scheme"]


@dataclass(frozen=True)
class RemoteStore:
    """A kind of store: `addresses` shows their forms, `client` is its class, and the `extra` installs its `package`."""

    schemes: tuple[str, ...]
    addresses: str
    client: str
    package: str
    extra: str


STORES = (
    RemoteStore(
        ("redis", "rediss", "unix"), "redis://host:6379/0, rediss://..., unix:///path",
        "redis_client.RedisClient", "redis", "redis",
    ),
    RemoteStore(("s3",), "s3://bucket/prefix", "s3_client.S3Client", "obstore", "s3"),
)  # fmt: skip


def by_scheme(scheme: str) -> RemoteStore | None:
    """Return the kind of store of addresses with this scheme, if there is such a store."""
    return next((store for store in STORES if scheme in store.schemes), None)
