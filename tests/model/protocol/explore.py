"""Every state that can be reached, breadth first, so that the first wrong one has a shortest trace.

Where a state was met from which as much or more may still go wrong, and all else is the same, nothing new can
come: what happens without faults is the same, and no fault has to happen.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import ge

from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Config
from tests.model.protocol.judge import over, wrong
from tests.model.protocol.mishaps import forget_late
from tests.model.protocol.rules import Rules
from tests.model.protocol.state import State
from tests.model.protocol.stepping import Label, World
from tests.model.protocol.steps import steps
from tests.model.protocol.symmetry import Keys

#: Seconds between two lines of progress.
PROGRESS = 10.0


@dataclass(frozen=True, slots=True)
class Violation:
    """What went wrong, and a shortest way there."""

    what: str
    trace: list[Label]
    state: State


@dataclass(frozen=True, slots=True)
class Result:
    """What an exploration came to."""

    states: int
    steps: int
    depth: int
    seconds: float
    complete: bool  # there is no other state
    violation: Violation | None


class Exploration:
    """One configuration under some rules, from its start until a violation, the end, or the limit."""

    def __init__(self, config: Config, rules: Rules, *, tell: Callable[[str], None] | None = None) -> None:
        self.config = config
        self._world = World(config, rules)
        #: Without a rule, a late call may do what it must not do.
        self._forgets = rules == Rules()
        self._keys = Keys(jobs_alike=config.alike)
        self._tell = tell
        #: Number of the newest state by its key, and of each the one before that is alike but for what may
        #: still go wrong. -1 stands for none, here and below.
        self._newest: dict[int, int] = {}
        self._earlier = array("q")
        #: Of each state what may still go wrong, the one that it was found from, and where a run without
        #: faults goes on.
        self._faults: list[tuple[int, ...]] = []
        self._budgets: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._parents, self._calm = array("q"), array("q")
        self._count = 0
        self._only = ""

    def run(self, limit: int | None = None, *, only: str = "") -> Result:
        """`only`: look for what has this in it; other wrong states are not followed."""
        self._only = only
        began = told = time.monotonic()
        start = self.config.start()
        self._add(start, -1)
        front, depth, expanded = [start], 0, 0
        violation: Violation | None = None
        complete = True
        while front and complete and violation is None:
            following: list[State] = []
            for state in front:
                violation = self._expand(state, expanded, following)
                expanded += 1
                complete = violation is None and (limit is None or len(self._parents) < limit)
                if not complete:
                    break
                if self._tell is not None and time.monotonic() - told > PROGRESS:
                    told = time.monotonic()
                    rate = self._count / (told - began)
                    self._tell(f"{len(self._parents):,} states, depth {depth}, {rate:,.0f} steps/s")
            front, depth = following, depth + 1
            self._keys.forget()
        if violation is None and not only:
            violation = self._stuck()
        complete = complete and violation is None
        return Result(len(self._parents), self._count, depth, time.monotonic() - began, complete, violation)

    def _after(self, draft: Draft) -> State:
        if self._forgets:
            forget_late(draft)
        return draft.freeze()

    def _alike(self, key: int) -> Iterator[int]:
        number = self._newest.get(key, -1)
        while number >= 0:
            yield number
            number = self._earlier[number]

    def _key(self, state: State) -> int:
        return self._keys.of(state._replace(faults=()))

    def _add(self, state: State, parent: int) -> tuple[int, bool]:
        """The number of it, or of one from which as much may go wrong; and whether it is new."""
        key, faults = self._key(state), state.faults
        for number in self._alike(key):
            if all(map(ge, self._faults[number], faults)):
                return number, False
        number = len(self._parents)
        self._earlier.append(self._newest.get(key, -1))
        self._newest[key] = number
        self._faults.append(self._budgets.setdefault(faults, faults))
        self._parents.append(parent)
        return number, True

    def _expand(self, state: State, number: int, following: list[State]) -> Violation | None:
        calm = -1
        for label, draft, is_calm in steps(self._world, state):
            self._count += 1
            after = self._after(draft)
            what, found, new = draft.wrong, -1, False
            if what is None:
                found, new = self._add(after, number)
            if new:
                what = wrong(after, self.config)
                following.append(after)
            if what is not None:
                if self._only in what:
                    return Violation(what, [*self._trace(number), label], after)
                continue
            if is_calm and calm < 0:
                calm = found
        if calm < 0 and not over(state) and not self._only:
            what = "this is where a run without faults stops, and not all is over"
            return Violation(what, self._trace(number), state)
        self._calm.append(calm)
        return None

    def _stuck(self) -> Violation | None:
        """A state from which a run without faults goes round for ever."""
        ends = bytearray(len(self._parents))  # 1: such a run ends; 2: it is on the path that is followed
        for number in range(len(self._calm)):
            path = []
            at = number
            while at < len(self._calm) and not ends[at]:
                ends[at] = 2
                path.append(at)
                if self._calm[at] < 0:
                    break
                at = self._calm[at]
            else:
                if at < len(self._calm) and ends[at] == 2:
                    what = "from here a run without faults goes round for ever"
                    trace = self._trace(number)
                    return Violation(what, trace, self._walk(trace))
            for one in path:
                ends[one] = 1
        return None

    # --- traces: only keys are kept, so the way is walked again

    def _trace(self, number: int) -> list[Label]:
        path = []
        while number >= 0:
            path.append(number)
            number = self._parents[number]
        state = self.config.start()
        labels: list[Label] = []
        for wanted in reversed(path[:-1]):
            for label, draft, _ in steps(self._world, state):
                after = self._after(draft)
                if after.faults == self._faults[wanted] and wanted in self._alike(self._key(after)):
                    labels.append(label)
                    state = after
                    break
            else:
                raise AssertionError("a trace cannot be walked again")
        return labels

    def _walk(self, trace: list[Label]) -> State:
        state = self.config.start()
        for wanted in trace:
            state = next(
                self._after(draft) for label, draft, _ in steps(self._world, state) if label == wanted
            )
        return state
