# SPDX-License-Identifier: MIT OR Apache-2.0
"""Sends requests to two inference servers: load.py COMMAND...

Starts COMMAND twice. The word SLOT in COMMAND is replaced by 0 and 1. Each of two clients sends its
requests one after another. The last line of the output has the requests per second and the 95th
percentile of the latency."""

import json
import os
import statistics
import subprocess
import sys
import threading
import time

REQUESTS = 20 if "USHER_EXAMPLE_QUICK" in os.environ else 500


def start(slot):
    words = [word.replace("SLOT", str(slot)) for word in sys.argv[1:]]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return server


def send(server, latencies_ms):
    for number in range(REQUESTS):
        begun = time.perf_counter()
        server.stdin.write("%d\n" % number)
        server.stdin.flush()
        if not server.stdout.readline():
            return
        latencies_ms.append(1e3 * (time.perf_counter() - begun))
    server.stdin.close()


def main():
    servers = [start(slot) for slot in range(2)]
    for server in servers:
        if server.stdout.readline() != "ready\n":
            sys.exit("load: a server did not start: %s" % " ".join(sys.argv[1:]))
    latencies_ms = [[], []]
    begun = time.perf_counter()
    clients = [threading.Thread(target=send, args=pair) for pair in zip(servers, latencies_ms)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    seconds = time.perf_counter() - begun
    if any(server.wait() for server in servers) or min(map(len, latencies_ms)) < REQUESTS:
        sys.exit("load: a server ended before its last request")
    p95_ms = statistics.quantiles(sum(latencies_ms, []), n=20)[-1]
    print(json.dumps({"requests_per_s": 2 * REQUESTS / seconds, "p95_ms": p95_ms}))


main()
