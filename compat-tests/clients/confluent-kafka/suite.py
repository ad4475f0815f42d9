"""confluent-kafka (librdkafka) against a broker. Usage: suite.py HOST:PORT"""

import contextlib
import sys
import threading
import time
import uuid

from confluent_kafka import Consumer, ConsumerGroupState, ConsumerGroupType, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic, OffsetSpec

from suite_common import (CODECS, RECORDS, big_value, finish, records, restart_broker, same, step, together)

BOOTSTRAP = sys.argv[-1]
BASE = {"bootstrap.servers": BOOTSTRAP, "socket.timeout.ms": 20000}
RUN = uuid.uuid4().hex[:8]
PATIENCE_S = 60
ADMIN = AdminClient(BASE)


def topic(name):
    return f"ck-{RUN}-{name}"


def results(futures):
    return [future.result(30) for future in futures.values()]


def create(name, partitions):
    results(ADMIN.create_topics([NewTopic(topic(name), partitions, 1)]))


def produce(name, rows, partition=0, **config):
    """Produces the rows; gives back the offsets as acknowledged."""
    offsets, errors = {}, []

    def acked(i):
        def done(error, message):
            if error:
                errors.append(error)
            else:
                offsets[i] = (message.partition(), message.offset())
        return done

    producer = Producer({**BASE, **config})
    for i, (key, value, headers, timestamp) in enumerate(rows):
        producer.produce(topic(name), key=key, value=value, headers=headers, timestamp=timestamp,
                         partition=partition, on_delivery=acked(i))
        producer.poll(0)
    same(producer.flush(PATIENCE_S), 0, "messages left after flush")
    same(errors, [], "delivery errors")
    return [offsets[i] for i in range(len(rows))]


def consumer(group=None, **config):
    return Consumer({**BASE, "group.id": group or f"none-{uuid.uuid4()}", "auto.offset.reset": "earliest",
                     "enable.auto.commit": False, **config})


def take(reader, count):
    got, end = [], time.time() + PATIENCE_S
    while len(got) < count and time.time() < end:
        for message in reader.consume(min(count - len(got), 500), 1.0):
            if message.error():
                raise AssertionError(str(message.error()))
            got.append(message)
    same(len(got), count, "messages within the time limit")
    return got


def read(name, count, offset, partition=0, **config):
    reader = consumer(**config)
    reader.assign([TopicPartition(topic(name), partition, offset)])
    try:
        return take(reader, count)
    finally:
        reader.close()


def row(message):
    return (message.key(), message.value(), message.headers() or [], message.timestamp()[1])


def codec(name):
    rows = records()
    acked = produce(name, rows, **{"compression.type": name, "linger.ms": 20, "enable.idempotence": name != "none"})
    same(acked, [(0, i) for i in range(RECORDS)], "acknowledged offsets")
    got = read(name, RECORDS, 0)
    same([m.offset() for m in got], list(range(RECORDS)), "offsets")
    for message, wanted in zip(got, rows):
        same(row(message), wanted, f"record {message.offset()}")


def codec_again():
    for name in CODECS:
        for message, wanted in zip(read(name, RECORDS, 0), records()):
            same(row(message)[:3], wanted[:3], f"record {message.offset()} of {name}")


def from_offset():
    got = read("gzip", RECORDS - 123, 123)
    same([m.offset() for m in got], list(range(123, RECORDS)), "offsets")
    same(row(got[0])[1], records()[123][1], "first value")


def from_time():
    reader = consumer()
    stamps = [m.timestamp()[1] for m in read("zstd", RECORDS, 0)]
    for at, wanted in ((stamps[200], 200), (stamps[200] - 1, 200), (stamps[200] + 1, 201), (0, 0)):
        found = reader.offsets_for_times([TopicPartition(topic("zstd"), 0, at)], timeout=20)
        same(found[0].offset, wanted, f"offset at {at}")
    found = reader.offsets_for_times([TopicPartition(topic("zstd"), 0, stamps[-1] + 10_000)], timeout=20)
    same(found[0].offset, -1, "offset after the last record")
    reader.close()
    got = read("zstd", RECORDS - 200, 200)
    same(got[0].timestamp()[1], stamps[200], "timestamp at the found offset")


def watermarks():
    reader = consumer()
    same(reader.get_watermark_offsets(TopicPartition(topic("lz4"), 0), timeout=20), (0, RECORDS), "watermarks")
    reader.close()


def big():
    value = big_value()
    produce("big", [(b"big", value, [], int(time.time() * 1000))], **{"message.max.bytes": 1_040_000})
    got = read("big", 1, 0)
    same(got[0].value() == value, True, "every byte of a large value")


def fill(name, partitions, count):
    create(name, partitions)
    for partition in range(partitions):
        rows = [(b"k", b"%d-%d" % (partition, i), [], 0) for i in range(count)]
        produce(name, [(k, v, h, int(time.time() * 1000)) for k, v, h, _ in rows], partition=partition)
    return {b"%d-%d" % (p, i) for p in range(partitions) for i in range(count)}


# The group protocol in which the broker assigns (KIP-848).
NEW = {"group.protocol": "consumer"}


def group_rest(name, between, **config):
    everything = fill(name, 3, 100)
    first = consumer(f"g-{name}-{RUN}", **config)
    first.subscribe([topic(name)])
    got = [m.value() for m in take(first, 150)]
    first.commit(asynchronous=False)
    first.close()
    between()
    second = consumer(f"g-{name}-{RUN}", **config)
    second.subscribe([topic(name)])
    rest = [m.value() for m in take(second, 150)]
    same(second.poll(1.0), None, "a message more than the rest")
    second.commit(asynchronous=False)
    second.close()
    same(set(got) | set(rest), everything, "both halves together")
    same(len(set(got) & set(rest)), 0, "messages read twice")


QUICK = {"session.timeout.ms": 10000, "heartbeat.interval.ms": 500}
COOPERATIVE = {**QUICK, "partition.assignment.strategy": "cooperative-sticky"}


def group_shared(topic_name, configs):
    """Two members share a topic, each reads its half."""
    everything = fill(topic_name, 4, 100)
    names, got = ("one", "two"), {"one": [], "two": []}
    assigned = {name: set() for name in names}
    end = time.time() + PATIENCE_S
    both_read = threading.Barrier(2)

    def member(name, config):
        reader = consumer(f"g-{topic_name}-{RUN}", **config)
        reader.subscribe([topic(topic_name)])
        # Both members are there before either reads.
        while not all(assigned.values()) or sum(map(len, assigned.values())) != 4:
            message = reader.poll(0.1)
            if message is not None and not message.error():
                with contextlib.suppress(KafkaException):  # it was given up meanwhile
                    reader.seek(TopicPartition(topic(topic_name), message.partition(), 0))
            assigned[name] = {p.partition for p in reader.assignment()}
            if time.time() > end:
                raise AssertionError(f"the members never shared: {assigned}")
        for partition in assigned[name]:
            reader.seek(TopicPartition(topic(topic_name), partition, 0))
        got[name] = [m.value() for m in take(reader, 100 * len(assigned[name]))]
        # Who leaves early gives its partitions to the one that still reads.
        both_read.wait(PATIENCE_S)
        reader.close()

    together(*(lambda n=n, c=c: member(n, c) for n, c in zip(names, configs)))
    same(assigned["one"] & assigned["two"], set(), "partitions given to both")
    same(set(got["one"]) | set(got["two"]), everything, "what both read together")


def until(check, what):
    end = time.time() + PATIENCE_S
    while not check():
        if time.time() > end:
            raise AssertionError(f"never: {what}")
        time.sleep(0.1)


def new_group_by_pattern():
    create("pattern-a", 1)
    reader = consumer(f"g-pattern-{RUN}", **NEW, **{"topic.metadata.refresh.interval.ms": 500})
    reader.subscribe([f"^ck-{RUN}-pattern-.*"])

    def reads(count):
        reader.poll(0.1)
        return len(reader.assignment()) == count

    until(lambda: reads(1), "the topic that matches is read")
    create("pattern-b", 2)
    until(lambda: reads(3), "a topic that comes to match is read")
    ADMIN.delete_topics([topic("pattern-a")])[topic("pattern-a")].result(30)
    until(lambda: reads(2), "a topic that is gone is read no more")
    reader.close()


def new_group_is_described():
    create("described", 3)
    group = f"g-described-{RUN}"
    reader = consumer(group, **NEW, **{"group.instance.id": "i"})
    reader.subscribe([topic("described")])

    def described():
        reader.poll(0.1)
        return ADMIN.describe_consumer_groups([group])[group].result(30)

    until(lambda: described().state == ConsumerGroupState.STABLE and len(reader.assignment()) == 3, "stable")
    row = described()
    same((row.type, len(row.members)), (ConsumerGroupType.CONSUMER, 1), "type and members")
    member = row.members[0]
    same(member.group_instance_id, "i", "instance id")
    same(sorted(p.partition for p in member.assignment.topic_partitions), [0, 1, 2], "assignment")
    listed = ADMIN.list_consumer_groups(types={ConsumerGroupType.CONSUMER}).result(30).valid
    same([g.group_id for g in listed if g.group_id == group], [group], "the group among those of its type")
    listed = ADMIN.list_consumer_groups(types={ConsumerGroupType.CLASSIC}).result(30).valid
    same([g.group_id for g in listed if g.group_id == group], [], "the group among those of the other type")
    reader.close()


def admin_round():
    client = ADMIN
    create("admin", 2)
    results(client.create_partitions([NewPartitions(topic("admin"), 5)]))
    end = time.time() + 20
    while len(client.list_topics(topic("admin"), timeout=20).topics[topic("admin")].partitions) != 5:
        if time.time() > end:
            raise AssertionError("never came to 5 partitions")
        time.sleep(0.1)
    same(topic("admin") in client.list_topics(timeout=20).topics, True, "the topic among all")
    produce("admin", records(10), partition=4)
    latest = results(client.list_offsets({TopicPartition(topic("admin"), 4): OffsetSpec.latest()}))
    same(latest[0].offset, 10, "latest offset")
    deleted = results(client.delete_records([TopicPartition(topic("admin"), 4, 4)]))
    same(deleted[0].low_watermark, 4, "low watermark after deleting records")
    same(read("admin", 6, 4, partition=4)[0].offset(), 4, "first offset left")
    configs = results(client.describe_configs([ConfigResource("topic", topic("admin"))]))
    same("retention.ms" in configs[0], True, "retention.ms among the configs")
    same(len(client.describe_cluster().result(30).nodes) > 0, True, "nodes in the cluster")
    same(topic("admin") in client.list_topics(timeout=20).topics, True, "the topic among all topics")
    results(client.delete_topics([topic("admin")]))


for codec_name in CODECS:
    create(codec_name, 1)
    step(f"produce-consume-{codec_name}", lambda: codec(codec_name))
create("big", 1)
step("consume-from-offset", from_offset)
step("consume-from-time", from_time)
step("watermarks", watermarks)
step("large-value", big)
step("group-rest-after-consumer-restart", lambda: group_rest("rest", lambda: None))
step("group-rest-after-broker-restart", lambda: group_rest("broker", restart_broker))
step("group-of-two-shares", lambda: group_shared("shared", [QUICK, QUICK]))
step("group-of-two-cooperative", lambda: group_shared("cooperative", [COOPERATIVE, COOPERATIVE]))
step("new-group-rest-after-consumer-restart", lambda: group_rest("new-rest", lambda: None, **NEW))
step("new-group-rest-after-broker-restart", lambda: group_rest("new-broker", restart_broker, **NEW))
step("new-group-of-two-shares", lambda: group_shared("new-shared", [NEW, NEW]))
step("new-group-by-pattern", new_group_by_pattern)
step("new-group-is-described", new_group_is_described)
step("records-survive-broker-restart", codec_again)
step("admin", admin_round)
finish()
