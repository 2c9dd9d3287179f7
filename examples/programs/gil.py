# SPDX-License-Identifier: MIT OR Apache-2.0
"""Threads that take turns, because one interpreter lock serves them all.

gil.py THREADS LIMIT: the number below LIMIT with the longest Collatz
sequence; each thread takes its share of the numbers.
"""

import sys
import threading


def longest(numbers, found):
    best = (0, 0)
    for number in numbers:
        steps, value = 0, number
        while value != 1:
            value = value // 2 if value % 2 == 0 else 3 * value + 1
            steps += 1
        best = max(best, (steps, number))
    found.append(best)


def main():
    threads, limit = int(sys.argv[1]), int(sys.argv[2])
    found = []
    shares = [range(1 + share, limit, threads) for share in range(threads)]
    team = [threading.Thread(target=longest, args=(share, found)) for share in shares]
    for thread in team:
        thread.start()
    for thread in team:
        thread.join()
    print("%d steps from %d" % max(found))


main()
