# SPDX-License-Identifier: MIT OR Apache-2.0
"""Tests of plain Python code, without BLAS and without threads. With USHER_EXAMPLE_QUICK, a test
computes a twentieth of its work."""

import collections
import json
import os
import random
import re

import pytest

DIVISOR = 20 if "USHER_EXAMPLE_QUICK" in os.environ else 1
WORDS = 60_000 // DIVISOR


@pytest.fixture(params=range(8))
def words(request):
    rng = random.Random(request.param)
    return ["".join(rng.choices("abcdefgh", k=rng.randint(1, 6))) for _ in range(WORDS)]


def test_counts_add_up(words):
    counts = collections.Counter(words)
    assert sum(counts.values()) == WORDS
    assert [count for _, count in counts.most_common()] == sorted(counts.values(), reverse=True)


def test_json_round_trip_keeps_the_words(words):
    rows = [{"word": word, "length": len(word), "at": at} for at, word in enumerate(words)]
    assert json.loads(json.dumps(rows, indent=1)) == rows


def test_pattern_finds_the_words_that_a_loop_finds(words):
    text = " ".join(words)
    found = re.findall(r"\b[a-c]+h\b", text)
    assert found == [word for word in words if word[-1] == "h" and word[:-1] and set(word[:-1]) <= set("abc")]
