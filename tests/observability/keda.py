"""What KEDA takes as a ScaledObject with triggers of Prometheus, as its reference describes it."""

from __future__ import annotations

from typing import Any

_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 0}


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


#: How the HorizontalPodAutoscaler that KEDA makes may move.
_RULES = _object(
    stabilizationWindowSeconds=_COUNT,
    selectPolicy={"enum": ["Max", "Min", "Disabled"]},
    policies={
        "type": "array",
        "items": _object(
            ("type", "value", "periodSeconds"),
            type={"enum": ["Pods", "Percent"]},
            value={"type": "integer", "minimum": 1},
            periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
        ),
    },
)

#: Values in a trigger's metadata are texts, numbers as well.
_PROMETHEUS = _object(
    ("type", "metadata"),
    type={"const": "prometheus"},
    name=_TEXT,
    metricType={"enum": ["AverageValue", "Value"]},
    metadata=_object(
        ("serverAddress", "query", "threshold"),
        serverAddress=_TEXT,
        query=_TEXT,
        threshold={"type": "string", "pattern": r"^[0-9.]+$"},
        activationThreshold={"type": "string", "pattern": r"^[0-9.]+$"},
        ignoreNullValues={"enum": ["true", "false"]},
        namespace=_TEXT,
    ),
    authenticationRef=_object(("name",), name=_TEXT, kind=_TEXT),
)

SCALED_OBJECT = _object(
    ("apiVersion", "kind", "metadata", "spec"),
    apiVersion={"const": "keda.sh/v1alpha1"},
    kind={"const": "ScaledObject"},
    metadata=_object(
        ("name",),
        name={"type": "string", "pattern": r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"},
        labels={"type": "object", "additionalProperties": _TEXT},
        annotations={"type": "object", "additionalProperties": _TEXT},
    ),
    spec=_object(
        ("scaleTargetRef", "triggers"),
        scaleTargetRef=_object(
            ("name",), name=_TEXT, apiVersion=_TEXT, kind=_TEXT, envSourceContainerName=_TEXT
        ),
        pollingInterval=_COUNT,
        cooldownPeriod=_COUNT,
        initialCooldownPeriod=_COUNT,
        idleReplicaCount=_COUNT,
        minReplicaCount=_COUNT,
        maxReplicaCount=_COUNT,
        fallback=_object(("failureThreshold", "replicas"), failureThreshold=_COUNT, replicas=_COUNT),
        advanced=_object(
            restoreToOriginalReplicaCount={"type": "boolean"},
            horizontalPodAutoscalerConfig=_object(
                name=_TEXT, behavior=_object(scaleUp=_RULES, scaleDown=_RULES)
            ),
        ),
        triggers={"type": "array", "items": _PROMETHEUS, "minItems": 1},
    ),
)
