"""What is in a certificate, for what Python does not read of one: DER (X.690), as far as X.509 needs it."""

import datetime
import ssl
from collections.abc import Iterator


def expiry_of(pem: bytes) -> float:
    """Return when the first certificate of a file expires, in seconds since 1970 (RFC 5280, 4.1)."""
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
