"""Names and keys: idempotency-key templates, the identity of a key, and what names may look like."""

from __future__ import annotations

import hashlib
import re
import string
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from streamworker.core.errors import ConfigurationError, InvalidArgument

#: Longest idempotency key, in bytes of UTF-8.
MAX_KEY_BYTES = 512
#: Longest tenant name and correlation id, in bytes of UTF-8.
MAX_TENANT_BYTES = 64
MAX_CORRELATION_ID_BYTES = 128
#: Longest key identity that is kept readable; longer ones become a digest.
MAX_KEY_ID_BYTES = 64

_TASK_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
#: What may stand between two fields: it is escaped in the values, so that they cannot imitate it.
_SEPARATORS = frozenset(string.punctuation) - {"%", "{", "}"}


@dataclass(frozen=True, slots=True)
class KeyTemplate:
    """A key made from a job's arguments, such as `shipment:{shipment_id}:update-status:v{version}`.

    Different arguments never give the same key: `%`, `:` and whatever separates two fields are
    percent-encoded in the values. Only an int and the text of the same digits meet (7 and "7"); the
    fingerprint tells those apart.
    """

    text: str
    #: Literal texts around the fields, one more than there are fields.
    literals: tuple[str, ...]
    fields: tuple[str, ...]
    #: Characters that are percent-encoded in values.
    escaped: frozenset[str]
    what: str = "key template"

    @classmethod
    def parse(
        cls,
        text: str,
        parameters: Sequence[str],
        *,
        what: str = "key template",
        without_field: str | None = None,
    ) -> KeyTemplate:
        """Read a template over the handler's `parameters`.

        `without_field` says what is wrong with one that has no field, for what is no key.

        Raises ConfigurationError for an unknown field, attribute or index access, a format or conversion, two
        fields with nothing between them that could keep them apart, an empty template or one without a field.
        """
        if not isinstance(text, str):
            raise ConfigurationError(
                f'{what} is a text over the arguments, such as "order:{{order_id}}", not {text!r}'
            )
        try:
            parts = list(string.Formatter().parse(text))
        except ValueError as exc:
            raise ConfigurationError(f"{what} {text!r}: {exc}; write fields as {{name}}") from None
        literals, fields = [""], list[str]()
        for literal, field, spec, conversion in parts:
            literals[-1] += literal
            if field is None:
                continue
            _check_field(what, text, field, parameters, plain=not spec and not conversion)
            fields.append(field)
            literals.append("")
        if not fields and without_field is not None:
            raise ConfigurationError(f"{what} {without_field}")
        if not fields:
            raise ConfigurationError(
                f"{what} {text!r} has no field: every job would get the same key and only the first would "
                f"run; name an argument, such as {{{parameters[0] if parameters else 'id'}}}"
            )
        escaped = {"%", ":"} | {_separator(what, text, literal) for literal in literals[1:-1]}
        return cls(text, tuple(literals), tuple(fields), frozenset(escaped), what)

    def render(self, args: Mapping[str, object]) -> str:
        """Return the key for these arguments.

        Values are str or int; bool, float, None and the rest are refused, for their text is no stable
        identity, and so is an empty text. Raises InvalidArgument, which names the field.
        """
        pieces = [self.literals[0]]
        for field, literal in zip(self.fields, self.literals[1:], strict=True):
            pieces += (self._value(field, args), literal)
        return check_key("".join(pieces))

    def _value(self, field: str, args: Mapping[str, object]) -> str:
        what = f"{self.what} {self.text!r}, field"
        if field not in args:
            raise InvalidArgument(what, field, "is missing from the arguments; pass it")
        value = args[field]
        if isinstance(value, bool) or not isinstance(value, str | int):
            raise InvalidArgument(what, field, f"is a {type(value).__name__}; it takes str or int")
        try:
            text = str(value)
        except ValueError:  # Python writes no int of more than 4300 digits
            raise InvalidArgument(what, field, "is an integer beyond 64 bits") from None
        if not text:
            raise InvalidArgument(what, field, "is empty: jobs that have nothing in common would share a key")
        return _escape(text, self.escaped)


def _check_field(what: str, text: str, field: str, parameters: Sequence[str], *, plain: bool) -> None:
    if not field.isidentifier() or not plain:
        raise ConfigurationError(
            f"{what} {text!r}: field {{{field}}} must be the plain name of an argument, "
            "without attribute, index, conversion or format"
        )
    if field not in parameters:
        known = ", ".join(parameters) or "none"
        raise ConfigurationError(f"{what} {text!r}: {{{field}}} is no argument of the task; it has: {known}")


def _separator(what: str, text: str, literal: str) -> str:
    found = [char for char in literal if char in _SEPARATORS]
    if not found:
        raise ConfigurationError(
            f"{what} {text!r}: nothing keeps two fields apart, 1 and 23 would read as 12 and 3; "
            "put ':' between them"
        )
    return ":" if ":" in found else found[0]


def _escape(text: str, characters: frozenset[str]) -> str:
    if characters.isdisjoint(text):
        return text
    return "".join(f"%{ord(char):02X}" if char in characters else char for char in text)


_IDENTITY_ESCAPES = frozenset("%:#")


def key_id(task: str, entity: str, key: str) -> str:
    """Return the identity under which a key is held: `task:entity:key`, at most 64 bytes.

    `%`, `:` and `#` are percent-encoded in task and entity, so no two triples meet; what is longer, or has
    control characters, becomes `#` and 43 characters of SHA-256 of that form.
    """
    plain = f"{_escape(task, _IDENTITY_ESCAPES)}:{_escape(entity, _IDENTITY_ESCAPES)}:{key}"
    data = plain.encode()
    if len(data) <= MAX_KEY_ID_BYTES and not _CONTROL.search(plain):
        return plain
    return "#" + urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


def check_key(key: str) -> str:
    """Return an idempotency key if it is a str of 1 to 512 bytes of UTF-8. Raises InvalidArgument."""
    return _check_text("key", key, MAX_KEY_BYTES, word=False)


def check_task_name(name: object) -> str:
    """Return a task name if it is one: a letter or `_`, then up to 63 of `A-Z a-z 0-9 _ . -`."""
    if not isinstance(name, str) or not _TASK_NAME.fullmatch(name):
        raise InvalidArgument(
            "task name", name, "use 1 to 64 characters of A-Z, a-z, 0-9, '_', '.', '-', a letter or '_' first"
        )
    return name


def check_tenant(tenant: str) -> str:
    """Return a tenant name if it is 1 to 64 bytes, printable and without white space."""
    return _check_text("tenant", tenant, MAX_TENANT_BYTES, word=True)


def check_correlation_id(correlation_id: str) -> str:
    """Return a correlation id if it is 1 to 128 bytes, printable and without white space."""
    return _check_text("correlation id", correlation_id, MAX_CORRELATION_ID_BYTES, word=True)


def _check_text(what: str, text: object, limit: int, *, word: bool) -> str:
    if isinstance(text, str):
        try:
            size = len(text.encode())
        except UnicodeEncodeError:
            raise InvalidArgument(what, text, "has a lone surrogate, which UTF-8 cannot hold") from None
        if 1 <= size <= limit and (not word or (text.isprintable() and " " not in text)):
            return text
    rule = "printable and without white space, " if word else ""
    raise InvalidArgument(what, text, f"must be a str, {rule}of 1 to {limit} bytes in UTF-8")
