"""librdkafka in two of the black-box checks. Usage: checks.py to-end|resume NAME=VALUE...

Says `first P:OFFSET...` (of each partition the first record that was read), `committed P:OFFSET...`, `reached SECONDS RECORDS`,
`fault WHY`, and `done` at the end."""

import os
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

OPTIONS = dict(part.split("=", 1) for part in sys.argv[2:])
TOPIC, PARTITIONS = OPTIONS["topic"], int(OPTIONS["partitions"])
BASE = {"bootstrap.servers": OPTIONS["bootstrap"], "enable.auto.commit": False, "fetch.wait.max.ms": 100,
        "reconnect.backoff.ms": 20, "reconnect.backoff.max.ms": 200}
RECORDS_OF_A_LIFE = 400
POLL_S = 0.05


def say(*words):
    print(*words, flush=True)


def places(name, offsets):
    say(name, *(f"{partition}:{offset}" for partition, offset in sorted(offsets.items())))


def until_done(ask):
    """What `ask` answers, asked again for as long as the broker is away."""
    while True:
        try:
            return ask()
        except KafkaException:
            time.sleep(POLL_S)


class Dense:
    """Offsets that go on without a hole in each partition."""

    def __init__(self):
        self.first, self.next = {}, {}

    def take(self, message):
        partition, offset = message.partition(), message.offset()
        due = self.next.get(partition)
        if due is None:
            self.first[partition] = offset
        elif offset != due:
            say("fault", f"partition {partition}: offset {offset} where {due} was due")
        self.next[partition] = offset + 1


def read(consumer, dense, at_end):
    for message in consumer.consume(1000, POLL_S):
        error = message.error()
        if error is None:
            dense.take(message)
            at_end.discard(message.partition())
        elif error.code() == KafkaError._PARTITION_EOF:
            at_end.add(message.partition())
        elif not error.retriable() and error.code() != KafkaError._TRANSPORT:
            say("fault", error)


def to_end():
    """Reads from 0; from the line on stdin on, until positions are at the ends and the library says so of every partition."""
    stopped = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    consumer = Consumer({**BASE, "group.id": "none", "enable.partition.eof": True, "auto.offset.reset": "error"})
    consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
    dense, at_end, ends, began = Dense(), set(), None, None
    while ends is None or len(at_end) < PARTITIONS or any(
            dense.next.get(partition, 0) < end for partition, end in ends.items()):
        read(consumer, dense, at_end)
        if ends is None and stopped.is_set():
            began = time.monotonic()
            ends = {partition: until_done(lambda: consumer.get_watermark_offsets(
                TopicPartition(TOPIC, partition), timeout=5, cached=False)[1]) for partition in range(PARTITIONS)}
    say("reached", f"{time.monotonic() - began:.3f}", sum(dense.next.values()))
    consumer.close()


def resume():
    """One life of a group's only member: reads some of every partition and commits where it is."""
    consumer = Consumer({**BASE, "group.id": OPTIONS["group"], "auto.offset.reset": "earliest",
                         "session.timeout.ms": 6000, "partition.assignment.strategy": "range"})
    consumer.subscribe([TOPIC])
    dense, read_records = Dense(), 0
    while len(dense.next) < PARTITIONS or read_records < RECORDS_OF_A_LIFE:
        before = sum(dense.next.values()) - sum(dense.first.values())
        read(consumer, dense, set())
        read_records += sum(dense.next.values()) - sum(dense.first.values()) - before
    positions = [TopicPartition(TOPIC, partition, offset) for partition, offset in dense.next.items()]

    def commit():
        for result in consumer.commit(offsets=positions, asynchronous=False):
            if result.error is not None:
                raise KafkaException(result.error)

    until_done(commit)
    places("first", dense.first)
    places("committed", dense.next)
    consumer.close()


{"to-end": to_end, "resume": resume}[sys.argv[1]]()
say("done")
os._exit(0)
