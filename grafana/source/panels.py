"""The words that dashboards are written in, and how they become Grafana's JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

#: Columns of a dashboard.
COLUMNS = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
#: The page that the steps are on; `streamworker dashboards export --runbook URL` sets another address.
RUNBOOK = "/public/streamworker/runbook-backlog.md"
#: What is shown where there are no series: of what is shown only if it is not 0, and of what is told all the
#: time. Who is called must not take silence for peace.
NOTHING, UNKNOWN = "none told", "not told"
#: Colours of series whose names say whether they are good.
GOOD, UNSURE, BAD = "green", "yellow", "red"

Json = dict[str, Any]


class Show(StrEnum):
    """How a panel shows its numbers."""

    STAT = "stat"
    LINES = "timeseries"
    BARS = "bargauge"
    HEAT = "heatmap"


class Step(StrEnum):
    """Headings of the runbook."""

    LANE = "which-lane"
    TASK = "which-task"
    DEPENDENCY = "which-dependency"
    WORKERS = "workers"
    GATES = "pauses-and-gates"
    ADMISSION = "admission"
    BACKLOG = "backlog"
    RETRIES = "retries"
    DEAD = "dead-letters"
    REDIS = "redis"
    LOOP = "a-blocked-loop"
    LOCKS = "locks-and-duplicates"
    MIRROR = "mirror-and-outbox"
    METRICS = "no-metrics"


@dataclass(frozen=True, slots=True)
class Marks:
    """From which value on a number is yellow, and red. With `falling` it is so below them."""

    yellow: float
    red: float
    falling: bool = False

    def steps(self) -> list[Json]:
        """The steps, from the lowest value up."""
        if self.falling:
            return [
                {"color": "red", "value": None},
                {"color": "yellow", "value": self.red},
                {"color": "green", "value": self.yellow},
            ]
        return [
            {"color": "green", "value": None},
            {"color": "yellow", "value": self.yellow},
            {"color": "red", "value": self.red},
        ]


@dataclass(frozen=True, slots=True)
class Panel:
    """One question and its answer. `red` says what to do when it is red, `step` where to read on.

    `colours` are those of series by their legends. `right` has legends with a unit and an axis of their own,
    at the right; `limits` is a pattern of legends that are limits of others: dashed, and not filled. `names`
    are words for numbers. `whole`: there is nothing between two numbers.
    """

    title: str
    says: str
    red: str
    step: Step
    queries: Sequence[tuple[str, str]]  # PromQL, and the legend of its series
    unit: str
    marks: Marks
    show: Show = Show.LINES
    width: int = 8
    height: int = 8
    stacked: bool = False
    bottom: float | None = 0  # of the axis
    top: float | None = None
    empty: str | None = None  # shown instead of "no data"
    colours: Mapping[str, str] = field(default_factory=dict)
    right: Mapping[str, str] = field(default_factory=dict)
    limits: str | None = None
    names: Sequence[str] = ()
    whole: bool = False

    def render(self, number: int, x: int, y: int) -> Json:
        """Grafana's JSON for it, at a place."""
        instant = self.show is Show.BARS
        targets = [
            {
                "datasource": SOURCE,
                "expr": query,
                "legendFormat": legend,
                "refId": chr(ord("A") + place),
                "instant": instant,
                "range": not instant,
                "format": "heatmap" if self.show is Show.HEAT else "time_series",
                "editorMode": "code",
            }
            for place, (query, legend) in enumerate(self.queries)
        ]
        return {
            "id": number,
            "type": self.show.value,
            "title": self.title,
            "description": f"{self.says}\n\n**When it is red:** {self.red}",
            "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": self.width, "h": self.height},
            "links": [_link("Runbook", "link", url=f"${{runbook}}#{self.step}", targetBlank=True)],
            "fieldConfig": {"defaults": self._defaults(), "overrides": list(self._overrides())},
            "options": _OPTIONS[self.show],
            "targets": targets,
        }

    def _defaults(self) -> Json:
        defaults: Json = {
            "unit": self.unit,
            "color": {"mode": "palette-classic" if self.show is Show.LINES else "thresholds"},
            "thresholds": {"mode": "absolute", "steps": self.marks.steps()},
        }
        if self.bottom is not None:
            defaults["min"] = self.bottom
        if self.top is not None:
            defaults["max"] = self.top
        if self.empty is not None:
            defaults["noValue"] = self.empty
        if self.whole or self.names:
            defaults["decimals"] = 0
        if self.names:
            words = {str(number): {"text": word, "index": number} for number, word in enumerate(self.names)}
            defaults["mappings"] = [{"type": "value", "options": words}]
        if self.show is Show.LINES:
            defaults["custom"] = {
                "drawStyle": "line",
                "lineWidth": 1,
                "fillOpacity": 30 if self.stacked else 0,
                "showPoints": "auto",  # one value between two holes makes no line
                "spanNulls": False,
                "stacking": {"mode": "normal" if self.stacked else "none", "group": "A"},
                "thresholdsStyle": {"mode": "off" if self.stacked else "dashed"},
            }
        return defaults

    def _overrides(self) -> Iterator[Json]:
        for legend, colour in self.colours.items():
            yield _override("byName", legend, color={"mode": "fixed", "fixedColor": colour})
        for legend, unit in self.right.items():
            bounds = {"min": 0, "max": 1, "decimals": 0} if unit.startswith("bool") else {}
            yield _override("byName", legend, **{"unit": unit, "custom.axisPlacement": "right", **bounds})
        if self.limits is not None:
            dashes = {"fill": "dash", "dash": [6, 6]}
            yield _override("byRegexp", self.limits, **{"custom.lineStyle": dashes, "custom.fillOpacity": 0})


def _override(kind: str, which: str, **properties: Any) -> Json:
    return {
        "matcher": {"id": kind, "options": which},
        "properties": [{"id": name, "value": value} for name, value in properties.items()],
    }


def _link(title: str, kind: str, **rest: Any) -> Json:
    return {
        "title": title,
        "type": kind,
        "icon": "external link",
        "tooltip": "",
        "url": "",
        "tags": [],
        "asDropdown": False,
        "targetBlank": False,
        "includeVars": False,
        "keepTime": False,
        **rest,
    }


_LAST = {"calcs": ["lastNotNull"], "fields": "", "values": False}
_OPTIONS: dict[Show, Json] = {
    Show.STAT: {
        "reduceOptions": _LAST,
        "colorMode": "background",
        "graphMode": "area",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
    },
    Show.LINES: {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    },
    Show.BARS: {
        "reduceOptions": _LAST,
        "displayMode": "gradient",
        "orientation": "horizontal",
        "showUnfilled": True,
        "valueMode": "color",
        "namePlacement": "left",
        "sizing": "auto",
        "minVizWidth": 8,
        "minVizHeight": 16,
        "maxVizHeight": 40,
    },
    Show.HEAT: {
        "calculate": False,
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Oranges", "steps": 32, "exponent": 0.5, "fill": "dark-orange"},
        "yAxis": {"axisPlacement": "left", "unit": "short"},
        "legend": {"show": True},
        "tooltip": {"mode": "single", "yHistogram": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
    },
}


@dataclass(frozen=True, slots=True)
class Section:
    """Panels below a heading."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True, slots=True)
class Board:
    """One dashboard."""

    uid: str
    title: str
    says: str
    sections: Sequence[Section]
    variables: Sequence[Json] = ()
    annotations: Sequence[Json] = field(default=())

    def render(self) -> Json:
        """Grafana's JSON for it."""
        return {
            "uid": self.uid,
            "title": self.title,
            "description": self.says,
            "tags": ["streamworker"],
            "timezone": "browser",
            "editable": True,
            "graphTooltip": 1,
            "schemaVersion": 41,
            "version": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [
                _link(
                    "streamworker",
                    "dashboards",
                    tooltip="The other dashboards, with the same choice and time",
                    tags=["streamworker"],
                    includeVars=True,
                    keepTime=True,
                )
            ],
            "templating": {"list": [*_VARIABLES, *self.variables]},
            "annotations": {"list": list(self.annotations)},
            "panels": self._panels(),
        }

    def _panels(self) -> list[Json]:
        panels: list[Json] = []
        y = 0
        for section in self.sections:
            panels.append(
                {
                    "id": len(panels) + 1,
                    "type": "row",
                    "title": section.title,
                    "collapsed": False,
                    "gridPos": {"x": 0, "y": y, "w": COLUMNS, "h": 1},
                    "panels": [],
                }
            )
            y += 1
            x = tallest = 0
            for panel in section.panels:
                if x + panel.width > COLUMNS:
                    x, y, tallest = 0, y + tallest, 0
                panels.append(panel.render(len(panels) + 1, x, y))
                x += panel.width
                tallest = max(tallest, panel.height)
            y += tallest
        return panels


def _choice(name: str, query: str, label: str) -> Json:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".+",
        "current": {"text": ["All"], "value": ["$__all"]},
        "options": [],
        "regex": "",
        "hide": 0,
        "skipUrlSync": False,
    }


_VARIABLES: list[Json] = [
    {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "regex": "",
        "multi": False,
        "includeAll": False,
        "refresh": 1,
        "current": {},
        "options": [],
        "hide": 0,
        "skipUrlSync": False,
    },
    _choice("job", "label_values(streamworker_build_info, job)", "Job"),
    _choice("lane", 'label_values(streamworker_queue_jobs{job=~"$job"}, lane)', "Lane"),
    _choice("task", 'label_values(streamworker_queue_jobs{job=~"$job", lane=~"$lane"}, task)', "Task"),
    {
        "name": "runbook",
        "label": "Runbook",
        "type": "constant",
        "query": RUNBOOK,
        "current": {"text": RUNBOOK, "value": RUNBOOK},
        "options": [],
        "hide": 2,
        "skipUrlSync": True,
    },
]
