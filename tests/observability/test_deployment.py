"""The compose file and the manifests fit their schemas, and keep to what a worker needs of a container."""

from __future__ import annotations

import http.server
import json
import re
import shutil
import subprocess
import sys
import threading
from functools import cache
from importlib import resources
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from streamworker.cli.main import command_line
from streamworker.telemetry.catalogue import CATALOGUE
from tests.observability.files import REPOSITORY, RULES, metrics_in
from tests.observability.keda import SCALED_OBJECT

COMPOSE = REPOSITORY / "docker-compose.yml"
MANIFESTS = REPOSITORY / "deploy" / "kubernetes"
#: Services of ours.
OURS = ("migrate", "worker", "mirror", "relay", "traffic")
#: The oldest version that is still supported somewhere, more or less: newer ones take what it takes.
KUBERNETES = "1.30"


@cache
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return loaded


def services() -> dict[str, Any]:
    found: dict[str, Any] = compose()["services"]
    return found


@cache
def manifest(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((MANIFESTS / f"{name}.yaml").read_text(encoding="utf-8"))
    return loaded


def listed() -> list[str]:
    """The manifests that kustomize applies."""
    return [file.removesuffix(".yaml") for file in manifest("kustomization")["resources"]]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def complaints(document: dict[str, Any]) -> list[str]:
    """What does not fit the schema of its kind; names that the schema does not know do not fit either."""
    if document["kind"] == "ScaledObject":
        validator = jsonschema.Draft202012Validator(SCALED_OBJECT)
        return [error.message for error in validator.iter_errors(document)]
    try:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [error.message]
    return []


def test_the_compose_file_fits_the_specification() -> None:
    folder = resources.files("check_jsonschema").joinpath("builtin_schemas", "vendor")
    schema = json.loads(folder.joinpath("compose-spec.json").read_text(encoding="utf-8"))
    validator = jsonschema.validators.validator_for(schema)(schema)

    assert [error.message for error in validator.iter_errors(compose())] == []
    broken = {**compose(), "services": {"worker": {"read_onli": True}}}
    assert [error.message for error in validator.iter_errors(broken)] != []


@pytest.mark.parametrize("profiles", [(), ("monitoring",), ("demo",), ("monitoring", "demo")])
def test_docker_compose_reads_it(profiles: tuple[str, ...]) -> None:
    docker = shutil.which("docker")
    if docker is None or run(docker, "compose", "version").returncode:
        pytest.skip("docker has no compose plugin here")
    chosen = [word for profile in profiles for word in ("--profile", profile)]

    read = run(docker, "compose", "--file", str(COMPOSE), *chosen, "config", "--quiet")

    assert read.returncode == 0, read.stderr


def test_what_it_mounts_is_there() -> None:
    mounts = [each for service in services().values() for each in service.get("volumes", ())]
    bound = [each.split(":") for each in mounts if each.startswith(".")]

    assert bound
    for source, _, mode in bound:
        assert (REPOSITORY / source).exists(), source
        assert mode == "ro"


def test_each_service_waits_only_for_services_of_its_own_profiles() -> None:
    for name, service in services().items():
        for other in service.get("depends_on", {}):
            profiles = set(services()[other].get("profiles", ()))
            assert profiles <= set(service.get("profiles", ())), f"{name} waits for {other}"


@pytest.mark.parametrize("name", OURS)
def test_our_containers_have_a_root_that_is_read_only_and_no_rights(name: str) -> None:
    service = services()[name]

    assert service["read_only"] is True
    assert service["tmpfs"] == ["/tmp"]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]


def test_nobody_writes_to_postgres_before_it_was_migrated() -> None:
    for name in ("worker", "mirror", "relay"):
        waits = services()[name]["depends_on"]["migrate"]
        assert waits == {"condition": "service_completed_successfully"}
    assert services()["migrate"]["restart"] == "no"


def test_monitoring_and_demo_are_asked_for() -> None:
    profiles = {name: service.get("profiles") for name, service in services().items()}

    assert profiles["prometheus"] == profiles["grafana"] == ["monitoring"]
    assert profiles["traffic"] == ["demo"]
    assert [name for name, asked in profiles.items() if asked is None] == [
        "redis",
        "postgres",
        "migrate",
        "worker",
        "mirror",
        "relay",
    ]


def test_prometheus_scrapes_workers_and_mirrors_at_the_port_of_the_image() -> None:
    config = yaml.safe_load((REPOSITORY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8"))
    (scrape,) = config["scrape_configs"]
    (targets,) = scrape["dns_sd_configs"]
    mounted = services()["prometheus"]["volumes"]

    assert set(targets["names"]) <= services().keys()
    assert f"STREAMWORKER_METRICS_PORT={targets['port']}" in (REPOSITORY / "Dockerfile").read_text()
    assert f"./prometheus/{RULES.name}:{config['rule_files'][0]}:ro" in mounted


def test_grafana_finds_its_dashboards_where_they_are_mounted() -> None:
    provider = REPOSITORY / "grafana" / "provisioning" / "dashboards" / "streamworker.yml"
    path = yaml.safe_load(provider.read_text(encoding="utf-8"))["providers"][0]["options"]["path"]
    sources = REPOSITORY / "grafana" / "provisioning" / "datasources" / "streamworker.yml"
    alerts = REPOSITORY / "grafana" / "provisioning" / "alerting" / "streamworker.yml"
    uids = {each["uid"] for each in yaml.safe_load(sources.read_text(encoding="utf-8"))["datasources"]}

    assert f"./grafana/dashboards:{path}:ro" in services()["grafana"]["volumes"]
    asked = set(re.findall(r"datasourceUid: (\S+)", alerts.read_text(encoding="utf-8"))) - {"__expr__"}
    assert asked <= uids


def test_the_health_check_does_not_import_the_app() -> None:
    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    (check,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    command = json.loads(check)

    assert command[:3] == ["python", "-I", "-S"]  # without site-packages it cannot
    assert "/healthz" in command[-1]


@pytest.mark.parametrize("status", [200, 503, None])
def test_the_health_check_says_what_the_endpoint_says(status: int | None) -> None:
    class Answer(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert status is not None
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    text = (REPOSITORY / "Dockerfile").read_text().replace("\\\n", " ")
    (check,) = re.findall(r"^HEALTHCHECK .*?CMD (\[.*\])$", text, re.MULTILINE)
    command = [sys.executable, *json.loads(check)[1:]]
    with http.server.HTTPServer(("127.0.0.1", 0), Answer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_address[1]
        if status is None:
            server.shutdown()
            server.server_close()
        command[-1] = command[-1].replace("9100", str(port))
        done = run(*command)
        if status is not None:
            server.shutdown()

    assert (done.returncode == 0) == (status == 200)


def test_manifests_fit_their_schemas() -> None:
    for name in listed():
        assert complaints(manifest(name)) == [], name


@pytest.mark.parametrize(
    ("name", "change", "complaint"),
    [
        ("worker", {"replicaz": 3}, "'replicaz' was unexpected"),
        ("worker", {"replicas": "two"}, "'two' is not"),
        ("migrate", {"backofLimit": 1}, "'backofLimit' was unexpected"),
        ("relay", {"strategie": {}}, "'strategie' was unexpected"),
        ("pdb", {"maxUnavailabel": 1}, "'maxUnavailabel' was unexpected"),
        ("scaledobject", {"maxReplicas": 3}, "'maxReplicas' was unexpected"),
        ("scaledobject", {"triggers": [{"type": "prometheus"}]}, "'metadata' is a required property"),
    ],
)
def test_the_schemas_notice_what_does_not_fit(name: str, change: dict[str, Any], complaint: str) -> None:
    document = manifest(name)

    found = complaints({**document, "spec": {**document["spec"], **change}})

    assert any(complaint in each for each in found), found


def test_all_manifests_are_applied() -> None:
    files = {path.stem for path in MANIFESTS.glob("*.yaml")} - {"kustomization"}

    assert files == set(listed())


@pytest.mark.parametrize("name", ["worker", "mirror", "relay", "migrate"])
def test_pods_have_no_root_no_writable_root_and_no_shell(name: str) -> None:
    pod = manifest(name)["spec"]["template"]["spec"]
    (container,) = pod["containers"]

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "readOnlyRootFilesystem": True,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
    }
    assert "command" not in container  # the image's entry point, in the exec form
    user = re.findall(r"^USER (\d+)$", (REPOSITORY / "Dockerfile").read_text(), re.MULTILINE)
    assert [str(pod["securityContext"]["runAsUser"])] == user


@pytest.mark.parametrize("name", ["worker", "mirror", "relay"])
def test_probes_ask_the_endpoint(name: str) -> None:
    (container,) = manifest(name)["spec"]["template"]["spec"]["containers"]

    assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert {"name": "STREAMWORKER_METRICS_HOST", "value": "0.0.0.0"} in container["env"]


def test_a_pod_gets_longer_than_the_grace() -> None:
    pod = manifest("worker")["spec"]["template"]["spec"]
    arguments = pod["containers"][0]["args"]
    grace = float(arguments[arguments.index("--grace") + 1].removesuffix("s"))

    assert pod["terminationGracePeriodSeconds"] > grace + 10


@pytest.mark.parametrize("name", ["worker", "mirror", "relay", "migrate"])
def test_the_command_line_knows_what_a_pod_is_started_with(name: str) -> None:
    (container,) = manifest(name)["spec"]["template"]["spec"]["containers"]

    words = container["args"]
    command = command_line(words[0])

    read = CliRunner().invoke(command, [*words, "--help"])  # all of it is read before any help is shown
    wrong = CliRunner().invoke(command, [*words, "--metrics-prot", "1", "--help"])

    assert read.exit_code == 0, read.output
    assert wrong.exit_code == 2


@pytest.mark.parametrize("name", ["mirror", "relay"])
def test_a_companion_is_chosen_by_its_own_labels(name: str) -> None:
    spec = manifest(name)["spec"]

    assert spec["selector"]["matchLabels"] == {"app.kubernetes.io/name": f"shop-{name}"}
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_selectors_choose_the_pods() -> None:
    pods = manifest("worker")["spec"]["template"]["metadata"]["labels"]

    for chosen in (
        manifest("worker")["spec"]["selector"]["matchLabels"],
        manifest("pdb")["spec"]["selector"]["matchLabels"],
    ):
        assert chosen.items() <= pods.items()
    assert (
        manifest("scaledobject")["spec"]["scaleTargetRef"]["name"] == manifest("worker")["metadata"]["name"]
    )


def test_workers_are_added_for_ready_jobs_only_and_up_to_a_maximum() -> None:
    spec = manifest("scaledobject")["spec"]
    (trigger,) = spec["triggers"]
    query = trigger["metadata"]["query"]

    assert spec["minReplicaCount"] <= spec["fallback"]["replicas"] <= spec["maxReplicaCount"] <= 20
    asked = {"streamworker_queue_jobs", "streamworker_queue_paused"}
    assert metrics_in(query) == asked <= {each.sample for each in CATALOGUE}
    assert re.findall(r'state=~?"([^"]*)"', query) == ["ready"]
    expected = {
        each["name"]: each["value"]
        for each in manifest("worker")["spec"]["template"]["spec"]["containers"][0]["env"]
    }["STREAMWORKER_WORKERS_EXPECTED"]
    assert int(expected) == spec["minReplicaCount"] == manifest("worker")["spec"]["replicas"]
