"""Access control: requests need the secret in the URL and a Host header that names this machine.

The secret keeps out other users of the machine, who can reach the port as well. The Host header keeps out pages of
another site whose name resolves to this machine (DNS rebinding), because the browser sends that name. Answers have a
Content-Security-Policy, so that even a mistake in the page could not load anything from another site.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Mapping

__all__ = ["HEADERS", "allowed_host", "new_nonce", "new_token", "policy", "right_token"]

_LOCAL = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:]+\]|[^:\s]*)(:(?P<port>\d{1,5}))?")

#: Headers of every answer, beside the policy.
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


def new_token() -> str:
    """Return a secret for the URL."""
    return secrets.token_urlsafe(24)


def new_nonce() -> str:
    """Return the word that marks the page's own script and style, for one answer."""
    return secrets.token_urlsafe(16)


def policy(nonce: str = "") -> str:
    """Return the Content-Security-Policy: scripts and styles with this nonce only, and nothing from elsewhere."""
    own = f"script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; connect-src 'self'; " if nonce else ""
    return f"default-src 'none'; {own}base-uri 'none'; form-action 'none'; frame-ancestors 'none'"


def right_token(given: str, token: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), token.encode())


def allowed_host(header: str | None, port: int) -> bool:
    """Return whether a Host header names this machine and this port."""
    match = _HOST.fullmatch(header or "")
    return match is not None and match["name"].lower() in _LOCAL and int(match["port"] or 80) == port
