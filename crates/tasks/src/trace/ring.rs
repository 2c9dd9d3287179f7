// SPDX-License-Identifier: MIT OR Apache-2.0
//! A worker's last tasks: written by the worker, read by anybody at any time.
//!
//! Span `n` stands at `n` modulo the number of places, which the worker does not divide
//! by, as it remembers the place that comes next. It writes the span's words, and then,
//! releasing them, how many spans it has written. A reader copies what lies between two
//! looks at that number: what the worker has begun to write over in between, which is at
//! most the one after the second look, it throws away. Nobody waits, and words that are
//! torn are never looked at, as each word is an atomic of its own.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

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
    /// Spans ever written.
    written: AtomicU64,
    /// The place of the next one; the worker's alone.
    next: AtomicUsize,
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
    /// For so many spans; `None`: there is no memory for them.
    pub fn try_new(spans: usize) -> Option<Self> {
        if spans > SPANS_MAX {
            return None;
        }
        let count = (spans + 1) * WORDS;
        let mut words = Vec::new();
        words.try_reserve_exact(count).ok()?;
        words.resize_with(count, || AtomicU64::new(0));
        Some(Self {
            words: words.into_boxed_slice(),
            written: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        })
    }

    /// Spans that it keeps: there is a place more for the one that is being written.
    pub fn kept(&self) -> usize {
        self.places() - 1
    }

    fn places(&self) -> usize {
        self.words.len() / WORDS
    }

    fn at(&self, place: usize) -> &[AtomicU64] {
        &self.words[place * WORDS..][..WORDS]
    }

    /// Writes a span; by the ring's worker alone.
    pub fn write(&self, span: Words) {
        let written = self.written.load(Ordering::Relaxed);
        // Whoever sees a word of this span sees the number before it, too.
        fence(Ordering::Release);
        let place = self.next.load(Ordering::Relaxed);
        for (word, value) in self.at(place).iter().zip(span) {
            word.store(value, Ordering::Relaxed);
        }
        let next = if place + 1 == self.places() {
            0
        } else {
            place + 1
        };
        self.next.store(next, Ordering::Relaxed);
        self.written.store(written + 1, Ordering::Release);
    }

    /// Spans ever written.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// What is there of the spans from number `from` on, the last `most` of them; `None`:
    /// there is no memory for them.
    pub fn try_read(&self, from: u64, most: usize) -> Option<Read> {
        let until = self.written();
        let from = from.min(until);
        let first = from.max(until.saturating_sub(self.kept().min(most) as u64));
        let mut copies: Vec<Words> = Vec::new();
        copies.try_reserve_exact((until - first) as usize).ok()?;
        copies.extend((first..until).map(|span| {
            let words = self.at((span % self.places() as u64) as usize);
            std::array::from_fn(|word| words[word].load(Ordering::Relaxed))
        }));
        fence(Ordering::Acquire);
        // The one after those written may be half there, over the oldest.
        let begun = self.written.load(Ordering::Relaxed) + 1;
        let whole = first
            .max(begun.saturating_sub(self.places() as u64))
            .min(until);
        copies.drain(..(whole - first) as usize);
        Some(Read {
            spans: copies,
            lost: whole.saturating_sub(from),
        })
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
        let ring = Ring::try_new(3).unwrap();
        (0..3).for_each(|number| ring.write(span(number)));
        let read = ring.try_read(0, 3).unwrap();
        assert_eq!((read.spans, read.lost), ((0..3).map(span).collect(), 0));
        (3..10).for_each(|number| ring.write(span(number)));
        let read = ring.try_read(3, 3).unwrap();
        assert_eq!((read.spans, read.lost), ((7..10).map(span).collect(), 4));
        assert_eq!(ring.try_read(10, 3), Some(Read::default()));
        let read = ring.try_read(3, 1).unwrap();
        assert_eq!((read.spans, read.lost), (vec![span(9)], 6));
        assert!(Ring::try_new(SPANS_MAX + 1).is_none() && Ring::try_new(usize::MAX).is_none());
        for spans in [1, 3, 4, 1000] {
            let words = Ring::try_new(spans).unwrap().words.len();
            assert_eq!(words, (spans + 1) * WORDS, "32 bytes a span, and one more");
        }
    }
}
