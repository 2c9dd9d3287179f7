// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring buffer of the latest tasks of a worker. The worker writes it, and any thread reads it at
//! any time. No thread waits.
//!
//! Span `n` is in slot `n` modulo the number of slots.
//!
//! 1. The worker writes the four words of a span into the next slot, and then increments the number
//!    of written spans with a release operation. The worker stores the index of the next slot, so
//!    it needs no division.
//! 2. A reader reads the number of written spans, copies the spans and reads the number again.
//! 3. The reader discards the spans that the worker may have overwritten during the copy. If the
//!    second number is `m`, the worker may have begun to write span `m`, so the reader keeps only
//!    spans with numbers above `m` minus the number of slots.
//!
//! Each word is an atomic variable, so reading a partly written span is no data race. A write takes
//! constant time. A read takes time linear in the number of spans. A buffer has 32 bytes per span,
//! and at most 2^30 - 1 spans. More spans and lack of memory are reported as `None`.

use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence};

/// Words per span: task, groups, start, end.
const WORDS: usize = 4;
/// Maximum number of spans per worker, which need 32 GiB.
const SPANS_MAX: usize = (1 << 30) - 1;

/// The record of one task.
pub(crate) type SpanWords = [u64; WORDS];

/// The latest spans of a worker.
#[derive(Debug)]
#[repr(align(128))]
pub(crate) struct SpanRing {
    words: Box<[AtomicU64]>,
    /// Number of spans that were written since the buffer was created.
    written: AtomicU64,
    /// Index of the slot for the next span. Only the worker accesses it.
    next: AtomicUsize,
}

/// The result of reading a ring buffer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct RingContents {
    /// The spans, oldest first.
    pub spans: Vec<SpanWords>,
    /// Number of requested spans that were overwritten by later spans.
    pub lost: u64,
}

impl SpanRing {
    /// Creates a buffer for this number of spans; `None` if there is no memory.
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

    /// Returns the maximum number of spans that a read returns. The buffer has one more slot, for
    /// the span that is being written.
    pub fn kept(&self) -> usize {
        self.slots() - 1
    }

    fn slots(&self) -> usize {
        self.words.len() / WORDS
    }

    fn at(&self, slot: usize) -> &[AtomicU64] {
        &self.words[slot * WORDS..][..WORDS]
    }

    /// Writes a span. Only the worker of the ring buffer may call this function.
    pub fn write(&self, span: SpanWords) {
        let written = self.written.load(Ordering::Relaxed);
        // Because of this fence, a reader that reads a word of this span also reads at least the
        // current value of `written` afterwards.
        fence(Ordering::Release);
        let slot = self.next.load(Ordering::Relaxed);
        for (word, value) in self.at(slot).iter().zip(span) {
            word.store(value, Ordering::Relaxed);
        }
        let next = if slot + 1 == self.slots() {
            0
        } else {
            slot + 1
        };
        self.next.store(next, Ordering::Relaxed);
        self.written.store(written + 1, Ordering::Release);
    }

    /// Returns the number of spans that were written since the buffer was created.
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Acquire)
    }

    /// Reads the spans with numbers from `from` on, but at most the latest `most` spans; `None` if
    /// there is no memory.
    pub fn try_read(&self, from: u64, most: usize) -> Option<RingContents> {
        let until = self.written();
        let from = from.min(until);
        let first = from.max(until.saturating_sub(self.kept().min(most) as u64));
        let mut copies: Vec<SpanWords> = Vec::new();
        copies.try_reserve_exact((until - first) as usize).ok()?;
        copies.extend((first..until).map(|span| {
            let words = self.at((span % self.slots() as u64) as usize);
            std::array::from_fn(|word| words[word].load(Ordering::Relaxed))
        }));
        fence(Ordering::Acquire);
        // The worker may have begun to write the next span into the slot of the oldest span.
        let begun = self.written.load(Ordering::Relaxed) + 1;
        let whole = first
            .max(begun.saturating_sub(self.slots() as u64))
            .min(until);
        copies.drain(..(whole - first) as usize);
        Some(RingContents {
            spans: copies,
            lost: whole.saturating_sub(from),
        })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn span(number: u64) -> SpanWords {
        [number; WORDS]
    }

    #[test]
    fn the_latest_spans_are_kept() {
        let ring = SpanRing::try_new(3).unwrap();
        (0..3).for_each(|number| ring.write(span(number)));
        let read = ring.try_read(0, 3).unwrap();
        assert_eq!((read.spans, read.lost), ((0..3).map(span).collect(), 0));
        (3..10).for_each(|number| ring.write(span(number)));
        let read = ring.try_read(3, 3).unwrap();
        assert_eq!((read.spans, read.lost), ((7..10).map(span).collect(), 4));
        assert_eq!(ring.try_read(10, 3), Some(RingContents::default()));
        let read = ring.try_read(3, 1).unwrap();
        assert_eq!((read.spans, read.lost), (vec![span(9)], 6));
        assert!(
            SpanRing::try_new(SPANS_MAX + 1).is_none() && SpanRing::try_new(usize::MAX).is_none()
        );
        for spans in [1, 3, 4, 1000] {
            let words = SpanRing::try_new(spans).unwrap().words.len();
            assert_eq!(words, (spans + 1) * WORDS, "32 bytes a span, and one more");
        }
    }
}
