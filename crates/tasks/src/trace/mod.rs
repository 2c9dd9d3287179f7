// SPDX-License-Identifier: MIT OR Apache-2.0
//! Traces: which worker ran which task, and when.
//!
//! While tracing is on, each worker writes a span of 32 bytes for each task into a ring buffer of
//! its own (`ring`), which the caller sizes. Memory is therefore bounded, and tracing can stay on.
//! Buffers are freed only with the runtime; a larger buffer is at least twice as large as the
//! former. Any thread can read the latest spans at any time, and write them as a file for Perfetto
//! or Chrome (`Trace::write_chrome`, feature `trace-json`) or as a picture like figure 13 of paper 5
//! (`Trace::write_svg`, feature `trace-svg`).

#[cfg(feature = "trace-json")]
mod chrome;
mod clock;
#[cfg(feature = "trace-svg")]
mod picture;
mod ring;

use std::ptr;
use std::sync::Arc;

pub(crate) use clock::Clock;
#[cfg(feature = "trace-svg")]
pub use picture::ColorBy;
pub(crate) use ring::SpanRing;

use crate::dispatch::Groups;
use crate::sync::{AtomicBool, AtomicPtr, Mutex, MutexGuard, Ordering};

/// A task that was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TaskSpan {
    /// Token of the task, or its number in its graph. For a submitted task, a number that the
    /// runtime has given to the task, and that may equal a token.
    pub task: u64,
    /// Groups of the task. If none were declared, the groups that the runtime has found or guessed.
    pub groups: Groups,
    /// Index of the worker that ran the task.
    pub worker: usize,
    /// Start of the task, in ns since tracing began.
    pub start_ns: u64,
    /// End of the task, in ns since tracing began.
    pub end_ns: u64,
}

/// The tasks that were run while tracing was on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Number of workers of the runtime.
    pub workers: usize,
    /// The recorded tasks, sorted by worker, then by end. A task that runs a graph therefore comes
    /// after the tasks of that graph.
    pub spans: Vec<TaskSpan>,
    /// Number of recorded tasks that were overwritten by later tasks.
    pub lost: u64,
}

/// The reason for which a trace cannot be started or read. Records of an earlier trace are
/// unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// There is no memory for the records.
    #[error(
        "out of memory: a trace of {spans_per_worker} tasks of each of {workers} workers cannot \
         be stored"
    )]
    Memory {
        /// Number of tasks per worker of which records were to be kept.
        spans_per_worker: usize,
        /// The number of workers.
        workers: usize,
    },
}

/// The state of tracing in a runtime.
#[derive(Debug)]
pub(crate) struct Tracer {
    is_on: AtomicBool,
    /// The ring buffers in use; null before the first trace.
    buffers: AtomicPtr<RingBuffers>,
    /// The current trace. Its lock is held while a trace is started or read.
    current: Mutex<CurrentTrace>,
}

impl Default for Tracer {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            buffers: AtomicPtr::new(ptr::null_mut()),
            current: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct RingBuffers {
    clock: Clock,
    rings: Box<[SpanRing]>,
}

impl RingBuffers {
    fn try_new(workers: usize, spans: usize) -> Option<Self> {
        let mut rings = Vec::new();
        rings.try_reserve_exact(workers).ok()?;
        for _ in 0..workers {
            rings.push(SpanRing::try_new(spans)?);
        }
        Some(Self {
            clock: Clock::new(),
            rings: rings.into_boxed_slice(),
        })
    }

    /// Returns the number of spans kept per worker.
    fn spans(&self) -> usize {
        self.rings.first().map_or(0, SpanRing::kept)
    }
}

/// The start of the current trace.
#[derive(Debug, Default)]
struct CurrentTrace {
    raw: u64,
    /// The number of the first span of each worker in this trace, by worker.
    from: Vec<u64>,
    /// Maximum number of spans per worker that a read returns.
    max_spans: usize,
    /// All buffers that were allocated since the runtime was created. They are not freed, because a
    /// worker may still be writing into an earlier buffer. Each buffer is at least twice as large
    /// as its predecessor. The last buffer is in use.
    all: Vec<Arc<RingBuffers>>,
}

impl CurrentTrace {
    /// Returns buffers for at least this number of spans per worker, and allocates them if
    /// necessary; `None` if there is no memory.
    fn buffers(&mut self, workers: usize, spans: usize) -> Option<Arc<RingBuffers>> {
        let last = self.all.last();
        if let Some(last) = last.filter(|last| last.spans() >= spans) {
            return Some(Arc::clone(last));
        }
        let twice = last.map_or(0, |last| last.spans().saturating_mul(2));
        let buffers = Arc::new(RingBuffers::try_new(workers, spans.max(twice))?);
        self.all.push(Arc::clone(&buffers));
        Some(buffers)
    }
}

impl Tracer {
    /// Returns whether tracing is on.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// Returns the clock and the ring buffer of a worker, if tracing is on.
    pub fn for_worker(&self, worker: usize) -> Option<(&Clock, &SpanRing)> {
        // The acquire operation makes the buffers visible that were allocated before `is_on` was
        // set.
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        let buffers = self.buffers.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or points to buffers that this value owns and never frees
        // while it exists.
        let buffers = unsafe { buffers.as_ref() }?;
        Some((&buffers.clock, &buffers.rings[worker]))
    }

    /// Starts a trace and discards the earlier one.
    ///
    /// # Errors
    /// If there is no memory for the records. An earlier trace then continues.
    pub fn start(&self, workers: usize, spans_per_worker: usize) -> Result<(), TraceError> {
        let mut current = self.current();
        let buffers = current.buffers(workers, spans_per_worker);
        let buffers = buffers.ok_or(TraceError::Memory {
            spans_per_worker,
            workers,
        })?;
        current.raw = buffers.clock.raw();
        current.from = buffers.rings.iter().map(SpanRing::written).collect();
        current.max_spans = spans_per_worker;
        let at = Arc::as_ptr(&buffers).cast_mut();
        self.buffers.store(at, Ordering::Release);
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// Returns the spans of the current trace; `None` if there is no memory for them.
    pub fn try_read(&self) -> Option<Trace> {
        let current = self.current();
        let mut trace = Trace::default();
        let Some(buffers) = current.all.last() else {
            return Some(trace);
        };
        trace.workers = buffers.rings.len();
        for (worker, (ring, &from)) in buffers.rings.iter().zip(&current.from).enumerate() {
            let read = ring.try_read(from, current.max_spans)?;
            trace.spans.try_reserve(read.spans.len()).ok()?;
            let ns = |raw: u64| {
                buffers
                    .clock
                    .delta_as_nanos(current.raw, raw.max(current.raw))
            };
            trace.lost += read.lost;
            trace.spans.extend(read.spans.iter().map(|words| TaskSpan {
                task: words[0],
                groups: Groups::unpacked(words[1]),
                worker,
                start_ns: ns(words[2]),
                end_ns: ns(words[3]),
            }));
        }
        Some(trace)
    }

    /// Returns the number of tasks kept per worker.
    pub fn max_spans(&self) -> usize {
        self.current().max_spans
    }

    fn current(&self) -> MutexGuard<'_, CurrentTrace> {
        self.current.lock()
    }
}

/// A running task. The drop of this guard writes the span of the task.
pub(crate) struct SpanGuard<'a> {
    clock: &'a Clock,
    ring: &'a SpanRing,
    task: u64,
    groups: Groups,
    start: u64,
}

impl<'a> SpanGuard<'a> {
    pub fn begin((clock, ring): (&'a Clock, &'a SpanRing), task: u64, groups: Groups) -> Self {
        Self {
            clock,
            ring,
            task,
            groups,
            start: clock.raw(),
        }
    }
}

impl Drop for SpanGuard<'_> {
    fn drop(&mut self) {
        let end = self.clock.raw();
        let groups = self.groups.packed();
        self.ring.write([self.task, groups, self.start, end]);
    }
}
