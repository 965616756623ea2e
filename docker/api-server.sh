#!/bin/sh
# Airflow's API server with the two logins of the env file. Airflow's simple auth manager reads passwords from a file that it
# must be able to write, so the file is made here, in the container alone.
set -eu
umask 077
python - "$AIRFLOW_HOME/passwords.json" <<'PYTHON'
import json, os, sys
from pathlib import Path

users = {name: os.environ[f"{name.upper()}_PASSWORD"] for name in ("admin", "viewer")}
Path(sys.argv[1]).write_text(json.dumps(users) + "\n")
PYTHON
unset ADMIN_PASSWORD VIEWER_PASSWORD
export AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE="$AIRFLOW_HOME/passwords.json"
exec airflow api-server
