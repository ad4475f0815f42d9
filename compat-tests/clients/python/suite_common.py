"""What the Python suites share: records that are a function of their number, and the lines of the report."""

import os
import sys
import threading
import time
import traceback

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
RECORDS = 400
FAILED = 0


def step(name, work):
    """Runs one line of the suite and reports it."""
    global FAILED
    began = time.time()
    try:
        work()
        print(f"ok {name} {time.time() - began:.1f}s", flush=True)
    except Exception as error:  # each line stands for itself
        FAILED += 1
        traceback.print_exc()
        print(f"FAIL {name}: {type(error).__name__} {error}"[:400].replace("\n", " "), flush=True)


def restart_broker():
    """Asks the driver to restart the broker and waits until it has."""
    print("RESTART", flush=True)
    line = sys.stdin.readline()
    same(line.strip(), "RESTARTED", "the driver's answer")


def same(got, wanted, what):
    if got != wanted:
        raise AssertionError(f"{what}: wanted {str(wanted)[:120]}, got {str(got)[:120]}")


def records(count=RECORDS, start_ms=None):
    """Key, value, headers and timestamp of each record: every byte value, empty and null ones among them."""
    base = start_ms if start_ms is not None else int(time.time() * 1000) - count * 1000
    made = []
    for i in range(count):
        key = None if i % 7 == 0 and i % 50 != 11 else b"key-%d" % i
        if i % 50 == 11:
            value = None
        elif i % 50 == 12:
            value = b""
        else:
            value = bytes((i * 31 + j * j) % 256 for j in range(i % 300)) + b"%d" % i
        headers = [("h", b"%d" % i), ("h", b"again"), ("null", None)] if i % 3 == 0 else []
        made.append((key, value, headers, base + i * 1000))
    return made


def big_value():
    return os.urandom(900_000)


def finish():
    sys.stdout.flush()
    os._exit(1 if FAILED else 0)


def together(*works):
    """Runs works side by side; the first error of any is raised."""
    errors = []

    def guard(work):
        try:
            work()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guard, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


# A topic that compacts as soon as may be.
COMPACTED = {"cleanup.policy": "compact", "segment.ms": "500", "min.cleanable.dirty.ratio": "0.01"}
KEYS = 10


def superseded():
    """Key and value of each record for a compacted topic: of each of ten keys thirty; the newest of one key is a tombstone."""
    rows = [(b"k%d" % (i % KEYS), b"value %d" % i) for i in range(30 * KEYS)]
    rows[-4] = (rows[-4][0], None)
    return rows


def compacted(read, append):
    """Waits until only the newest record of each key is left, where it was. Errors when that never comes.

    read() gives (offset, key, value) of all records there are; append() adds one with another key, so that segments close."""
    rows = superseded()
    newest = [(at, *rows[at]) for at in range(len(rows) - KEYS, len(rows))]
    end = time.time() + 60
    while True:
        append()
        left = [record for record in read() if record[1].startswith(b"k")]
        same(left[-KEYS:], newest, "the newest of each key")
        if len(left) == KEYS:
            return
        if time.time() > end:
            raise AssertionError(f"{len(left)} records are left of {len(rows)}")
        time.sleep(0.6)
