"""Write docs/reference/errors.md from the table of errors; a unit test compares the two."""

import re
import string
from pathlib import Path
from typing import Final

from tubemq_spark.errors import CONDITIONS
from tubemq_spark.protocol.errcodes import refusals

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "reference" / "errors.md"
TROUBLESHOOTING: Final = ROOT / "docs" / "reference" / "troubleshooting.md"

HEAD: Final = """\
# Errors

<!-- Written by `make docs` from tubemq_spark/errors.py. -->

Every error of this package begins with its condition: `[CONDITION] what happened; what to do.` Search this
page for the condition. In Python it is `error.condition`, and the values of the text are `error.parameters`;
the classes are in the [reference](api/errors.md). Messages of other software are on the page
[troubleshooting](troubleshooting.md).

Words in *italics* stand for the values of a message.
"""

_END_OF_CAUSE: Final = re.compile(r"(?:;|\.|\{suggestion\}) (?=[\w'{])")
_DEMAND: Final = re.compile(r"\bmust\b|\{suggestion\}")
_ADVICE: Final = ("*hint*", "*advice*", "*fate*")
"""Values that say what to do, by what was seen."""
_AS_SAID: Final = "Do what the message says."
_HEADING: Final = re.compile(r"^## (.*TUBEMQ_.*)$", re.MULTILINE)
_NAMED: Final = re.compile(r"\[(TUBEMQ_\w+(?:\.[A-Z_]+)*)(\.{3})?\]")


def page() -> str:
    """Return the whole page."""
    places = _places()
    blocks = [_block(condition, text, places) for condition, text in sorted(CONDITIONS.items())]
    return f"{HEAD}{''.join(blocks)}"


def _block(condition: str, text: str, places: list[tuple[str, str]]) -> str:
    cause, cure = _halves(condition, text)
    place = next(
        (anchor for named, anchor in places if condition == named or condition.startswith(f"{named}.")), ""
    )
    more = f"[More](troubleshooting.md#{place})." if place else ""
    if not cure and not more:
        raise ValueError(
            f"the text of {condition} does not say what to do, and troubleshooting.md does not either"
        )
    return f"\n## `{condition}`\n\n{cause}\n\n*What to do:* {' '.join(filter(None, (cure, more)))}\n"


def _halves(condition: str, text: str) -> tuple[str, str]:
    """Return what happened and what to do, each as a sentence."""
    answer = refusals().get(condition)
    if answer is not None:
        return _sentence(answer.meaning), _sentence(answer.hint)
    end = _END_OF_CAUSE.search(text)
    if end is None:
        return _sentence(text), _AS_SAID if _DEMAND.search(text) else ""
    return _sentence(text[: end.start()]), _sentence(text[end.end() :])


def _sentence(template: str) -> str:
    """Return the text in Markdown, with its values in italics."""
    parts = []
    for words, name, _, _ in string.Formatter().parse(template):
        parts.append(words.replace("<", "&lt;").replace("*", "\\*"))
        if name is not None:
            parts.append(f"*{name.replace('_', ' ')}*")
    text = "".join(parts).strip().rstrip(".")
    if text in _ADVICE:
        return _AS_SAID
    text = text.replace("**", "* *")
    if text.startswith("*hint*"):
        text = text.replace("*hint*", _AS_SAID.rstrip("."), 1)
    return f"{text[:1].upper()}{text[1:]}."


def _places() -> list[tuple[str, str]]:
    """Return the conditions that troubleshooting.md explains, and the anchors of their sections."""
    places = []
    for heading in _HEADING.findall(TROUBLESHOOTING.read_text(encoding="utf-8")):
        anchor = re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        places += [(condition, anchor) for condition, _ in _NAMED.findall(heading)]
    return sorted(places, reverse=True)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
