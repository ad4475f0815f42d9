#!/usr/bin/env bash
# kcat against a broker. Usage: suite.sh HOST:PORT
set -uo pipefail
bootstrap=${!#}
run=kcat-$$-$RANDOM
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

kc() { timeout 60 kcat -b "$bootstrap" -q "$@"; }

# line NAME COMMAND...: one line of the suite; the command's output says what went wrong.
line() {
  local name=$1 said
  shift
  if said=$("$@" 2>&1); then
    echo "ok $name"
  else
    echo "FAIL $name: $(tail -3 <<<"$said" | tr '\n' ' ')"
    failed=1
  fi
}

# same GOT WANTED WHAT
same() { [ "$1" = "$2" ] || { echo "$3: wanted [${2:0:150}], got [${1:0:150}]"; return 1; }; }

rows() { for i in $(seq 1 300); do printf 'key%d\tvalue %d %s\n' "$i" "$i" "$(printf 'x%.0s' $(seq 1 $((i % 80 + 1))))"; done; }
rows > "$work/rows"

codec() {
  local topic=$run-$1
  kc -P -t "$topic" -p 0 -K '\t' -z "$1" -H "codec=$1" -H empty= -X enable.idempotence=true < "$work/rows" || return 1
  kc -C -t "$topic" -p 0 -o beginning -e -f '%k\t%s\n' > "$work/got" || return 1
  cmp "$work/rows" "$work/got" || return 1
  same "$(kc -C -t "$topic" -p 0 -o beginning -e -f '%o %h\n' | awk '{ if ($1 != NR - 1) bad = 1; h[$2]++ }
       END { for (x in h) print x, h[x], bad + 0 }')" "codec=$1,empty= 300 0" "headers and offsets"
}

binary() {
  head -c 900000 /dev/urandom > "$work/big"
  kc -P -t "$run-big" -p 0 -X message.max.bytes=1000000 "$work/big" || return 1
  kc -C -t "$run-big" -p 0 -o beginning -c 1 -D '' > "$work/big.got" || return 1
  cmp "$work/big" "$work/big.got"
}

null_value() {
  printf 'gone\t' | kc -P -t "$run-null" -p 0 -K '\t' -Z || return 1
  same "$(kc -C -t "$run-null" -p 0 -o beginning -e -f '%k %S')" "gone -1" "key and size"
}

from_offset() {
  same "$(kc -C -t "$run-gzip" -p 0 -o 123 -c 1 -f '%o %k')" "123 key124" "record at an offset" || return 1
  same "$(kc -C -t "$run-gzip" -p 0 -o -3 -e -f '%o ')" "297 298 299 " "the last three"
}

from_time() {
  for part in 1 2 3; do
    for i in $(seq 1 20); do echo "$part-$i"; done | kc -P -t "$run-time" -p 0 || return 1
    sleep 0.05
  done
  local stamp offset
  stamp=$(kc -C -t "$run-time" -p 0 -o 20 -c 1 -f '%T') || return 1
  offset=$(kc -C -t "$run-time" -p 0 -o "s@$stamp" -c 1 -f '%o') || return 1
  same "$offset" 20 "first offset from $stamp on" || return 1
  same "$(kc -Q -t "$run-time:0:$stamp" | grep -oE '[0-9-]+$')" 20 "queried offset" || return 1
  same "$(kc -Q -t "$run-time:0:-1" | grep -oE '[0-9-]+$')" 60 "queried end" || return 1
  same "$(kc -Q -t "$run-time:0:-2" | grep -oE '[0-9-]+$')" 0 "queried start"
}

# group TOPIC COUNT FILE: reads that many as the topic's group; commits and leaves at the end.
group() { timeout 60 kcat -b "$bootstrap" -q -G "g-$1" -X auto.offset.reset=earliest -c "$2" -f '%s\n' "$1" > "$3"; }

group_rest() {
  local topic=$run-$1
  seq 1 200 | kc -P -t "$topic" || return 1
  group "$topic" 100 "$work/first" || return 1
  "${@:2}"
  group "$topic" 100 "$work/second" || return 1
  same "$(sort -n "$work/first" "$work/second" | tr '\n' ' ')" "$(seq 1 200 | tr '\n' ' ')" "both halves together"
}

shared() {
  local topic=$run-shared
  seq 1 400 | kc -P -t "$topic" || return 1
  # Unbuffered and without an end: both members are stopped once everything has been read.
  for member in one two; do
    timeout 40 kcat -b "$bootstrap" -q -u -G "g-$topic" -X auto.offset.reset=earliest -f '%p %s\n' "$topic" > "$work/$member" 2> /dev/null &
    echo $! > "$work/$member.pid"
  done
  for _ in $(seq 1 350); do
    [ "$(cat "$work/one" "$work/two" | wc -l)" -ge 400 ] && break
    sleep 0.1
  done
  for member in one two; do kill -INT "$(cat "$work/$member.pid")"; done
  wait
  same "$(cat "$work/one" "$work/two" | awk '{ print $2 }' | sort -nu | tr '\n' ' ')" "$(seq 1 400 | tr '\n' ' ')" "what both read"
}

# Values within what is committed, or all.
values() { kc -C -t "$run-txn" -p 0 -o beginning -e -X isolation.level="read_$1" -f '%s\n' | tr '\n' ' '; }

# One transaction is committed, one is left open by a producer that is killed and aborted for the next one of its name.
transactions() {
  local id="-X transactional.id=$run -X transaction.timeout.ms=30000" held said
  seq 1 100 | kc -P -t "$run-txn" -p 0 $id || return 1
  # A file is one message; the second one never comes.
  printf gone > "$work/gone"
  mkfifo "$work/held"
  kcat -b "$bootstrap" -q -P -t "$run-txn" -p 0 $id "$work/gone" "$work/held" &
  held=$!
  for _ in $(seq 1 100); do
    [ "$(values uncommitted | wc -w)" -ge 101 ] && break
    sleep 0.1
  done
  said=$(values committed)
  kill -KILL "$held"
  wait "$held" 2> /dev/null
  same "$said" "$(seq 1 100 | tr '\n' ' ')" "what is committed while the second is open" || return 1
  seq 201 250 | kc -P -t "$run-txn" -p 0 $id || return 1
  # Markers follow the answer: whoever begins a transaction waits for them.
  echo 251 | kc -P -t "$run-txn" -p 0 $id || return 1
  for _ in $(seq 1 100); do
    [ "$(values committed | wc -w)" -ge 151 ] && break
    sleep 0.1
  done
  same "$(values committed)" "$( (seq 1 100; seq 201 251) | tr '\n' ' ')" "what is committed" || return 1
  same "$(values uncommitted)" "$( (seq 1 100; echo gone; seq 201 251) | tr '\n' ' ')" "everything"
}

restart() {
  echo RESTART >&3
  read -r _
}

exec 3>&1
line metadata bash -c "timeout 60 kcat -b $bootstrap -q -L -J | grep -qE '\"brokers\": *\\[ *\\{ *\"id\"'"
for codec in none gzip snappy lz4 zstd; do line "produce-consume-$codec" codec "$codec"; done
line large-binary-value binary
line null-value null_value
line consume-from-offset from_offset
line consume-from-time from_time
line group-rest-after-consumer-restart group_rest rest true
line group-rest-after-broker-restart group_rest broker restart
line group-of-two-shares shared
line transactions-commit-and-abort transactions
line records-survive-broker-restart bash -c "timeout 60 kcat -b $bootstrap -q -C -t $run-zstd -p 0 -o beginning -e -f '%k\t%s\n' | cmp - $work/rows"
exit $failed
