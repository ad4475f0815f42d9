#!/usr/bin/env bash
# compat-tests/librdkafka.sh [--reshard HTTP-HOST:PORT] HOST:PORT [NUMBER]...
# Runs librdkafka's own tests, unmodified and in full mode, against a running broker.
#
# Which tests is said by clients/librdkafka/expected.list: those that a plain Kafka passes and that need only APIs that
# are served here; waiting.list names the others and what they wait for. With numbers only those run, from either list.
# Start from an empty broker: some tests count topics and groups. One process per number, two at a time; a test that fails
# is tried once more, alone, and counted apart, for on a busy machine the tests' own clocks run out.
#
# With --reshard all ranges of the broker split and merge without rest meanwhile, its own topics' too, and the same tests must pass.
#
#   SCENARIO=noautocreate  the tests that want a broker without topics on demand (serve --set auto.create.topics.enable=false)
#   JOBS=2                 processes at a time
#   LIMIT=120              seconds until a test is given up, where the list does not say more
#   OUT=DIR                where logs go (default: librdkafka-out)
#   RESHARD_PAUSE_MS=50    pause between two splits or merges at most
#   KAFKA_PATH=DIR         a Kafka distribution, for the tests that start its tools or Java client; its jars are in libs/
#
# Build the suite once, in about three minutes: compat-tests/install librdkafka
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -gt 0 ] || { sed -n '2,/^set /s/^# \{0,1\}//p' "$0"; exit 2; }
if [ "$1" = --reshard ]; then
  http=$2
  shift 2
  target=${CARGO_TARGET_DIR:-$here/../target}
  storm=$target/release/reshard-storm
  [ -x "$storm" ] || storm=$target/debug/reshard-storm
  [ -x "$storm" ] || { echo "librdkafka.sh: no reshard-storm; build: cargo build --release --workspace --bins" >&2; exit 2; }
  exec "$storm" --http "$http" --pause-ms "${RESHARD_PAUSE_MS:-50}" -- "$0" "$@"
fi
bootstrap=$1
shift
home=${RANGEWAY_COMPAT_HOME:-${CARGO_TARGET_DIR:-$here/../target}/compat}
tests=$home/librdkafka/tests
if [ ! -x "$tests/test-runner" ]; then
  echo "SKIPPED librdkafka: the suite is not built; install: compat-tests/install librdkafka"
  exit 0
fi
tests=$(cd "$tests" && pwd)
export SCENARIO=${SCENARIO:-default} LIMIT=${LIMIT:-120}
out=${OUT:-librdkafka-out}
mkdir -p "$out"
out=$(cd "$out" && pwd)
printf '%s\n' test.timeout.multiplier=2 "bootstrap.servers=$bootstrap" broker.address.family=v4 security.protocol=PLAINTEXT > "$out/test.conf"

# list NUMBER...: "number limit name..." of each number to run; a number may stand for several tests.
list() {
  local lists=("$here/clients/librdkafka/expected.list")
  [ $# = 0 ] || lists+=("$here/clients/librdkafka/waiting.list")
  awk -v scenario="$SCENARIO" -v fallback="$LIMIT" -v only="$*" '
    /^#/ || NF == 0 { next }
    FILENAME ~ /waiting/ { $2 = "default"; $3 = 1200 }
    $2 != scenario { next }
    { number = substr($1, 1, 4) }
    only != "" && index(" " only " ", " " number " ") == 0 { next }
    { names[number] = names[number] " " $1; limit[number] += ($3 == "" ? fallback : $3) }
    END { for (n in names) print n, limit[n] names[n] }' "${lists[@]}" | sort
}

# one NUMBER LIMIT NAME...: runs the tests of a number; prints "NAME RESULT SECONDS" of each.
one() {
  local number=$1 limit=$2 work log from name result
  shift 2
  work=$out/run/$number log=$out/$number.log
  rm -rf "$work"
  mkdir -p "$work"
  # The tests look for these where they run, and for the build one level up.
  for name in java fixtures interceptor_test plugin_test Makefile; do [ ! -e "$tests/$name" ] || ln -s "$tests/$name" "$work/"; done
  for name in src mklove Makefile.config; do ln -sfn "$tests/../$name" "$out/run/$name"; done
  from=$(date +%s)
  (
    cd "$work"
    unset CI
    export RDKAFKA_TEST_CONF=$out/test.conf TEST_SCENARIO=$SCENARIO TESTS=$number TEST_KAFKA_VERSION=4.3.0 BROKERS=$bootstrap
    export LD_LIBRARY_PATH=$tests/../src:$tests/../src-cpp
    exec timeout -s KILL "$limit" "$tests/test-runner" -p1 -L
  ) < /dev/null 2>&1 | sed 's/\x1b\[[0-9;]*m//g' > "$log" || true
  for name; do
    result=$(sed -n "s/^| $name  *|  *\([A-Z]*\) |.*/\1/p" "$log" | tail -1)
    [ -n "$result" ] || { ! grep -q " Test $name PASSED " "$log" || result=PASSED; }
    printf '%s\t%s\t%s\n' "$name" "${result:-FAILED}" $(($(date +%s) - from))
  done
}
export -f one
export here out tests bootstrap

results=$out/results.tsv
list "$@" > "$out/list"
[ -s "$out/list" ] || { echo "librdkafka.sh: no such test in scenario $SCENARIO" >&2; exit 2; }
xargs -P "${JOBS:-2}" -L 1 bash -c 'one "$@"' one < "$out/list" | tee "$results"

first=$(grep -c $'\tPASSED\t' "$results" || true)
awk -F'\t' '$2 == "FAILED" { print substr($1, 1, 4) }' "$results" | sort -u > "$out/again"
again=0 failed=0
while read -r number limit names; do
  # shellcheck disable=SC2086
  while IFS=$'\t' read -r name result seconds; do
    grep -q "^$name"$'\tFAILED\t' "$results" || continue
    printf '%s\t%s\t%s\tsecond try\n' "$name" "$result" "$seconds"
    if [ "$result" = PASSED ]; then again=$((again + 1)); else failed=$((failed + 1)); fi
  done < <(one "$number" "$limit" $names)
done < <(join "$out/again" "$out/list")
skipped=$(grep -c $'\tSKIPPED\t' "$results" || true)
echo "$first passed at the first try, $again at the second, $failed failed, $skipped skipped"
[ "$failed" = 0 ] && [ $((first + again)) -gt 0 ]
