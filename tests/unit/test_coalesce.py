"""What a task may declare of merging, and what its events say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest

from streamworker import App, Coalesce, ConfigurationError, Context, InvalidArgument, SerializationError
from streamworker.core.coalesce import Coalescer
from streamworker.request import Options, declared_job
from streamworker.store.manifest import Declaration
from streamworker.store.routing import NO_RULES


def coalescer(declared: Coalesce, *names: str, required: tuple[str, ...] | None = None) -> Coalescer:
    return Coalescer("digest", names, names if required is None else required, declared)


COLLECT = Coalesce("collect", by="user:{user}", window="2s", limit=10)
COLLECT_ALL = Coalesce("collect", window="2s")


@pytest.mark.parametrize(
    "said",
    [
        {"mode": "sometimes"},
        {"mode": "latest", "when": "often"},
        {"mode": "latest", "items": "events"},
        {"mode": "latest", "limit": 1},
        {"mode": "collect", "limit": 1_001},
        {"mode": "latest", "window": 0},
        {"mode": "latest", "window": "2h"},
    ],
)
def test_what_is_no_window_is_refused(said: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Coalesce(**said)


def test_no_job_expires_while_it_waits_for_its_window() -> None:
    """A task's deadline is longer than its window; an event with a shorter one of its own goes alone."""
    app = App("shop")

    async def digest(ctx: Context, events: list[int]) -> None: ...

    with pytest.raises(ConfigurationError, match="each of its jobs would expire"):
        app.task(coalesce=COLLECT_ALL, deadline="2s")(digest)
    task = app.task(coalesce=COLLECT_ALL, deadline="1h")(digest)

    assert task.call([1]).job.coalesce
    assert task.options(deadline="3s").call([1]).job.coalesce
    assert not task.options(deadline="2s").call([1]).job.coalesce


def test_the_items_come_last_with_their_lengths() -> None:
    one = coalescer(COLLECT, "user", "events")

    encoded, lengths = one.pack({"events": ["é", {"b": 1, "a": 2}], "user": 7}, limit=1_000)

    assert encoded == '{"user":7,"events":["é",{"a":2,"b":1}]}'.encode()
    assert lengths == [4, 13]


def test_items_alone_are_an_object_too() -> None:
    one = coalescer(Coalesce("collect"), "events")

    assert one.pack({"events": [1]}, limit=1_000) == (b'{"events":[1]}', [1])


@pytest.mark.parametrize("events", [[], "text", None, list(range(1_001))])
def test_what_is_no_list_of_items_is_refused(events: Any) -> None:
    with pytest.raises(InvalidArgument):
        coalescer(COLLECT, "user", "events").pack({"user": 7, "events": events}, limit=1_000)


def test_a_bad_item_is_named() -> None:
    with pytest.raises(SerializationError, match=r"args\.events\[1\]"):
        coalescer(COLLECT, "user", "events").pack({"user": 7, "events": [1, {1, 2}]}, limit=1_000)


def test_the_words_of_a_window() -> None:
    word = coalescer(COLLECT, "user", "events").word(
        {"user": "a b"}, [1, 20], lane="normal", tenant="acme", limit=256
    )

    assert word == "collect digest:normal/acme:user:a%20b 2000 10 always 256 1,20"


def test_events_of_other_lanes_tenants_and_names_have_other_windows() -> None:
    one = coalescer(COLLECT, "user", "events")
    words = {
        one.word({"user": user}, [1], lane=lane, tenant=tenant, limit=256).split(" ")[1]
        for user in (7, 8)
        for lane in ("normal", "bulk")
        for tenant in (None, "acme", "umbrella")
    }

    assert len(words) == 12


def test_optional_arguments_keep_events_apart() -> None:
    """The job has those of its first event: of all others they would be lost without a word."""
    declared = replace(COLLECT, items="events")
    one = coalescer(declared, "user", "events", "urgent", required=("user", "events"))

    def window(**more: Any) -> str:
        return one.word({"user": 7, "events": [1], **more}, [1], lane="n", tenant=None, limit=1_000)

    assert window() == "collect digest:n/:user:7 2000 10 always 1000 1"
    assert len({window(), window(urgent=True), window(urgent=False), window(anything="else")}) == 4
    assert window(urgent=True) == window(urgent=True)
    assert all(len(window(urgent=value).split(" ")) == 7 for value in (True, "a b", "x\ny"))


def test_what_would_be_lost_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="channel"):
        coalescer(Coalesce("collect", by="user:{user}", items="events"), "user", "channel", "events")
    coalescer(Coalesce("collect", by="user:{user}", items="events"), "user", "channel", "events",
              required=("user", "events"))  # fmt: skip


def test_which_argument_is_collected_has_to_be_clear() -> None:
    with pytest.raises(ConfigurationError, match="items="):
        coalescer(COLLECT, "user", "events", "more", required=())
    with pytest.raises(ConfigurationError, match="no argument"):
        coalescer(Coalesce("collect", by="user:{user}", items="user"), "user", "events")


def test_gates_must_not_tell_apart_what_is_merged() -> None:
    app = App("shop")

    with pytest.raises(ConfigurationError, match="order"):

        @app.task(coalesce="latest", entity="order:{order}")
        async def index(ctx: Context, order: int) -> None: ...


def test_a_cron_is_not_merged() -> None:
    app = App("shop")

    with pytest.raises(ConfigurationError, match="overlap"):

        @app.cron("* * * * *", coalesce="latest")
        async def tick(ctx: Context) -> None: ...


def test_producers_without_the_code_merge_the_same_way() -> None:
    app = App("shop")

    @app.task(coalesce=COLLECT)
    async def digest(ctx: Context, user: int, events: list[int]) -> None: ...

    published = Declaration.decode("digest", b"1 " + digest.declaration().encode())
    args = {"user": 7, "events": [1, 2]}
    theirs, _ = declared_job("digest", args, Options(), published, NO_RULES)
    ours = digest.call(7, events=[1, 2]).job

    assert theirs.coalesce == ours.coalesce != ""
    assert orjson.loads(theirs.envelope)["a"] == args


def test_of_several_events_no_key_is_the_jobs_and_a_delay_is_not_merged() -> None:
    app = App("shop")

    @app.task(coalesce="latest", key="order:{order}")
    async def index(ctx: Context, order: int) -> None: ...

    job = index.call(7).job
    assert "k" not in orjson.loads(job.envelope)
    assert job.key_id == "index::order:7"
    delayed = index.options(delay="5s").call(7).job
    assert delayed.coalesce == ""
    assert orjson.loads(delayed.envelope)["k"] == "order:7"
