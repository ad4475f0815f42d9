"""The lines of transactions for clients that block. A suite hands in its driver with

    create(topic, partitions), fill(topic, partitions, count) -> values
    producer(id) -> begin(), send(topic, value), flush(), offsets(reader), commit(), abort(), abandon()
    reader(group, topic) -> some() -> values (at least one), close()
    everything(topic, isolation) -> values of the first partition up to its end
    fenced: what a call of a producer that was replaced raises
"""

import contextlib

from suite_common import same


def commit_and_abort(driver):
    driver.create("txn", 1)
    out, sent, committed = driver.producer("txn"), [], []
    for turn in range(6):
        out.begin()
        values = [b"%d-%d" % (turn, i) for i in range(10)]
        for value in values:
            out.send("txn", value)
        out.flush()
        sent += values
        if turn % 2 == 0:
            out.commit()
            committed += values
        else:
            out.abort()
    # Markers follow the answer: whoever begins a transaction waits for them.
    driver.producer("txn").abandon()
    same(driver.everything("txn", "read_committed"), committed, "what is committed")
    same(driver.everything("txn", "read_uncommitted"), sent, "everything")
    out.abandon()


def fence(driver):
    driver.create("fenced", 1)
    first = driver.producer("fenced")
    first.begin()
    first.send("fenced", b"first")
    first.flush()
    second = driver.producer("fenced")
    second.begin()
    second.send("fenced", b"second")
    second.commit()
    try:
        first.commit()
    except driver.fenced:
        pass
    else:
        raise AssertionError("the first producer was not fenced")
    driver.producer("fenced").abandon()
    same(driver.everything("fenced", "read_committed"), [b"second"], "what is committed")
    for producer in (first, second):
        with contextlib.suppress(driver.fenced):
            producer.abandon()


def exactly_once(driver, name, between):
    """Copies a topic within transactions; some are aborted, and one is left open by a producer that is replaced."""
    everything = driver.fill(name + "-in", 3, 100)
    driver.create(name + "-out", 1)
    copied, dead = 0, []
    for instance in range(20):
        out, reader = driver.producer("copy-" + name), driver.reader(f"g-{name}", name + "-in")
        turn = 0
        while copied < len(everything):
            out.begin()
            batch = reader.some()
            for value in batch:
                out.send(name + "-out", value)
            out.flush()
            if instance == 0 and turn == 1:
                # It dies with its transaction open.
                between()
                break
            out.offsets(reader)
            if turn % 4 == 2:
                out.abort()
                break
            out.commit()
            copied += len(batch)
            turn += 1
        reader.close()
        dead.append(out)
        if copied == len(everything):
            break
    driver.producer("copy-" + name).abandon()
    got = driver.everything(name + "-out", "read_committed")
    same(len(got), len(everything), "records copied, none twice")
    same(set(got), everything, "what was copied")
    for producer in dead:
        with contextlib.suppress(driver.fenced):
            producer.abandon()
