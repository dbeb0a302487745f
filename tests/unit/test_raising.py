"""What a log says of where a handler raised: the lines of code, and nothing of what the error says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from streamworker.core.job import Claim
from streamworker.worker import raising
from streamworker.worker.running import Running

SECRET = "4111-1111-1111"
CODE = """
def look_up(card):
    return {}[card]

def charge(card):
    try:
        look_up(card)
    except KeyError as error:
        raise ValueError(f"no card {card}") from error

def deep(card, depth=30):
    return other(card, depth - 1) if depth else look_up(card)

def other(card, depth):
    return deep(card, depth)
"""


@pytest.fixture
def shop(tmp_path: Path) -> dict[str, Any]:
    file = tmp_path / "shop.py"
    file.write_text(CODE)
    names: dict[str, Any] = {}
    exec(compile(CODE, str(file), "exec"), names)
    return names


def told(caplog: pytest.LogCaptureFixture, call: Any) -> str:
    """The message of the log when this call raises."""
    claim = Claim("job-1", 1, 2, 2, 0, 0, "normal", "a", "1-0", 0, None, None, b"")
    with pytest.raises(Exception) as raised:  # noqa: PT011 - any
        call()
    raising.tell(Running(claim, task_name="charge"), raised.value)
    (record,) = caplog.records
    assert (record.job_id, record.task, record.attempt) == ("job-1", "charge", 2)  # type: ignore[attr-defined]
    return record.getMessage()


def test_the_lines_that_led_there_are_shown_and_no_text(
    shop: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    said = told(caplog, lambda: shop["charge"](SECRET))

    assert said.startswith("job job-1 of task charge: attempt 2 raised ValueError\n")
    assert 'shop.py", line 9, in charge\n' in said
    assert "caused by KeyError\n" in said
    assert 'shop.py", line 3, in look_up\n    return {}[card]' in said
    assert SECRET not in said


def test_the_place_is_the_line_of_the_handler_and_the_one_that_raised(shop: dict[str, Any]) -> None:
    with pytest.raises(KeyError) as raised:
        shop["deep"](SECRET, 0)
    mine, _, theirs = raising.place(raised.value).partition(", ")

    assert mine.startswith(f"  at {__file__}:")
    assert theirs.endswith("shop.py:3 in look_up")
    assert raising.place(ValueError("never raised")) == ""


def test_of_a_deep_one_the_innermost_are_shown(
    shop: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    said = told(caplog, lambda: shop["deep"](SECRET))

    assert said.count('  File "') == raising.FRAMES
    assert said.endswith("return {}[card]")
