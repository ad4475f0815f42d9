"""confluent-kafka (librdkafka) against a broker. Usage: suite.py HOST:PORT"""

import contextlib
import sys
import threading
import time
import uuid

from confluent_kafka import (Consumer, ConsumerGroupState, ConsumerGroupTopicPartitions, ConsumerGroupType, KafkaError,
                             KafkaException, Producer, TopicPartition)
from confluent_kafka.admin import (AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewPartitions, NewTopic,
                                   OffsetSpec, ResourceType)

import transactions
from suite_common import (CODECS, COMPACTED, RECORDS, big_value, compacted, finish, records, restart_broker, same, step,
                          superseded, together)

BOOTSTRAP = sys.argv[-1]
BASE = {"bootstrap.servers": BOOTSTRAP, "socket.timeout.ms": 20000}
RUN = uuid.uuid4().hex[:8]
PATIENCE_S = 60
ADMIN = AdminClient(BASE)


def topic(name):
    return f"ck-{RUN}-{name}"


def results(futures):
    return [future.result(30) for future in futures.values()]


def create(name, partitions, configs=None):
    results(ADMIN.create_topics([NewTopic(topic(name), partitions, 1, config=configs or {})]))
    end = time.time() + PATIENCE_S
    while len(ADMIN.list_topics(topic(name), timeout=20).topics[topic(name)].partitions) != partitions:
        same(time.time() < end, True, "the broker knows the topic within the time limit")
        time.sleep(0.05)


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


def seek_to_start(reader, at, end):
    """A partition that was given a moment ago may not be fetched yet; till then it cannot be sought in."""
    while True:
        try:
            return reader.seek(at)
        except KafkaException:
            if time.time() > end:
                raise
            time.sleep(0.1)


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
            seek_to_start(reader, TopicPartition(topic(topic_name), partition, 0), end)
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


def everything(name, isolation):
    """All records of a topic's first partition that a reader of that isolation gets up to its end."""
    reader = consumer(**{"isolation.level": isolation, "enable.partition.eof": True})
    reader.assign([TopicPartition(topic(name), 0, 0)])
    got, end = [], time.time() + PATIENCE_S
    while time.time() < end:
        message = reader.poll(1.0)
        if message is None:
            continue
        if message.error() is None:
            got.append(message)
        elif message.error().code() == KafkaError._PARTITION_EOF:
            reader.close()
            return got
        else:
            raise AssertionError(str(message.error()))
    raise AssertionError("no end within the time limit")


def idempotent():
    """Records that are on their way while the broker restarts are there once, in their order."""
    create("idempotent", 1)
    offsets, errors = [], []
    producer = Producer({**BASE, "enable.idempotence": True, "linger.ms": 5})
    restart = threading.Thread(target=restart_broker)
    for i in range(300):
        producer.produce(topic("idempotent"), value=b"%d" % i, partition=0,
                         on_delivery=lambda error, message: errors.append(error) if error else offsets.append(message.offset()))
        if i == 100:
            restart.start()
        producer.poll(0.01)
    same(producer.flush(PATIENCE_S), 0, "messages left after flush")
    restart.join()
    same((errors, offsets), ([], list(range(300))), "errors and acknowledged offsets")
    same([m.value() for m in everything("idempotent", "read_uncommitted")], [b"%d" % i for i in range(300)], "values")


class Transactional:
    def __init__(self, name):
        self.producer = Producer({**BASE, "transactional.id": topic(name), "transaction.timeout.ms": 30_000, "linger.ms": 5,
                                  "metadata.recovery.strategy": "none"})
        self.producer.init_transactions(PATIENCE_S)
        self.begin = self.producer.begin_transaction
        self.flush = lambda: same(self.producer.flush(PATIENCE_S), 0, "messages left after flush")
        self.commit = lambda: self.producer.commit_transaction(PATIENCE_S)
        self.abort = lambda: self.producer.abort_transaction(PATIENCE_S)

    def send(self, name, value):
        self.producer.produce(topic(name), value=value, partition=0)

    def offsets(self, reader):
        at = reader.reader.position(reader.reader.assignment())
        self.producer.send_offsets_to_transaction(at, reader.reader.consumer_group_metadata(), PATIENCE_S)

    def abandon(self):
        self.producer = None


class Reader:
    def __init__(self, group, name):
        self.reader = consumer(f"{group}-{RUN}", **QUICK, **{"isolation.level": "read_committed"})
        self.reader.subscribe([topic(name)])

    def some(self):
        end = time.time() + PATIENCE_S
        while time.time() < end:
            messages = self.reader.consume(40, 0.5)
            for message in messages:
                same(message.error(), None, "error of a reader")
            if messages:
                return [message.value() for message in messages]
        raise AssertionError("no message within the time limit")

    def close(self):
        self.reader.close()


class Driver:
    create, fill = staticmethod(create), staticmethod(fill)
    producer, reader, fenced = Transactional, Reader, KafkaException
    everything = staticmethod(lambda name, isolation: [m.value() for m in everything(name, isolation)])


def admin_configs():
    create("configs", 1, {"retention.ms": "3600000"})

    def is_now(name, wanted):
        same(results(ADMIN.describe_configs([ConfigResource(ResourceType.TOPIC, topic("configs"))]))[0][name].value, wanted, name)

    is_now("retention.ms", "3600000")
    is_now("cleanup.policy", "delete")
    change = ConfigEntry("max.message.bytes", "2000000", incremental_operation=AlterConfigOpType.SET)
    results(ADMIN.incremental_alter_configs([ConfigResource(ResourceType.TOPIC, topic("configs"), incremental_configs=[change])]))
    until(lambda: results(ADMIN.describe_configs([ConfigResource(ResourceType.TOPIC, topic("configs"))]))[0]["max.message.bytes"].value
          == "2000000", "the altered config")
    is_now("retention.ms", "3600000")


def admin_groups():
    group = f"g-admin-{RUN}"
    fill("groups", 1, 10)
    describe = lambda: ADMIN.describe_consumer_groups([group])[group].result(30)
    reader = consumer(group, **QUICK)
    reader.subscribe([topic("groups")])
    take(reader, 10)
    reader.commit(asynchronous=False)
    same((describe().state, len(describe().members)), (ConsumerGroupState.STABLE, 1), "state and members")
    reader.close()
    same((describe().state, len(describe().members)), (ConsumerGroupState.EMPTY, 0), "state and members afterwards")
    listed = lambda: group in [g.group_id for g in ADMIN.list_consumer_groups().result(30).valid]
    same(listed(), True, "the group in the list")

    def offset():
        return results(ADMIN.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]))[0].topic_partitions[0].offset

    same(offset(), 10, "committed offset")
    at = [TopicPartition(topic("groups"), 0, 3)]
    results(ADMIN.alter_consumer_group_offsets([ConsumerGroupTopicPartitions(group, at)]))
    same(offset(), 3, "altered offset")
    results(ADMIN.delete_consumer_groups([group]))
    same(listed(), False, "the deleted group in the list")


def compaction_begins():
    create("compacted", 1, COMPACTED)
    produce("compacted", [(key, value, [], 0) for key, value in superseded()])


def compaction():
    compacted(lambda: [(m.offset(), m.key(), m.value()) for m in everything("compacted", "read_uncommitted")],
              lambda: produce("compacted", [(b"roll", b"", [], 0)]))


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


compaction_begins()
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
step("idempotent-over-broker-restart", idempotent)
step("transactions-commit-and-abort", lambda: transactions.commit_and_abort(Driver))
step("transactions-fence-the-producer-before", lambda: transactions.fence(Driver))
step("consume-transform-produce-exactly-once", lambda: transactions.exactly_once(Driver, "once", lambda: None))
step("exactly-once-over-broker-restart", lambda: transactions.exactly_once(Driver, "again", restart_broker))
step("records-survive-broker-restart", codec_again)
step("admin", admin_round)
step("admin-configs", admin_configs)
step("admin-groups", admin_groups)
step("compaction-keeps-the-newest", compaction)
finish()
