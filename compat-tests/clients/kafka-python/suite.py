"""kafka-python against a broker. Usage: suite.py HOST:PORT"""

import sys
import threading
import time
import uuid

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewTopic
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata

import suite_common
import transactions
from suite_common import (CODECS, COMPACTED, RECORDS, big_value, compacted, finish, restart_broker, same, step, superseded,
                          together)

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


def create(name, partitions, configs=None):
    new = NewTopic(topic(name), partitions, 1, topic_configs=configs)
    admin(lambda client: client.create_topics([new], wait_for_metadata=True))


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


def everything(name, isolation):
    """All records of a topic's first partition that a reader of that isolation gets up to its end."""
    at = TopicPartition(topic(name), 0)
    reader = consumer(isolation_level=isolation)
    reader.assign([at])
    reader.seek_to_beginning(at)
    got, end, limit = [], reader.end_offsets([at])[at], time.time() + PATIENCE_S
    while reader.position(at) < end:
        same(time.time() < limit, True, "the end within the time limit")
        for batch in reader.poll(200).values():
            got.extend(batch)
    reader.close()
    return got


def idempotent():
    """Records that are on their way while the broker restarts are there once, in their order."""
    create("idempotent", 1)
    producer, sent = KafkaProducer(bootstrap_servers=BOOTSTRAP, enable_idempotence=True, linger_ms=5), []
    restart = threading.Thread(target=restart_broker)
    for i in range(300):
        sent.append(producer.send(topic("idempotent"), value=b"%d" % i, partition=0))
        if i == 100:
            restart.start()
        time.sleep(0.01)
    same([future.get(PATIENCE_S).offset for future in sent], list(range(300)), "acknowledged offsets")
    producer.close()
    restart.join()
    same([r.value for r in everything("idempotent", "read_uncommitted")], [b"%d" % i for i in range(300)], "values")


class Producer:
    def __init__(self, name):
        self.producer = KafkaProducer(bootstrap_servers=BOOTSTRAP, transactional_id=topic(name), transaction_timeout_ms=30_000)
        self.producer.init_transactions()
        self.begin, self.flush = self.producer.begin_transaction, self.producer.flush
        self.commit, self.abort = self.producer.commit_transaction, self.producer.abort_transaction

    def send(self, name, value):
        self.producer.send(topic(name), value=value, partition=0)

    def offsets(self, reader):
        at = {p: OffsetAndMetadata(reader.reader.position(p), "", -1) for p in reader.reader.assignment()}
        self.producer.send_offsets_to_transaction(at, reader.reader.group_metadata())

    def abandon(self):
        self.producer.close(0)


class Reader:
    def __init__(self, group, name):
        # A member whose broker is away does not leave; the next one waits for the end of its session.
        self.reader = consumer(f"{group}-{RUN}", isolation_level="read_committed", max_poll_records=40, heartbeat_interval_ms=500,
                               session_timeout_ms=10_000)
        self.reader.subscribe([topic(name)])

    def some(self):
        end = time.time() + PATIENCE_S
        while time.time() < end:
            got = [r.value for batch in self.reader.poll(200).values() for r in batch]
            if got:
                return got
        raise AssertionError("no record within the time limit")

    def close(self):
        self.reader.close(autocommit=False)


class Driver:
    create, fill = staticmethod(lambda *given: create(*given)), staticmethod(lambda *given: fill(*given))
    producer, reader, fenced = Producer, Reader, KafkaError
    everything = staticmethod(lambda name, isolation: [r.value for r in everything(name, isolation)])


def admin_round():
    create("admin", 2)
    same(topic("admin") in admin(lambda client: client.list_topics()), True, "the topic in the list")
    admin(lambda client: client.create_partitions({topic("admin"): 5}))
    end = time.time() + PATIENCE_S
    while len(admin(lambda client: client.describe_topics([topic("admin")]))[0]["partitions"]) != 5:
        same(time.time() < end, True, "five partitions within the time limit")
        time.sleep(0.1)
    produce("admin", records(10), partition=1)
    same(bool(admin(lambda client: client.describe_cluster())), True, "a described cluster")
    admin(lambda client: client.delete_topics([topic("admin")]))


def admin_configs():
    create("configs", 1, {"retention.ms": "3600000"})

    def is_now(name, wanted):
        resource = ConfigResource(ConfigResourceType.TOPIC, topic("configs"))
        found = admin(lambda client: client.describe_configs([resource], config_filter="all"))
        same(found["topic"][topic("configs")][name]["value"], wanted, name)

    is_now("retention.ms", "3600000")
    is_now("cleanup.policy", "delete")
    change = ConfigResource(ConfigResourceType.TOPIC, topic("configs"), {"max.message.bytes": "2000000"})
    admin(lambda client: client.alter_configs([change]))
    is_now("max.message.bytes", "2000000")
    is_now("retention.ms", "3600000")


def admin_delete_records():
    create("delete", 1)
    produce("delete", records(10))
    at = TopicPartition(topic("delete"), 0)
    admin(lambda client: client.delete_records({at: 4}))
    same([r.offset for r in everything("delete", "read_uncommitted")], list(range(4, 10)), "offsets left")
    reader = consumer()
    same(reader.beginning_offsets([at]), {at: 4}, "beginning")
    reader.close()


def admin_groups():
    group, at = f"g-admin-{RUN}", TopicPartition(topic("groups"), 0)
    fill("groups", 1, 10)
    describe = lambda: admin(lambda client: client.describe_groups([group]))[group]
    reader = consumer(group)
    reader.subscribe([topic("groups")])
    take(reader, 10)
    reader.commit()
    same((describe()["group_state"], len(describe()["members"])), ("Stable", 1), "state and members")
    reader.close()
    same((describe()["group_state"], len(describe()["members"])), ("Empty", 0), "state and members afterwards")
    listed = lambda: group in [g["group_id"] for g in admin(lambda client: client.list_groups())]
    same(listed(), True, "the group in the list")
    offset = lambda: admin(lambda client: client.list_group_offsets([group]))[group][at].offset
    same(offset(), 10, "committed offset")
    admin(lambda client: client.alter_group_offsets(group, {at: OffsetAndMetadata(3, "", -1)}))
    same(offset(), 3, "altered offset")
    admin(lambda client: client.delete_groups([group]))
    same(listed(), False, "the deleted group in the list")


def compaction_begins():
    create("compacted", 1, COMPACTED)
    produce("compacted", [(key, value, [], None) for key, value in superseded()])


def compaction():
    compacted(lambda: [(r.offset, r.key, r.value) for r in everything("compacted", "read_uncommitted")],
              lambda: produce("compacted", [(b"roll", b"", [], None)]))


compaction_begins()
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
step("idempotent-over-broker-restart", idempotent)
step("transactions-commit-and-abort", lambda: transactions.commit_and_abort(Driver))
step("transactions-fence-the-producer-before", lambda: transactions.fence(Driver))
step("consume-transform-produce-exactly-once", lambda: transactions.exactly_once(Driver, "once", lambda: None))
step("exactly-once-over-broker-restart", lambda: transactions.exactly_once(Driver, "again", restart_broker))
step("records-survive-broker-restart", codecs_again)
step("admin", admin_round)
step("admin-configs", admin_configs)
step("admin-delete-records", admin_delete_records)
step("admin-groups", admin_groups)
step("compaction-keeps-the-newest", compaction)
finish()
