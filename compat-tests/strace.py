"""Reads a trace of strace.sh: strace.py TRACE MARK COUNT

Follows the system calls in the order in which they returned. A produce request is a read from a TCP socket whose bytes
hold MARK and a number; its answer is the next write to the same socket. Between the two that very record must have
been written to a file opened for durable writes, or written to a file that was then synced.
"""

import re
import sys

CALL = re.compile(r"^(\d+) +(\S+) (?:<\.\.\. )?(\w+)(?: resumed>)?(.*)$")
DURABLE_OPEN = re.compile(r"O_D?SYNC")


def events(path):
    """(time, thread, call, text) of each call, when it returned; an answer counts when it begins."""
    unfinished = {}
    with open(path, encoding="latin-1") as trace:
        for line in trace:
            found = CALL.match(line.rstrip("\n"))
            if not found:
                continue
            thread, time, call, rest = found.groups()
            if "<unfinished ...>" in rest:
                unfinished[thread] = rest.replace("<unfinished ...>", "")
                yield time, thread, call, unfinished[thread], "begins"
            elif " resumed>" in line:
                yield time, thread, call, unfinished.pop(thread, "") + rest, "returns"
            else:
                yield time, thread, call, rest, "whole"


def failed(text):
    return re.search(r"= -1 E", text)


def main(path, mark, count):
    durable_files, waiting, shown, syncs = set(), {}, 0, 0
    for time, _, call, text, phase in events(path):
        socket = re.match(r"\((\d+)<(?:TCP|socket)", text)
        file = re.match(r"\((\d+)<(/[^>]*)>", text)
        name = file.group(2) if file else None
        done = phase != "begins" and not failed(text)
        if call == "openat" and done and DURABLE_OPEN.search(text):
            opened = re.search(r"= (\d+)<(/[^>]*)>", text)
            if opened:
                durable_files.add(opened.group(2))
        elif call.startswith(("read", "recv")) and socket and done and mark in text:
            record = re.search(re.escape(mark) + r"\d+", text).group(0)
            waiting[socket.group(1)] = {"asked": time, "record": record, "file": None, "durable": None}
        elif call.startswith(("write", "pwrite")) and name and done:
            durable = name in durable_files
            syncs += durable
            for request in waiting.values():
                if request["record"] in text:
                    request["file"] = name
                    if durable:
                        request["durable"] = (time, call, name)
        elif call in ("fdatasync", "fsync") and done:
            syncs += 1
            for request in waiting.values():
                if request["file"] == name:
                    request["durable"] = (time, call, name)
        elif call.startswith(("write", "send")) and socket and phase != "returns":
            request = waiting.pop(socket.group(1), None)
            if request is None:
                continue
            if request["durable"] is None:
                sys.exit(f"{request['record']} came at {request['asked']} and was answered at {time}, not yet durable")
            at, how, name = request["durable"]
            print(f"{request['record']} came {request['asked']}  durable {at} ({how} {name.rsplit('/', 1)[-1]})  answered {time}")
            shown += 1
    if shown < count:
        sys.exit(f"saw {shown} of {count} produces in the trace")
    print(f"{shown} produces, each answered after its durable write; {syncs} durable writes in all")


main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
