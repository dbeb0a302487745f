"""Gates: what a job must pass to start, made from what its task declares and what the job is.

Names, figures and their order are decided here and nowhere else; the scripts get them as they are. A gate is
shared by all jobs that name it, of whichever task: that is how two tasks exclude each other.
"""

from __future__ import annotations

import hashlib
import re
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from streamworker.core.errors import ConfigurationError
from streamworker.core.limits import (
    DEPENDENCY_SCOPE,
    Concurrency,
    Dependency,
    Limit,
    Rate,
    check_dependency_name,
    rate_figures,
)
from streamworker.core.template import KeyTemplate

#: Longest part of a gate's name after its kind, in bytes; what is longer becomes `#` and 43 characters.
MAX_GATE_BYTES = 44
#: Longest name under which a limit's figures are kept, in bytes.
MAX_LIMIT_BYTES = 64
#: Gates of one job at most: a claim looks at each of them.
MAX_GATES = 16

#: What separates the parts of a word, and words, cannot stand in a name.
_PLAIN = re.compile(r"[^\s|\x00-\x1f\x7f-\x9f]+")
#: Scopes that are no templates. A template may not imitate the names that they make.
_SCOPES = ("task", "tenant", "lane")


class GateKind(StrEnum):
    """The kinds of gates, in the order in which they are passed."""

    PAUSE = "pause"
    BREAKER = "breaker"
    RATE = "rate"
    ENTITY = "entity"
    CONCURRENCY = "concurrency"


_ORDER = {kind: place for place, kind in enumerate(GateKind)}


@dataclass(frozen=True, slots=True)
class Gate:
    """One gate as a task declares it, and as the manifest carries it.

    `scope` is "task", "tenant", "lane", "dependency:<name>", or a template. `figures` are what the kind
    needs: `tokens,period_ms,burst` of a rate, the holders of a concurrency, `strict` of an entity that is
    kept through retries, those of core/breaker.py, else ''.
    """

    kind: GateKind
    scope: str
    figures: str = ""


class Gates:
    """The gates of one task, ready to be named for each of its jobs."""

    def __init__(self, task: str, parameters: Sequence[str], declared: Iterable[Gate] = ()) -> None:
        self.task = task
        self.declared = tuple(declared)
        self._makers = [_Maker(task, parameters, gate) for gate in self.declared]

    def __bool__(self) -> bool:
        return bool(self.declared)

    @property
    def fields(self) -> list[str]:
        """The arguments that it needs, as its templates name them."""
        return sorted({field for maker in self._makers for field in maker.fields})

    def words(self, args: Mapping[str, object], *, tenant: str | None, lane: str) -> list[str]:
        """One word for each gate of this job, in the order in which they are passed: by kind, then by name.

        A word is `name`, `name|figures` or `name|figures|limit`. Raises InvalidArgument for an argument that
        a template needs and that is missing, or is neither str nor int.
        """
        found: dict[str, tuple[int, str, str]] = {}
        for maker in self._makers:
            name = maker.name(args, tenant, lane)
            if name is not None:  # two templates may come to one gate: it is passed once
                found.setdefault(name, (maker.order, name, maker.word(name)))
        return [word for _, _, word in sorted(found.values())]

    def line(self, args: Mapping[str, object], *, tenant: str | None, lane: str, number: int) -> str:
        """The gates of this job as they travel; '' for none. `number`: of the manifest that declares them."""
        words = self.words(args, tenant=tenant, lane=lane) if self._makers else []
        return " ".join((str(number), *words)) if words else ""

    def entity(self, args: Mapping[str, object]) -> str:
        """What the job's entity lock is about, such as `shipment:7`; '' without one."""
        for maker in self._makers:
            if maker.kind is GateKind.ENTITY:
                return maker.rendered(args)
        return ""

    def about(self) -> set[str]:
        """How the names of its gates begin: `entity:order:` for `entity:order:7`."""
        return {maker.about for maker in self._makers}

    def makes(self, name: str) -> bool:
        """Whether a job of this task may pass a gate of that name, or the name is that of a limit.

        A digest tells nothing: whoever names one has seen it.
        """
        return any(name == maker.limit or maker.makes(name) for maker in self._makers)

    def figures(self) -> dict[str, str]:
        """The figures that this task declares, by the name of their limit."""
        return {
            maker.limit: gate.figures
            for gate, maker in zip(self.declared, self._makers, strict=True)
            if gate.kind in (GateKind.RATE, GateKind.CONCURRENCY)
        }


class _Maker:
    """Names one declared gate for each job."""

    def __init__(self, task: str, parameters: Sequence[str], gate: Gate) -> None:
        self.kind = gate.kind
        self.order = _ORDER[gate.kind]
        self._scope = gate.scope
        self._template: KeyTemplate | None = None
        self._fixed: str | None = None
        if gate.scope == "task":
            self._fixed = f"{gate.kind}:{_bounded(f'task:{task}', MAX_GATE_BYTES)}"
        elif gate.scope.startswith(DEPENDENCY_SCOPE):
            self._fixed = f"{gate.kind}:{_bounded(gate.scope, MAX_GATE_BYTES)}"
        elif gate.scope not in _SCOPES:
            self._template = _template(task, parameters, gate)
        # What all jobs of a limit share; a gate that is a limit of its own is named by itself.
        room = MAX_LIMIT_BYTES - len(gate.kind) - 1
        self.limit = self._fixed or f"{gate.kind}:{_bounded(f'{gate.scope}@{task}', room)}"
        self._suffix = f"|{gate.figures}" if gate.figures else ""
        if gate.kind in (GateKind.RATE, GateKind.CONCURRENCY) and self._fixed is None:
            self._suffix += f"|{self.limit}"

    def name(self, args: Mapping[str, object], tenant: str | None, lane: str) -> str | None:
        """The gate's name; None: this job does not pass it."""
        if self._fixed is not None:
            return self._fixed
        if self._template is not None:
            return f"{self.kind}:{_bounded(self._template.render(args), MAX_GATE_BYTES)}"
        what = tenant if self._scope == "tenant" else lane
        return f"{self.kind}:{_bounded(f'{self._scope}:{what}', MAX_GATE_BYTES)}" if what else None

    def makes(self, name: str) -> bool:
        """Whether some arguments would give this name."""
        if self._fixed is not None:
            return name == self._fixed
        if self._template is None:
            pattern = re.escape(f"{self.kind}:{self._scope}:") + r"\S+"
        else:
            texts = map(re.escape, self._template.literals)
            pattern = re.escape(f"{self.kind}:") + r"\S+".join(texts)
        return name.startswith(f"{self.kind}:#") or re.fullmatch(pattern, name) is not None

    @property
    def fields(self) -> tuple[str, ...]:
        return () if self._template is None else self._template.fields

    @property
    def about(self) -> str:
        if self._fixed is not None:
            return self._fixed
        start = f"{self._scope}:" if self._template is None else self._template.literals[0]
        return f"{self.kind}:{start}"

    def word(self, name: str) -> str:
        return name + self._suffix

    def rendered(self, args: Mapping[str, object]) -> str:
        return "" if self._template is None else self._template.render(args)


def declare(
    task: str,
    *,
    entity: str | None = None,
    strict: bool = False,
    uses: Sequence[str] = (),
    limits: Sequence[Limit] = (),
    dependencies: Mapping[str, Dependency],
) -> tuple[Gate, ...]:
    """The gates that a task's options come to. Raises ConfigurationError."""
    found: list[Gate] = []
    if isinstance(uses, str):
        raise ConfigurationError(f"task {task}: uses= is a list of names, such as [{uses!r}]")
    for name in dict.fromkeys(uses):
        if name not in dependencies:
            known = ", ".join(dependencies) or "none"
            raise ConfigurationError(
                f"task {task}: uses={name!r} is no dependency of the app; it has: {known}. "
                f'Declare it: App(..., dependencies={{"{name}": Dependency(...)}})'
            )
        found += dependency_gates(name, dependencies[name])
    if isinstance(limits, Rate | Concurrency):
        raise ConfigurationError(f"task {task}: limits= is a list, such as limits=[{limits!r}]")
    for limit in limits:
        if not isinstance(limit, Rate | Concurrency):
            raise ConfigurationError(
                f"task {task}: limits= takes Rate(...) and Concurrency(...), not {limit!r}"
            )
        kind = GateKind.RATE if isinstance(limit, Rate) else GateKind.CONCURRENCY
        if any(each.kind is kind and each.scope == limit.scope for each in found):
            raise ConfigurationError(
                f"task {task}: two {type(limit).__name__} limits of the scope {limit.scope!r}; keep one"
            )
        found.append(Gate(kind, limit.scope, limit.figures))
    if entity is not None:
        if entity in _SCOPES:
            raise ConfigurationError(f"task {task}: entity {_no_lock_for_all(entity)}")
        found.append(Gate(GateKind.ENTITY, entity, "strict" if strict else ""))
    elif strict:
        raise ConfigurationError(f'task {task}: entity_order="strict" needs an entity=')
    if len(found) > MAX_GATES:
        raise ConfigurationError(f"task {task} has {len(found)} gates; {MAX_GATES} are the most")
    return tuple(found)


def dependency_gates(name: str, dependency: Dependency) -> list[Gate]:
    """What a job that uses this dependency passes: always its pause."""
    scope = DEPENDENCY_SCOPE + check_dependency_name(name)
    found = [Gate(GateKind.PAUSE, scope)]
    if dependency.breaker is not None:
        found.append(Gate(GateKind.BREAKER, scope, dependency.breaker.figures))
    if dependency.rate is not None:
        figures = rate_figures(dependency.rate, dependency.burst, what=f"dependency {name}")
        found.append(Gate(GateKind.RATE, scope, figures))
    if dependency.concurrency is not None:
        found.append(Gate(GateKind.CONCURRENCY, scope, str(dependency.concurrency)))
    return found


def breaker_of(dependency: str) -> str:
    """The gate's name of a dependency's breaker."""
    return f"{GateKind.BREAKER}:{DEPENDENCY_SCOPE}{dependency}"


def names(line: str) -> list[str]:
    """The names of the gates in a line of a record or claim, whatever their figures."""
    return [word.partition("|")[0] for word in line.split(" ")[1:]]


def number_of(line: str) -> int:
    """The manifest's number in a line of a record or claim: 0 for one that knew none."""
    return int(line.partition(" ")[0] or "0")


def words_of(line: str) -> list[tuple[str, str, str]]:
    """Name, figures and limit of each gate in a line; '' for what its word does not have."""
    found = []
    for word in line.split(" ")[1:]:
        name, _, rest = word.partition("|")
        figures, _, limit = rest.partition("|")
        found.append((name, figures, limit))
    return found


def entity_of(line: str) -> str | None:
    """What the entity lock in a line is about, such as `order:7`; None without one."""
    head = f"{GateKind.ENTITY}:"
    return next((name.removeprefix(head) for name in names(line) if name.startswith(head)), None)


def regate(
    gates: Gates | None,
    line: str,
    args: Mapping[str, object],
    *,
    tenant: str | None,
    lane: str,
    number: int,
) -> str | None:
    """The gates that a claimed job should have passed by this worker's declaration, or None if its own stand.

    Only a declaration that is newer than the job's may judge it, else two versions of a rolling deploy would
    hand a job back and forth (D17). Figures do not count: they are looked up when a gate is passed. Raises
    InvalidArgument when the arguments lack what a template names.
    """
    if (gates is None and not line) or number <= number_of(line):
        return None
    fresh = "" if gates is None else gates.line(args, tenant=tenant, lane=lane, number=number)
    return None if names(fresh) == names(line) else fresh


def _template(task: str, parameters: Sequence[str], gate: Gate) -> KeyTemplate:
    what = f"task {task}: {gate.kind}"
    lacking = (
        _no_lock_for_all(gate.scope)
        if gate.kind is GateKind.ENTITY
        else 'has no field: a scope is "task", "tenant", "lane", or names an argument, such as '
        f'"{_example(parameters)}"'
    )
    template = KeyTemplate.parse(gate.scope, parameters, what=what, without_field=lacking)
    head = template.literals[0].partition(":")[0]
    if ":" in template.literals[0] and head in (*_SCOPES, "dependency"):
        raise ConfigurationError(
            f"{what} {gate.scope!r}: {head}: begins the names of another scope; choose another word"
        )
    if template.literals[0]:
        return template
    # "{order_id}" and "{user_id}" would both be 7: the first field's own name keeps them apart.
    first = template.fields[0]
    return KeyTemplate.parse(f"{first}:{gate.scope}", parameters, what=what)


def _no_lock_for_all(entity: str) -> str:
    return (
        f"{entity!r} names no argument, so it would be one lock for all jobs; "
        'name one, such as "order:{order_id}", or say what you mean: limits=[Concurrency("task", 1)]'
    )


def _example(parameters: Sequence[str]) -> str:
    first = parameters[0] if parameters else "user_id"
    return f"{first.removesuffix('_id')}:{{{first}}}"


def _bounded(text: str, limit: int) -> str:
    """The text if it is short and plain, else a digest of it that no plain text looks like."""
    data = text.encode()
    if len(data) <= limit and _PLAIN.fullmatch(text) and text[0] != "#":
        return text
    return "#" + urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
