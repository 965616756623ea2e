"""docker/make-env.sh, the names that compose.yaml reads, and the lists that the images are installed from."""

from __future__ import annotations

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.fernet import Fernet, InvalidToken

PROJECT = Path(__file__).resolve().parents[2]
DOCKER = PROJECT / "docker"


def make_env(target: Path) -> dict[str, str]:
    subprocess.run([str(DOCKER / "make-env.sh"), str(target)], check=True, capture_output=True)
    return read_env(target)


def read_env(path: Path) -> dict[str, str]:
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


def names_of(requirements: str) -> set[str]:
    lines = [
        line.strip() for line in requirements.splitlines() if line.strip() and not line.lstrip().startswith(("#", "-"))
    ]
    return {re.split(r"[\[<>=!~ ]", line)[0].lower().replace("_", "-") for line in lines}


def test_every_secret_is_new_and_private_when_an_env_file_is_made(tmp_path: Path) -> None:
    first, second = make_env(tmp_path / "first"), make_env(tmp_path / "second")
    hexadecimal = {
        "POSTGRES_PASSWORD",
        "REDIS_PASSWORD",
        "JWT_SECRET",
        "API_SECRET",
        "ADMIN_PASSWORD",
        "VIEWER_PASSWORD",
    }
    secrets = hexadecimal | {"FERNET_KEY"}
    assert {name for name in first if first[name] != second[name]} == secrets
    assert len({first[name] for name in secrets}) == 7
    assert all(re.fullmatch(r"[0-9a-f]{64}", first[name]) for name in hexadecimal)
    assert stat.S_IMODE((tmp_path / "first").stat().st_mode) == 0o600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "second"]


def test_fernet_key_encrypts_when_an_env_file_is_made(tmp_path: Path) -> None:
    first, second = (Fernet(make_env(tmp_path / name)["FERNET_KEY"]) for name in ("first", "second"))
    assert first.decrypt(first.encrypt(b"a connection")) == b"a connection"
    with pytest.raises(InvalidToken):
        second.decrypt(first.encrypt(b"a connection"))


def test_env_file_is_kept_when_it_exists(tmp_path: Path) -> None:
    target = tmp_path / "env"
    target.write_text("POSTGRES_PASSWORD=mine\n")
    assert make_env(target) == {"POSTGRES_PASSWORD": "mine"}


def test_no_secret_has_a_default_when_compose_reads_it() -> None:
    used = dict(re.findall(r"\$\{([A-Z_]+)(:[^}]?)?", (DOCKER / "compose.yaml").read_text()))
    example = (DOCKER / ".env.example").read_text()
    assert set(used) == set(re.findall(r"^(?:# )?([A-Z_]+)=", example, re.MULTILINE))
    for name in ("POSTGRES_PASSWORD", "REDIS_PASSWORD", "FERNET_KEY", "JWT_SECRET", "API_SECRET", "ADMIN_PASSWORD"):
        assert not re.search(r"\$\{" + name + ":-", (DOCKER / "compose.yaml").read_text())
        assert read_env(DOCKER / ".env.example")[name] == ""


def test_env_files_are_ignored_by_git_and_by_the_build() -> None:
    ignored = subprocess.run(["git", "check-ignore", "-q", "docker/.env"], cwd=PROJECT, check=False)
    assert ignored.returncode == 0
    assert "docker/.env" in (PROJECT / ".dockerignore").read_text().splitlines()


def test_every_package_of_an_image_has_a_pinned_version() -> None:
    pinned = names_of((PROJECT / "requirements.txt").read_text())
    assert names_of((DOCKER / "control.in").read_text()) <= pinned
    listed = subprocess.run(
        [sys.executable, str(DOCKER / "list_dependencies.py"), str(PROJECT / "pyproject.toml")],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert names_of(listed) <= pinned
    assert "paddlepaddle" in names_of(listed)
    assert "apache-airflow" not in names_of(listed)
    assert "paddlepaddle" not in names_of((DOCKER / "control.in").read_text())
