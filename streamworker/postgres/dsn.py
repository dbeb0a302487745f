"""What a DSN says: who writes one does it for libpq, and ours goes through asyncpg."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from streamworker.core.errors import ConfigurationError

#: Up to the last @: a password that was not encoded may have one, and each of `/?#`.
_IN_URL = re.compile(r"(?<=://)([^:@/]*):.*@", re.DOTALL)
_NAMED = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)

#: What libpq takes and asyncpg would have the server set, which refuses the connection. None of it is missed.
_IGNORED = frozenset(
    {
        *("keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"),
        *("fallback_application_name", "gssencmode", "sslcompression", "sslsni", "channel_binding"),
    }
)


@dataclass(frozen=True, slots=True)
class Dsn:
    """A DSN as asyncpg takes it, and what it says to us."""

    #: One for each host: asyncpg has one time limit for all of them, and a host that is silent takes it all.
    each: tuple[str, ...]
    timeout: float | None  # seconds until a connection must stand
    application: str | None  # what the connection is to be called in `pg_stat_activity`


def redact(dsn: str) -> str:
    """The DSN without its passwords (R28), however wrong it is."""
    return _NAMED.sub(r"\1***", _IN_URL.sub(r"\1:***@", dsn))


def check_dsn(dsn: str) -> str:
    """Return the DSN. Raises ConfigurationError for another scheme, and for what cannot be taken apart."""
    try:
        parts = urlsplit(dsn)
    except ValueError:
        raise unreadable(dsn) from None
    if parts.scheme not in ("postgres", "postgresql"):
        raise ConfigurationError(
            f"the Postgres DSN {redact(dsn)!r} must begin with postgresql://, "
            "such as postgresql://user@host:5432/database"
        )
    if parts.fragment or parts.netloc.count("@") > 1:
        raise unreadable(dsn)
    return dsn


def unreadable(dsn: str) -> ConfigurationError:
    """What to say of one that cannot be taken apart. A driver's words would quote parts of the password."""
    return ConfigurationError(
        f"the Postgres DSN {redact(dsn)!r} cannot be read: in its user and password, write what is neither "
        "letter nor digit as its code, such as %40 for '@'"
    )


def read_dsn(dsn: str) -> Dsn:
    """Take it apart. Raises ConfigurationError."""
    parts = urlsplit(check_dsn(dsn).strip())
    kept: list[tuple[str, str]] = []
    timeout = application = None
    try:
        said = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise unreadable(dsn) from None
    for name, value in said:
        if name == "connect_timeout":
            timeout = _seconds(dsn, value)
        elif name == "channel_binding" and value == "require":
            raise ConfigurationError(
                f"the Postgres DSN {redact(dsn)!r} asks for channel_binding=require, which asyncpg cannot "
                "do: leave it out, and let sslmode=verify-full tell who answers"
            )
        elif name not in _IGNORED:
            application = value if name == "application_name" else application
            kept.append((name, value))
    each = tuple(
        urlunsplit(parts._replace(netloc=netloc, query=urlencode(query)))
        for netloc, query in _hosts(parts.netloc, kept)
    )
    return Dsn(each, timeout, application)


def _hosts(netloc: str, query: list[tuple[str, str]]) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Authority and query for each host by itself, of those in the authority, else in the query."""
    who, at, hosts = netloc.rpartition("@")
    if hosts:
        for host in hosts.split(","):
            yield f"{who}{at}{host}", query
        return
    said = dict(query)
    names, ports = said.get("host", "").split(","), said.get("port", "").split(",")
    for number, name in enumerate(names):
        port = ports[number] if len(ports) == len(names) else said.get("port", "")
        own = {"host": name, "port": port}
        yield netloc, [(key, own.get(key, value)) for key, value in query]


def _seconds(dsn: str, value: str) -> float | None:
    """As libpq has it: whole seconds, of which none and less mean no limit; we have our own then."""
    try:
        return float(int(value)) if int(value) > 0 else None
    except ValueError:
        raise ConfigurationError(
            f"the Postgres DSN {redact(dsn)!r} says connect_timeout={value!r}: it takes whole seconds"
        ) from None
