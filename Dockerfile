# The worker's image: the wheel, the examples, no root, and nothing that must be written to while it runs.
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY lua lua
COPY grafana grafana
COPY prometheus prometheus
COPY docs/how-to docs/how-to
COPY streamworker streamworker
RUN pip wheel --no-cache-dir --wheel-dir /wheels --constraint constraints.txt ".[postgres,uvloop]"

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "streamworker[postgres,uvloop]" \
    && useradd --no-create-home --uid 10001 streamworker
# The root may be read-only: run with --read-only --tmpfs /tmp, as docker-compose.yml does.
ENV PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    STREAMWORKER_METRICS_PORT=9100 \
    STREAMWORKER_METRICS_HOST=0.0.0.0
WORKDIR /app
COPY examples .
# By number, so that Kubernetes can see that it is not root.
USER 10001
EXPOSE 9100
# Asks the endpoint and nothing else: the app is not imported, so a slow import of it cannot fail the check.
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s --retries=6 \
    CMD ["python", "-I", "-S", "-c", "import http.client as h; c = h.HTTPConnection('127.0.0.1', 9100, timeout=2); c.request('GET', '/healthz'); raise SystemExit(c.getresponse().status != 200)"]
# The exec form, so that the worker is process 1 and gets SIGTERM (R47).
ENTRYPOINT ["streamworker"]
CMD ["run", "shop:app"]
