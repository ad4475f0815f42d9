"""kafka-python against a broker. Usage: suite.py HOST:PORT"""

import sys
import threading
import time
import uuid

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import NewTopic

import suite_common
from suite_common import CODECS, RECORDS, big_value, finish, restart_broker, same, step, together

BOOTSTRAP = sys.argv[-1]
RUN = uuid.uuid4().hex[:8]
PATIENCE_S = 60


def records(count=RECORDS):
    """This client refuses to send null header values."""
    return [(key, value, [h for h in headers if h[1] is not None], timestamp)
            for key, value, headers, timestamp in suite_common.records(count)]


def topic(name):
    return f"kp-{RUN}-{name}"


def admin(work):
    """A client of its own for each: one that lives through a restart does not reconnect."""
    client = KafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    try:
        return work(client)
    finally:
        client.close()


def create(name, partitions):
    admin(lambda client: client.create_topics([NewTopic(topic(name), partitions, 1)]))


def produce(name, rows, partition=0, **config):
    producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, acks="all", **config)
    sent = [producer.send(topic(name), key=key, value=value, headers=headers, timestamp_ms=timestamp,
                          partition=partition) for key, value, headers, timestamp in rows]
    producer.flush(PATIENCE_S)
    offsets = [future.get(PATIENCE_S).offset for future in sent]
    producer.close()
    return offsets


def consumer(group=None, **config):
    return KafkaConsumer(bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest",
                         enable_auto_commit=False, **config)


def take(reader, count):
    got, end = [], time.time() + PATIENCE_S
    while len(got) < count and time.time() < end:
        for batch in reader.poll(500, max_records=count - len(got)).values():
            got.extend(batch)
    same(len(got), count, "records within the time limit")
    return got


def read(name, count, offset, partition=0):
    reader = consumer()
    reader.assign([TopicPartition(topic(name), partition)])
    reader.seek(TopicPartition(topic(name), partition), offset)
    try:
        return take(reader, count)
    finally:
        reader.close()


def row(record):
    return (record.key, record.value, [tuple(h) for h in record.headers], record.timestamp)


def codec(name):
    rows = records()
    acked = produce(name, rows, compression_type=None if name == "none" else name, linger_ms=20)
    same(acked, list(range(RECORDS)), "acknowledged offsets")
    got = read(name, RECORDS, 0)
    same([r.offset for r in got], list(range(RECORDS)), "offsets")
    for record, wanted in zip(got, rows):
        same(row(record), wanted, f"record {record.offset}")


def codecs_again():
    for name in CODECS:
        for record, wanted in zip(read(name, RECORDS, 0), records()):
            same(row(record)[:3], wanted[:3], f"record {record.offset} of {name}")


def from_offset():
    got = read("gzip", RECORDS - 123, 123)
    same([r.offset for r in got], list(range(123, RECORDS)), "offsets")


def from_time():
    stamps = [r.timestamp for r in read("zstd", RECORDS, 0)]
    reader, at = consumer(), TopicPartition(topic("zstd"), 0)
    for stamp, wanted in ((stamps[200], 200), (stamps[200] - 1, 200), (stamps[200] + 1, 201), (0, 0)):
        same(reader.offsets_for_times({at: stamp})[at].offset, wanted, f"offset at {stamp}")
    same(reader.offsets_for_times({at: stamps[-1] + 10_000})[at], None, "offset after the last record")
    same(reader.beginning_offsets([at]), {at: 0}, "beginning")
    same(reader.end_offsets([at]), {at: RECORDS}, "end")
    reader.close()


def big():
    value = big_value()
    produce("big", [(b"big", value, [], int(time.time() * 1000))], max_request_size=1_040_000)
    same(read("big", 1, 0)[0].value == value, True, "every byte of a large value")


def fill(name, partitions, count):
    create(name, partitions)
    now = int(time.time() * 1000)
    for partition in range(partitions):
        produce(name, [(b"k", b"%d-%d" % (partition, i), [], now) for i in range(count)], partition=partition)
    return {b"%d-%d" % (p, i) for p in range(partitions) for i in range(count)}


def group_rest(name, between):
    everything = fill(name, 3, 100)
    first = consumer(f"g-{name}-{RUN}")
    first.subscribe([topic(name)])
    got = [r.value for r in take(first, 150)]
    first.commit()
    first.close()
    between()
    second = consumer(f"g-{name}-{RUN}")
    second.subscribe([topic(name)])
    rest = [r.value for r in take(second, 150)]
    same(second.poll(1000), {}, "records more than the rest")
    second.commit()
    second.close()
    same(set(got) | set(rest), everything, "both halves together")
    same(len(set(got) & set(rest)), 0, "records read twice")


def group_shared():
    everything = fill("shared", 4, 100)
    names, got = ("one", "two"), {"one": [], "two": []}
    assigned = {name: set() for name in names}
    end = time.time() + PATIENCE_S
    both_read = threading.Barrier(2)

    def member(name):
        reader = consumer(f"g-shared-{RUN}", session_timeout_ms=10000, heartbeat_interval_ms=500)
        reader.subscribe([topic("shared")])
        # Both members are there before either reads.
        while not all(assigned.values()) or sum(map(len, assigned.values())) != 4:
            reader.poll(100)
            assigned[name] = {p.partition for p in reader.assignment()}
            if time.time() > end:
                raise AssertionError(f"the members never shared: {assigned}")
        reader.seek_to_beginning()
        got[name] = [r.value for r in take(reader, 100 * len(assigned[name]))]
        # Who leaves early gives its partitions to the one that still reads.
        both_read.wait(PATIENCE_S)
        reader.close()

    together(lambda: member("one"), lambda: member("two"))
    same(assigned["one"] & assigned["two"], set(), "partitions given to both")
    same(set(got["one"]) | set(got["two"]), everything, "what both read together")


def admin_round():
    create("admin", 2)
    same(topic("admin") in admin(lambda client: client.list_topics()), True, "the topic in the list")
    produce("admin", records(10), partition=1)
    same(bool(admin(lambda client: client.describe_cluster())), True, "a described cluster")
    admin(lambda client: client.delete_topics([topic("admin")]))


for codec_name in CODECS:
    create(codec_name, 1)
    step(f"produce-consume-{codec_name}", lambda: codec(codec_name))
create("big", 1)
step("consume-from-offset", from_offset)
step("consume-from-time", from_time)
step("large-value", big)
step("group-rest-after-consumer-restart", lambda: group_rest("rest", lambda: None))
step("group-rest-after-broker-restart", lambda: group_rest("broker", restart_broker))
step("group-of-two-shares", group_shared)
step("records-survive-broker-restart", codecs_again)
step("admin", admin_round)
finish()
