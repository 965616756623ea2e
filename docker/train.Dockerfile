# A training node without Airflow: what pyproject.toml names as dependencies, at the versions of requirements.txt, and the
# package itself. Build it from the repository's root; the user and the index are chosen as in airflow.Dockerfile:
#   docker build -f docker/train.Dockerfile -t paddlewheel/train .
#   docker run --rm -v paddlewheel:/opt/paddlewheel/var paddlewheel/train run recipes/flights_delay.yaml --partition 2013-11-01
ARG PYTHON_IMAGE=python:3.11-slim-bookworm

# A list of its own, so that only a change of the list, not of pyproject.toml, installs again.
FROM ${PYTHON_IMAGE} AS wanted
COPY pyproject.toml requirements.txt /
COPY docker/list_dependencies.py /
RUN mkdir /packages && python /list_dependencies.py /pyproject.toml >/packages/train.in && cp /requirements.txt /packages/

FROM ${PYTHON_IMAGE} AS packages
ARG UID=1000
ARG PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_TRUSTED_HOST
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends libgomp1 >/dev/null && rm -rf /var/lib/apt/lists/*
RUN groupadd --gid ${UID} paddlewheel \
 && useradd --uid ${UID} --gid ${UID} --create-home --shell /usr/sbin/nologin paddlewheel \
 && install -d -o paddlewheel -g paddlewheel /opt/paddlewheel/var
COPY --from=wanted /packages /opt/packages
# Compiled at installation: Paddle takes 6 to 10 seconds to import without bytecode, and each rank imports it.
RUN --mount=type=cache,target=/root/.cache/pip --mount=type=secret,id=pip.conf,target=/root/.config/pip/pip.conf \
    pip install --quiet --constraint /opt/packages/requirements.txt --requirement /opt/packages/train.in

FROM packages AS train
COPY pyproject.toml README.md LICENSE /opt/paddlewheel/
COPY recipes /opt/paddlewheel/recipes
COPY plugins /opt/paddlewheel/plugins
COPY tasks /opt/paddlewheel/tasks
RUN python -m compileall -q /opt/paddlewheel/tasks \
 && pip install --quiet --no-deps --no-build-isolation --editable /opt/paddlewheel
ENV PADDLEWHEEL_ROOT=/opt/paddlewheel/var PYTHONUNBUFFERED=1
ARG VERSION=0.1.0 REVISION=unknown
LABEL org.opencontainers.image.title="Paddlewheel: training node" org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" org.opencontainers.image.revision="${REVISION}"
WORKDIR /opt/paddlewheel
USER paddlewheel
# The agent of a node is `python -m paddlewheel.training.agent …`, which a launcher gives as the command.
ENTRYPOINT ["paddlewheel"]
CMD ["--help"]
