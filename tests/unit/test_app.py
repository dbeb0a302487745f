"""The app: tasks, lanes and settings in one place, without a server."""

from __future__ import annotations

import os
from typing import Any

import pytest

from streamworker import (
    App,
    Client,
    ConfigurationError,
    Context,
    DurationError,
    InvalidArgument,
    Lane,
    Retry,
    UnknownTask,
    Worker,
)
from streamworker.request import actor
from streamworker.settings import Settings, read


async def handler(ctx: Context) -> None: ...


# --- settings --------------------------------------------------------------------------------------------


def test_a_name_is_all_that_an_app_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """DESIGN 11, 12: `App("shop")` alone is complete."""
    for name in ("REDIS_URL", "NAMESPACE", "LEASE"):
        monkeypatch.delenv(f"STREAMWORKER_{name}", raising=False)

    app = App("shop")

    assert app.settings == Settings("shop", "redis://127.0.0.1:6379/0", 30.0)
    assert list(app.lanes) == ["priority", "normal"]
    assert app.lanes["priority"].weight == 4 * app.lanes["normal"].weight
    assert all(lane.reserved for lane in app.lanes.values())
    assert app.default_lane == "normal"
    assert repr(app) == "<App shop: 0 tasks, lanes priority, normal>"
    app.task(handler)
    assert app.warnings() == []


def test_code_wins_over_the_environment_and_that_over_the_defaults() -> None:
    """DESIGN 12: a setting given in code wins over the environment; an empty variable is none."""
    environ = {
        "STREAMWORKER_REDIS_URL": "redis://env/1",
        "STREAMWORKER_NAMESPACE": "from-env",
        "STREAMWORKER_LEASE": "45",
    }

    assert read("shop", environ=environ) == Settings("from-env", "redis://env/1", 45.0)
    assert read(
        "shop", redis_url="redis://code/2", namespace="from-code", lease="1m", environ=environ
    ) == Settings("from-code", "redis://code/2", 60.0)
    assert read("shop", environ=dict.fromkeys(environ, "")) == Settings("shop")


def test_lease_and_liveness_come_in_ms() -> None:
    """Two leases without a heartbeat: a worker is dead."""
    settings = Settings("shop", lease=1.5)

    assert (settings.lease_ms, settings.liveness_ms) == (1500, 3000)


@pytest.mark.parametrize("lease", [0, 0.1, "100ms", -1, "soon"])
def test_a_lease_that_cannot_work_is_refused(lease: Any) -> None:
    """Below half a second an ordinary pause of a process would count as its death."""
    with pytest.raises((ConfigurationError, DurationError), match="lease"):
        App("shop", lease=lease)


def test_a_bad_variable_is_named() -> None:
    """STYLE, Errors: the message names what to change."""
    with pytest.raises(DurationError, match="STREAMWORKER_LEASE"):
        read("shop", environ={"STREAMWORKER_LEASE": "soon"})


@pytest.mark.parametrize("name", ["", "a b", "a{b", "x" * 49, "-x", "a:b"])
def test_a_name_that_cannot_be_a_namespace_is_refused(name: str) -> None:
    """DESIGN 5: it becomes the hash tag of every key."""
    with pytest.raises(InvalidArgument, match="namespace"):
        App(name)


def test_a_password_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    """R28."""
    url = "redis://:s3cret@127.0.0.1/0"
    app, client = App("shop", redis_url=url), Client(url, app="shop")

    assert "s3cret" not in f"{app!r} {app.settings!r} {client!r} {app._source!r} {vars(app)!r}"


# --- lanes -----------------------------------------------------------------------------------------------


def test_lanes_are_what_was_declared() -> None:
    """DESIGN 2: `priority`, `normal`, and any the user adds."""
    app = App("shop", lanes={"fast": Lane(reserved=2), "slow": Lane()})

    assert app.default_lane == "fast"  # there is no `normal`
    assert app.task(handler).policy.lane == "fast"
    assert app.check_lane("slow") == "slow"
    with pytest.raises(InvalidArgument, match="fast, slow"):
        app.check_lane("normal")


@pytest.mark.parametrize(
    ("lanes", "named"),
    [
        ({}, "at least one lane"),
        ({"Not A Lane": Lane()}, "lane name"),
        ({"fast": 4}, "Lane"),
        (["fast", "slow"], "lanes= is a mapping"),
    ],
)
def test_lanes_that_cannot_work_are_refused(lanes: Any, named: str) -> None:
    """STYLE, Errors."""
    with pytest.raises(ValueError, match=named):
        App("shop", lanes=lanes)


# --- tasks -----------------------------------------------------------------------------------------------


def test_tasks_are_found_by_name() -> None:
    """Issue: an unknown name is refused, with the nearest."""
    app = App("shop")
    task = app.task(name="send.email")(handler)

    assert app.find("send.email") is task
    with pytest.raises(UnknownTask, match=r"did you mean 'send\.email'") as unknown:
        app.find("send.emial")
    assert unknown.value.known == ("send.email",)


def test_a_name_is_registered_once() -> None:
    """Two handlers of one name would run each other's jobs."""
    app = App("shop")
    app.task(handler)

    with pytest.raises(ConfigurationError, match="handler is registered twice"):
        app.task(handler)


def test_a_module_that_is_imported_under_two_names_is_told_so() -> None:
    """huey#650: "give one of them another name" would make two tasks of one function."""
    app = App("shop")
    source = "async def work(ctx): ..."
    first: dict[str, Any] = {"__name__": "shop.tasks"}
    second: dict[str, Any] = {"__name__": "tasks"}
    third: dict[str, Any] = {"__name__": "others"}
    for module, file in ((first, "/srv/tasks.py"), (second, "/srv/tasks.py"), (third, "/srv/others.py")):
        exec(compile(source, file, "exec"), module)
    app.task(first["work"])

    with pytest.raises(
        ConfigurationError, match=r"/srv/tasks.py is imported twice, as shop\.tasks and tasks"
    ):
        app.task(second["work"])
    with pytest.raises(ConfigurationError, match="another name="):
        app.task(third["work"])


@pytest.mark.parametrize(
    "what",
    [type("Work", (), {"__init__": handler}), classmethod(handler), None, "handler"],  # type: ignore[arg-type]
)
def test_what_is_no_function_is_no_handler(what: Any) -> None:
    """A class would be called for an object, which is no result: each job a dead letter."""
    with pytest.raises(ConfigurationError, match="a handler is a function"):
        App("shop").task(name="work")(what)


def test_whoever_acts_can_be_sent_to_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads what is no UTF-8 in the environment as half surrogates: no cancel of theirs was taken."""
    monkeypatch.setenv("LOGNAME", os.fsdecode(b"jos\xe9 m"))

    assert actor().encode().startswith(b"jos?m@")


async def test_an_unknown_name_is_refused_before_anything_is_sent() -> None:
    """Issue: by `App`, refused: nothing listens at this URL, and nothing had to."""
    async with App("shop", redis_url="redis://127.0.0.1:1/0") as app:
        with pytest.raises(UnknownTask):
            await app.enqueue("nobody", {})


@pytest.mark.parametrize("given", [{"order": 7}, handler])
async def test_what_is_no_call_is_refused_in_a_batch(given: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"make it by task\.call"):
        await App("shop", redis_url="redis://127.0.0.1:1/0").enqueue_many([given])


async def test_calls_that_would_be_lost_in_a_batch_are_refused() -> None:
    """Nobody there knows another app's task, and one call is one job, however often it stands in the list."""
    app, other = (App(name, redis_url="redis://127.0.0.1:1/0") for name in ("shop", "store"))
    theirs, ours = other.task(handler).call(), app.task(handler).call()

    with pytest.raises(InvalidArgument, match="is of namespace store, not shop"):
        await app.enqueue_many([ours, theirs])
    with pytest.raises(InvalidArgument, match="stands twice"):
        await app.enqueue_many([ours] * 3)


async def test_a_batch_with_an_unknown_lane_is_refused_whole() -> None:
    """STYLE, Errors: before anything is sent."""
    async with App("shop", redis_url="redis://127.0.0.1:1/0") as app:
        task = app.task(handler)
        with pytest.raises(InvalidArgument, match="fast"):
            await app.enqueue_many([task.call(), task.options(lane="fast").call()])


def test_odd_policies_are_warned_of() -> None:
    """DESIGN 4: a delay under 1 s, no jitter, or more than 10 attempts warns at start."""
    app = App("shop")
    app.task(name="hasty", retry=Retry.schedule("10ms"))(handler)
    app.task(name="stubborn", retry=Retry.fixed(12, "1s"))(handler)
    app.task(name="marching", retry=Retry.fixed(2, "1s", jitter=0))(handler)
    app.task(name="sane")(handler)

    lines = app.warnings()

    assert [line.split()[1] for line in lines] == ["hasty", "stubborn", "marching"]


def test_an_app_without_a_task_is_warned_of() -> None:
    """Its worker would hand every job back: mostly the module with the tasks was not imported."""
    (line,) = App("shop").warnings()

    assert line.startswith("app shop has no task: ")


# --- workers ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"concurrency": True}, "concurrency"),
        ({"concurrency": 1.5}, "concurrency"),
        ({"lanes": []}, "lane"),
        ({"lanes": ["fast"]}, "priority, normal"),
        ({"grace": "soon"}, "grace"),
        ({"grace": -1}, "grace"),
    ],
)
def test_a_worker_that_cannot_work_is_refused(options: dict[str, Any], named: str) -> None:
    """STYLE, Errors: when it is made, not when it runs."""
    with pytest.raises(ValueError, match=named):
        Worker(App("shop"), **options)


def test_no_two_workers_share_a_name() -> None:
    """R7: host, pid and a nonce; never reused, so that a new pod cannot hide a death."""
    app = App("shop")

    assert len({Worker(app).id for _ in range(100)}) == 100
