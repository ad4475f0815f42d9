#!/usr/bin/env bash
# Fuzzes every decoder: compat-tests/fuzz.sh [seconds per target, 600] [target...]
#
# Needs the Rust toolchain and a C++ compiler. Targets run one after the other, each on its corpus (fuzz/corpus/TARGET),
# to which the smallest inputs that reach something new are added. A crash leaves its input in fuzz/artifacts/TARGET,
# and the script ends with 1. To run such an input again: BINARY INPUT, as the script prints it.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-600}
shift || true
wanted=" $* "
host=$(rustc -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/fuzz}
# Coverage for libFuzzer, as `cargo fuzz run -s none` asks for it; no sanitizer, for there is no unsafe code to watch.
coverage="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares"
failed=0

# fuzz PACKAGE TARGET LENGTH: LENGTH is the largest input, bytes.
fuzz() {
  local package=$1 target=$2 length=$3 home=$1/fuzz from log status=0
  if [ "$wanted" != "  " ] && [[ "$wanted" != *" $target "* ]]; then return; fi
  # The versions of the program itself; libFuzzer's own come on top.
  cp Cargo.lock "$home/Cargo.lock"
  RUSTFLAGS="$(echo $coverage)" cargo build --quiet --release --target "$host" \
    --manifest-path "$home/Cargo.toml" --bin "$target"
  local binary=$CARGO_TARGET_DIR/$host/release/$target grown
  grown=$(mktemp -d)
  mkdir -p "$home/corpus/$target" "$home/artifacts/$target"
  log=$(mktemp)
  from=$(date +%s)
  nice -n 5 "$binary" -max_total_time="$seconds" -max_len="$length" -len_control=20 -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 \
    -artifact_prefix="$home/artifacts/$target/" "$grown" "$home/corpus/$target" >"$log" 2>&1 || status=$?
  awk -v t="$target" -v s="$(($(date +%s) - from))" -v c="$status" \
    '/number_of_executed_units/ { n = $2 } /peak_rss_mb/ { m = $2 } /cov: / { for (i = 1; i < NF; i++) if ($i == "cov:") v = $(i + 1) }
     END { printf "%-10s %10d executions in %d s, %d edges, peak %d MB, %s\n", t, n, s, v, m, c ? "CRASH" : "no crash" }' "$log"
  if [ "$status" != 0 ]; then
    failed=1
    grep -aE "panicked|assert|ERROR|SUMMARY|Test unit written" -A1 "$log" | tail -20
    echo "again: $binary $home/artifacts/$target/INPUT"
  elif [ -n "${KEEP:-}" ]; then
    # Only what adds coverage, small inputs first, is kept.
    local merged
    merged=$(mktemp -d)
    "$binary" -set_cover_merge=1 -max_len="$length" "$merged" "$home/corpus/$target" "$grown" >/dev/null 2>&1
    rm -rf "$home/corpus/$target" && mv "$merged" "$home/corpus/$target"
  fi
  rm -rf "$grown" "$log"
  rmdir --ignore-fail-on-non-empty "$home/artifacts/$target" "$home/artifacts"
}

fuzz gateway frame 4096
fuzz gateway request 2048
fuzz gateway records 2048
fuzz core journal 16384
fuzz core directory 12288
fuzz core control 1024
fuzz core cursor 1024
exit "$failed"
