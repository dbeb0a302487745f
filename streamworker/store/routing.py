"""The router as it is published: which tasks each lane accepts, the rules, and who is in which class."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import orjson

from streamworker.core import durations
from streamworker.core.lane import DEFAULT_LANE, Lane
from streamworker.core.router import Route, Router

#: What a producer goes by that has read no rules.
NO_RULES = Router({}, DEFAULT_LANE)
#: What a rule can say. One that says more, from a newer version, is left out: it would fit too much.
_CONDITIONS = frozenset(each.name for each in fields(Route))


def encode(router: Router, tasks: Iterable[str]) -> bytes:
    """The same rules always give the same bytes. A function that accepts is asked for each of these tasks."""
    known = sorted(tasks)
    lanes: dict[str, dict[str, Any]] = {}
    for name, lane in router.lanes.items():
        said = lanes[name] = {}
        if lane.accept is not None:
            said["accept"] = [task for task in known if lane.accepts(task)]
            if not callable(lane.accept):
                said["accept"] = sorted(set(lane.accept))
        if lane.payload_limit is not None:
            said["payload_limit"] = lane.payload_limit
        if lane.target is not None:
            said["target"] = durations.parse(lane.target)
    raw = {
        "default": router.default,
        "lanes": lanes,
        "routes": [route.raw() for route in router.routes],
        "sla": {name: sorted(tenants) for name, tenants in router.sla.items()},
    }
    return orjson.dumps(raw, option=orjson.OPT_SORT_KEYS)


def decode(text: bytes) -> Router:
    """Raises ValueError, TypeError, KeyError or AttributeError for what no version of ours has written."""
    raw = orjson.loads(text)
    lanes = {
        name: Lane(
            accept=None if said.get("accept") is None else frozenset(said["accept"]),
            payload_limit=said.get("payload_limit"),
            target=said.get("target"),
        )
        for name, said in raw["lanes"].items()
    }
    routes = [Route(**said) for said in raw["routes"] if said.keys() <= _CONDITIONS]
    return Router(lanes, raw["default"], routes=routes, sla=raw["sla"])
