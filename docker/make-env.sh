#!/bin/sh
# Writes docker/.env from .env.example with a random value for each secret; an existing .env is never touched.
# Use: docker/make-env.sh [FILE]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
target=${1:-$here/.env}
if [ -e "$target" ]; then
  echo "$target exists already; remove it to make new secrets (the database keeps its old password: docker compose down -v)"
  exit 0
fi
hex() { od -An -N"$1" -tx1 /dev/urandom | tr -d ' \n'; }                       # safe in a URL
fernet() { head -c 32 /dev/urandom | base64 | tr '+/' '-_' | tr -d '\n'; }     # 32 bytes, URL-safe base64
umask 077
temporary=$target.$$
trap 'rm -f "$temporary"' EXIT
while IFS= read -r line; do
  case $line in
    FERNET_KEY=) echo "FERNET_KEY=$(fernet)" ;;
    *_PASSWORD= | *_SECRET=) echo "$line$(hex 32)" ;;      # 64 characters: what HMAC-SHA512 asks for
    *) printf '%s\n' "$line" ;;
  esac
done <"$here/.env.example" >"$temporary"
mv "$temporary" "$target"
echo "$target is written; the login is admin with ADMIN_PASSWORD of that file"
