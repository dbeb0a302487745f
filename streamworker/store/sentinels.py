"""Where the primary is, by Redis Sentinel: who is to be asked, and what to make of the answers.

Nothing here does I/O: `search` says what to do next and is told what came of it, so that both kinds of
connection look for the primary in one way. `store/dialling.py` does it.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

from streamworker.core.errors import ConnectionLost, ServerUnsuitable, UnusableUrl
from streamworker.store.handshake import redact

#: The port of a sentinel that the URL gives none.
PORT = 26379
#: Seconds for a sentinel to answer, and for the primary that it names: one that is gone does not keep us from
#: the next.
ASKING, TRYING = 1.0, 2.0
#: Schemes of a URL that names sentinels, and those of what they name.
_SCHEMES = {"redis+sentinel": "redis", "rediss+sentinel": "rediss"}
_OWN_OPTIONS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True, slots=True)
class Step:
    """Connect to `url` within `seconds` and send `command`: its reply, or the error, is to be told."""

    url: str
    command: tuple[str, ...]
    seconds: float


@dataclass(slots=True)
class Sentinels:
    """What `redis+sentinel://user:password@host:port,host:port/service/db?options` says.

    User, password, database and options are for the primary; `sentinel_username` and `sentinel_password`
    for the sentinels. `first` is the one that was right last: it is asked first.
    """

    shown: str  # the URL without secrets
    scheme: str
    login: str
    addresses: tuple[str, ...]  # host:port
    service: str
    database: str
    options: tuple[str, ...]
    sentinel_login: str
    first: int = field(default=0, compare=False)

    def asked_at(self, place: int) -> str:
        """The URL of one sentinel."""
        return f"{self.scheme}://{self.sentinel_login}{self.addresses[place]}{self._query()}"

    def named(self, host: str, port: str) -> str:
        """The URL of what a sentinel named."""
        where = f"[{host}]" if ":" in host else host
        return f"{self.scheme}://{self.login}{where}:{port}/{self.database}{self._query()}"

    def _query(self) -> str:
        return "?" + "&".join(self.options) if self.options else ""

    @property
    def question(self) -> tuple[str, ...]:
        """What a sentinel is asked."""
        return ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.service)

    def search(self) -> Generator[Step, Any, None]:
        """Ask one sentinel after the other, until one names a server that says it is the primary.

        Returns while the connection of the last step is the one that was sought. Raises ConnectionLost, or
        ServerUnsuitable when all of them answer that they do not know the service.
        """
        tried: set[tuple[str, str]] = set()
        problems: list[Exception] = []
        unknown = 0
        start = self.first
        for turn in range(len(self.addresses)):
            place = (start + turn) % len(self.addresses)
            answer = yield Step(self.asked_at(place), self.question, ASKING)
            if isinstance(answer, Exception):
                problems.append(self._of_sentinel(place, answer))
                continue
            if answer is None:
                unknown += 1
                continue
            host, port = (part.decode() for part in answer)
            if (host, port) in tried:
                continue
            tried.add((host, port))
            role = yield Step(self.named(host, port), ("ROLE",), TRYING)
            if not isinstance(role, ServerUnsuitable) and _is_primary(role):
                self.first = place
                return
            problems.insert(0, self._of_named(f"{host}:{port}", role))
        if unknown == len(self.addresses):
            raise ServerUnsuitable(
                f"{self.shown}: the sentinels know no service {self.service!r}",
                "name it as `sentinel monitor` does, in their configuration",
            )
        if not problems:
            problems = [ConnectionLost(f"no primary is known of {self.shown}")]
        raise next((each for each in problems if isinstance(each, ServerUnsuitable)), problems[0])

    def _of_sentinel(self, place: int, error: Exception) -> Exception:
        if isinstance(error, ServerUnsuitable):
            return ServerUnsuitable(
                f"{self.shown}: the sentinel {self.addresses[place]} refused the password",
                "give theirs as ?sentinel_password=, and sentinel_username= if there is one",
            )
        return ConnectionLost(f"no primary is known of {self.shown}: {error}")

    def _of_named(self, address: str, role: Any) -> Exception:
        if isinstance(role, ServerUnsuitable):
            return role
        what = role if isinstance(role, Exception) else "it is no primary any more"
        return ConnectionLost(f"{self.shown}: the sentinels name {address} as the primary: {what}")


def _is_primary(role: Any) -> bool:
    """Whether it says so. A user who may not ask is believed to be where the sentinel sent him."""
    if isinstance(role, Exception):
        return str(role).startswith("NOPERM")
    return bool(role[0] == b"master")


@lru_cache(maxsize=64)
def sentinels_of(url: str) -> Sentinels | None:
    """What the URL says, if it names sentinels; the same object each time. Raises UnusableUrl."""
    scheme, _, rest = url.partition("://")
    if scheme.lower() not in _SCHEMES:
        return None
    before, _, query = rest.partition("?")
    login, at, where = before.rpartition("@")
    hosts, _, path = where.partition("/")
    service, _, database = path.partition("/")
    addresses = tuple(_with_port(host.strip()) for host in hosts.split(",") if host.strip())
    if not addresses or not service or not (database or "0").isdigit():
        raise UnusableUrl(
            f"{redact(url)!r} names no sentinels or no service",
            "write redis+sentinel://host:port,host:port/service, and /database if it is not 0",
        )
    said = [part for part in query.split("&") if part]
    own = {name: value for name, _, value in (part.partition("=") for part in said) if name in _OWN_OPTIONS}
    return Sentinels(
        shown=redact(url),
        scheme=_SCHEMES[scheme.lower()],
        login=login + at,
        addresses=addresses,
        service=unquote(service),
        database=database or "0",
        options=tuple(part for part in said if part.partition("=")[0] not in _OWN_OPTIONS),
        sentinel_login=_login(*(unquote(own.get(name, "")) for name in _OWN_OPTIONS)),
    )


def _with_port(host: str) -> str:
    bare = host.rpartition("]")[2]  # after an IPv6 address
    return host if ":" in bare else f"{host}:{PORT}"


def _login(user: str, password: str) -> str:
    return f"{quote(user, safe='')}:{quote(password, safe='')}@" if password else ""
