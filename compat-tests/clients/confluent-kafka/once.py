"""librdkafka in the exactly-once proof. Usage: once.py copy|read NAME=VALUE...; src/once/mod.rs says what the lines mean.

It does not bootstrap anew when its only broker is down (KIP-899): librdkafka then makes its brokers anew, but the group coordinator that
send_offsets_to_transaction has kept is the old one, which never comes up, and the call's own time limit is not looked at
(confluentinc/librdkafka issues 5511 and 5456). Whatever broker is killed, the call never returns.
"""

import gc
import os
import random
import sys
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

OPTIONS = dict(part.split("=", 1) for part in sys.argv[2:])
BASE = {
    "bootstrap.servers": OPTIONS["bootstrap"], "socket.timeout.ms": 10000, "reconnect.backoff.max.ms": 500,
    "metadata.recovery.strategy": "none"}
DEBUG = {"debug": os.environ["RANGEWAY_COMPAT_DEBUG"]} if "RANGEWAY_COMPAT_DEBUG" in os.environ else {}
CALL_S = 20
# A call that takes longer never returns.
HUNG_S = 45
ABORTED = b"A"

stopped = threading.Event()


# What is called, and since when.
calling = (None, 0.0)


def listen():
    for line in sys.stdin:
        if line.strip() == "stop":
            stopped.set()
            break
    sys.stdin.read()
    os._exit(1)  # the driver is gone


def watch():
    """Ends the program when a call does not return, since nothing else can be done about it."""
    while True:
        time.sleep(1)
        what, since = calling
        if what and time.monotonic() - since > HUNG_S:
            say("fault", OPTIONS.get("id"), what, f"has not returned for {HUNG_S} s")
            os._exit(3)


def say(*words):
    print(*words, flush=True)


class Stale(Exception):
    """Producer and consumer are to be made anew: a newer producer, or a transaction that cannot go on."""


def call(what, work):
    """Does it, watched."""
    global calling
    calling = (what, time.monotonic())
    try:
        return work()
    finally:
        calling = (None, 0.0)


def attempt(what, work):
    """Until it is done; what can be tried again is tried again."""
    while True:
        try:
            return call(what, work)
        except KafkaException as problem:
            error = problem.args[0]
            if error.retriable() and not stopped.is_set():
                say("note", what, error.str(), "again")
                continue
            say("note", what, error.str())
            raise Stale from problem


def abort(producer):
    try:
        attempt("abort", lambda: producer.abort_transaction(CALL_S))
    except Stale:
        pass  # its successor aborts it


def live(rng, batch):
    """One life of producer and consumer, until something goes wrong or it is told to stop."""
    producer = Producer({**BASE, **DEBUG, "transactional.id": OPTIONS["id"], "transaction.timeout.ms": 10000, "linger.ms": 2})
    attempt("init", lambda: producer.init_transactions(CALL_S))
    consumer = Consumer({
        **BASE, **DEBUG, "group.id": OPTIONS["group"], "group.instance.id": OPTIONS["id"], "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed", "session.timeout.ms": 6000, "heartbeat.interval.ms": 500})
    consumer.subscribe([OPTIONS["in"]])
    try:
        while not stopped.is_set():
            messages = [m for m in consumer.consume(batch, 0.2) if not m.error()]
            if not messages:
                continue
            doomed = rng.random() < 0.1
            producer.begin_transaction()
            for message in messages:
                value = ABORTED + message.value() if doomed else message.value()
                while True:
                    try:
                        producer.produce(OPTIONS["out"], value, partition=message.partition())
                        break
                    except BufferError:
                        producer.poll(0.05)
            offsets = {}
            for message in messages:
                offsets[message.partition()] = message.offset() + 1
            positions = [TopicPartition(OPTIONS["in"], p, o) for p, o in offsets.items()]
            attempt("offsets", lambda: producer.send_offsets_to_transaction(
                positions, consumer.consumer_group_metadata(), CALL_S))
            if doomed:
                if producer.flush(CALL_S):
                    raise Stale
                abort(producer)
                raise Stale
            attempt("commit", lambda: producer.commit_transaction(CALL_S))
            say("copied", len(messages))
    except (Stale, KafkaException) as problem:
        if isinstance(problem, KafkaException):
            say("note", problem.args[0].str())
        abort(producer)
    finally:
        call("close", consumer.close)


def copy():
    rng = random.Random(int(OPTIONS["seed"]))
    while not stopped.is_set():
        try:
            live(rng, int(OPTIONS["batch"]))
        except Stale:
            stopped.wait(0.2)
        call("destroy", gc.collect)
    say("done")


def read():
    """Everything that is committed, from the start, until told to stop: then up to the end as it is."""
    records, partitions = int(OPTIONS["records"]), int(OPTIONS["partitions"])
    topic = OPTIONS["topic"]
    consumer = Consumer({
        **BASE, "group.id": "none", "enable.auto.commit": False, "isolation.level": "read_committed",
        "auto.offset.reset": "error", "fetch.wait.max.ms": 100})
    everything = Consumer({**BASE, "group.id": "none", "isolation.level": "read_uncommitted"})
    places = [TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)]
    consumer.assign(places)
    times = bytearray(records)
    last = {}
    seen, faults, said = 0, 0, time.monotonic()
    stable = None
    while True:
        if stopped.is_set() and stable is None:
            stable = {}
            for p in range(partitions):
                at = TopicPartition(topic, p)
                end, until = None, time.monotonic() + 60
                while time.monotonic() < until:
                    try:
                        stable[p] = consumer.get_watermark_offsets(at, timeout=10)[1]
                        end = everything.get_watermark_offsets(at, timeout=10)[1]
                    except KafkaException:
                        continue
                    if stable[p] == end:
                        break
                    time.sleep(0.1)
                if stable.get(p) != end:
                    say("fault", f"partition {p}: a transaction hangs at {stable.get(p)} below {end}")
        for message in consumer.consume(2000, 0.1):
            if message.error():
                say("note", message.error())
                continue
            p, offset, value = message.partition(), message.offset(), message.value()
            if offset <= last.get(p, -1):
                say("fault", f"partition {p}: offset {offset} after {last[p]}")
            last[p] = offset
            if value.startswith(ABORTED):
                faults += 1
                if faults < 10:
                    say("fault", f"partition {p} offset {offset}: an aborted record, {value.decode()}")
                continue
            number = int(value)
            times[number] = min(times[number] + 1, 255)
            if times[number] == 1:
                seen += 1
            else:
                faults += 1
                if faults < 10:
                    say("fault", f"partition {p} offset {offset}: record {number} comes again")
        if time.monotonic() - said > 0.2:
            said = time.monotonic()
            say("seen", seen)
        if stable is not None:
            at = {p.partition: p.offset for p in consumer.position(places)}
            if all(max(0, at.get(p, 0)) >= stable.get(p, 0) for p in range(partitions)):
                break
    say("seen", seen)
    say("ends", *(f"{p}:{stable[p]}" for p in sorted(stable)))
    say("done")


threading.Thread(target=listen, daemon=True).start()
threading.Thread(target=watch, daemon=True).start()
{"copy": copy, "read": read}[sys.argv[1]]()
sys.stdout.flush()
os._exit(0)
