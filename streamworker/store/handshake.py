"""What redis-py does for a connection, up to its handshake: the URL, its options, and why there is none."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlsplit

from streamworker.core.errors import ConnectionLost, ServerUnsuitable, UnusableUrl

#: Seconds to wait for a TCP connection.
CONNECT_TIMEOUT = 5.0


def redact(url: str) -> str:
    """The URL without its password, for messages and logs (R28)."""
    scheme, separator, rest = url.partition("://")
    secret = rest.find("password=")
    if secret >= 0:  # in the query, where a password may have an @ as well
        plain = rest[: max(rest.rfind("?", 0, secret), 0)]
        if "@" not in plain:
            return f"{scheme}{separator}***" if "@" in rest else f"{scheme}{separator}{plain}"
        rest = plain
    if "@" not in rest:
        return url
    # The last @ ends the password, whatever it is made of: one with a bare / or # is no valid URL, and must
    # not be shown for that reason.
    before, _, host = rest.rpartition("@")
    user = before.partition(":")[0] if ":" in before else ""
    return f"{scheme}{separator}{user}:***@{host.partition('?')[0]}"


def options(timeout: float) -> dict[str, Any]:
    """What redis-py is told, whatever the URL says; `timeout` in seconds."""
    # redis-py is imported when the first connection is made: a producer's import stays quick.
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return {
        "protocol": 2,  # RESP3 changes the shape of replies (R25)
        "decode_responses": False,  # R26
        "retry": Retry(NoBackoff(), 0),  # automatic retries re-run Lua (R16)
        "health_check_interval": 0,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "socket_timeout": timeout,
    }


#: What a URL may not decide, beside what `options` does: it would be decided twice, or for another reader.
_NOT_THE_URLS = frozenset(
    {"single_connection_client", "max_connections", "timeout", "encoding", "encoding_errors"}
    | {"retry_on_timeout", "retry_on_error"}
)
_DATABASE = re.compile(r"(/\d*)?/?", re.ASCII)


def _check_reading(url: str) -> None:
    """Raise ValueError for what redis-py leaves out in silence: it leads to another server or database."""
    said = urlsplit(url)
    if said.fragment:
        raise ValueError("what follows a bare # is lost")
    if said.scheme != "unix" and not _DATABASE.fullmatch(said.path):
        raise ValueError(f"{said.path!r} is no number of a database")
    for part in said.query.split("&"):
        if part and "=" not in part:
            raise ValueError(f"{part!r} is no option with a value")


def unconnected(library: Any, url: str, given: dict[str, Any]) -> Any:
    """A connection of redis-py that is yet to be connected. Raises UnusableUrl.

    What we decide stands, whatever the URL says: with `?protocol=3` replies would have other shapes (R25).
    """
    from redis.exceptions import RedisError

    ours = _NOT_THE_URLS | options(0).keys()
    before, mark, query = url.partition("?")
    said = [part for part in query.split("&") if part.partition("=")[0] not in ours]
    try:
        _check_reading(url)
        pool = library.ConnectionPool.from_url(before + mark + "&".join(said), **given)
        return pool.make_connection()
    except ValueError as error:
        # redis-py's message may quote the URL, and a URL may hold a password
        detail = "is not a Redis URL" if "@" in url else f"is not a Redis URL: {error}"
        remedy = "use redis://host:port/db, rediss://… for TLS, unix:///path/to/socket or redis+sentinel://host,host/service"
        if "@" in url:
            remedy += "; write / # ? and @ in a password as %2F %23 %3F and %40"
        raise UnusableUrl(f"{redact(url)!r} {detail}", remedy) from None
    except RedisError as error:  # an option of TLS that cannot be
        raise UnusableUrl(f"{redact(url)!r} cannot be used: {error}", "change its options") from None
    except TypeError as error:
        option = str(error).rpartition("argument ")[2]
        raise UnusableUrl(
            f"{redact(url)!r} has an option that is not known: {option}",
            "take it out of the URL; those of redis-py are known",
        ) from None


def no_connection(url: str, error: BaseException) -> ConnectionLost | ServerUnsuitable:
    """Our word for what redis-py or the socket said, without secrets."""
    if isinstance(error, ConnectionLost):
        return error  # it is ours already
    text = str(error) or ("no answer in time" if isinstance(error, TimeoutError) else type(error).__name__)
    if type(error).__name__ == "AuthenticationError" or "WRONGPASS" in text or "NOAUTH" in text:
        return ServerUnsuitable(
            f"{redact(url)} refused the password", "check user and password in STREAMWORKER_REDIS_URL"
        )
    if text.startswith("DB index is out of range"):
        return ServerUnsuitable(
            f"{redact(url)}: the server has no database of that number",
            "take a smaller one in STREAMWORKER_REDIS_URL",
        )
    if url.startswith(("rediss:", "rediss+")) and isinstance(error, TimeoutError):
        text += " (rediss:// is TLS; is that its port?)"
    return ConnectionLost(f"no connection to {redact(url)}: {text.replace(url, redact(url))}")
