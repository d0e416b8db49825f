"""The place of a folder of small files: a path, or the URI of a file system or an object store.

A URI may carry credentials. They are part of the value, which tasks need, and of nothing that is shown.
"""

import dataclasses
import re
import urllib.parse
from typing import Final, Self

from tubemq_spark.errors import FolderError, tells_of_full_disk

EXPECTED: Final = (
    "an absolute path, or a URI such as file:///path, hdfs://host:port/path, s3://bucket/path, "
    "gs://bucket/path or abfss://container@account.dfs.core.windows.net/path"
)
"""What the text of a place must be, as words that follow "must be"."""

_SCHEMES: Final = {
    "file": "file",
    "hdfs": "hdfs",
    "viewfs": "viewfs",
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "abfs": "abfs",
    "abfss": "abfss",
}
"""The schemes that are known, by the one that Arrow knows (``s3a`` is Hadoop's name of the same)."""
_SHAPE: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(.+)", re.DOTALL)
_UNFIT: Final = re.compile(r"[\x00-\x20\x7f#]")
"""Blanks and control characters must be escaped, and a fragment means nothing here."""
_QUERY: Final = re.compile(r"\?.*", re.DOTALL)
_HIDDEN: Final = "***"


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class FolderUri:
    """The place of a folder; ``str`` and ``repr`` show it without credentials."""

    text: str
    """As Arrow's ``FileSystem.from_uri`` takes it."""

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the place that a text names; None when it is not what ``EXPECTED`` says."""
        text = text.strip()
        if text.startswith("/"):
            return cls(text) if "\x00" not in text else None
        shape = _SHAPE.fullmatch(text)
        scheme = _SCHEMES.get(shape[1].lower()) if shape is not None else None
        if shape is None or scheme is None or _UNFIT.search(text):
            return None
        uri = f"{scheme}:{shape[2]}"
        return cls(uri) if _is_complete(scheme, uri) else None

    def hide_in(self, text: str) -> str:
        """Return a text about this place, such as another library's error, without its credentials."""
        text = text.replace(self.text, str(self))
        for secret in self._secrets():
            text = text.replace(secret, _HIDDEN)
        return text

    def unusable(self, option: str, done: str, error: Exception) -> FolderError:
        """Return the error of an option's folder that cannot be ``done``, such as ``read``."""
        cause = self.hide_in(" ".join(str(error).split()))
        condition = f"TUBEMQ_FOLDER_UNUSABLE{'.FULL' if tells_of_full_disk(cause) else ''}"
        return FolderError(condition, folder=self, option=option, done=done, cause=cause)

    def _secrets(self) -> list[str]:
        """Return the secrets of a URI, the longest first, each as written and as decoded."""
        if self.text.startswith("/"):
            return []
        parts = urllib.parse.urlsplit(self.text)
        raw = [value for _, _, value in (pair.partition("=") for pair in parts.query.split("&"))]
        raw += [parts.password or "", (parts.username or "") if parts.password else ""]
        both = {form for value in raw for form in (value, urllib.parse.unquote(value)) if form}
        return sorted(both, key=len, reverse=True)

    def __str__(self) -> str:
        return redacted(self.text)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({redacted(self.text)!r})"


def redacted(text: str) -> str:
    """Return a text, that of a URI or not, without what may be credentials."""
    scheme, mark, rest = text.partition("://")
    if not mark:
        return text
    # Up to the last `@`: a password with unescaped slashes must not be shown either.
    _, at, place = rest.rpartition("@")
    return _QUERY.sub(f"?{_HIDDEN}", f"{scheme}{mark}{_HIDDEN if at else ''}{at}{place}")


def _is_complete(scheme: str, uri: str) -> bool:
    """Tell whether a URI names what its scheme needs: an absolute path, or a host or a bucket."""
    try:
        parts = urllib.parse.urlsplit(uri)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    if scheme == "file":
        return parts.path.startswith("/") and host is None and not parts.query
    return bool(host)
