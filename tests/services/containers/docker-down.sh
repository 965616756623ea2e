#!/usr/bin/env bash
# Stops what docker-up.sh DIR started: every container, the engine, its bridge and firewall rules. Images and cache stay in DIR.
set -euo pipefail
state=$(realpath -m "${1:?usage: docker-down.sh DIR}")
run=/run/paddlewheel-docker-$(printf %s "$state" | md5sum | cut -c1-8)
export DOCKER_HOST=unix://$run/docker.sock DOCKER_CONFIG=$state/config PATH=$state/tools/usr/bin:$state/tools/usr/sbin:$PATH

running() { [[ "$(tr '\0' ' ' <"/proc/$1/cmdline" 2>/dev/null)" == *"$2"* ]]; }   # false for a zombie: no command line
stop_one() { # PIDFILE WORDS: end that process if it still is ours, then drop the file, for which the next engine would wait
  local pid
  pid=$(cat "$1" 2>/dev/null) || return 0
  if running "$pid" "$2"; then
    kill "$pid"
    for _ in $(seq 120); do running "$pid" "$2" || break; sleep 0.25; done
  fi
  rm -f "$1"
}

if [ -S "$run/docker.sock" ] && docker info >/dev/null 2>&1; then
  containers=$(docker ps --all --quiet)
  # shellcheck disable=SC2086  # one word a container
  [ -z "$containers" ] || docker rm --force $containers >/dev/null
fi
stop_one "$run/docker.pid" "--data-root $state/data "
stop_one "$run/exec/containerd/containerd.pid" "$run/exec/containerd/"
# An engine that was killed leaves mounts, and any leaves its bridges and its chains of iptables.
{ findmnt -rno TARGET | grep -E "^($state/data|$run/exec)(/|$)" || true; } | sort -r | while read -r mount; do umount "$mount" || true; done
if [ -s "$run/net-before" ]; then
  { read -r forward; read -r policy || true; } <"$run/net-before"
  ip link del docker0 2>/dev/null || true
  rules=$(iptables-save 2>/dev/null || true)      # not through `| grep -q`: with pipefail its SIGPIPE looks like a miss
  if [[ $rules == *DOCKER* ]]; then grep -vE 'DOCKER|docker0' <<<"$rules" | iptables-restore; fi
  echo "$forward" >/proc/sys/net/ipv4/ip_forward
  [ -z "${policy:-}" ] || iptables -P FORWARD "$policy" 2>/dev/null || true
  rm -f "$run/net-before"
fi
