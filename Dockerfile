# The worker's image: the wheel, the examples, and no root.
FROM python:3.11-slim AS build
WORKDIR /src
COPY constraints.txt pyproject.toml README.md LICENSE ./
COPY lua lua
COPY streamworker streamworker
RUN pip wheel --no-cache-dir --wheel-dir /wheels --constraint constraints.txt ".[postgres,uvloop]"

FROM python:3.11-slim
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels "streamworker[postgres,uvloop]" \
    && useradd --create-home --uid 10001 streamworker
WORKDIR /app
COPY examples .
USER streamworker
# The exec form, so that the worker is process 1 and gets SIGTERM (R47).
ENTRYPOINT ["streamworker"]
CMD ["run", "shop:app"]
