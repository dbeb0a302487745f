"""One endpoint for several worker processes: the supervisor asks each over its unix socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from streamworker.telemetry.exposition import CONTENT_TYPE, merge
from streamworker.telemetry.http import Answer, Route, fetch, json_answer
from streamworker.worker.brood import Place

#: Seconds that a child may take to answer. It does so from a thread, even while its loop is stalled.
PATIENCE = 2.0
#: Seconds of life until a child must answer.
YOUTH = 10.0


def routes(places: Sequence[Place]) -> Mapping[str, Route]:
    """What the supervisor answers."""

    async def healthz() -> Answer:
        return await _probe(places, "/healthz")

    async def readyz() -> Answer:
        return await _probe(places, "/readyz")

    async def metrics() -> Answer:
        answers = await _ask_all(places, "/metrics")
        texts = {str(number): answer.body for number, answer in answers.items() if answer is not None}
        return Answer(200, merge(texts), CONTENT_TYPE)

    return {"/healthz": healthz, "/readyz": readyz, "/metrics": metrics}


async def _ask_all(places: Sequence[Place], route: str) -> dict[int, Answer | None]:
    answers = await asyncio.gather(*(_ask(place, route) for place in places))
    return {place.number: answer for place, answer in zip(places, answers, strict=True)}


async def _ask(place: Place, route: str) -> Answer | None:
    if place.child is None or place.path is None:
        return None
    try:
        return await fetch(place.path, route, timeout=PATIENCE)
    except OSError:
        return None


async def _probe(places: Sequence[Place], route: str) -> Answer:
    """Healthy: no child is stalled; one that is being started again is none. Ready: all are."""
    answers = await _ask_all(places, route)
    processes: dict[str, Any] = {}
    good = True
    for place in places:
        answer = answers[place.number]
        if answer is not None:
            processes[str(place.number)] = json.loads(answer.body)
            good = good and answer.status == 200
        else:
            young = place.child is None or place.child.age < YOUTH
            processes[str(place.number)] = {"status": "starting" if young else "no answer"}
            good = good and young and route == "/healthz"
    facts: dict[str, Any] = {"status": "ok" if good else "stalled"}
    if route == "/readyz":
        facts["status"] = "ready" if good else "not ready"
        ages = [each.get("age_seconds") for each in processes.values()]
        facts["age_seconds"] = None if None in ages else max(ages)
        words = {str(each.get("redis", "unknown")) for each in processes.values()}
        facts["redis"] = "ok" if words == {"ok"} else ", ".join(sorted(words - {"ok"}))
        slots = [each["slots"] for each in processes.values() if "slots" in each]
        facts["slots"] = {
            "capacity": sum(each["capacity"] for each in slots),
            "in_use": sum(each["in_use"] for each in slots),
        }
    return json_answer(good, {**facts, "processes": processes})
