"""Queries by the catalogue of metrics: a name that is not in it, or a label that it has not, is refused here.

A metric of a worker is summed. One of the cluster is the same whoever tells it, and after an election two
may tell it for a moment: it is taken by `max` first, and a rate is taken of that, so that it goes on over
the change.
"""

from __future__ import annotations

from streamworker.telemetry.catalogue import CATALOGUE, PREFIX, Kind, Scope, Spec

#: The window of rates that Grafana chooses, and how often a merged counter is looked at in it.
WINDOW = "$__rate_interval"
LOOK = "15s"
#: Labels that a dashboard's variables choose.
CHOSEN = ("lane", "task")

_SPECS = {spec.name: spec for spec in CATALOGUE}
_PARTS = {
    spec.name + part: spec
    for spec in CATALOGUE
    if spec.kind is Kind.HISTOGRAM
    for part in ("_bucket", "_sum", "_count")
}


def _spec(metric: str) -> Spec:
    return _SPECS.get(metric) or _PARTS[metric]


def _selected(metric: str, match: dict[str, str]) -> str:
    found = _spec(metric)
    unknown = match.keys() - set(found.labels)
    if unknown:
        raise ValueError(f"{metric} has no label {', '.join(sorted(unknown))}")
    chosen = {name: f"${name}" for name in CHOSEN if name in found.labels}
    wanted = {"job": "$job", **chosen, **match}
    labels = (f'{name}{"=~" if set(value) & set("$|.") else "="}"{value}"' for name, value in wanted.items())
    end = "_total" if found.kind is Kind.COUNTER else ""
    return f"{PREFIX}{metric}{end}{{{', '.join(labels)}}}"


def _by(names: tuple[str, ...]) -> str:
    return f" by ({', '.join(names)})" if names else ""


def _whole(metric: str) -> tuple[str, ...]:
    return ("job", *_spec(metric).labels)


def now(metric: str, *by: str, **match: str) -> str:
    """A gauge, added up."""
    selected = _selected(metric, match)
    if Scope.CLUSTER in _spec(metric).scopes:
        selected = f"max{_by(_whole(metric))} ({selected})"
    return f"sum{_by(by)} ({selected})"


def top(metric: str, *by: str, **match: str) -> str:
    """The highest value of a gauge."""
    return f"max{_by(by)} ({_selected(metric, match)})"


def grown(
    metric: str, *by: str, over: str = WINDOW, look: str = LOOK, how: str = "rate", **match: str
) -> str:
    """What a counter gains: a second with `rate`, in all with `increase`."""
    selected = _selected(metric, match)
    if Scope.CLUSTER in _spec(metric).scopes:
        return f"sum{_by(by)} ({how}(max{_by(_whole(metric))} ({selected})[{over}:{look}]))"
    return f"sum{_by(by)} ({how}({selected}[{over}]))"


def quantile(part: float, metric: str, *by: str, **match: str) -> str:
    """A quantile of a histogram."""
    return f"histogram_quantile({part}, {grown(f'{metric}_bucket', 'le', *by, **match)})"


def mean(metric: str, *by: str, **match: str) -> str:
    """The mean of what a histogram saw."""
    return share(grown(f"{metric}_sum", *by, **match), grown(f"{metric}_count", *by, **match))


def share(part: str, whole: str, match: str = "") -> str:
    """One over the other; nothing where there is no whole. `match` says which belong together."""
    return f"{part}\n/ {match}({whole} > 0)"


def seen(query: str) -> str:
    """Only what is not zero: of many tasks few have anything to show, and the rest would fill the legend."""
    return f"{query} > 0"


def worst(query: str) -> str:
    """The highest first. For lists; lines have no order."""
    return f"sort_desc({query})"


def most(count: int, query: str) -> str:
    """The highest few series that are not zero."""
    return f"topk({count}, {query} > 0)"
