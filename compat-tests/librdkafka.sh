#!/usr/bin/env bash
# compat-tests/librdkafka.sh [--reference] [--docker] [--reshard] [HOST:PORT] [NUMBER]...
# Runs librdkafka's own tests; --help and clients/librdkafka/README.md say how.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
case " $* " in *" --docker "*) "$here/install" librdkafka reference ;; esac
exec python3 -B "$here/clients/librdkafka/run.py" "$@"
