"""Settings: what code says wins over `STREAMWORKER_*` variables, which win over the defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamworker.core import durations
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError

DEFAULT_REDIS_URL = "redis://127.0.0.1:6379/0"
#: Metrics say much about a service: they are for this machine unless the address is given.
DEFAULT_METRICS_HOST = "127.0.0.1"
#: Seconds that a claim lives without a heartbeat (R22).
DEFAULT_LEASE = 30.0
#: Seconds that running jobs get to end after SIGTERM.
DEFAULT_GRACE = 30.0
#: Below this, an ordinary pause of a process would count as its death.
MIN_LEASE = 0.5


@dataclass(frozen=True, slots=True)
class Settings:
    """Where the servers are and how long a lease lasts."""

    namespace: str
    redis_url: str = field(default=DEFAULT_REDIS_URL, repr=False)  # may hold a password (R28)
    lease: float = DEFAULT_LEASE  # seconds

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
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """The settings in force. Raises ConfigurationError or DurationError, which name the setting."""
    env = os.environ if environ is None else environ

    def given(name: str, value: str | None) -> str | None:
        return value if value is not None else env.get(f"STREAMWORKER_{name}") or None

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
        redis_url=given("REDIS_URL", redis_url) or DEFAULT_REDIS_URL,
        lease=seconds,
    )


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
    if given is None:
        return None
    try:
        number = int(given)
    except ValueError:
        number = -1
    if not 0 <= number <= 65_535:
        what = "metrics_port" if port is not None else "STREAMWORKER_METRICS_PORT"
        raise ConfigurationError(f"{what} {given!r}: a port is a number from 1 to 65535, or 0 for any")
    return Endpoint(host or env.get("STREAMWORKER_METRICS_HOST") or DEFAULT_METRICS_HOST, number)
