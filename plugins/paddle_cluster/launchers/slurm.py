"""Jobs on Slurm, by its command line, on this host or on a login host by SSH.

A job is a folder on the cluster's file system and a number of Slurm's:

    STATE_FOLDER/NAME/
      job.sh       what was submitted
      lock         held by a submit: one after another for one name
      jobid        Slurm's number; written right after sbatch
      started      written by the job itself, with its number
      log-N.txt    what the command wrote on node N; batch.txt: what Slurm wrote
      exit-N, end  the command's exit code on node N; the job's own, and why

Names are not unique to Slurm, hence the lock. The controller forgets a job some minutes after its end, hence `end`.
Rejected: sacct, which few sites have without slurmdbd, and slurmrestd, which fewer have.
"""

from __future__ import annotations

import base64
import shlex
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from paddle_cluster.jobs import JobHandle, JobSpec, JobState, JobStatus, SubmitError
from paddle_cluster.launchers.local import INHERITED, PREEMPTED_EXIT
from paddle_cluster.launchers.shell import LocalShell, Shell, ShellError
from paddle_cluster.launchers.slurm_script import NAME, render_script
from paddle_cluster.launchers.slurm_states import parse_job, status_of

CANNOT_START = 127
SUBMIT = """\
set -u
folder={folder}
mkdir -p "$folder" && cd "$folder" || exit 90
exec 9> lock; flock -w 60 9 || exit 91
if [ -s jobid ]; then cat jobid; exit 0; fi
id=$(squeue -h -t all --name={name} -o %i | sort -n | head -n 1) || exit 92
[ -n "$id" ] || [ ! -s started ] || id=$(cat started)
if [ -z "$id" ]; then
  cat > job.sh <<'{mark}'
{script}{mark}
  while IFS='=' read -r variable coded; do export "$variable=$(printf %s "$coded" | base64 -d)"; done
  id=$(sbatch --parsable --export={exported} job.sh) || exit 93
  id=${{id%%;*}}
fi
echo "$id" > .jobid && mv .jobid jobid && cat jobid
"""
POLL = """\
cd {folder} 2>/dev/null || exit 90
scontrol show job -o {id} 2>&1; echo "== $?"
cat end 2>/dev/null || true
"""
FIND = """\
if [ -s {folder}/jobid ]; then cat {folder}/jobid; exit 0; fi
squeue -h -t all --name={name} -o %i | sort -n | head -n 1; exit "${{PIPESTATUS[0]}}"
"""
FAULTS = {
    90: "its folder cannot be made",
    91: "another submit of the same name has not ended within a minute",
    92: "squeue does not answer",
    93: "sbatch refused it",
}


class SlurmLauncher:
    """Submits batch jobs. `state_folder`: on the cluster's shared file system, one folder a job.

    options: of the queue, for every job (docs/slurm.md); a job's own come before them. shell: where Slurm's commands
    are; this host by default.
    """

    def __init__(
        self, *, state_folder: str, options: Mapping[str, Any] | None = None, shell: Shell | None = None
    ) -> None:
        self.state_folder = str(state_folder).rstrip("/")
        self.options = dict(options or {})
        self.shell = shell or LocalShell()

    def render(self, spec: JobSpec) -> str:
        """The batch script. Raises SubmitError that names what cannot be."""
        return render_script(spec, {**self.options, **spec.options}, self._folder(spec.name))

    def submit(self, spec: JobSpec) -> JobHandle:
        """Submit the job, or adopt the one of this name in whatever state. Raises SubmitError with Slurm's words."""
        text = self.render(spec)
        mark = f"END-OF-{spec.name}"
        script = SUBMIT.format(
            folder=shlex.quote(self._folder(spec.name)),
            name=shlex.quote(spec.name),
            mark=mark,
            script=text,
            exported=",".join((*INHERITED, *sorted(spec.secrets))),
        )
        secrets = "".join(
            f"{name}={base64.b64encode(value.encode()).decode()}\n" for name, value in sorted(spec.secrets.items())
        )
        try:
            answer = self.shell.run(script, stdin=secrets, timeout_seconds=120)
        except ShellError as error:
            raise SubmitError(f"job {spec.name}: {error}; the next try adopts it if it came through") from error
        if answer.code != 0:
            told = " ".join(answer.stderr.split()) or f"exit {answer.code}"
            raise SubmitError(f"job {spec.name}: {FAULTS.get(answer.code, 'Slurm did not take it')}: {told}")
        return self._handle(spec.name, answer.stdout.split()[-1])

    def find(self, name: str) -> JobHandle | None:
        """The job of this name in whatever state; None where there has never been one. Raises ShellError."""
        if not NAME.fullmatch(name):
            return None
        answer = self.shell.run(FIND.format(folder=shlex.quote(self._folder(name)), name=shlex.quote(name)))
        if answer.code != 0:
            raise ShellError(f"squeue does not answer: {' '.join(answer.stderr.split())}")
        number = answer.stdout.strip()
        return self._handle(name, number) if number else None

    def poll(self, handle: JobHandle) -> JobStatus:
        """How the job stands, by the controller, and by what the job left where that has forgotten it.

        Raises ShellError while the controller does not answer.
        """
        answer = self.shell.run(POLL.format(folder=shlex.quote(handle.location), id=shlex.quote(handle.native_id)))
        if answer.code == 90:
            return JobStatus(state=JobState.LOST, native_state="absent", reason=f"{handle.location} does not exist")
        told, _, rest = answer.stdout.partition("== ")
        code, _, end = rest.partition("\n")
        if code == "0":
            status = status_of(parse_job(told))
            return _with_end(status, end) if status.state.final else status
        if "Invalid job id" not in told:
            raise ShellError(f"scontrol does not answer: {' '.join(told.split())}")
        if end.strip():
            return _with_end(JobStatus(state=JobState.FAILED, native_state="forgotten"), end)
        reason = f"Slurm does not know job {handle.native_id} any more, and it left no word of its end"
        return JobStatus(state=JobState.LOST, native_state="forgotten", reason=reason)

    def cancel(self, handle: JobHandle) -> None:
        """scancel; Slurm sends SIGTERM and, after its KillWait, SIGKILL."""
        self.shell.run(f"scancel {shlex.quote(handle.native_id)} 2>/dev/null; true")

    def logs(self, handle: JobHandle, tail_lines: int) -> str:
        """The last lines that the command wrote, node by node where there are several."""
        if tail_lines <= 0:
            return ""
        script = (
            f"cd {shlex.quote(handle.location)} 2>/dev/null || exit 0; "
            'set -- log-*.txt; [ -e "$1" ] || set -- batch.txt; '
            f'for file; do [ $# = 1 ] || echo "---- $file ----"; tail -n {int(tail_lines)} "$file" 2>/dev/null; done'
        )
        return self.shell.run(script).stdout.removesuffix("\n")

    def _folder(self, name: str) -> str:
        return f"{self.state_folder}/{name}"

    def _handle(self, name: str, number: str) -> JobHandle:
        return JobHandle(launcher="slurm", name=name, native_id=number, location=self._folder(name))


def _with_end(status: JobStatus, end: str) -> JobStatus:
    """The status with what the job itself wrote of its end: `code reason`."""
    code_text, _, reason = end.strip().partition(" ")
    if not code_text.isdecimal():
        return status
    code = int(code_text)
    state = status.state
    if state not in (JobState.CANCELLED, JobState.LOST, JobState.PREEMPTED):
        state = JobState.SUCCEEDED if code == 0 else JobState.PREEMPTED if code == PREEMPTED_EXIT else JobState.FAILED
    if not reason and code == CANNOT_START:
        reason = "its command could not be started; the log says which"
    if not reason and code > 128:
        with suppress(ValueError):
            reason = f"killed by {signal.Signals(code - 128).name}"
    return JobStatus(state=state, native_state=status.native_state, reason=reason or status.reason, exit_code=code)
