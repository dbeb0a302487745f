"""What a worker and its children tell each other, and where a child finds the app."""

from __future__ import annotations

import asyncio
import sys
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest

from streamworker import App
from streamworker.core.job import Claim
from streamworker.core.outcome import Fail, Outcome, Release, Retry, Success
from streamworker.core.states import ErrorClass, Reason
from streamworker.worker import children as module
from streamworker.worker import origin, wire
from streamworker.worker.children import Children, Died, NotReady
from streamworker.worker.origin import Origin
from streamworker.worker.running import Running

top = App("top")

CLAIM = Claim("j", 7, 2, 3, 1, 0, "normal", "q", "1-0", 12, None, 30, b'{"t":"add","a":{}}')
OUTCOMES = [
    Success(),
    Success(b'{"a":[1,2]}', Reason.SKIPPED),
    Retry(700, ErrorClass.TRANSIENT, "timeout", "Zeit überschritten", "p=1", Reason.SERVER_DIRECTED),
    Fail(ErrorClass.PERSISTENT, "bad", "nö"),
    Release(Reason.SNOOZED, 50),
]


async def read_all(data: bytes) -> list[tuple[wire.Head, bytes]]:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    reader.feed_eof()
    found = []
    while (message := await wire.read(reader)) is not None:
        found.append(message)
    return found


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
async def test_an_outcome_arrives_as_it_was_sent(outcome: Outcome) -> None:
    ((head, body),) = await read_all(wire.frame(*wire.outcome_frame(outcome)))

    assert wire.outcome_from(head, body) == outcome


async def test_a_claim_arrives_as_it_was_sent() -> None:
    ((head, body),) = await read_all(wire.frame(wire.claim_head(CLAIM), CLAIM.envelope))

    assert wire.claim_from(head, body) == CLAIM


async def test_messages_are_told_apart_and_a_torn_one_is_the_end() -> None:
    first, second = wire.frame({"n": 1}, b"\x00\xff"), wire.frame({"n": 2})

    assert await read_all(first + second) == [({"n": 1}, b"\x00\xff"), ({"n": 2}, b"")]
    for cut in range(1, len(second)):
        assert await read_all(first + second[:cut]) == [({"n": 1}, b"\x00\xff")]


def test_an_app_is_found_by_its_name_at_the_top_of_its_module() -> None:
    found = origin.find(top)

    assert found == Origin(__name__, "top", {})
    assert found.load() is top


def test_an_app_that_a_factory_made_is_found_where_it_was_put(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("shop_of_a_factory")
    module.app = App("made")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)

    assert origin.find(module.app) == Origin("shop_of_a_factory", "app", {})


def test_an_app_inside_a_function_is_found_nowhere() -> None:
    assert origin.find(App("inside")) is None


def test_a_subclass_knows_the_module_that_made_it() -> None:
    class Shop(App):
        def __init__(self) -> None:
            super().__init__("shop")

    assert Shop().module == __name__


@pytest.mark.parametrize(
    ("spec", "path", "main"),
    [
        (None, "/shop/main.py", {"init_main_from_path": "/shop/main.py"}),
        ("shop.main", "/shop/main.py", {"init_main_from_name": "shop.main"}),
        (None, None, None),
    ],
)
def test_a_script_is_found_by_its_path_or_name(
    monkeypatch: pytest.MonkeyPatch, spec: str | None, path: str | None, main: dict[str, str] | None
) -> None:
    module = ModuleType("__main__")
    module.app = App("script")  # type: ignore[attr-defined]
    module.app.module = "__main__"
    if path is not None:
        module.__file__ = path
    if spec is not None:
        module.__spec__ = type("Spec", (), {"name": spec})()
    monkeypatch.setitem(sys.modules, "__main__", module)

    found = origin.find(module.app)

    assert found == (None if main is None else Origin("__main__", "app", main))


def test_what_is_no_app_is_refused() -> None:
    with pytest.raises(ValueError, match=r"is no App in a child process"):
        Origin(__name__, "CLAIM", {}).load()


class Litter(Children):
    """Children in memory: each is what `plan` says next."""

    def __init__(self, *plan: Exception | Outcome) -> None:
        super().__init__(top, 1)
        self.plan = list(plan)

    async def _take(self) -> Any:
        if isinstance(error := self.plan[0], NotReady):
            del self.plan[0]
            raise error

        async def run(*_: object) -> Outcome:
            came = self.plan.pop(0)
            if isinstance(came, Exception):
                raise came
            return came

        return SimpleNamespace(run=run, alive=False)


async def test_children_that_fail_now_and_then_are_not_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only so many in a row say that no child can live: over weeks there may be many more."""
    monkeypatch.setattr(module, "FAILURES", 2)
    monkeypatch.setattr(module, "backoff", lambda _: 0.0)
    away = NotReady("the database is away")
    litter = Litter(away, Success(), away, Died("by its job"), away, Success())

    for outcome in (Success(), None, Success()):
        if outcome is None:
            with pytest.raises(Died):
                await litter.run(Running(CLAIM), lambda: None)
        else:
            assert await litter.run(Running(CLAIM), lambda: None) == outcome


async def test_a_child_that_comes_later_knows_what_operators_have_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[str] = []

    class Born:
        alive = True

        async def introduce(self, *_: object) -> None: ...

        def tell_retries(self, text: str) -> None:
            told.append(text)

    child = Born()
    monkeypatch.setattr(module, "Child", lambda *_, **__: child)
    children = Children(top, 1)
    children.tell_retries("* stop=x")

    children._place, children.unloadable = cast(Origin, object()), None
    await children.ready()

    assert told == ["* stop=x"]
