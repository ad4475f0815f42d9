"""librdkafka in the order proof. Usage: order.py produce|consume NAME=VALUE...; src/order/report.rs says what the lines mean."""

import json
import os
import random
import struct
import sys
import threading
import time

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

HEAD = struct.Struct(">IIII")
OPTIONS = dict(part.split("=", 1) for part in sys.argv[2:])
TOPIC = OPTIONS["topic"]
BASE = {"bootstrap.servers": OPTIONS["bootstrap"], "socket.timeout.ms": 60000, "statistics.interval.ms": 500}
SAY_EVERY_S = 0.2
COMMIT_EVERY_S = 1.0
FAULTS_SAID_MAX = 20
PICKS = 1 << 16


class Orders:
    """What the driver wrote to stdin so far."""

    def __init__(self):
        self.limit = 0
        self.ends = None
        self.stop = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in sys.stdin:
            word, _, rest = line.strip().partition(" ")
            if word == "limit":
                self.limit = int(rest)
            elif word == "ends":
                self.ends = {int(p): int(o) for p, o in (part.split(":") for part in rest.split())}
            elif word == "stop":
                self.stop = True
        self.stop = True  # the driver is gone


faults = 0


def say(*words):
    print(*words, flush=True)


def fault(*words):
    global faults
    faults += 1
    if faults <= FAULTS_SAID_MAX:
        say("fault", *words)
    elif faults == FAULTS_SAID_MAX + 1:
        say("fault and more of them")


def produce():
    orders = Orders()
    number, records, keys = (int(OPTIONS[name]) for name in ("producer", "records", "keys"))
    names = [b"key-%d" % key for key in range(keys)]
    acked, failed, retries = dict.fromkeys(names, 0), 0, 0
    partitions = {}

    def done(error, message):
        nonlocal failed
        if error is not None:
            failed += 1
            fault("failed send:", error)
            return
        acked[message.key()] += 1
        offset, told = message.offset(), partitions.get(message.partition())
        if told is None:
            partitions[message.partition()] = [1, offset, offset, offset]
            return
        if offset <= told[2]:
            fault(f"partition {message.partition()}: offset {offset} acknowledged after {told[2]}")
        told[0] += 1
        told[2] = offset
        told[3] += offset

    def statistics(text):
        nonlocal retries
        retries = sum(broker["txretries"] for broker in json.loads(text)["brokers"].values())

    idempotent = OPTIONS["idempotent"] == "true"
    producer = Producer({
        **BASE, "acks": "all", "enable.idempotence": idempotent, "max.in.flight.requests.per.connection": 5,
        "compression.type": OPTIONS["compression"], "partitioner": "murmur2_random", "linger.ms": 5,
        "queue.buffering.max.messages": 200000, "request.timeout.ms": 60000, "delivery.timeout.ms": 180000,
        # A plain producer that tries again may reorder by itself: an append that is refused must be seen to fail.
        **({} if idempotent else {"retries": 0}), "stats_cb": statistics})
    random.seed(int(OPTIONS["seed"]))
    picks = [random.randrange(keys) for _ in range(PICKS)]
    counters = [0] * keys
    padding = b"." * max(0, int(OPTIONS["value-bytes"]) - HEAD.size)
    send, poll, pack = producer.produce, producer.poll, HEAD.pack
    total, said = 0, time.monotonic()
    while total < records and not orders.stop:
        until = min(orders.limit, records, total + 500)
        if until == total:
            poll(0.02)
        while total < until:
            key = picks[total % PICKS]
            try:
                send(TOPIC, pack(number, key, counters[key], total) + padding, names[key], on_delivery=done)
            except BufferError:
                poll(0.05)
                continue
            counters[key] += 1
            total += 1
        poll(0)
        if time.monotonic() - said > SAY_EVERY_S:
            said = time.monotonic()
            say("acked", sum(told[0] for told in partitions.values()))
    left = producer.flush(200)
    if left:
        fault(left, "records not answered")
    say("acked", sum(told[0] for told in partitions.values()))
    for partition, told in partitions.items():
        say("offsets", partition, *told)
    for key in range(keys):
        if counters[key]:
            say("key", key, counters[key], acked[names[key]])
    say("failed", failed)
    say("retries", retries)
    say("done")


class Stretch:
    """What was read of a partition from one assignment to the next."""

    def __init__(self, first):
        self.first = self.next = first
        self.firsts, self.nexts, self.totals = {}, {}, {}


def consume():
    orders = Orders()
    group, rate = OPTIONS.get("group"), int(OPTIONS.get("rate", "0"))
    stretches, assigned = {}, set()

    def closed(partitions):
        for partition in partitions:
            stretch = stretches.pop(partition, None)
            if stretch is not None:
                keys = (f"{producer}:{key}:{first}:{stretch.nexts[producer, key]}"
                        for (producer, key), first in stretch.firsts.items())
                say("stretch", partition, stretch.first, stretch.next, *keys)

    def commit(strict):
        positions = [TopicPartition(TOPIC, p, s.next) for p, s in stretches.items() if p in assigned]
        if not positions:
            return
        try:
            for result in consumer.commit(offsets=positions, asynchronous=False):
                if result.error is not None:
                    raise KafkaException(result.error)
        except KafkaException as error:
            if strict:
                fault("commit:", error)

    def begun(starts):
        # A group that has committed nothing yet begins at 0.
        stretches.update((p.partition, Stretch(max(0, p.offset))) for p in starts)
        assigned.update(p.partition for p in starts)
        if group:
            say("assigned", *sorted(assigned))

    def on_assign(_, partitions):
        begun(consumer.committed(partitions, timeout=60) if partitions else [])

    def on_revoke(_, partitions):
        commit(True)
        numbers = sorted(p.partition for p in partitions)
        assigned.difference_update(numbers)
        say("revoked", *numbers)
        closed(numbers)

    def on_lost(_, partitions):
        fault("assignment lost")
        on_revoke(_, partitions)

    consumer = Consumer({
        **BASE, "group.id": group or "none", "enable.auto.commit": False, "enable.partition.eof": False,
        "auto.offset.reset": "earliest" if group else "error", "partition.assignment.strategy": "range",
        "session.timeout.ms": 45000, "heartbeat.interval.ms": 500, "fetch.wait.max.ms": 100, "queued.max.messages.kbytes": 16384,
        "error_cb": lambda error: say("note", error)})
    if group:
        consumer.subscribe([TOPIC], on_assign=on_assign, on_revoke=on_revoke, on_lost=on_lost)
    else:
        starts = [TopicPartition(TOPIC, int(p), int(o)) for p, o in
                  (part.split(":") for part in OPTIONS["from"].split(","))]
        consumer.assign(starts)
        begun(starts)

    unpack = HEAD.unpack_from
    began = said = committed = time.monotonic()
    read, reached = 0, False
    while not orders.stop:
        if rate and orders.ends is None and read > rate * (time.monotonic() - began):
            time.sleep(0.02)
            continue
        for message in consumer.consume(2000, 0.1):
            if message.error():
                fault("read:", message.error())
                continue
            partition, offset = message.partition(), message.offset()
            stretch = stretches.get(partition)
            if stretch is None:
                fault(f"partition {partition}: offset {offset} without an assignment")
                continue
            if offset != stretch.next:
                fault(f"partition {partition}: offset {offset} where {stretch.next} was due")
            stretch.next = offset + 1
            producer, key, counter, total = unpack(message.value())
            due = stretch.nexts.get((producer, key))
            if due is None:
                stretch.firsts[producer, key] = counter
            elif counter != due:
                fault(f"partition {partition} offset {offset}: record {counter} of key {key} of producer {producer} "
                      f"where {due} was due")
            stretch.nexts[producer, key] = counter + 1
            if total <= stretch.totals.get(producer, -1):
                fault(f"partition {partition} offset {offset}: record {total} of producer {producer} after "
                      f"{stretch.totals[producer]}")
            stretch.totals[producer] = total
            read += 1
        now = time.monotonic()
        if group and now - committed > COMMIT_EVERY_S:
            committed = now
            commit(False)
        if now - said > SAY_EVERY_S:
            said = now
            say("read", read)
        ends = orders.ends
        if not reached and ends is not None and assigned and all(
                stretches[p].next >= ends.get(p, 0) for p in assigned):
            reached = True
            say("reached")
    if group:
        commit(True)
    numbers = list(stretches)
    closed(numbers)
    assigned.clear()
    consumer.close()
    say("read", read)
    say("done")


{"produce": produce, "consume": consume}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)
