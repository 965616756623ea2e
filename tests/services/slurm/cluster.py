"""A real Slurm of three hosts on this machine: network namespaces on a bridge, each with its own slurmd.

Needs root, and Debian's packages slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins iproute2. Each host has
four processors and two character devices for GPUs: a job that asks for some gets CUDA_VISIBLE_DEVICES. Everything is
started on addresses of its own (10.77.N.0/24, the first that is free), and stopped by pid.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "scontrol", "munged", "ip", "nsenter", "unshare")
PACKAGES = "slurmctld slurmd slurm-client munge slurm-wlm-basic-plugins iproute2"
CONTROLLER_PORT, HOST_PORT = 6817, 6818
CONF = """\
ClusterName=paddlewheel
SlurmctldHost={controller}({network}.1)
SlurmctldPort={controller_port}
SlurmdPort={host_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=3
MessageTimeout=5
UnkillableStepTimeout=5
MinJobAge={job_age_seconds}
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=2,sched_interval=2,batch_sched_delay=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1500
SlurmdParameters=config_overrides
GresTypes=gpu
JobAcctGatherType=jobacct_gather/linux
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
PartitionName=train Nodes={hosts} Default=YES MaxTime=INFINITE State=UP
"""


class NoSlurm(Exception):
    """Why this machine cannot run one."""


@dataclass(frozen=True, kw_only=True)
class SlurmCluster:
    """A running cluster. `environment` is what its commands need; `hosts` are the nodes' names."""

    folder: Path
    network: str
    hosts: Sequence[str]

    @property
    def environment(self) -> dict[str, str]:
        return {"SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, check: bool = True) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0 or not check, f"{command}: {done.stderr}"
        return done.stdout

    def cut_off(self, host: str) -> None:
        """Take the host's cable out."""
        _run("ip", "link", "set", self._cable(host), "down")

    def put_back(self, host: str) -> None:
        """Put the host's cable in again."""
        _run("ip", "link", "set", self._cable(host), "up")

    def kill_daemon(self, host: str) -> None:
        """kill -9 the host's slurmd; its jobs live on without it."""
        os.kill(int((self.folder / f"run/slurmd.{host}.pid").read_text()), signal.SIGKILL)

    def start_daemon(self, host: str) -> None:
        """Start the host's slurmd in its namespaces."""
        (self.folder / "spool" / host).mkdir(parents=True, exist_ok=True)
        script = f"hostname {host}; mount --bind /etc/netns/{host}/hosts /etc/hosts; exec slurmd -N {host}"
        # Not `ip netns exec`, which hides /sys/fs/cgroup.
        command = ["nsenter", f"--net=/run/netns/{host}", "unshare", "--uts", "--mount", "bash", "-c", script]
        subprocess.run(command, env=os.environ | self.environment, check=True)

    def start_controller(self) -> None:
        """Start slurmctld, with what it knew before."""
        subprocess.run(["slurmctld"], env=os.environ | self.environment, check=True)

    def kill_controller(self) -> None:
        """kill -9 slurmctld."""
        os.kill(int((self.folder / "run/slurmctld.pid").read_text()), signal.SIGKILL)

    def wait_until_idle(self, seconds: float = 30.0) -> None:
        """Return once every host is idle."""
        give_up = time.monotonic() + seconds
        while self.run("sinfo", "-h", "-N", "-o", "%T", check=False).split() != ["idle"] * len(self.hosts):
            assert time.monotonic() < give_up, f"not idle: {self.run('sinfo', '-N', '-l', check=False)}"
            time.sleep(0.1)

    def _cable(self, host: str) -> str:
        return f"v{host}"


@contextlib.contextmanager
def running(folder: Path, *, num_hosts: int = 3, job_age_seconds: int = 300) -> Iterator[SlurmCluster]:
    """A cluster for the time of the block. Raises NoSlurm where this machine cannot run one.

    job_age_seconds: how long the controller remembers a job that has ended.
    """
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if os.geteuid() != 0 or missing:
        why = f"{', '.join(missing)} missing: apt-get install {PACKAGES}" if missing else "needs root"
        raise NoSlurm(f"no Slurm on this machine: {why}")
    number = next(one for one in range(200) if not _exists(f"10.77.{one}.1"))
    hosts = [f"n{number}h{place}" for place in range(1, num_hosts + 1)]
    cluster = SlurmCluster(folder=folder, network=f"10.77.{number}", hosts=hosts)
    try:
        _lay_cables(cluster, f"pwbr{number}")
        _write_settings(cluster, job_age_seconds)
        _start_munge(folder)
        cluster.start_controller()
        for host in hosts:
            cluster.start_daemon(host)
        cluster.wait_until_idle()
        yield cluster
    finally:
        _stop(cluster, f"pwbr{number}")


def _exists(address: str) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
        return True


def _lay_cables(cluster: SlurmCluster, bridge: str) -> None:
    _run("ip", "link", "add", bridge, "type", "bridge")
    _run("ip", "addr", "add", f"{cluster.network}.1/24", "dev", bridge)
    _run("ip", "link", "set", bridge, "up")
    # Each host must resolve its own name, or gloo tells its peers 127.0.0.1.
    names = ["127.0.0.1 localhost", f"{cluster.network}.1 {socket.gethostname()}"]
    names += [f"{cluster.network}.{10 + place} {host}" for place, host in enumerate(cluster.hosts, 1)]
    for place, host in enumerate(cluster.hosts, 1):
        settings = Path("/etc/netns") / host
        settings.mkdir(parents=True, exist_ok=True)
        (settings / "hosts").write_text("\n".join(names) + "\n")
        _run("ip", "netns", "add", host)
        _run("ip", "link", "add", f"v{host}", "type", "veth", "peer", "name", "eth0", "netns", host)
        _run("ip", "link", "set", f"v{host}", "master", bridge, "up")
        _run("ip", "-n", host, "addr", "add", f"{cluster.network}.{10 + place}/24", "dev", "eth0")
        _run("ip", "-n", host, "link", "set", "eth0", "up")
        _run("ip", "-n", host, "link", "set", "lo", "up")


def _write_settings(cluster: SlurmCluster, job_age_seconds: int) -> None:
    folder = cluster.folder
    for name in ("state", "run", "log", "dev", "spool"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for place in (0, 1):
        _run("mknod", str(folder / f"dev/gpu{place}"), "c", "1", "3")
    text = CONF.format(
        controller=socket.gethostname(),
        network=cluster.network,
        controller_port=CONTROLLER_PORT,
        host_port=HOST_PORT,
        folder=folder,
        hosts=",".join(cluster.hosts),
        job_age_seconds=job_age_seconds,
    )
    for place, host in enumerate(cluster.hosts, 1):
        text += f"NodeName={host} NodeAddr={cluster.network}.{10 + place} CPUs=4 RealMemory=6000 Gres=gpu:2\n"
    (folder / "slurm.conf").write_text(text)
    gpus = f"NodeName={','.join(cluster.hosts)} Name=gpu Flags=nvidia_gpu_env File={folder}/dev/gpu[0-1]\n"
    (folder / "gres.conf").write_text("AutoDetect=off\n" + gpus)


def _start_munge(folder: Path) -> None:
    key = folder / "run/munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o600)
    _run(
        *("munged", "--force", f"--key-file={key}", f"--socket={folder}/run/munge.socket"),
        *(f"--pid-file={folder}/run/munged.pid", f"--log-file={folder}/log/munged.log"),
        f"--seed-file={folder}/run/munge.seed",
    )


def _stop(cluster: SlurmCluster, bridge: str) -> None:
    pids = [*cluster.folder.glob("run/slurmd.*.pid"), cluster.folder / "run/slurmctld.pid"]
    for path in [*pids, cluster.folder / "run/munged.pid"]:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(path.read_text()), signal.SIGTERM)
    for host in cluster.hosts:
        # What a job left: nothing else lives in the namespaces.
        found = subprocess.run(["ip", "netns", "pids", host], capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            with contextlib.suppress(OSError):
                os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", host], capture_output=True, check=False)
        shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)
    subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoSlurm(f"{' '.join(command)}: {done.stderr.strip()}")
