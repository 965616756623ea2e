# Airflow with this project's DAGs, plugins, recipes and code; build it from the repository's root:
#   docker build -f docker/airflow.Dockerfile --target control .     scheduler, API server, DAG processor, triggerer
#   docker build -f docker/airflow.Dockerfile --target worker .      Celery worker: steps, and training by the local launcher
# An index of your own: --build-arg PIP_INDEX_URL=… (PIP_EXTRA_INDEX_URL, PIP_TRUSTED_HOST), or with credentials
# --secret id=pip.conf,src=FILE; a certificate of your own belongs to the base image (--build-arg PYTHON_IMAGE=…).
# Packages come before code, so a change of code installs nothing again.
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

FROM ${PYTHON_IMAGE} AS base
ARG UID=1000
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN groupadd --gid ${UID} paddlewheel \
 && useradd --uid ${UID} --gid ${UID} --create-home --shell /usr/sbin/nologin paddlewheel \
 && install -d -o paddlewheel -g paddlewheel /opt/airflow /opt/airflow/logs /opt/paddlewheel/var

FROM base AS control-packages
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST
COPY requirements.txt docker/control.in /opt/packages/
# pip compiles what it installs: without bytecode every start would compile Airflow in memory again.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip.conf,target=/root/.config/pip/pip.conf \
    pip install --quiet --constraint /opt/packages/requirements.txt --requirement /opt/packages/control.in

FROM control-packages AS worker-packages
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1 >/dev/null && rm -rf /var/lib/apt/lists/*
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip.conf,target=/root/.config/pip/pip.conf \
    pip install --quiet --requirement /opt/packages/requirements.txt

# The code lies as in a checkout and is owned by root: a DAG or a step cannot rewrite it.
FROM base AS code
COPY pyproject.toml README.md LICENSE /opt/paddlewheel/
COPY docker/api-server.sh docker/healthcheck.py /opt/paddlewheel/docker/
COPY recipes /opt/paddlewheel/recipes
COPY plugins /opt/paddlewheel/plugins
COPY tasks /opt/paddlewheel/tasks
COPY dags /opt/paddlewheel/dags
RUN python -m compileall -q /opt/paddlewheel/tasks /opt/paddlewheel/plugins

FROM control-packages AS control
COPY --from=code /opt/paddlewheel /opt/paddlewheel
RUN pip install --quiet --no-deps --no-build-isolation --editable /opt/paddlewheel
ENV AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/paddlewheel/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/paddlewheel/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    PADDLEWHEEL_ROOT=/opt/paddlewheel/var \
    PYTHONUNBUFFERED=1
ARG VERSION=0.1.0 REVISION=unknown
LABEL org.opencontainers.image.title="Paddlewheel: Airflow's services" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
WORKDIR /opt/paddlewheel
USER paddlewheel
CMD ["airflow", "version"]

FROM worker-packages AS worker
COPY --from=code /opt/paddlewheel /opt/paddlewheel
RUN pip install --quiet --no-deps --no-build-isolation --editable /opt/paddlewheel
ENV AIRFLOW_HOME=/opt/airflow \
    AIRFLOW__CORE__DAGS_FOLDER=/opt/paddlewheel/dags \
    AIRFLOW__CORE__PLUGINS_FOLDER=/opt/paddlewheel/plugins \
    AIRFLOW__CORE__LOAD_EXAMPLES=False \
    PADDLEWHEEL_ROOT=/opt/paddlewheel/var \
    PYTHONUNBUFFERED=1
ARG VERSION=0.1.0 REVISION=unknown
LABEL org.opencontainers.image.title="Paddlewheel: Celery worker" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
WORKDIR /opt/paddlewheel
USER paddlewheel
CMD ["airflow", "celery", "worker"]
