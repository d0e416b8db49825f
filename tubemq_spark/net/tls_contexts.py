"""The contexts of OpenSSL, made from the files that settings of TLS name.

A context is kept per setting and made again when one of its files has changed, so certificates can be renewed
while queries run.
"""

import datetime
import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from tubemq_spark.errors import OptionError
from tubemq_spark.net.tls import ServerTls, TlsConfig, TlsVersion

logger = logging.getLogger(__name__)

_PEM: Final = b"-----BEGIN "

Stamp = tuple[tuple[int, ...], ...]
"""Time of change, in ns, and size of each file of a setting."""


class _Names(NamedTuple):
    """What the user calls the files of a setting."""

    cas: str
    cert: str
    key: str
    password: str


_CLIENT: Final = _Names(*(f"tubemq.tls.{name}" for name in ("caFile", "certFile", "keyFile", "keyPassword")))
_SERVER: Final = _Names(
    *(f"ServerTls.{name}" for name in ("client_ca_file", "cert_file", "key_file", "key_password"))
)


_MINIMUM: Final = {TlsVersion.V1_2: ssl.TLSVersion.TLSv1_2, TlsVersion.V1_3: ssl.TLSVersion.TLSv1_3}


def client_context(config: TlsConfig) -> ssl.SSLContext:
    """Return a new context of a client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies certificates and names
    context.minimum_version = _MINIMUM[config.min_version]
    # Any certificate in the file is trusted, also an intermediate one or a server's own.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.options |= ssl.OP_NO_RENEGOTIATION
    if config.ca_file is None:
        context.load_default_certs()
    else:
        _load_cas(context, _CLIENT.cas, config.ca_file)
    if config.cert_file is not None:
        _load_pair(context, _CLIENT, config.cert_file, config.key_file, config.key_password)
    return context


def _server_context(config: ServerTls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION
    _load_pair(context, _SERVER, config.cert_file, config.key_file, config.key_password)
    if config.client_ca_file is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        _load_cas(context, _SERVER.cas, config.client_ca_file)
    return context


def _load_cas(context: ssl.SSLContext, option: str, path: str) -> None:
    _check_pem(option, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise _unusable(option, path, "it holds no certificate that can be read") from error


def _load_pair(
    context: ssl.SSLContext, names: _Names, cert_file: str, key_file: str | None, password: str | None
) -> None:
    _check_pem(names.cert, cert_file)
    if key_file is not None:
        _check_pem(names.key, key_file)
    password_read = False

    def tell_password() -> str:
        # Always given: without it OpenSSL would ask on the terminal.
        nonlocal password_read
        password_read = True
        return password or ""

    try:
        context.load_cert_chain(cert_file, key_file, tell_password)
    except (ssl.SSLError, OSError, ValueError) as error:
        # Every error of OpenSSL for an encrypted key is about the password.
        raise _unusable(*_fault_of_pair(error, names, cert_file, key_file, encrypted=password_read)) from None


def _fault_of_pair(
    error: Exception, names: _Names, cert_file: str, key_file: str | None, *, encrypted: bool
) -> tuple[str, str, str]:
    """Return the option, the file, and what is wrong with it."""
    key = (names.key, key_file) if key_file is not None else (names.cert, cert_file)
    if encrypted:
        return *key, f"its key is encrypted and {names.password} does not open it"
    reason = getattr(error, "reason", None) or ""
    if reason == "KEY_VALUES_MISMATCH":
        return *key, f"its key does not belong to the certificate in {cert_file}"
    if b"PRIVATE KEY-----" not in Path(key[1]).read_bytes():
        return *key, "it holds no private key"
    if b"CERTIFICATE-----" not in Path(cert_file).read_bytes():
        return names.cert, cert_file, "it holds no certificate"
    return names.cert, cert_file, f"OpenSSL cannot read the certificate or its key ({reason or error})"


def _check_pem(option: str, path: str) -> None:
    try:
        content = Path(path).read_bytes()
    except (OSError, ValueError) as error:
        cause = getattr(error, "strerror", None) or str(error)
        raise _unusable(option, path, cause) from error
    if _PEM not in content:
        raise _unusable(option, path, "it is not a PEM file")


def _unusable(option: str, path: str, cause: str) -> OptionError:
    return OptionError("TUBEMQ_TLS_FILE", option=option, path=path, cause=cause)


Setting = TypeVar("Setting", TlsConfig, ServerTls)


def _files(config: TlsConfig | ServerTls) -> list[str]:
    cas = config.ca_file if isinstance(config, TlsConfig) else config.client_ca_file
    return [path for path in (cas, config.cert_file, config.key_file) if path is not None]


def _stamp(config: TlsConfig | ServerTls) -> Stamp | None:
    """Return a stamp of the files, which changes with each of them; None while one of them is missing."""
    try:
        stats = [Path(path).stat() for path in _files(config)]
    except (OSError, ValueError):
        return None
    # A copy may keep the time of modification (cp -p), and never that of the last change of any kind.
    return tuple((file.st_ino, file.st_ctime_ns, file.st_mtime_ns, file.st_size) for file in stats)


class _Contexts:
    """The contexts of this process, by their settings."""

    def __init__(self, make: Callable[[Setting], ssl.SSLContext]) -> None:
        self._make: Callable[..., ssl.SSLContext] = make
        self._lock = threading.Lock()
        self._made: dict[TlsConfig | ServerTls, tuple[Stamp | None, ssl.SSLContext]] = {}

    def get(self, config: TlsConfig | ServerTls) -> ssl.SSLContext:
        """Return the context of a setting; it is made when there is none for its files as they are."""
        with self._lock:
            cached = self._made.get(config)
            stamp = _stamp(config)
            if cached is not None and cached[0] == stamp:
                return cached[1]
            try:
                context = self._make(config)
            except OptionError as error:
                if cached is None:
                    raise
                # Files are renewed one after the other, and may not fit together for a moment.
                logger.warning("changed TLS files are not used yet: %s", error)
                return cached[1]
            self._made[config] = (stamp, context)
            return context

    def reset(self) -> None:
        """Replace the lock: in a forked child, it may be held by a thread that is not there."""
        self._lock = threading.Lock()


client_contexts: Final = _Contexts(client_context)
server_contexts: Final = _Contexts(_server_context)
os.register_at_fork(after_in_child=client_contexts.reset)
os.register_at_fork(after_in_child=server_contexts.reset)


def expiry_of(pem: bytes) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970 (RFC 5280, 4.1).

    Python does not read that, so this reads DER (X.690), as far as X.509 needs it.
    """
    start = pem.find(ssl.PEM_HEADER.encode())
    end = pem.find(ssl.PEM_FOOTER.encode(), start)
    if start < 0 or end < 0:
        return 0.0
    der = ssl.PEM_cert_to_DER_cert(pem[start : end + len(ssl.PEM_FOOTER)].decode("ascii"))
    ((_, certificate),) = _items(der)
    _, to_sign = next(_items(certificate))
    # A version that is not the first one has a field of its own, tagged 0.
    fields = [content for tag, content in _items(to_sign) if tag != 0xA0]
    _serial, _algorithm, _issuer, validity, *_ = fields
    _, (tag, until) = _items(validity)
    text = until.decode("ascii")
    if tag == 0x17:  # (a time with two digits for its year)
        text = ("20" if text < "50" else "19") + text
    return datetime.datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=datetime.UTC).timestamp()


def _items(der: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield tags and contents of the items one behind the other (X.690)."""
    place = 0
    while place < len(der):
        tag, size, place = der[place], der[place + 1], place + 2
        if size >= 0x80:
            digits = size & 0x7F
            size, place = int.from_bytes(der[place : place + digits]), place + digits
        yield tag, der[place : place + size]
        place += size
