"""What the reference of the Python API shows where the source alone does not say it.

The pages are made from the source, which is not run. There a setting is a call of ``setting``, and a call of
``AsyncMasterAdmin`` is made from one of ``MasterAdmin``; users meet a default, and a coroutine.
"""

import dataclasses
import enum
import importlib
import re
from typing import Any, Final

from griffe import Attribute, Class, Docstring, Extension, Function

from tubemq_spark.settings.fields import Setting, settings_of

_AWAITED: Final = "_awaited("
_CONSTANT: Final = re.compile(r"[A-Z][A-Z_]+")
_MADE_BY_CLIENT: Final = {
    *("TubeMQClient", "Producer", "ConsumerBase", "GroupConsumer", "AssignedConsumer"),
    *("AsyncTubeMQClient", "AsyncProducer", "AsyncConsumer", "AsyncMasterAdmin", "SendFuture"),
}
"""Classes that a call of a client returns: their constructors are not for users."""


class Reference(Extension):
    """Shows settings with their defaults and what they take, and calls that are made of others."""

    def on_class_members(self, *, node: object, cls: Class, agent: object, **_: object) -> None:  # noqa: ARG002
        """Set the value and the text of each setting of a dataclass."""
        if not any(str(member.value).startswith("setting(") for member in cls.attributes.values()):
            return
        config = getattr(importlib.import_module(cls.module.path), cls.name)
        required = {field.name for field in dataclasses.fields(config) if _is_required(field)}
        for name, declared in settings_of(config).items():
            attribute = cls.attributes[name]
            attribute.value = None if name in required else _shown(declared.default)
            attribute.docstring = Docstring(_sentence(declared), parent=attribute)

    def on_class(self, *, cls: Class, **_: object) -> None:
        """Replace calls that are made of another class's, and leave out constructors that are not public."""
        if cls.name in _MADE_BY_CLIENT and "__init__" in cls.members:
            cls.del_member("__init__")
        for name, attribute in list(cls.attributes.items()):
            if str(attribute.value).startswith(_AWAITED):
                cls[name] = _coroutine(cls, attribute)

    def on_function(self, *, func: Function, **_: object) -> None:
        """Set each default that is a constant of its module to the constant's value."""
        for parameter in func.parameters:
            if _CONSTANT.fullmatch(str(parameter.default)):
                module = importlib.import_module(func.module.path)
                parameter.default = _shown(getattr(module, str(parameter.default)))


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _shown(default: object) -> str:
    return f"{type(default).__name__}.{default.name}" if isinstance(default, enum.Enum) else repr(default)


def _sentence(declared: Setting) -> str:
    text = f"{declared.doc[0].upper()}{declared.doc[1:]}".rstrip(".")
    return f"{text}. It takes {declared.kind.expected}."


def _coroutine(cls: Class, attribute: Attribute) -> Function:
    source = str(attribute.value).removeprefix(_AWAITED).removesuffix(")")
    method = cls.module[source]
    call = Function(
        attribute.name,
        parameters=method.parameters,
        returns=method.returns,
        docstring=method.docstring,
        parent=cls,
        lineno=attribute.lineno,
        endlineno=attribute.endlineno,
    )
    call.labels.add("async")
    return call
