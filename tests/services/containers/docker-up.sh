#!/usr/bin/env bash
# A Docker engine (26.1, BuildKit, Compose 2.26) for the tests, on a Debian 12 machine that has none. As root.
# Use:   docker-up.sh DIR && . DIR/env        then docker build, docker compose up …
# Stop:  docker-down.sh DIR                    (images and cache stay in DIR; rm -rf DIR for a cold start)
# No registry is needed: the base images debian:bookworm-slim, python:3.11-slim-bookworm, postgres:15 and redis:7 are made from
# Debian's packages, with the official images' layout and the parts of their entry points that a compose file uses.
set -euo pipefail
state=$(realpath -m "${1:?usage: docker-up.sh DIR}")
here=$(cd "$(dirname "$0")" && pwd)
run=/run/paddlewheel-docker-$(printf %s "$state" | md5sum | cut -c1-8)     # short: a socket's path may have 107 bytes
export DEBIAN_FRONTEND=noninteractive
export DOCKER_HOST=unix://$run/docker.sock DOCKER_CONFIG=$state/config DOCKER_BUILDKIT=1
export PATH=$state/tools/usr/bin:$state/tools/usr/sbin:$PATH
mkdir -p "$state" "$run" "$DOCKER_CONFIG/cli-plugins"

# ---- the engine's packages ----
# runc, not crun: crun refuses hosts that mount both versions of cgroup.
missing=()
for package in containerd runc iptables tini mmdebstrap ca-certificates curl; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
if [ ${#missing[@]} != 0 ]; then
  apt-get update -qq
  apt-get install -y -qq --no-install-recommends --no-remove "${missing[@]}" >"$state/apt.log" 2>&1
fi
# Debian 12's own docker and compose are too old for health checks with start_interval and here-documents in Dockerfiles. The
# next release's packages need nothing newer than Debian 12's libc: unpacked (not installed) into a folder of their own.
if [ ! -x "$state/tools/usr/sbin/dockerd" ]; then
  apt=$state/apt
  mkdir -p "$apt"/{etc,lists/partial,cache/archives/partial,packages}
  codename=$(. /etc/os-release; echo "$VERSION_CODENAME")
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do
    [ ! -s "$file" ] || sed "s/\b$codename\b/trixie/g" "$file" >"$apt/etc/next.${file##*.}"
  done
  options=(-qq -o Dir::Etc::sourcelist=/dev/null -o "Dir::Etc::sourceparts=$apt/etc" -o "Dir::State::lists=$apt/lists"
    -o "Dir::Cache=$apt/cache" -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update
  (cd "$apt/packages" && apt-get "${options[@]}" download {docker.io,docker-cli,docker-buildx,docker-compose}/trixie)
  for package in "$apt"/packages/*.deb; do dpkg -x "$package" "$state/tools"; done
  ln -sf /usr/bin/tini-static "$state/tools/usr/bin/docker-init"    # what `init: true` starts
  rm -rf "$apt"
fi
ln -sf "$state"/tools/usr/libexec/docker/cli-plugins/* "$DOCKER_CONFIG/cli-plugins/"
echo '{}' >"$DOCKER_CONFIG/config.json"
echo '{}' >"$state/daemon.json"                                    # never the host's own settings

# ---- the engine ----
"$here/docker-down.sh" "$state"                                     # what a killed run left
# The engine turns forwarding on and drops forwarded packets: docker-down.sh puts both back.
{ cat /proc/sys/net/ipv4/ip_forward; iptables -S FORWARD 2>/dev/null | sed -n 's/^-P FORWARD //p'; } >"$run/net-before"
mtu=$(cat "/sys/class/net/$(ip -o route show default | sed -n 's/.* dev \([^ ]*\).*/\1/p;q')/mtu")
setsid dockerd --config-file "$state/daemon.json" --data-root "$state/data" --exec-root "$run/exec" --pidfile "$run/docker.pid" \
  -H "$DOCKER_HOST" --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs \
  --mtu "$mtu" --default-network-opt "bridge=com.docker.network.driver.mtu=$mtu" >"$state/dockerd.log" 2>&1 </dev/null &
for _ in $(seq 120); do docker info >/dev/null 2>&1 && break; sleep 0.25; done
docker version --format 'client {{.Client.Version}} server {{.Server.Version}}' ||
  { echo "the Docker engine did not start; its log: $state/dockerd.log" >&2; exit 1; }

# ---- the base images ----
have() { docker image inspect "$1" >/dev/null 2>&1; }
build() { if have "$1"; then cat >/dev/null; else docker build -q -t "$1" - >/dev/null; fi; }   # Dockerfile on standard input

if ! have debian:bookworm-slim; then
  sources=()
  for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian.sources; do [ ! -s "$file" ] || sources+=("$file"); done
  # The host's own certificates and apt settings go in, and pip is pointed at the system's bundle.
  mmdebstrap --quiet --variant=minbase --include=ca-certificates \
    --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
    --setup-hook='mkdir -p "$1/etc/apt/apt.conf.d" && cp /etc/apt/apt.conf.d/99* "$1/etc/apt/apt.conf.d/" 2>/dev/null || true' \
    --customize-hook='echo "DPkg::Post-Invoke { \"rm -f /var/cache/apt/archives/*.deb\"; }; Dir::Cache::pkgcache \"\"; Dir::Cache::srcpkgcache \"\";" >"$1/etc/apt/apt.conf.d/docker-clean"; rm -f "$1"/var/cache/apt/*.bin' \
    --customize-hook='cp /usr/local/share/ca-certificates/*.crt "$1/usr/local/share/ca-certificates/" 2>/dev/null || true' \
    --customize-hook='chroot "$1" update-ca-certificates >/dev/null 2>&1' \
    --customize-hook='printf "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n" >"$1/etc/pip.conf"' \
    bookworm "$state/base.tar" "${sources[@]}"
  docker import -c 'CMD ["bash"]' -c 'ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin' \
    -c 'ENV LANG=C.UTF-8' "$state/base.tar" debian:bookworm-slim >/dev/null
  rm "$state/base.tar"
fi
# A virtual environment at /usr/local has the official layout and lifts Debian's "externally managed".
build python:3.11-slim-bookworm <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null \
 && rm -rf /var/lib/apt/lists/* && python3 -m venv --system-site-packages /usr/local
CMD ["python3"]
DOCKERFILE
build postgres:15 <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN mkdir -p /etc/postgresql-common && echo 'create_main_cluster = false' >/etc/postgresql-common/createcluster.conf \
 && apt-get update -qq && apt-get install -y -qq --no-install-recommends postgresql-15 >/dev/null && rm -rf /var/lib/apt/lists/* \
 && install -d -o postgres -g postgres -m 700 /var/lib/postgresql/data
COPY --chmod=755 <<'SCRIPT' /usr/local/bin/docker-entrypoint.sh
#!/bin/bash
# What a compose file uses of the official entry point: POSTGRES_USER, POSTGRES_PASSWORD, POSTGRES_DB.
set -euo pipefail
: "${POSTGRES_USER:=postgres}" "${POSTGRES_DB:=$POSTGRES_USER}" "${POSTGRES_PASSWORD:?is required}"
if [ "${1:-}" = postgres ] && [ "$(id -u)" = 0 ]; then
  mkdir -p "$PGDATA" /var/run/postgresql
  chown -R postgres: "$PGDATA" /var/run/postgresql
  chmod 700 "$PGDATA"
  exec setpriv --reuid=postgres --regid=postgres --init-groups "$0" "$@"
fi
if [ "${1:-}" = postgres ] && [ ! -s "$PGDATA/PG_VERSION" ]; then
  initdb -U "$POSTGRES_USER" --pwfile=<(echo "$POSTGRES_PASSWORD") -A scram-sha-256 --auth-local=trust -E UTF8 --locale=C.UTF-8 >/dev/null
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses=''" start >/dev/null        # no TCP: a check by TCP stays red until the set-up is done
  [ "$POSTGRES_DB" = postgres ] || createdb -U "$POSTGRES_USER" "$POSTGRES_DB"
  pg_ctl -w -m fast stop >/dev/null
fi
exec "$@"
SCRIPT
ENV PATH=/usr/lib/postgresql/15/bin:$PATH PGDATA=/var/lib/postgresql/data
VOLUME /var/lib/postgresql/data
EXPOSE 5432
STOPSIGNAL SIGINT
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres", "-c", "listen_addresses=*"]
DOCKERFILE
build redis:7 <<'DOCKERFILE'
FROM debian:bookworm-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends redis-server >/dev/null && rm -rf /var/lib/apt/lists/* \
 && install -d -o redis -g redis /data
USER redis
WORKDIR /data
VOLUME /data
EXPOSE 6379
CMD ["redis-server", "--bind", "0.0.0.0", "--protected-mode", "no"]
DOCKERFILE

printf 'export DOCKER_HOST=%s DOCKER_CONFIG=%s DOCKER_BUILDKIT=1 PATH=%s/tools/usr/bin:$PATH\n' "$DOCKER_HOST" "$DOCKER_CONFIG" "$state" >"$state/env"
docker image ls --format '{{.Repository}}:{{.Tag}} {{.Size}}'
