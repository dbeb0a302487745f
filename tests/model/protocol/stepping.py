"""What a step is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.model.protocol.draft import Draft
from tests.model.protocol.faults import Config, Fault
from tests.model.protocol.rules import Rules
from tests.model.protocol.state import State

#: What happened: a verb, and with whom.
Label = tuple[Any, ...]
#: A script: changes a draft, may be cut off, returns how many writes it had to make.
Verb = Callable[..., int]


class World(NamedTuple):
    """What can happen, and the rules that hold."""

    config: Config
    rules: Rules


class Step(NamedTuple):
    """Something that can happen next."""

    label: Label
    draft: Draft  # the state that it leaves
    #: It happens anyway while nothing goes wrong: a step of a run without faults.
    calm: bool = False


def mishap(draft: Draft, fault: Fault, *label: object) -> Step:
    """A fault of which there is one less then."""
    draft.spend(fault)
    return Step(label, draft)


def script(
    world: World,
    state: State,
    label: Label,
    verb: Verb,
    *arguments: int,
    spends: Fault | None = None,
) -> Iterator[Step]:
    """A script of the keeper, a producer or an operator: whole, and cut off after each of its writes."""
    draft = Draft(state)
    writes = verb(draft, world.rules, *arguments)
    if spends is not None:
        draft.spend(spends)
    yield Step((*label, None), draft, calm=spends is None)
    if state.faults[Fault.ERROR]:
        for cut in range(1, writes):
            draft = Draft(state)
            verb(draft, world.rules, *arguments, cut)
            yield mishap(draft, Fault.ERROR, *label, cut)
