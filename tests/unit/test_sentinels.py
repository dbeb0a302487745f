"""How the primary is looked for: what the URL says, and what is made of the answers."""

from __future__ import annotations

from typing import Any

import pytest

from streamworker.core.errors import ConnectionLost, ServerUnsuitable, UnusableUrl
from streamworker.ops.checks import Severity
from streamworker.ops.sentinel_checks import judge
from streamworker.store.dialling import check_url
from streamworker.store.handshake import redact
from streamworker.store.sentinels import Sentinels, sentinels_of

URL = "redis+sentinel://app:pa%2Fss@one,two:2,[fe80::1]:3/orders/4?health=1&sentinel_password=s%40s&x=2"


def of(url: str) -> Sentinels:
    found = sentinels_of(url)
    assert found is not None
    found.first = 0
    return found


def play(sentinels: Sentinels, answers: dict[str, Any]) -> list[str]:
    """The URLs that are connected to; `answers` by URL. What is raised is raised."""
    asked = []
    search = sentinels.search()
    step = next(search)
    while True:
        asked.append(step.url)
        try:
            step = search.send(answers.get(step.url, ConnectionLost("nobody")))
        except StopIteration:
            return asked


def test_each_part_of_the_url_goes_where_it_belongs() -> None:
    found = of(URL)
    assert found.asked_at(0) == "redis://:s%40s@one:26379?health=1&x=2"
    assert found.asked_at(1) == "redis://:s%40s@two:2?health=1&x=2"
    assert found.asked_at(2) == "redis://:s%40s@[fe80::1]:3?health=1&x=2"
    assert found.named("10.0.0.7", "6379") == "redis://app:pa%2Fss@10.0.0.7:6379/4?health=1&x=2"
    assert found.named("fe80::2", "1").startswith("redis://app:pa%2Fss@[fe80::2]:1/4")
    assert found.question == ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "orders")


def test_tls_is_for_both_and_the_rest_may_be_left_out() -> None:
    found = of("rediss+sentinel://one/orders")
    assert found.asked_at(0) == "rediss://one:26379"
    assert found.named("two", "1") == "rediss://two:1/0"
    named = of("redis+sentinel://one/orders?sentinel_username=a&sentinel_password=b")
    assert named.asked_at(0) == "redis://a:b@one:26379"


@pytest.mark.parametrize("url", ["redis://one:1/0", "unix:///tmp/x", "one"])
def test_other_urls_are_no_sentinels(url: str) -> None:
    assert sentinels_of(url) is None


@pytest.mark.parametrize(
    "url",
    [
        *("redis+sentinel://one", "redis+sentinel://one/", "redis+sentinel:///orders"),
        *("redis+sentinel://one/a/b", "redis+sentinel://one:port/orders", "redis+sentinel://u:secret@one"),
        "redis+sentinel://one/a?what=1",
    ],
)
def test_a_url_that_cannot_be_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(UnusableUrl) as refused:
        check_url(url)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        *("redis://:57#secret@one:1/0", "redis://:12/secret@one:1/0", "redis://:12?secret@one:1/0"),
        *("redis://one/shop", "redis://one:1/O", "redis://one:1/-1", "redis://one:1/1/2", "redis://one:1/ 1"),
        *("redis://one?password=secret#2", "redis://one?password=secret&2", "unix:///tmp/x#1"),
    ],
)
def test_a_url_of_which_a_part_would_be_lost_is_refused(url: str) -> None:
    """celery-once#135: a bare #, / or ? in a password makes it another server, a typing error database 0."""
    with pytest.raises(UnusableUrl, match="is not a Redis URL") as refused:
        check_url(url)
    assert "@" not in url or "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["redis://", "redis://one/", "rediss://one:1/7/", "redis://u:%23%2F@[::1]:1/0?db=2"]
)
def test_a_url_that_says_all_that_it_seems_to_is_taken(url: str) -> None:
    check_url(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (URL, "redis+sentinel://app:***@one,two:2,[fe80::1]:3/orders/4"),
        ("redis+sentinel://one:1/orders?sentinel_password=a@b", "redis+sentinel://***"),
        ("redis+sentinel://one:1/orders?sentinel_password=ab", "redis+sentinel://one:1/orders"),
        ("redis://one:1/0?password=a@b", "redis://***"),
        ("redis://u:p@one:1/0?password=a@b", "redis://u:***@one:1/0"),
        ("redis://u:p@one:1/0?x=1", "redis://u:***@one:1/0"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_who_was_right_is_asked_first_from_then_on() -> None:
    found = of("redis+sentinel://a:1,b:1,c:1/orders")
    answers = {"redis://b:1": (b"p", b"6"), "redis://p:6/0": [b"master", 0, []]}
    assert play(found, answers) == ["redis://a:1", "redis://b:1", "redis://p:6/0"]
    assert play(found, answers) == ["redis://b:1", "redis://p:6/0"]


def test_a_sentinel_that_names_the_old_primary_is_not_the_last_to_be_asked() -> None:
    """One that was cut off from the others keeps naming a server that is gone, or a replica by now."""
    found = of("redis+sentinel://a:1,b:1,c:1/orders")
    answers = {
        "redis://a:1": (b"old", b"6"),
        "redis://old:6/0": [b"slave", b"new", 6, b"connected", 1],
        "redis://b:1": (b"old", b"6"),
        "redis://c:1": (b"new", b"6"),
        "redis://new:6/0": [b"master", 0, []],
    }
    asked = play(found, answers)
    assert asked == ["redis://a:1", "redis://old:6/0", "redis://b:1", "redis://c:1", "redis://new:6/0"]


def test_a_replica_is_never_taken_for_the_primary() -> None:
    found = of("redis+sentinel://a:1/orders")
    answers = {"redis://a:1": (b"p", b"6"), "redis://p:6/0": [b"slave", b"q", 6, b"connected", 1]}
    with pytest.raises(ConnectionLost, match="name p:6 as the primary: it is no primary any more"):
        play(found, answers)


def test_a_user_who_may_not_ask_for_the_role_is_where_the_sentinel_sent_him() -> None:
    found = of("redis+sentinel://a:1/orders")
    refusal = Exception("NOPERM User app has no permissions to run the 'role' command")
    assert len(play(found, {"redis://a:1": (b"p", b"6"), "redis://p:6/0": refusal})) == 2


def test_a_service_that_none_knows_is_a_wrong_name_and_one_that_some_know_not_is_waited_for() -> None:
    found = of("redis+sentinel://a:1,b:1/orders")
    with pytest.raises(ServerUnsuitable, match="know no service 'orders'"):
        play(found, {"redis://a:1": None, "redis://b:1": None})
    with pytest.raises(ConnectionLost, match=r"no primary is known of .*: nobody"):
        play(found, {"redis://a:1": None})


def test_the_primary_refuses_the_password() -> None:
    found = of("redis+sentinel://a:1,b:1/orders")
    refused = ServerUnsuitable("redis://p:6/0 refused the password", "check it")
    with pytest.raises(ServerUnsuitable, match="p:6/0 refused"):
        play(found, {"redis://a:1": (b"p", b"6"), "redis://p:6/0": refused})


def test_a_sentinel_refuses_the_password() -> None:
    found = of("redis+sentinel://a:1,b:1/orders")
    with pytest.raises(ServerUnsuitable, match="the sentinel a:1 refused the password"):
        play(found, {"redis://a:1": ServerUnsuitable("x", "y")})


def test_doctor_says_what_is_wrong_with_them() -> None:
    one, two, fine = (b"p", b"1"), (b"q", b"1"), b"OK 3 usable Sentinels"
    told = judge({"a:1": one, "b:1": two}, {"a:1": fine, "b:1": fine})
    assert (told.severity, told.found[-36:]) == (
        Severity.PROBLEM,
        "primaries: a:1 names p:1, b:1 names q:1"[-36:],
    )
    told = judge({"a:1": one, "b:1": None}, {"a:1": fine, "b:1": fine})
    assert told.found.endswith("a:1 names p:1, b:1 names none")
    told = judge({"a:1": one, "b:1": one}, {"a:1": fine, "b:1": fine})
    assert (told.severity, told.found[:16]) == (Severity.WARNING, "the URL names 2:")
