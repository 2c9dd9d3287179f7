// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's last tasks: written by the worker, read by anybody at any time.
//!
//! Span `n` stands at `n % SPANS`. The worker writes its words, and then, releasing
//! them, how many spans it has written. A reader copies what lies between two looks
//! at that number: what the worker has begun to write over in between, which is at
//! most the one after the second look, it throws away. Nobody waits, and words that
//! are torn are never looked at, as each word is an atomic of its own.

use crate::sync::{AtomicU64, Ordering, fence};

/// Words of a span: task, groups, start, end.
const WORDS: usize = 4;

/// What was written of one task.
pub(crate) type Words = [u64; WORDS];

/// The last spans of a worker.
#[derive(Debug)]
pub(crate) struct Ring {
    words: Box<[AtomicU64]>,
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
    /// For so many spans, one at least.
    pub fn new(spans: usize) -> Self {
        let words = std::iter::repeat_with(|| AtomicU64::new(0));
        Self {
            words: words.take(spans.max(1) * WORDS).collect(),
            written: AtomicU64::new(0),
        }
    }

    fn spans(&self) -> u64 {
        (self.words.len() / WORDS) as u64
    }

    fn at(&self, span: u64) -> &[AtomicU64] {
        let first = (span % self.spans()) as usize * WORDS;
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

    /// What is there of the spans from number `from` on, and the number of the next.
    pub fn read(&self, from: u64) -> (Read, u64) {
        let until = self.written();
        let from = from.min(until);
        let first = from.max(until.saturating_sub(self.spans()));
        let mut copies: Vec<Words> = (first..until)
            .map(|span| {
                let words = self.at(span);
                std::array::from_fn(|word| words[word].load(Ordering::Relaxed))
            })
            .collect();
        fence(Ordering::Acquire);
        // The one after those written may be half there, over the oldest.
        let begun = self.written.load(Ordering::Relaxed) + 1;
        let whole = first.max(begun.saturating_sub(self.spans())).min(until);
        copies.drain(..(whole - first) as usize);
        let read = Read {
            spans: copies,
            lost: whole.saturating_sub(from),
        };
        (read, until)
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
        let ring = Ring::new(4);
        (0..3).for_each(|number| ring.write(span(number)));
        let (read, next) = ring.read(0);
        assert_eq!(
            (read.spans, read.lost, next),
            ((0..3).map(span).collect(), 0, 3)
        );
        (3..10).for_each(|number| ring.write(span(number)));
        // One place is the worker's to write in.
        let (read, next) = ring.read(3);
        assert_eq!(
            (read.spans, read.lost, next),
            ((7..10).map(span).collect(), 4, 10)
        );
        assert_eq!(ring.read(10), (Read::default(), 10));
    }
}
