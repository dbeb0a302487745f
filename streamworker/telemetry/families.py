"""Samples as Prometheus's families, with names, labels and help as the catalogue has them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from streamworker.telemetry.catalogue import BY_NAME, Kind, Scope, of_scope
from streamworker.telemetry.histogram import Histogram


class Sheet:
    """Collects the samples of one scope; raises KeyError for what the catalogue does not have there."""

    def __init__(self, scope: Scope) -> None:
        self._specs = of_scope(scope)
        self._numbers: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        self._spreads: dict[str, HistogramMetricFamily] = {}
        for spec in self._specs:
            head = (spec.full_name, spec.help)
            if spec.kind is Kind.HISTOGRAM:
                self._spreads[spec.name] = HistogramMetricFamily(*head, labels=spec.labels)
            elif spec.kind is Kind.COUNTER:
                self._numbers[spec.name] = CounterMetricFamily(*head, labels=spec.labels)
            else:
                self._numbers[spec.name] = GaugeMetricFamily(*head, labels=spec.labels)

    def put(self, name: str, value: float, *labels: str) -> None:
        """One sample of a counter or gauge."""
        family = self._numbers[name]
        assert len(labels) == len(BY_NAME[name].labels), f"{name} has the labels {BY_NAME[name].labels}"
        family.add_metric(labels, value)

    def spread(self, name: str, histogram: Histogram, *labels: str) -> None:
        """A histogram; one without observations is left out: of tasks times lanes most are empty, and each
        would be 18 lines."""
        if any(histogram.counts):
            self._spreads[name].add_metric(labels, _buckets(histogram), histogram.total)

    def families(self) -> Iterator[Metric]:
        """In the order of the catalogue; those without a sample are left out."""
        for spec in self._specs:
            family = self._numbers.get(spec.name) or self._spreads[spec.name]
            if family.samples:
                yield family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    buckets: list[tuple[str, float]] = []
    so_far = 0
    for bound, count in zip([*map(str, histogram.bounds), "+Inf"], list(histogram.counts), strict=True):
        so_far += count
        buckets.append((bound, so_far))
    return buckets
