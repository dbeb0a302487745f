"""Settings: what code says wins over `STREAMWORKER_*` variables, which win over the defaults."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError
from streamworker.core.lane import Lane
from streamworker.core.router import Route

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
#: What Kubernetes sets STREAMWORKER_METRICS_PORT to in each pod beside a Service named streamworker-metrics.
_SERVICE_LINK = re.compile(r"(tcp|udp|sctp)://")
#: Metrics say much about a service: they are for this machine unless the address is given.
DEFAULT_METRICS_HOST = "127.0.0.1"
#: Seconds that a claim lives without a heartbeat (R22).
DEFAULT_LEASE = 30.0
#: Seconds that running jobs get to end after SIGTERM.
DEFAULT_GRACE = 30.0
#: Seconds and number of dead letters that are kept; the oldest go first.
DEFAULT_DLQ_MAX_AGE = 30 * 86_400.0
DEFAULT_DLQ_MAX_COUNT = 100_000
#: Below this, an ordinary pause of a process would count as its death.
MIN_LEASE = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the servers are and how long a lease lasts."""

    namespace: str
    redis_url: str = field(default=DEFAULT_REDIS_URL, repr=False)  # may hold a password (R28)
    lease: float = DEFAULT_LEASE  # seconds
    postgres_dsn: str | None = field(default=None, repr=False)  # None: there is no durable record
    dlq_max_age: float = DEFAULT_DLQ_MAX_AGE  # seconds
    dlq_max_count: int = DEFAULT_DLQ_MAX_COUNT

    @property
    def lease_ms(self) -> int:
        return round(self.lease * 1000)

    @property
    def liveness_ms(self) -> int:
        """How long a worker counts as alive without a heartbeat: two leases."""
        return 2 * self.lease_ms


def read(
    app: str,
    *,
    redis_url: str | None = None,
    namespace: str | None = None,
    lease: Duration | None = None,
    postgres_dsn: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force. Raises ConfigurationError or DurationError, which name the setting."""
    env = os.environ if environ is None else environ

    def given(name: str, value: str | None) -> str | None:
        # A secret that was read from a file, or made with `echo`, ends with its line's end.
        return value if value is not None else env.get(f"STREAMWORKER_{name}", "").strip() or None

    seconds = DEFAULT_LEASE
    source = lease if lease is not None else env.get("STREAMWORKER_LEASE") or None
    if source is not None:
        seconds = durations.parse(source, what="lease" if lease is not None else "STREAMWORKER_LEASE")
        if seconds < MIN_LEASE:
            raise ConfigurationError(
                f"lease {source!r}: at least {MIN_LEASE} s, or a pause counts as a death"
            )
    return Settings(
        namespace=given("NAMESPACE", namespace) or app,
        redis_url=(given("REDIS_URL", redis_url) or DEFAULT_REDIS_URL).strip(),  # of a file, a line's end
        lease=seconds,
        postgres_dsn=given("POSTGRES_DSN", postgres_dsn),
        dlq_max_age=_positive_duration("STREAMWORKER_DLQ_MAX_AGE", env, DEFAULT_DLQ_MAX_AGE),
        dlq_max_count=_count("STREAMWORKER_DLQ_MAX_COUNT", env, DEFAULT_DLQ_MAX_COUNT),
    )


def _positive_duration(variable: str, env: Mapping[str, str], default: float) -> float:
    said = env.get(variable)
    seconds = durations.parse(said, what=variable) if said else default
    if seconds <= 0:
        raise ConfigurationError(f"{variable} {said!r}: a duration above 0, such as 30d")
    return seconds


def _count(variable: str, env: Mapping[str, str], default: int) -> int:
    said = env.get(variable, "").strip()
    if not said:
        return default
    if not said.isdecimal() or int(said) < 1:
        raise ConfigurationError(f"{variable} {said!r}: a whole number from 1 on")
    return int(said)


def read_lanes(environ: Mapping[str, str] | None = None) -> dict[str, Lane]:
    """The lanes of STREAMWORKER_LANES, such as `priority reserved=16 weight=4; normal`; else {}.

    Raises ConfigurationError, InvalidArgument or DurationError.
    """
    lanes = {}
    for name, said in _declarations("STREAMWORKER_LANES", environ, _LANE_OPTIONS):
        if name in lanes:
            raise ConfigurationError(f"STREAMWORKER_LANES declares lane {name!r} twice")
        lanes[name] = Lane(**said)
    return lanes


def read_routes(environ: Mapping[str, str] | None = None) -> list[Route]:
    """The rules of STREAMWORKER_ROUTES, such as `bulk task=report.*; priority sla=gold`, in order.

    Raises ConfigurationError or InvalidArgument.
    """
    return [
        Route(lane, **said) for lane, said in _declarations("STREAMWORKER_ROUTES", environ, _ROUTE_OPTIONS)
    ]


def read_sla(environ: Mapping[str, str] | None = None) -> dict[str, list[str]]:
    """Who is in which class by STREAMWORKER_SLA, such as `gold tenants=acme,globex`."""
    found = _declarations("STREAMWORKER_SLA", environ, {"tenants": _words})
    return {name: said.get("tenants", []) for name, said in found}


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _marks(text: str) -> tuple[int, ...]:
    return tuple(int(mark) for mark in text.split(","))


#: What may be said of a lane or rule in the environment, and how it is read.
_LANE_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "reserved": int,
    "weight": int,
    "aging": str,
    "max_age": str,
    "target": str,
    "pressure": _marks,
    "limit": int,
    "overflow": str,
    "high_water": int,
    "drain": str,
    "burst": int,
    "accept": _words,
    "payload_limit": int,
    "timeout": str,
}
_ROUTE_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "name": str,
    "task": _words,
    "tenant": _words,
    "sla": str,
    "size_above": int,
    "pressure": str,
}


def _declarations(
    variable: str, environ: Mapping[str, str] | None, options: Mapping[str, Callable[[str], Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """What a variable declares: `head option=value ...`, several of them with `;` between."""
    text = (os.environ if environ is None else environ).get(variable, "")
    for part in filter(None, map(str.strip, text.split(";"))):
        head, *words = part.split()
        said: dict[str, Any] = {}
        for word in words:
            option, equals, value = word.partition("=")
            if option not in options or not equals or option in said:
                raise ConfigurationError(
                    f"{variable}: {word!r} in {part!r} cannot be read; after {head!r} come options, each "
                    f"once, as name=value: {', '.join(options)}"
                )
            try:
                said[option] = options[option](value)
            except ValueError:
                raise ConfigurationError(f"{variable}: {word!r} in {part!r} is no whole number") from None
        yield head, said


def read_expected_workers(*, environ: Mapping[str, str] | None = None) -> int | None:
    """How many workers there should be, by STREAMWORKER_WORKERS_EXPECTED. Raises ConfigurationError."""
    given = (os.environ if environ is None else environ).get("STREAMWORKER_WORKERS_EXPECTED", "").strip()
    if not given:
        return None
    if not given.isdecimal():
        raise ConfigurationError(f"STREAMWORKER_WORKERS_EXPECTED {given!r} is no whole number")
    return int(given)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where probes and scrapes are answered."""

    host: str
    port: int


def read_endpoint(
    port: int | None = None, host: str | None = None, *, environ: Mapping[str, str] | None = None
) -> Endpoint | None:
    """The endpoint in force; None: nobody asked for one. Raises ConfigurationError."""
    env = os.environ if environ is None else environ
    given: int | str | None = port if port is not None else env.get("STREAMWORKER_METRICS_PORT") or None
    if given is None or (isinstance(given, str) and _SERVICE_LINK.match(given)):
        return None
    try:
        number = int(given)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        what = "metrics_port" if port is not None else "STREAMWORKER_METRICS_PORT"
        raise ConfigurationError(f"{what} {given!r}: a port is a number from 1 to 65535, or 0 for any")
    said = env.get("STREAMWORKER_METRICS_HOST", "").strip()
    return Endpoint(host or said or DEFAULT_METRICS_HOST, number)
