#!/usr/bin/env bash
# compat-tests/strace.sh [PATH-OF-RANGEWAY]
# Shows with strace that an acknowledgement leaves only after the journal has the record durably.
#
# For each of a few single produces with acks=all it prints when the request was read from the socket, when a durable
# write of that record returned (a write to a file opened with O_DSYNC or O_SYNC, or a write and then fdatasync or
# fsync of the file), and when the answer was sent. Fails when an answer leaves before that.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
rangeway=$(realpath "${1:-$here/../target/debug/rangeway}")
for need in strace kcat python3; do
  command -v "$need" > /dev/null || { echo "SKIPPED strace: no $need; install: apt-get install $need"; exit 0; }
done

# Settings of the tests are not the broker's.
unset "${!RANGEWAY_@}"
work=$(mktemp -d)
node=
finish() { [ -z "$node" ] || { kill "$node" 2> /dev/null && wait "$node" || true; }; rm -rf "$work"; }
trap finish EXIT

# -D: the process that is started, and later stopped, is the broker, not the tracer.
strace -D -f -tt -y -s 4096 -o "$work/trace" -e trace=openat,read,readv,recvfrom,recvmsg,write,writev,pwrite64,pwritev,pwritev2,sendto,sendmsg,fdatasync,fsync,io_uring_enter \
  "$rangeway" serve --data "$work/data" --kafka 127.0.0.1:0 --http 127.0.0.1:0 > "$work/out" 2> "$work/err" &
node=$!
for _ in $(seq 1 600); do
  grep -q '^rangeway ready ' "$work/out" && break
  kill -0 "$node" 2> /dev/null || { tail -20 "$work/err" >&2; exit 1; }
  sleep 0.1
done
kafka=$(sed -n 's/^rangeway ready kafka=\([^ ]*\) .*/\1/p' "$work/out")
[ -n "$kafka" ] || { echo "strace.sh: not ready in 60 s" >&2; exit 1; }

kcat -b "$kafka" -q -L > /dev/null
for i in 1 2 3 4 5; do
  echo "acknowledge-me-$i" | kcat -b "$kafka" -q -P -t traced -p 0 -X acks=all -X linger.ms=0
done
kill "$node"
wait "$node"
for _ in $(seq 1 100); do
  grep -q "^$node .*+++ exited" "$work/trace" && break
  sleep 0.1
done
node=
python3 "$here/strace.py" "$work/trace" acknowledge-me- 5
