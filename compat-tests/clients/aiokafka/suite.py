"""aiokafka against a broker. Usage: suite.py HOST:PORT"""

import asyncio
import sys
import time
import uuid

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, ProducerFenced, for_code

import suite_common
from suite_common import CODECS, COMPACTED, RECORDS, big_value, compacted, finish, restart_broker, same, superseded

BOOTSTRAP = sys.argv[-1]
RUN = uuid.uuid4().hex[:8]
PATIENCE_S = 60
LOOP = asyncio.new_event_loop()


def step(name, work):
    suite_common.step(name, lambda: LOOP.run_until_complete(asyncio.wait_for(work(), 2 * PATIENCE_S)))


async def restart():
    await asyncio.to_thread(restart_broker)


async def nothing():
    pass


def topic(name):
    return f"aio-{RUN}-{name}"


def at(name, partition=0):
    return TopicPartition(topic(name), partition)


async def admin(work):
    client = AIOKafkaAdminClient(bootstrap_servers=BOOTSTRAP)
    await client.start()
    try:
        return await work(client)
    finally:
        await client.close()


async def create(name, partitions, configs=None):
    new = NewTopic(topic(name), partitions, 1, topic_configs=configs)
    answer = await admin(lambda client: client.create_topics([new]))
    for _, code, *message in answer.topic_errors:
        if code:
            raise for_code(code)(message)
    end = time.time() + PATIENCE_S
    while len((await admin(lambda client: client.describe_topics([topic(name)])))[0]["partitions"]) != partitions:
        same(time.time() < end, True, "the broker knows the topic within the time limit")
        await asyncio.sleep(0.05)


def producer(**config):
    return AIOKafkaProducer(bootstrap_servers=BOOTSTRAP, **config)


async def produce(name, rows, partition=0, **config):
    """Produces the rows; gives back the offsets as acknowledged."""
    async with producer(acks="all", **config) as out:
        sent = [await out.send(topic(name), key=key, value=value, headers=headers, timestamp_ms=timestamp, partition=partition)
                for key, value, headers, timestamp in rows]
        return [(await future).offset for future in sent]


def consumer(*topics, group=None, **config):
    return AIOKafkaConsumer(*topics, bootstrap_servers=BOOTSTRAP, group_id=group, auto_offset_reset="earliest",
                            enable_auto_commit=False, heartbeat_interval_ms=500, **config)


async def take(reader, count):
    got, end = [], time.time() + PATIENCE_S
    while len(got) < count and time.time() < end:
        for batch in (await reader.getmany(timeout_ms=500, max_records=count - len(got))).values():
            got.extend(batch)
    same(len(got), count, "records within the time limit")
    return got


async def read(name, count, offset, partition=0, **config):
    async with consumer(**config) as reader:
        reader.assign([at(name, partition)])
        reader.seek(at(name, partition), offset)
        return await take(reader, count)


async def everything(name, isolation):
    """All records of a topic's first partition that a reader of that isolation gets up to its end."""
    async with consumer(isolation_level=isolation) as reader:
        reader.assign([at(name)])
        await reader.seek_to_beginning(at(name))
        got, limit = [], time.time() + PATIENCE_S
        end = (await reader.end_offsets([at(name)]))[at(name)]
        while await reader.position(at(name)) < end:
            same(time.time() < limit, True, "the end within the time limit")
            for batch in (await reader.getmany(timeout_ms=200)).values():
                got.extend(batch)
        return got


def row(record):
    return (record.key, record.value, [tuple(h) for h in record.headers], record.timestamp)


async def codec(name):
    rows = suite_common.records()
    acked = await produce(name, rows, compression_type=None if name == "none" else name, linger_ms=20)
    same(acked, list(range(RECORDS)), "acknowledged offsets")
    got = await read(name, RECORDS, 0)
    same([r.offset for r in got], list(range(RECORDS)), "offsets")
    for record, wanted in zip(got, rows):
        same(row(record), wanted, f"record {record.offset}")


async def codecs_again():
    for name in CODECS:
        for record, wanted in zip(await read(name, RECORDS, 0), suite_common.records()):
            same(row(record)[:3], wanted[:3], f"record {record.offset} of {name}")


async def from_offset():
    got = await read("gzip", RECORDS - 123, 123)
    same([r.offset for r in got], list(range(123, RECORDS)), "offsets")
    same(got[0].value, suite_common.records()[123][1], "first value")


async def from_time():
    stamps = [r.timestamp for r in await read("zstd", RECORDS, 0)]
    async with consumer() as reader:
        for stamp, wanted in ((stamps[200], 200), (stamps[200] - 1, 200), (stamps[200] + 1, 201), (0, 0)):
            found = await reader.offsets_for_times({at("zstd"): stamp})
            same(found[at("zstd")].offset, wanted, f"offset at {stamp}")
        same((await reader.offsets_for_times({at("zstd"): stamps[-1] + 10_000}))[at("zstd")], None, "offset after the last record")
        same(await reader.beginning_offsets([at("zstd")]), {at("zstd"): 0}, "beginning")
        same(await reader.end_offsets([at("zstd")]), {at("zstd"): RECORDS}, "end")


async def big():
    await create("big", 1)
    value = big_value()
    await produce("big", [(b"big", value, [], int(time.time() * 1000))], max_request_size=1_040_000)
    same((await read("big", 1, 0))[0].value == value, True, "every byte of a large value")


async def fill(name, partitions, count):
    await create(name, partitions)
    for partition in range(partitions):
        await produce(name, [(b"k", b"%d-%d" % (partition, i), [], None) for i in range(count)], partition=partition)
    return {b"%d-%d" % (p, i) for p in range(partitions) for i in range(count)}


async def group_rest(name, between):
    all_values = await fill(name, 3, 100)
    async with consumer(topic(name), group=f"g-{name}-{RUN}") as first:
        got = [r.value for r in await take(first, 150)]
        await first.commit()
    await between()
    async with consumer(topic(name), group=f"g-{name}-{RUN}") as second:
        got += [r.value for r in await take(second, 150)]
        same(await second.getmany(timeout_ms=1000), {}, "records more than the rest")
        await second.commit()
    same(len(got), len(set(got)), "records read, none twice")
    same(set(got), all_values, "both halves together")


async def group_shared():
    all_values = await fill("shared", 4, 100)
    members = [consumer(topic("shared"), group=f"g-shared-{RUN}") for _ in range(2)]
    await asyncio.gather(*(member.start() for member in members))
    end = time.time() + PATIENCE_S
    while sorted(len(member.assignment()) for member in members) != [2, 2]:
        same(time.time() < end, True, "both members share within the time limit")
        await asyncio.gather(*(member.getmany(timeout_ms=100) for member in members))
    for member in members:
        await member.seek_to_beginning()
    parts = await asyncio.gather(*(take(member, 200) for member in members))
    same({r.value for part in parts for r in part}, all_values, "what both read together")
    same(set(members[0].assignment()) & set(members[1].assignment()), set(), "partitions given to both")
    for member in members:
        await member.stop()


async def idempotent():
    """Records that are on their way while the broker restarts are there once, in their order."""
    await create("idempotent", 1)
    async with producer(enable_idempotence=True, linger_ms=5, request_timeout_ms=120_000) as out:
        sent, restarted = [], None
        for i in range(300):
            sent.append(await out.send(topic("idempotent"), value=b"%d" % i, partition=0))
            if i == 100:
                restarted = asyncio.create_task(restart())
            await asyncio.sleep(0.01)
        offsets = [(await future).offset for future in sent]
        await restarted
    same(offsets, list(range(300)), "acknowledged offsets")
    same([r.value for r in await read("idempotent", 300, 0)], [b"%d" % i for i in range(300)], "values")
    async with consumer() as reader:
        same(await reader.end_offsets([at("idempotent")]), {at("idempotent"): 300}, "end")


async def transactions():
    await create("txn", 1)
    sent, committed = [], []
    async with producer(transactional_id=topic("txn")) as out:
        for turn in range(6):
            await out.begin_transaction()
            values = [b"%d-%d" % (turn, i) for i in range(10)]
            for value in values:
                await out.send_and_wait(topic("txn"), value, partition=0)
            sent += values
            if turn % 2 == 0:
                await out.commit_transaction()
                committed += values
            else:
                await out.abort_transaction()
    # Markers follow the answer: whoever begins a transaction waits for them.
    async with producer(transactional_id=topic("txn")):
        same([r.value for r in await everything("txn", "read_committed")], committed, "what is committed")
        same([r.value for r in await everything("txn", "read_uncommitted")], sent, "everything")


async def fenced():
    await create("fenced", 1)
    first = producer(transactional_id=topic("fenced"))
    await first.start()
    await first.begin_transaction()
    await first.send_and_wait(topic("fenced"), b"first", partition=0)
    async with producer(transactional_id=topic("fenced")) as second:
        async with second.transaction():
            await second.send_and_wait(topic("fenced"), b"second", partition=0)
    try:
        await first.commit_transaction()
    except ProducerFenced:
        pass
    else:
        raise AssertionError("the first producer was not fenced")
    finally:
        await first.stop()
    async with producer(transactional_id=topic("fenced")):
        same([r.value for r in await everything("fenced", "read_committed")], [b"second"], "what is committed")


async def exactly_once(name, between):
    """Copies a topic within transactions; some are aborted, and one is left open by a producer that is replaced."""
    all_values = await fill(name + "-in", 3, 100)
    await create(name + "-out", 1)
    group, copied = f"g-{name}-{RUN}", 0
    for instance in range(20):
        out = producer(transactional_id=topic("copy-" + name), transaction_timeout_ms=30_000)
        await out.start()
        async with consumer(topic(name + "-in"), group=group, isolation_level="read_committed", max_poll_records=40) as reader:
            for turn in range(100):
                if copied == len(all_values):
                    break
                await out.begin_transaction()
                batch = await some(reader)
                for record in batch:
                    await out.send(topic(name + "-out"), record.value, partition=0)
                if instance == 0 and turn == 1:
                    # It is replaced with its transaction open.
                    await out.flush()
                    await between()
                    break
                offsets = {partition: await reader.position(partition) for partition in reader.assignment()}
                await out.send_offsets_to_transaction(offsets, group)
                if turn % 4 == 2:
                    await out.abort_transaction()
                    break
                await out.commit_transaction()
                copied += len(batch)
        if instance > 0:  # stopping aborts what is open; the first one is fenced instead
            await out.stop()
        else:
            abandoned = out
        if copied == len(all_values):
            break
    async with producer(transactional_id=topic("copy-" + name)):
        got = [r.value for r in await everything(name + "-out", "read_committed")]
    same(len(got), len(all_values), "records copied, none twice")
    same(set(got), all_values, "what was copied")
    try:
        await abandoned.stop()
    except KafkaError:
        pass  # fenced


async def some(reader):
    end = time.time() + PATIENCE_S
    while time.time() < end:
        got = [record for batch in (await reader.getmany(timeout_ms=200)).values() for record in batch]
        if got:
            return got
    raise AssertionError("no record within the time limit")


async def admin_round():
    await create("admin", 2)
    same(topic("admin") in await admin(lambda client: client.list_topics()), True, "the topic in the list")
    await admin(lambda client: client.create_partitions({topic("admin"): NewPartitions(5)}))
    end = time.time() + PATIENCE_S
    while len((await admin(lambda client: client.describe_topics([topic("admin")])))[0]["partitions"]) != 5:
        same(time.time() < end, True, "five partitions within the time limit")
        await asyncio.sleep(0.1)
    same(len((await admin(lambda client: client.describe_cluster()))["brokers"]), 1, "brokers")
    await admin(lambda client: client.delete_topics([topic("admin")]))
    while topic("admin") in await admin(lambda client: client.list_topics()):
        same(time.time() < end, True, "the topic is gone within the time limit")
        await asyncio.sleep(0.1)


async def admin_configs():
    await create("configs", 1, {"retention.ms": "3600000"})
    resource = lambda configs: ConfigResource(ConfigResourceType.TOPIC, topic("configs"), configs)

    async def value(name):
        answer = await admin(lambda client: client.describe_configs([resource({name: None})]))
        return {entry[0]: entry[1] for entry in answer[0].resources[0][4]}[name]

    same(await value("retention.ms"), "3600000", "a config of the creation")
    await admin(lambda client: client.alter_configs([resource({"retention.ms": "7200000", "max.message.bytes": "2000000"})]))
    same(await value("retention.ms"), "7200000", "an altered config")
    same(await value("max.message.bytes"), "2000000", "another one")
    same(await value("cleanup.policy"), "delete", "a default")


async def admin_delete_records():
    await create("delete", 1)
    await produce("delete", suite_common.records(10))
    deleted = await admin(lambda client: client.delete_records({at("delete"): RecordsToDelete(before_offset=4)}))
    same(deleted, {at("delete"): 4}, "low watermark")
    same((await read("delete", 6, 4))[0].offset, 4, "first offset left")
    async with consumer() as reader:
        same(await reader.beginning_offsets([at("delete")]), {at("delete"): 4}, "beginning")


async def admin_groups():
    group = f"g-admin-{RUN}"
    await fill("groups", 1, 10)

    async def described():
        answer = (await admin(lambda client: client.describe_consumer_groups([group])))[0].groups[0]
        return answer[2], len(answer[5])  # state and members

    async with consumer(topic("groups"), group=group) as reader:
        await take(reader, 10)
        await reader.commit()
        same(await described(), ("Stable", 1), "state and members")
    same(await described(), ("Empty", 0), "state and members afterwards")
    same(group in [g[0] for g in await admin(lambda client: client.list_consumer_groups())], True, "the group in the list")
    offsets = await admin(lambda client: client.list_consumer_group_offsets(group))
    same(offsets[at("groups")].offset, 10, "committed offset")


async def compaction_begins():
    await create("compacted", 1, COMPACTED)
    await produce("compacted", [(key, value, [], None) for key, value in superseded()])


def compaction():
    run = LOOP.run_until_complete
    compacted(lambda: [(r.offset, r.key, r.value) for r in run(everything("compacted", "read_uncommitted"))],
              lambda: run(produce("compacted", [(b"roll", b"", [], None)])))


LOOP.run_until_complete(compaction_begins())
for codec_name in CODECS:
    LOOP.run_until_complete(create(codec_name, 1))
    step(f"produce-consume-{codec_name}", lambda: codec(codec_name))
step("consume-from-offset", from_offset)
step("consume-from-time", from_time)
step("large-value", big)
step("group-rest-after-consumer-restart", lambda: group_rest("rest", nothing))
step("group-rest-after-broker-restart", lambda: group_rest("broker", restart))
step("group-of-two-shares", group_shared)
step("idempotent-over-broker-restart", idempotent)
step("transactions-commit-and-abort", transactions)
step("transactions-fence-the-producer-before", fenced)
step("consume-transform-produce-exactly-once", lambda: exactly_once("once", nothing))
step("exactly-once-over-broker-restart", lambda: exactly_once("again", restart))
step("records-survive-broker-restart", codecs_again)
step("admin", admin_round)
step("admin-configs", admin_configs)
step("admin-delete-records", admin_delete_records)
step("admin-groups", admin_groups)
suite_common.step("compaction-keeps-the-newest", compaction)
finish()
