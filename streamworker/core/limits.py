"""Limits as people declare them, and what a dependency bears.

What they come to for a job is said by `core/gates.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from streamworker.core import durations
from streamworker.core.breaker import Breaker
from streamworker.core.durations import Duration
from streamworker.core.errors import ConfigurationError, DurationError

#: Largest number of tokens, and of holders, of one gate.
MAX_FIGURE = 1_000_000
#: How the scope of a dependency's own gates begins.
DEPENDENCY_SCOPE = "dependency:"

#: What a dependency has that says nothing of its breaker.
_BREAKER = Breaker()
_RATE = re.compile(r"(\d{1,7})\s*/\s*(\S.*)", re.ASCII)
_DEPENDENCY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many starts in a time, such as `Rate("tenant", "50/s", burst=20)`.

    `scope` says whose starts count together: "task", "tenant", "lane", or a template over the arguments such
    as "user:{user_id}". `burst` may start at once after a rest; by default what one second gives. A window of
    w seconds so holds at most burst + rate * w starts. Raises ConfigurationError.
    """

    scope: str
    rate: str
    burst: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        _check_scope("Rate", self.scope)
        rate_figures(self.rate, self.burst, what=f"Rate({self.scope!r})")

    @property
    def figures(self) -> str:
        """`tokens,period_ms,burst`, as the scripts take them."""
        return rate_figures(self.rate, self.burst, what=f"Rate({self.scope!r})")


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most so many at a time, such as `Concurrency("user:{user_id}", 2)`; scopes as of `Rate`."""

    scope: str
    limit: int

    def __post_init__(self) -> None:
        _check_scope("Concurrency", self.scope)
        _check_figure(f"Concurrency({self.scope!r}): the limit", self.limit)

    @property
    def figures(self) -> str:
        return str(self.limit)


#: Seconds that connecting may take when a dependency says nothing of it.
CONNECT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dependency:
    """A service that tasks call, with what it bears: `Dependency(concurrency=20, rate="100/s", timeout=5)`.

    `concurrency` and `rate` are gates that all tasks with `uses=["its name"]` pass. `connect_timeout` and
    `timeout` are for one call, inside `ctx.dependency("its name")`; without the first,
    connecting may take 5 s, or all of a shorter `timeout`. `breaker` says when such calls have failed so
    often that those tasks wait; None: never. Raises ConfigurationError or DurationError.
    """

    concurrency: int | None = None
    rate: str | None = None
    burst: int | None = None
    connect_timeout: Duration | None = None
    timeout: Duration = 30.0
    breaker: Breaker | None = _BREAKER

    def __post_init__(self) -> None:
        if self.breaker is not None and not isinstance(self.breaker, Breaker):
            raise ConfigurationError(
                f"a dependency's breaker is a Breaker(...), or None, not {self.breaker!r}"
            )
        if self.concurrency is not None:
            _check_figure("a dependency's concurrency", self.concurrency)
        if self.rate is not None:
            rate_figures(self.rate, self.burst, what="a dependency's rate")
        elif self.burst is not None:
            raise ConfigurationError("a dependency's burst belongs to a rate: give rate= as well")
        for what, value in (("connect_timeout", self.connect_timeout), ("timeout", self.timeout)):
            if value is not None and durations.parse(value, what=f"a dependency's {what}") <= 0:
                raise ConfigurationError(f"a dependency's {what} must be above 0")
        if self.connect_seconds > self.seconds:
            raise ConfigurationError(
                f"a dependency's connect_timeout ({self.connect_timeout!r}) is longer than its timeout "
                f"({self.timeout!r}), which covers the whole call: make it shorter, or leave it out"
            )

    @property
    def connect_seconds(self) -> float:
        if self.connect_timeout is None:
            return min(CONNECT_SECONDS, self.seconds)
        return durations.parse(self.connect_timeout)

    @property
    def seconds(self) -> float:
        return durations.parse(self.timeout)


Limit = Rate | Concurrency


def check_dependency_name(name: object) -> str:
    """Return a dependency's name if it is one: 1 to 32 of `a-z 0-9 _ . -`. Raises ConfigurationError."""
    if not isinstance(name, str) or not _DEPENDENCY.fullmatch(name):
        raise ConfigurationError(
            f"dependency name {name!r}: use 1 to 32 characters of a-z, 0-9, '_', '.' and '-', a letter or "
            "digit first"
        )
    return name


def check_dependencies(dependencies: Mapping[str, Dependency]) -> dict[str, Dependency]:
    """Return what an app declares, by name. Raises ConfigurationError."""
    for name, dependency in dependencies.items():
        check_dependency_name(name)
        if not isinstance(dependency, Dependency):
            raise ConfigurationError(
                f"dependency {name!r} is declared by a Dependency(...), not {dependency!r}"
            )
    return dict(dependencies)


def rate_figures(rate: object, burst: int | None, *, what: str) -> str:
    """`tokens,period_ms,burst` from "200/s", "300/m", "10/h" or "5/10s". Raises ConfigurationError."""
    found = _RATE.fullmatch(rate.strip()) if isinstance(rate, str) else None
    if found is None:
        raise ConfigurationError(f'{what}: {rate!r} is no rate; write it as "200/s", "300/m" or "5/10s"')
    tokens, period = int(found[1]), found[2].strip()
    try:
        period_ms = durations.to_ms(period if period[0].isdigit() else f"1{period}", what=what)
    except DurationError:
        period_ms = 0
    if period_ms < 1 or tokens < 1:
        raise ConfigurationError(f'{what}: {rate!r} is no rate; write it as "200/s", "300/m" or "5/10s"')
    _check_figure(f"{what}: the tokens of {rate!r}", tokens)
    if burst is None:
        burst = min(MAX_FIGURE, max(1, tokens * 1000 // period_ms))
    _check_figure(f"{what}: the burst", burst)
    return f"{tokens},{period_ms},{burst}"


def _check_scope(what: str, scope: object) -> None:
    if not isinstance(scope, str) or not scope:
        raise ConfigurationError(
            f'{what}: a scope is "task", "tenant", "lane", or a template such as "user:{{user_id}}", '
            f"not {scope!r}"
        )
    if scope.startswith(DEPENDENCY_SCOPE):
        raise ConfigurationError(
            f"{what}: limits of a dependency are its own: Dependency(...), and uses=[...]"
        )


def _check_figure(what: str, value: object) -> None:
    if type(value) is not int or not 1 <= value <= MAX_FIGURE:
        raise ConfigurationError(f"{what} must be a whole number from 1 to {MAX_FIGURE}, not {value!r}")
