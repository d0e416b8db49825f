"""One option of ``format("tubemq")``: a setting with Spark's name for it, and where it has an effect."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any, Final

from tubemq_spark.errors import OptionError
from tubemq_spark.options.values import Mode
from tubemq_spark.settings.fields import Setting, Value, field_of, settings_of
from tubemq_spark.settings.kinds import Kind

_HIDDEN: Final = "***"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Option(Setting):
    """What is declared of an option; ``doc`` has sentences, for the reference page."""

    name: str
    """As users write it; Spark does not keep the case."""
    modes: frozenset[Mode]
    """Where it has an effect."""
    default_doc: str = ""
    """The default in words, where it is not just ``default``."""
    example: str = ""
    """For the error when it is missing; such an option is required wherever it has an effect."""
    sparks_own: bool = False
    """Whether Spark passes it on to a sink too, where it has no effect and that is no mistake."""

    def read(self, text: str) -> Value:
        """Make a value of the user's text.

        Raises:
            OptionError: the text is not what the option's kind expects.
            OffsetFormatError: the text is not an offset spec.
        """
        value = self.kind.parse(text)
        if value is None:
            shown = _HIDDEN if self.secret else self.kind.shown(text)
            expected = self.kind.expected_instead_of(text)
            raise OptionError("TUBEMQ_OPTION_VALUE", option=self.name, value=shown, expected=expected)
        return value

    def show(self, value: Value) -> str:
        """Return a value as text that is safe to log."""
        return _HIDDEN if self.secret else self.kind.show(value)


def option(
    name: str, modes: Collection[Mode], kind: Kind[Any], *, sparks_own: bool = False
) -> Callable[..., Value]:
    """Return what makes a field that is an option, of its text, its default and the default in words."""

    def field(doc: str, default: object = None, *, default_doc: str = "") -> Value:
        declared = Option(
            kind=kind,
            doc=doc,
            default=default,
            secret=False,
            name=name,
            modes=frozenset(modes),
            default_doc=default_doc,
            sparks_own=sparks_own,
        )
        return field_of(declared, default)

    return field


def named(
    name: str,
    modes: Collection[Mode],
    more: str = "",
    *,
    kind: Kind[Any] | None = None,
    default_doc: str = "",
    example: str = "",
) -> Callable[[Setting], Option]:
    """Return what makes an option of a setting, whose kind, text and default it takes.

    Args:
        name: the option's name.
        modes: where it has an effect.
        more: what to say besides the setting's text.
        kind: a narrower kind than the setting's.
        default_doc: the default in words.
        example: for the error when it is missing.
    """
    return lambda declared: Option(
        kind=kind or declared.kind,
        doc=f"{declared.doc[0].upper()}{declared.doc[1:]}. {more}".strip(),
        default=declared.default,
        secret=declared.secret,
        name=name,
        modes=frozenset(modes),
        default_doc=default_doc,
        example=example,
    )


def options_for(config: type, **by_field: Callable[[Setting], Option]) -> dict[str, Option]:
    """Return the options that set fields of a dataclass, by field."""
    settings = settings_of(config)
    return {field: option_of(settings[field]) for field, option_of in by_field.items()}
