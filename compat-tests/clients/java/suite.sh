#!/usr/bin/env bash
# The Java client, Kafka's administration tools, then its console tools, against a broker. Usage: CLASSPATH=... suite.sh HOST:PORT
set -uo pipefail
bootstrap=${!#}
topic=tools-$$-$RANDOM
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

jvm() { timeout "${LIMIT:-90}" java -Xmx256m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dlog4j2.configurationFile=log4j2.xml "$@"; }

# tool NAME PATTERN CLASS ARGUMENTS...: the tool must succeed and print a line that matches.
tool() {
  local name=$1 pattern=$2 main=$3
  shift 3
  if jvm "org.apache.kafka.tools.$main" --bootstrap-server "$bootstrap" "$@" > "$work/out" 2> "$work/err" &&
    { [ -z "$pattern" ] || grep -qE -- "$pattern" "$work/out"; }; then
    echo "ok $name"
  else
    echo "FAIL $name: $(tail -1 "$work/out" | cut -c1-150) $(head -2 "$work/err" | tr '\n' ' ' | cut -c1-250)"
    failed=1
  fi
}

LIMIT=400 jvm Suite "$bootstrap" || failed=1
LIMIT=240 jvm Tools "$bootstrap" || failed=1
LIMIT=240 jvm Scripts "$bootstrap" || failed=1

tool topics-create 'Created topic' TopicCommand --create --topic "$topic" --partitions 3 --replication-factor 1 --config retention.ms=600000
tool topics-describe 'PartitionCount: 3' TopicCommand --describe --topic "$topic"
tool topics-list "^$topic$" TopicCommand --list
seq 1 200 > "$work/lines"
tool console-producer '' ConsoleProducer --topic "$topic" --compression-codec zstd < "$work/lines"
tool console-consumer '^200$' consumer.ConsoleConsumer --topic "$topic" --from-beginning --max-messages 200 --timeout-ms 30000 --group "g-$topic"
tool get-offsets "^$topic:[0-9]:[0-9]+$" GetOffsetShell --topic "$topic"
tool groups-list "^g-$topic" consumer.group.ConsumerGroupCommand --list
tool groups-describe "$topic" consumer.group.ConsumerGroupCommand --describe --group "g-$topic"
printf '{"partitions":[{"topic":"%s","partition":0,"offset":0}],"version":1}' "$topic" > "$work/delete.json"
tool delete-records 'low_watermark: 0' DeleteRecordsCommand --offset-json-file "$work/delete.json"
tool verifiable-producer '"sent":1000,' VerifiableProducer --topic "$topic-v" --max-messages 1000 --acks -1 --value-prefix 7 --repeating-keys 5
tool verifiable-consumer 'records_consumed' VerifiableConsumer --topic "$topic-v" --group-id "gv-$topic" --max-messages 1000 --reset-policy earliest
tool transactions-list '(Empty|CompleteCommit)' TransactionsCommand list
tool transactions-describe-producers 'ProducerId' TransactionsCommand describe-producers --topic "$topic" --partition 0
tool transactions-find-hanging '' TransactionsCommand find-hanging --topic "$topic"
tool topics-delete '' TopicCommand --delete --topic "$topic"
exit $failed
