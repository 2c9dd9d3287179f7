// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's last tasks: written by the worker, read by anybody at any time.
//!
//! Span `n` stands at `n` modulo the number of places, a power of two. The worker writes its words, and then, releasing
//! them, how many spans it has written. A reader copies what lies between two looks
//! at that number: what the worker has begun to write over in between, which is at
//! most the one after the second look, it throws away. Nobody waits, and words that
//! are torn are never looked at, as each word is an atomic of its own.

use crate::sync::{AtomicU64, Ordering, fence};

/// Words of a span: task, groups, start, end.
const WORDS: usize = 4;
/// The most spans that a worker keeps: 32 GiB of them.
const SPANS_MAX: usize = (1 << 30) - 1;

/// What was written of one task.
pub(crate) type Words = [u64; WORDS];

/// The last spans of a worker.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct Ring {
    words: Box<[AtomicU64]>,
    /// Spans that are kept; there is a place more for the one that is being written.
    kept: u64,
    /// Spans ever written.
    written: AtomicU64,
}

/// What a reader got.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Read {
    /// The oldest first.
    pub spans: Vec<Words>,
    /// Spans that had been written over.
    pub lost: u64,
}

impl Ring {
    /// For so many spans, as far as they can be numbered.
    pub fn new(spans: usize) -> Self {
        let spans = spans.min(SPANS_MAX);
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        Self {
            words: words
                .take((spans + 1).next_power_of_two() * WORDS)
                .collect(),
            kept: spans as u64,
            written: AtomicU64::new(0),
        }
    }

    fn at(&self, span: u64) -> &[AtomicU64] {
        let first = (span as usize).wrapping_mul(WORDS) & (self.words.len() - 1);
        &self.words[first..first + WORDS]
    }

    /// Writes a span; by the ring's worker alone.
    pub fn write(&self, span: Words) {
        let written = self.written.load(Ordering::Relaxed);
        // Whoever sees a word of this span sees the number before it, too.
        fence(Ordering::Release);
        for (word, value) in self.at(written).iter().zip(span) {
            word.store(value, Ordering::Relaxed);
        }
        self.written.store(written + 1, Ordering::Release);
    }

    /// Spans ever written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// What is there of the spans from number `from` on.
    pub fn read(&self, from: u64) -> Read {
        let until = self.written();
        let from = from.min(until);
        let first = from.max(until.saturating_sub(self.kept));
        let mut copies: Vec<Words> = (first..until)
            .map(|span| {
                let words = self.at(span);
                std::array::from_fn(|word| words[word].load(Ordering::Relaxed))
            })
            .collect();
        fence(Ordering::Acquire);
        // The one after those written may be half there, over the oldest.
        let begun = self.written.load(Ordering::Relaxed) + 1;
        let places = (self.words.len() / WORDS) as u64;
        let whole = first.max(begun.saturating_sub(places)).min(until);
        copies.drain(..(whole - first) as usize);
        Read {
            spans: copies,
            lost: whole.saturating_sub(from),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn span(number: u64) -> Words {
        [number; WORDS]
    }

    #[test]
    fn the_last_are_kept() {
        let ring = Ring::new(3);
        (0..3).for_each(|number| ring.write(span(number)));
        let read = ring.read(0);
        assert_eq!((read.spans, read.lost), ((0..3).map(span).collect(), 0));
        (3..10).for_each(|number| ring.write(span(number)));
        let read = ring.read(3);
        assert_eq!((read.spans, read.lost), ((7..10).map(span).collect(), 4));
        assert_eq!(ring.read(10), Read::default());
    }
}
