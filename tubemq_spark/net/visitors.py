"""Refusing web requests that a page of another site may have made.

A browser lets any page send requests to this machine, but says so in ``Sec-Fetch-Site``, ``Origin`` or
``Referer``. A page that reaches this machine through its own DNS name (rebinding) has that name in ``Host``.
Programs send none of the first three, and their ``Host`` is an address or a name of this server.
"""

import ipaddress
from collections.abc import Callable, Collection
from urllib.parse import urlsplit

Header = Callable[[str], str | None]
"""Returns a header of a request by its name."""

_OWN_SITES = ("same-origin", "none")
"""Values of ``Sec-Fetch-Site`` for a page of this port, and for an address that was typed in."""


def why_foreign(header: Header, names: Collection[str]) -> str | None:
    """Return what shows that a request comes from another site; ``names`` are those of the server."""
    host = header("Host")
    if host is not None and not _is_ours(host, names):
        return f"it is for the host {host!r}, but the names of this server are {', '.join(sorted(names))}"
    site = header("Sec-Fetch-Site")
    if site is not None and site not in _OWN_SITES:
        return f"a browser sent it for a page of another site (Sec-Fetch-Site: {site})"
    for name in ("Origin", "Referer"):
        page = header(name)
        if page is not None and (host is None or _authority(page) != host.lower()):
            return f"a browser sent it for another page ({name}: {page!r})"
    return None


def _is_ours(host: str, names: Collection[str]) -> bool:
    name = _authority(f"http://{host}", port=False)
    if name in {"localhost", *map(str.lower, names)}:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _authority(url: str, *, port: bool = True) -> str:
    """Return host and port of a URL, or only the host; empty if it has none."""
    try:
        parts = urlsplit(url)
        return (parts.netloc if port else parts.hostname or "").lower()
    except ValueError:
        return ""
