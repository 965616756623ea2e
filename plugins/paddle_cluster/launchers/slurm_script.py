"""The batch script of a job on Slurm: what is asked of the queue, and a command run once on each node."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from paddle_cluster.jobs import JobSpec, SubmitError

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
# What a connection or a recipe may ask of the queue, by sbatch's own names.
TEXTS = (
    "partition", "account", "qos", "gres", "constraint", "exclude", "nodelist", "reservation", "licenses", "mem",
    "comment", "nice", "nodes", "switches", "dependency", "begin",
)  # fmt: skip
FLAGS = ("exclusive", "requeue", "spread-job")
SECONDS_BEFORE = "signal_seconds"
VALUE = re.compile(r"[^\s'\"\\$`;&|<>#]+")
GRACE_SECONDS = 30
SLACK_MINUTES = 5

BODY = """\
folder={folder}
mkdir -p "$folder"; echo "$SLURM_JOB_ID" > "$folder/started"
# Both the queue's notice and a cancel reach the nodes' processes; this script must outlive them to tell how they ended.
trap : TERM INT USR1
export JOB_NODES="$SLURM_JOB_NUM_NODES" JOB_LEADER_HOST="$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)"
{exports}cd {directory} || exit 1
# One process a node; its exit code is kept, since srun tells only the highest.
node='trap : TERM INT USR1
export JOB_NODE_RANK="$SLURM_NODEID"
bash -c '"'"'exec "$0" "$@"'"'"' "$@"
code=$?; echo "$code" > "$0/exit-$SLURM_NODEID"; exit "$code"'
rm -f "$folder"/exit-*
{limit}srun --ntasks-per-node=1 --kill-on-bad-exit=0 --export=ALL --unbuffered --open-mode=append \\
  --output="$folder/log-%n.txt" bash -c "$node" "$folder" {command} &
srun_pid=$!
while :; do
  wait "$srun_pid"; code=$?
  kill -0 "$srun_pid" 2>/dev/null || break
{forward}done
reason=
{limit_check}first=$(cat "$folder/exit-0" 2>/dev/null)
[ -n "$reason" ] || [ "${{first:-0}}" = 0 ] || code=$first
echo "$code $reason" > "$folder/.end" && mv "$folder/.end" "$folder/end"
exit "$code"
"""


def render_script(spec: JobSpec, options: Mapping[str, Any], folder: str) -> str:
    """What sbatch is given. options: of the queue (docs/slurm.md). Raises SubmitError that names what is unfit."""
    if not NAME.fullmatch(spec.name):
        raise SubmitError(f"job name {spec.name!r}: letters, digits, '.', '_' and '-' only, 200 at most")
    if not spec.command:
        raise SubmitError(f"job {spec.name}: its command is empty")
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _directives(spec, options, folder))]
    limit = spec.time_limit_seconds
    forward = "  # A signal ended the wait, not srun.\n  pkill -TERM -P $$ srun 2>/dev/null\n"
    body = BODY.format(
        folder=shlex.quote(folder),
        directory=shlex.quote(spec.working_directory or folder),
        exports="".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(spec.environment.items())),
        command=shlex.join(spec.command),
        limit="" if limit is None else f"timeout -k {GRACE_SECONDS} {limit} ",
        limit_check=""
        if limit is None
        else f'if [ "$code" = 124 ]; then code=143 reason="passed its time limit of {limit} s"; fi\n',
        forward="" if SECONDS_BEFORE not in options else forward,
    )
    return "\n".join(lines) + "\n" + body


def _directives(spec: JobSpec, options: Mapping[str, Any], folder: str) -> list[str]:
    faults = []
    resources = spec.resources
    found = {
        "job-name": spec.name,
        "nodes": str(resources.nodes),
        "ntasks-per-node": "1",
        "cpus-per-task": str(resources.cpus_per_node),
        "output": f"{folder}/batch.txt",
        "open-mode": "append",
    }
    if resources.memory_mib_per_node is not None:
        found["mem"] = f"{resources.memory_mib_per_node}M"
    if resources.gpus_per_node:
        found["gres"] = f"gpu:{resources.gpus_per_node}"
    if spec.time_limit_seconds is not None:
        # Slurm counts in minutes; the script itself keeps the seconds.
        found["time"] = str(-(-spec.time_limit_seconds // 60) + SLACK_MINUTES)
    flags = ["--no-requeue"]
    for name, value in options.items():
        if name in TEXTS:
            if not VALUE.fullmatch(str(value)):
                faults.append(f"{name}: {value!r} has characters that a queue's option cannot have")
            found[name] = str(value)
        elif name in FLAGS:
            if value:
                flags = [flag for flag in flags if flag != f"--no-{name}"] + [f"--{name}"]
        elif name == SECONDS_BEFORE:
            found["signal"] = f"B:TERM@{int(value)}"
        else:
            faults.append(f"{name}: the options are {', '.join(sorted((*TEXTS, *FLAGS, SECONDS_BEFORE)))}")
    if faults:
        raise SubmitError(f"job {spec.name}: options of Slurm that cannot be: " + "; ".join(faults))
    return [f"--{name}={value}" for name, value in found.items()] + flags
