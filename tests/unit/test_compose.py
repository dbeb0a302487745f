"""The containers keep to the rules: AOF, no eviction, loopback only, signals reach the worker."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    compose = yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())
    found: dict[str, Any] = compose["services"]
    return found


def instructions(name: str) -> list[str]:
    """The last value of each use of a Dockerfile's instruction, continuation lines joined."""
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    return re.findall(rf"^{name}\s+(.*)$", text, re.MULTILINE)


def test_redis_keeps_its_data_and_evicts_nothing(services: dict[str, Any]) -> None:
    command = services["redis"]["command"]
    options = dict(zip(command[1::2], command[2::2], strict=True))

    assert command[0] == "redis-server"
    assert options == {
        "--appendonly": "yes",
        "--appendfsync": "everysec",
        "--maxmemory-policy": "noeviction",
    }
    assert any(volume.endswith(":/data") for volume in services["redis"]["volumes"])


def test_the_worker_waits_until_both_servers_are_healthy(services: dict[str, Any]) -> None:
    for name, waiting in (("redis", "worker"), ("postgres", "migrate")):
        assert services[name]["healthcheck"]["test"][0] == "CMD"
        assert services[waiting]["depends_on"][name] == {"condition": "service_healthy"}
    migrated = {"condition": "service_completed_successfully"}
    assert services["worker"]["depends_on"]["migrate"] == migrated


def test_nothing_listens_beyond_loopback(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]

    assert ports
    assert [port for port in ports if not port.startswith("127.0.0.1:")] == []


def test_the_password_comes_from_the_environment(services: dict[str, Any]) -> None:
    password = services["postgres"]["environment"]["POSTGRES_PASSWORD"]

    assert re.fullmatch(r"\$\{POSTGRES_PASSWORD:-[a-z-]+\}", password)
    assert password in services["worker"]["environment"]["STREAMWORKER_POSTGRES_DSN"]


def test_signals_reach_the_worker(services: dict[str, Any]) -> None:
    """B29: image and compose file use the exec form, and wait for longer than the grace."""
    worker = services["worker"]

    assert json.loads(instructions("ENTRYPOINT")[-1]) == ["streamworker"]
    assert worker["command"][0] == json.loads(instructions("CMD")[-1])[0] == "run"
    grace = float(worker["command"][worker["command"].index("--grace") + 1])
    assert float(worker["stop_grace_period"].removesuffix("s")) > grace


def test_the_worker_runs_an_example_that_is_there(services: dict[str, Any]) -> None:
    module = services["worker"]["command"][1].partition(":")[0]

    assert instructions("COPY")[-1].split()[0] == "examples"
    assert (REPOSITORY / "examples" / f"{module}.py").is_file()


def test_the_image_does_not_run_as_root() -> None:
    assert instructions("USER")[-1] not in ("root", "0")
