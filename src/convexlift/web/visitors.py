"""Who a visitor is: a random cookie, and a folder and session keys that follow from it.

Nothing is looked up. The folder and the keys are functions of the cookie, so a request reaches the
files and the sessions of its own cookie only, whatever else it says.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from http.cookies import CookieError, SimpleCookie

COOKIE = "convexlift-visitor"
_TOKEN = re.compile(r"[0-9a-f]{32}")  # of cookies, and of visitors' names
_SESSION = re.compile(r"[0-9A-Za-z_]{1,64}")


def new_cookie(root_path: str, secure: bool) -> str:
    """The header that gives a browser its identity, until it is closed."""
    rest = f"Path={root_path or '/'}; HttpOnly; SameSite=Lax{'; Secure' if secure else ''}"
    return f"{COOKIE}={secrets.token_hex(16)}; {rest}"


def visitor_of(cookies: str) -> str | None:
    """The visitor's public name, for folders and keys; None without a valid cookie."""
    try:
        morsel = SimpleCookie(cookies).get(COOKIE)
    except CookieError:
        return None
    if morsel is None or not _TOKEN.fullmatch(morsel.value):
        return None
    # Names of folders are seen in addresses of results; the cookie cannot be computed from them.
    return _digest(morsel.value)


def session_key(visitor: str, session: object) -> str | None:
    """The key of a visitor's session, from the one that the browser drew; None for a bad one."""
    if not isinstance(session, str) or not _SESSION.fullmatch(session):
        return None
    return f"{visitor}-{session}"


def visitor_in(key: str) -> str:
    """The visitor to whom a session key belongs."""
    visitor = key.partition("-")[0]
    return visitor if _TOKEN.fullmatch(visitor) else _digest(key)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
