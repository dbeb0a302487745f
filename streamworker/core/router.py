"""Which lane a job waits in: a pure function of the job, the declared rules, and how full the lanes are.

Whoever names a lane gets it. Else the first rule that fits decides, else the task's own lane. Whatever was
chosen has to accept the task: if it does not, the job goes to the task's own lane, or to the app's default.
The same code decides for tasks with their code and, from the manifest, for producers without it (D17).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from streamworker.core.codec import PAYLOAD_LIMIT_BYTES
from streamworker.core.errors import ConfigurationError
from streamworker.core.lane import BACKLOG, Lane, Pressure, check_lane_name, check_whole

_RULE_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,31}", re.ASCII)

#: Names of tasks or tenants: one, or several; `*` at the end of a name stands for any rest.
Names = str | Collection[str]
#: Nothing is known of the pressure, so there is none.
NO_PRESSURE: Mapping[str, Pressure] = {}


@dataclass(frozen=True, slots=True)
class Route:
    """A rule of the router: jobs that fit all that it says wait in `lane`.

    `task` and `tenant` are names, with `*` at the end for any rest; `sla` a class of tenants (`App(sla=)`);
    `size_above` bytes of arguments as JSON; `pressure` ("high" or "over") the least that the lane is under
    in which the job would wait otherwise. `name` is what events and `streamworker route` call the rule.

    Raises ConfigurationError or InvalidArgument.
    """

    lane: str
    name: str | None = field(default=None, kw_only=True)
    task: Names | None = field(default=None, kw_only=True)
    tenant: Names | None = field(default=None, kw_only=True)
    sla: str | None = field(default=None, kw_only=True)
    size_above: int | None = field(default=None, kw_only=True)
    pressure: Pressure | str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_lane_name(self.lane)
        if self.name is not None:
            check_rule_name("a route's name", self.name)
        for what, names in (("task", self.task), ("tenant", self.tenant)):
            if names is not None:
                _check_names(f"a route's {what}", names)
        if self.sla is not None:
            check_rule_name("a route's sla", self.sla)
        if self.size_above is not None:
            check_whole("a route's size_above", self.size_above, 0, 1 << 40)
        if self.pressure is not None and self.pressure not in (Pressure.HIGH, Pressure.OVER):
            raise ConfigurationError(f'a route\'s pressure is "high" or "over", not {self.pressure!r}')

    def raw(self) -> dict[str, Any]:
        """As it is published: what it says and nothing else."""
        said: dict[str, Any] = {"lane": self.lane}
        for what in ("name", "sla", "size_above"):
            if (value := getattr(self, what)) is not None:
                said[what] = value
        for what in ("task", "tenant"):
            if (names := getattr(self, what)) is not None:
                said[what] = sorted(_names(names))
        if self.pressure is not None:
            said["pressure"] = str(self.pressure)
        return said


@dataclass(frozen=True, slots=True)
class Subject:
    """What the router has to know of a job."""

    task: str
    own: str  # the lane that the task declares
    asked: str | None = None  # the lane that the producer named
    tenant: str | None = None
    size: int = 0  # bytes of the arguments as JSON


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that was looked at: a rule, or whether a lane accepts the task."""

    rule: str
    lane: str
    fits: bool
    because: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Where a job waits, and `why` if that is not what was asked for or declared: for its event, one word.

    `backlog`: who sends it to the backlog first, which is drained into that lane: asked, rule or task.
    """

    lane: str
    why: str = ""
    backlog: str = ""


class Router:
    """The rules of one app, or of the manifest."""

    def __init__(
        self,
        lanes: Mapping[str, Lane],
        default: str,
        *,
        routes: Iterable[Route] = (),
        sla: Mapping[str, Collection[str]] | None = None,
    ) -> None:
        """Raises ConfigurationError for a route to a lane, or of a class, that is not there."""
        self.lanes = lanes
        self.default = default
        self.routes = tuple(
            route if route.name else replace(route, name=f"route-{place}")
            for place, route in enumerate(routes, 1)
        )
        self.sla = {name: _tenants(name, tenants) for name, tenants in (sla or {}).items()}
        self._class_of = {tenant: name for name, tenants in self.sla.items() for tenant in tenants}
        self._rules = [_Rule(route) for route in self.routes]
        self._picky = any(lane.accept is not None for lane in lanes.values())
        #: Nothing but the task and the producer have a say.
        self.plain = not self._rules and not self._picky
        #: Whether a decision may hang on how full the lanes are.
        self.by_pressure = any(route.pressure is not None for route in self.routes)
        self._check()

    def _check(self) -> None:
        for rule in self._rules:
            if self.lanes and rule.route.lane not in (*self.lanes, BACKLOG):
                raise ConfigurationError(
                    f"route {rule.name} leads to {rule.route.lane!r}, which is no lane of the app; "
                    f"it has: {', '.join(self.lanes)}"
                )
            if rule.route.sla is not None and rule.route.sla not in self.sla:
                raise ConfigurationError(
                    f"route {rule.name} is for the class {rule.route.sla!r}, which nobody has; say who: "
                    f'App(..., sla={{"{rule.route.sla}": ["tenant"]}})'
                )
        if len({rule.name for rule in self._rules}) < len(self._rules):
            raise ConfigurationError("two routes have the same name; events could not say which one decided")
        if sum(map(len, self.sla.values())) > len(self._class_of):
            raise ConfigurationError("a tenant is in two classes of sla=; it has one")

    def decide(self, subject: Subject, pressure: Mapping[str, Pressure] = NO_PRESSURE) -> Decision:
        """The lane of this job; pure.

        Whoever sends it to the backlog says nothing of the lane that it is meant for: that is what it would
        be without that word.
        """
        lane, why, backlog = subject.asked or subject.own, "", ""
        if subject.asked == BACKLOG:
            lane, backlog = subject.own, "asked"
        if subject.asked in (None, BACKLOG):
            for rule in self._rules:
                if rule.misfit(subject, self._class_of, pressure) is None:
                    lane, why = rule.route.lane, rule.name
                    break
        if lane == BACKLOG:
            backlog = backlog or ("rule" if why else "task")
            lane = self._home(subject)
        if self._picky and not self.accepts(lane, subject.task):
            return Decision(self.fallback(subject), f"accept:{lane}", backlog)
        return Decision(lane, why, backlog)

    def explain(
        self, subject: Subject, pressure: Mapping[str, Pressure] = NO_PRESSURE
    ) -> tuple[Decision, list[Step]]:
        """The decision, and each thing that was looked at on the way, in order."""
        decision = self.decide(subject, pressure)
        steps: list[Step] = []
        if subject.asked is not None:
            steps.append(Step("asked", subject.asked, True, "the producer named it"))
        if subject.asked in (None, BACKLOG):
            for rule in self._rules:
                misfit = rule.misfit(subject, self._class_of, pressure)
                steps.append(Step(rule.name, rule.route.lane, misfit is None, misfit or rule.says()))
                if misfit is None:
                    break
            else:
                steps.append(Step("own", subject.own, True, f"the lane of task {subject.task}"))
        if decision.why.startswith("accept:"):
            refusing = decision.why.removeprefix("accept:")
            steps.append(
                Step("accept", refusing, False, f"lane {refusing} does not accept task {subject.task}")
            )
            steps.append(Step("default", decision.lane, True, self._of(decision, subject)))
        elif decision.backlog and steps[-1].lane == BACKLOG:
            steps.append(Step("meant for", decision.lane, True, self._of(decision, subject)))
        return decision, steps

    def _of(self, decision: Decision, subject: Subject) -> str:
        return f"the lane of task {subject.task}" if decision.lane == subject.own else "the default lane"

    def accepts(self, lane: str, task: str) -> bool:
        """Whether the lane takes jobs of this task; a lane that nobody declared takes all."""
        declared = self.lanes.get(lane)
        return declared is None or declared.accepts(task)

    def fallback(self, subject: Subject) -> str:
        """Where a job waits whose lane does not accept its task."""
        home = self._home(subject)
        return home if self.accepts(home, subject.task) else self.default

    def _home(self, subject: Subject) -> str:
        """The task's own lane, or the default for one whose jobs all begin in the backlog."""
        return self.default if subject.own == BACKLOG else subject.own

    def limit(self, lane: str) -> int:
        """Bytes of arguments that a job of this lane may have."""
        declared = self.lanes.get(lane)
        return (declared.payload_limit if declared else None) or PAYLOAD_LIMIT_BYTES


class _Rule:
    """A route made ready to be asked."""

    def __init__(self, route: Route) -> None:
        self.route = route
        self.name = route.name or ""
        self._task = None if route.task is None else _Matcher(route.task)
        self._tenant = None if route.tenant is None else _Matcher(route.tenant)
        self._pressure = None if route.pressure is None else Pressure(route.pressure)

    def misfit(
        self, subject: Subject, class_of: Mapping[str, str], pressure: Mapping[str, Pressure]
    ) -> str | None:
        """Why the rule does not fit; None: it does."""
        route, tenant = self.route, subject.tenant
        if self._task is not None and not self._task.fits(subject.task):
            return f"the task is {subject.task}"
        if self._tenant is not None and (tenant is None or not self._tenant.fits(tenant)):
            return f"the tenant is {tenant}" if tenant else "there is no tenant"
        if route.sla is not None and (tenant is None or class_of.get(tenant) != route.sla):
            found = None if tenant is None else class_of.get(tenant)
            return f"the tenant's class is {found}" if found else "the tenant has no class"
        if route.size_above is not None and subject.size <= route.size_above:
            return f"the arguments have {subject.size} bytes"
        if self._pressure is not None:
            now = pressure.get(subject.own, Pressure.OK)
            if not now.reaches(self._pressure):
                return f"the pressure of lane {subject.own} is {now}"
        return None

    def says(self) -> str:
        """What the rule asks for, in words."""
        route = self.route
        said = [
            f"{what} {', '.join(sorted(_names(names)))}"
            for what, names in (("task", route.task), ("tenant", route.tenant))
            if names is not None
        ]
        if route.sla is not None:
            said.append(f"class {route.sla}")
        if route.size_above is not None:
            said.append(f"more than {route.size_above} bytes")
        if self._pressure is not None:
            said.append(f"pressure {self._pressure}")
        return "; ".join(said) or "every job"


class _Matcher:
    """Names, some of them with any rest."""

    def __init__(self, names: Names) -> None:
        every = _names(names)
        self._whole = frozenset(name for name in every if not name.endswith("*"))
        self._heads = tuple(name[:-1] for name in every if name.endswith("*"))

    def fits(self, name: str) -> bool:
        return name in self._whole or name.startswith(self._heads)


def check_rule_name(what: str, name: object) -> str:
    """Return the name if it is 1 to 32 of `a-z 0-9 _ . -`. Raises ConfigurationError."""
    if not isinstance(name, str) or not _RULE_NAME.fullmatch(name):
        raise ConfigurationError(
            f"{what} {name!r}: use 1 to 32 characters of a-z, 0-9, '_', '.' and '-', a letter or digit first"
        )
    return name


def _tenants(sla: str, tenants: object) -> frozenset[str]:
    """Those of a class. Raises ConfigurationError; of a text, each letter would be one."""
    if (
        isinstance(tenants, str)
        or not isinstance(tenants, Collection)
        or not all(isinstance(tenant, str) for tenant in tenants)
    ):
        raise ConfigurationError(f'sla= has lists of tenants, such as {{"{sla}": ["acme"]}}, not {tenants!r}')
    return frozenset(tenants)


def _names(names: Names) -> list[str]:
    return [names] if isinstance(names, str) else list(names)


def _check_names(what: str, names: object) -> None:
    every = [names] if isinstance(names, str) else names
    if not isinstance(every, Collection) or not every:
        raise ConfigurationError(f"{what} is a name or a list of names, not {names!r}")
    for name in every:
        if not isinstance(name, str) or not name or "*" in name[:-1]:
            raise ConfigurationError(f"{what} {name!r}: a name, with `*` only at its end")
