// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which worker ran which task, from when to when.
//!
//! Each worker writes its tasks into a ring of its own while tracing is on, so that
//! it can be left on: the last ones are there when somebody wants to see them. As a
//! file for Perfetto or Chrome ([`Trace::write_chrome`]), as a picture like the
//! paper's figure 13 ([`Trace::write_svg`]).

mod chrome;
mod picture;
mod ring;

use std::ptr;
use std::sync::Arc;

use quanta::Clock;

pub use picture::ColorBy;
pub(crate) use ring::Ring;

use crate::dispatch::Groups;
use crate::sync::{AtomicBool, AtomicPtr, Mutex, MutexGuard, Ordering};

/// A task that was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Its token, or its number in its graph.
    pub task: u64,
    /// Its groups: those given to it, or else found for it.
    pub groups: Groups,
    /// Which worker ran it, from 0.
    pub worker: usize,
    /// When it began, in ns since tracing began.
    pub start_ns: u64,
    /// When it ended, in ns since tracing began.
    pub end_ns: u64,
}

/// The tasks that were run while tracing was on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trace {
    /// Workers of the runtime.
    pub workers: usize,
    /// By worker, and within one in the order in which they ended: a task that runs a
    /// graph in turn comes after those of the graph.
    pub spans: Vec<Span>,
    /// Tasks that ran and were written over by later ones.
    pub lost: u64,
}

/// A trace that cannot be begun, or read. What was written down before is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// There is no memory for so many.
    #[error("a trace of {spans_per_worker} tasks of {workers} workers: no memory")]
    Memory {
        /// Tasks to be kept of each worker.
        spans_per_worker: usize,
        /// Workers.
        workers: usize,
    },
}

/// What is traced, and where.
#[derive(Debug)]
pub(crate) struct Tracer {
    is_on: AtomicBool,
    /// Where workers write: the last of those made; null before there is any.
    kept: AtomicPtr<Kept>,
    /// Held by whoever starts or reads.
    began: Mutex<Began>,
}

impl Default for Tracer {
    fn default() -> Self {
        Self {
            is_on: AtomicBool::new(false),
            kept: AtomicPtr::new(ptr::null_mut()),
            began: Mutex::default(),
        }
    }
}

#[derive(Debug)]
struct Kept {
    clock: Clock,
    rings: Box<[Ring]>,
}

impl Kept {
    fn try_new(workers: usize, spans: usize) -> Option<Self> {
        let mut rings = Vec::new();
        rings.try_reserve_exact(workers).ok()?;
        for _ in 0..workers {
            rings.push(Ring::try_new(spans)?);
        }
        Some(Self {
            clock: Clock::new(),
            rings: rings.into_boxed_slice(),
        })
    }

    /// Spans of each worker.
    fn spans(&self) -> usize {
        self.rings.first().map_or(0, Ring::kept)
    }
}

/// Where the present trace begins.
#[derive(Debug, Default)]
struct Began {
    raw: u64,
    /// By worker: the first span that belongs to it.
    from: Vec<u64>,
    /// Spans of each worker that are wanted.
    most: usize,
    /// All that were ever made, as workers may write into any of them yet, each twice as
    /// large as the one before it at least; the last one is in use.
    all: Vec<Arc<Kept>>,
}

impl Began {
    /// Room for so many, made where there is none.
    fn kept(&mut self, workers: usize, spans: usize) -> Option<Arc<Kept>> {
        let last = self.all.last();
        if let Some(last) = last.filter(|last| last.spans() >= spans) {
            return Some(Arc::clone(last));
        }
        let twice = last.map_or(0, |last| last.spans().saturating_mul(2));
        let kept = Arc::new(Kept::try_new(workers, spans.max(twice))?);
        self.all.push(Arc::clone(&kept));
        Some(kept)
    }
}

impl Tracer {
    /// Whether tasks are to be written down.
    #[inline]
    pub fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Relaxed)
    }

    /// The clock and the ring of a worker, if tasks are to be written down.
    pub fn of(&self, worker: usize) -> Option<(&Clock, &Ring)> {
        // What was made before tracing was begun is there.
        if !self.is_on.load(Ordering::Acquire) {
            return None;
        }
        let kept = self.kept.load(Ordering::Acquire);
        // SAFETY: null, or of those that stay as long as this does.
        let kept = unsafe { kept.as_ref() }?;
        Some((&kept.clock, &kept.rings[worker]))
    }

    /// Begins a trace: what was traced before is forgotten.
    ///
    /// # Errors
    /// Where there is no memory for so many; what was traced goes on.
    pub fn start(&self, workers: usize, spans_per_worker: usize) -> Result<(), TraceError> {
        let mut began = self.began();
        let kept = began.kept(workers, spans_per_worker);
        let kept = kept.ok_or(TraceError::Memory {
            spans_per_worker,
            workers,
        })?;
        began.raw = kept.clock.raw();
        began.from = kept.rings.iter().map(Ring::written).collect();
        began.most = spans_per_worker;
        let at = Arc::as_ptr(&kept).cast_mut();
        self.kept.store(at, Ordering::Release);
        self.is_on.store(true, Ordering::Release);
        Ok(())
    }

    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// What has been traced up to now; `None`: there is no memory for it.
    pub fn try_read(&self) -> Option<Trace> {
        let began = self.began();
        let mut trace = Trace::default();
        let Some(kept) = began.all.last() else {
            return Some(trace);
        };
        trace.workers = kept.rings.len();
        for (worker, (ring, &from)) in kept.rings.iter().zip(&began.from).enumerate() {
            let read = ring.try_read(from, began.most)?;
            trace.spans.try_reserve(read.spans.len()).ok()?;
            let ns = |raw: u64| kept.clock.delta_as_nanos(began.raw, raw.max(began.raw));
            trace.lost += read.lost;
            trace.spans.extend(read.spans.iter().map(|words| Span {
                task: words[0],
                groups: Groups::unpacked(words[1]),
                worker,
                start_ns: ns(words[2]),
                end_ns: ns(words[3]),
            }));
        }
        Some(trace)
    }

    /// Tasks kept of each worker.
    pub fn most(&self) -> usize {
        self.began().most
    }

    fn began(&self) -> MutexGuard<'_, Began> {
        self.began.lock()
    }
}

/// A task that runs, to be written down when it ends.
pub(crate) struct Running<'a> {
    clock: &'a Clock,
    ring: &'a Ring,
    task: u64,
    groups: Groups,
    start: u64,
}

impl<'a> Running<'a> {
    pub fn begin((clock, ring): (&'a Clock, &'a Ring), task: u64, groups: Groups) -> Self {
        Self {
            clock,
            ring,
            task,
            groups,
            start: clock.raw(),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let end = self.clock.raw();
        let groups = self.groups.packed();
        self.ring.write([self.task, groups, self.start, end]);
    }
}
