# Everything runs in .venv, which the first target that needs it makes. Only Python 3.11 or later and make
# are needed: servers come as wheels.

VENV := .venv
PY := $(VENV)/bin/python
# The interpreter that makes the virtualenv: PYTHON=python3.12 make venv
PYTHON ?=
# What is not compiled now is compiled when it is first imported.
INSTALL := $(PY) -m pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# More arguments for the command of demo, test, bench, chaos and soak: make test ARGS="tests/unit -k fence"
ARGS ?=
# make chaos: how many jobs; the faults are scaled with them.
JOBS ?= 500000
# make soak: how many sequences the scripts and their model are driven through, how often each process is
# killed, how many times larger the cases are, and for how many seconds the simulation goes on.
SEQUENCES ?= 2000
ROUNDS ?= 20
SCALE ?= 10
SECONDS ?= 1800
# make dashboards-picture: where the pictures go.
PICTURES ?= build/pictures

# Every worker of a test would compile all modules anew: half of the time of the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format bench chaos dashboards dashboards-picture mutants soak soak-rounds \
    soak-properties soak-simulation soak-model soak-mirror soak-effects chaos-mirror clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

venv: $(VENV)/.installed ## Make or update the virtualenv with the pinned versions

# Once for each change of what is to be installed. A newer pip takes half of the time; the build tools come before
# the rest, so that they are pinned too.
$(VENV)/.installed: pyproject.toml constraints.txt
	@set -e; \
	if [ ! -x $(PY) ]; then \
	    found=; \
	    for candidate in $(PYTHON) python3.11 python3.12 python3.13 python3.14 python3; do \
	        if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	            found=$$candidate; break; \
	        fi; \
	    done; \
	    if [ -z "$$found" ]; then \
	        echo "No Python 3.11 or later found: install one, or name it: make venv PYTHON=/path/to/python3.11" >&2; \
	        exit 1; \
	    fi; \
	    echo "Making $(VENV) with $$found"; \
	    $$found -m venv $(VENV); \
	fi
	$(INSTALL) pip
	$(INSTALL) editables hatchling
	$(INSTALL) --no-build-isolation --editable '.[embedded,postgres,uvloop,dev]'
	@touch $@

demo: venv ## Run a small shop on embedded servers, kill a worker, and account for every job
	$(PY) -m streamworker demo $(ARGS)

# Half of the tests wait for processes and clocks most of the time, so there are more at once than cores.
test: venv ## Run all tests
	$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder $(ARGS)

lint: venv ## Check style, formatting, types and the direction of imports
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: venv ## Format the code and apply the fixes that are safe
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: venv ## Measure against other job queues, ten minutes: make bench ARGS="streamworker --only throughput"
	$(PY) -m benchmarks $(ARGS)

chaos: venv chaos-mirror ## Run many jobs over all faults, up to an hour, and print the figures: JOBS=20000 make chaos
	$(PY) -m tests.chaos --jobs $(JOBS) $(ARGS)

# 200,000 jobs, or JOBS if that is less, while mirrors are killed and Postgres is restarted.
chaos-mirror: export STREAMWORKER_MIRROR_JOBS = $(shell test $(JOBS) -lt 200000 && echo $(JOBS) || echo 200000)
chaos-mirror: export STREAMWORKER_MIRROR_KILLS := 20
chaos-mirror: export STREAMWORKER_MIRROR_RESTARTS := 5
chaos-mirror: venv
	$(PY) -m pytest --timeout 7200 tests/postgres/test_mirror.py -k exactly

dashboards-picture: venv ## Draw the dashboards as a real Prometheus answers them, and look at them
	$(INSTALL) pillow
	$(PY) -m tests.observability.picture $(PICTURES) $(ARGS)

dashboards: venv ## Write grafana/ anew from what it is made of
	$(PY) -m grafana.source

mutants: venv ## Break one guard of the scripts after the other, and see who notices: ARGS="recover --by simulation"
	$(PY) -m tests.mutants $(ARGS)

soak: soak-rounds soak-properties soak-simulation soak-model soak-mirror soak-effects ## All tests of faults for longer, hours: SECONDS=60 make soak-simulation

soak-rounds: export STREAMWORKER_KILLS := $(ROUNDS)
soak-rounds: export STREAMWORKER_STATEFUL_EXAMPLES := $(SEQUENCES)
soak-rounds: export STREAMWORKER_CRASH_ROUNDS := $(ROUNDS)
soak-rounds: export STREAMWORKER_CASES_SCALE := $(SCALE)
soak-rounds: export FLEET_STARTS := 200
soak-rounds: export CRON_SECONDS := 60
soak-rounds: export LANES_JOBS := 50000
soak-rounds: export LANES_SECONDS := 20
soak-rounds: export GATES_SCALE := 5
soak-rounds: export BREAKER_JOBS := 2000
soak-rounds: export BREAKER_SECONDS := 10
soak-rounds: export RAMP_JOBS := 50000
soak-rounds: export RAMP_SECONDS := 60
soak-rounds: export CACHE_JOBS := 2000
soak-rounds: export CARDINALITY_JOBS := 10000
soak-rounds: export CARDINALITY_RESTARTS := 200
soak-rounds: export INCIDENT_BACKLOG := 50000
soak-rounds: export INCIDENT_DRAIN := 200
soak-rounds: export INCIDENT_SECONDS := 60
soak-rounds: export OVERLOAD_DRAIN := 5000
soak-rounds: export OVERLOAD_FLOOD := 1000000
soak-rounds: export STREAMWORKER_MUTANTS := all
soak-rounds: venv
	$(PY) -m pytest --timeout 1800 tests/integration/test_recovery.py tests/integration/test_outage.py \
	    tests/integration/test_lost_replies.py tests/integration/test_shutdown.py \
	    tests/integration/test_fleet_cleanup.py tests/integration/test_crons.py \
	    tests/integration/test_lanes.py tests/integration/test_gates_fleet.py \
	    tests/integration/test_overload.py tests/integration/test_incident.py \
	    tests/integration/test_breaker_fleet.py tests/integration/test_ramp_fleet.py \
	    tests/integration/test_cache.py tests/integration/test_cache_fleet.py \
	    tests/lua/test_gates_sequences.py tests/lua/test_overload_sequences.py tests/lua/test_turnstile_shares.py \
	    tests/integration/test_stateful.py tests/crash_points tests/chaos \
	    tests/observability $(ARGS)

soak-mirror: export STREAMWORKER_MIRROR_JOBS := 50000
soak-mirror: export STREAMWORKER_MIRROR_KILLS := $(ROUNDS)
soak-mirror: export STREAMWORKER_MIRROR_RESTARTS := 5
soak-mirror: export STREAMWORKER_MIRROR_LOST := 1000
soak-mirror: export STREAMWORKER_MIRROR_AWAY := 60
soak-mirror: venv
	$(PY) -m pytest --timeout 7200 tests/postgres $(ARGS)

soak-effects: export STREAMWORKER_EFFECTS_JOBS := 1000
soak-effects: export STREAMWORKER_OUTBOX_ROWS := 10000
soak-effects: export STREAMWORKER_OUTBOX_KILLS := 10
soak-effects: venv
	$(PY) -m pytest --timeout 7200 tests/effects tests/outbox $(ARGS)

soak-properties: export STREAMWORKER_PROPERTIES := others
soak-properties: venv
	$(PY) -m pytest -n 2 --timeout 1800 -m hypothesis tests/ $(ARGS)

soak-simulation: venv
	$(PY) -m tests.simulation --seconds $(SECONDS) $(ARGS)

soak-model: venv
	$(PY) -m tests.model.protocol $(ARGS)

clean: ## Remove the virtualenv and what the tools keep
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
