"""Parses the request line and headers of an HTTP request: a pure, strict function."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote

__all__ = ["MOST", "Refused", "Request", "parse"]

#: Bytes of a request's line and headers together.
MOST = 8 << 10

_LINE = re.compile(rb"(?P<method>[A-Z]{1,16}) (?P<target>/[\x21-\x7e]*) HTTP/1\.[01]")
_HEADER = re.compile(rb"(?P<name>[!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*(?P<value>[\t\x20-\x7e\x80-\xff]*?)[ \t]*")


@dataclass(frozen=True)
class Request:
    """`parts` are the decoded parts of the path, between its slashes; a slash at the end gives an empty last one."""

    method: str
    parts: tuple[str, ...]
    host: str | None


@dataclass(frozen=True)
class Refused:
    """No request: the status to answer with, and why."""

    status: int
    reason: str


def parse(head: bytes) -> Request | Refused:
    """Parse all that comes before the empty line."""
    lines = head.split(b"\r\n")
    match = _LINE.fullmatch(lines[0])
    if match is None:
        return Refused(400, "not an HTTP request")
    hosts = []
    for line in lines[1:]:
        header = _HEADER.fullmatch(line)
        if header is None:
            return Refused(400, "malformed header")
        name = header["name"].lower()
        if name == b"host":
            hosts.append(header["value"].decode("latin-1"))
        elif name == b"transfer-encoding" or (name == b"content-length" and header["value"] != b"0"):
            return Refused(400, "requests must not have a body")
    if len(hosts) > 1:
        return Refused(400, "several Host headers")
    path = match["target"].partition(b"?")[0].decode("ascii")
    # Decoded after it was split: an encoded slash is part of a name, and names no other place.
    parts = tuple(unquote(part) for part in path[1:].split("/"))
    return Request(match["method"].decode(), parts, hosts[0] if hosts else None)
