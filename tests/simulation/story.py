"""What happened in one simulation, as it happens: for the checker, and for who reads a failed one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from streamworker.core.states import Status
from tests.chaos.history import Accepted, End, Fault, FaultKind, Figure, Paused, Start, Told
from tests.simulation.loop import Host, VirtualLoop
from tests.simulation.redis import START_MS


@dataclass(slots=True)
class Story:
    """Times are seconds by the virtual clock, which no fault moves."""

    loop: VirtualLoop
    accepted: list[Accepted] = field(default_factory=list)
    maybe: set[str] = field(default_factory=set)
    starts: list[Start] = field(default_factory=list)
    ends: list[End] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    #: What an operator was told: the jobs that were flagged as cancelled, and since when at least.
    flagged: list[tuple[str, float]] = field(default_factory=list)
    #: What somebody who waited was told.
    results: list[tuple[str, Status]] = field(default_factory=list)
    #: How often each job's handler began, whoever ran it.
    begun: dict[str, int] = field(default_factory=dict)
    #: Where the server's clock was moved: (entries of the log before, new offset in ms); when it was put on.
    offsets: list[tuple[int, int]] = field(default_factory=list)
    jumps: list[float] = field(default_factory=list)
    #: What an operator did to gates.
    pauses: list[Paused] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)

    @property
    def now(self) -> float:
        return START_MS / 1000 + self.loop.time()

    def note(self, text: str, host: Host | None = None) -> None:
        """One line of the trace."""
        self.lines.append(f"{self.loop.time():9.3f}  {'-' if host is None else host.name:8} {text}")

    def fault(
        self,
        kind: FaultKind,
        host: Host | None,
        *,
        seconds: float = 0.0,
        ago: float = 0.0,
        sweeps_after: float | None = None,
    ) -> None:
        """A fault that began `ago` seconds before now; sweeps count again `sweeps_after` seconds from now."""
        sweeps = None if sweeps_after is None else self.now + sweeps_after
        name = None if host is None else host.name
        self.faults.append(Fault(kind, self.now - ago, self.now + seconds, name, sweeps))

    def thawed(self, host: Host) -> None:
        """A freeze is over, perhaps sooner than was planned."""
        for position, fault in enumerate(self.faults):
            if (fault.kind, fault.worker) == (FaultKind.FREEZE, host.name) and fault.until > self.now:
                self.faults[position] = replace(fault, end=self.now)

    def start(self, host: Host, job_id: str, attempt: int, fence: int, holds: tuple[str, ...]) -> int:
        """A handler began; how often it had begun before."""
        before = self.begun.get(job_id, 0)
        self.begun[job_id] = before + 1
        self.starts.append(Start(job_id, attempt, fence, host.name, self.now, holds))
        self.note(f"{job_id} begins (attempt {attempt}, fence {fence})", host)
        return before

    def end(self, host: Host, job_id: str, fence: int, told: Told) -> None:
        """A handler gives control back."""
        self.ends.append(End(job_id, fence, host.name, self.now, told))
        self.note(f"{job_id} ends: {told} (fence {fence})", host)
