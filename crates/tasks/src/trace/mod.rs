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

use std::sync::OnceLock;

use quanta::Clock;

pub use picture::ColorBy;
pub(crate) use ring::Ring;

use crate::dispatch::Groups;
use crate::sync::{AtomicBool, Mutex, MutexGuard, Ordering};

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

/// What is traced, and where.
#[derive(Debug, Default)]
pub(crate) struct Tracer {
    is_on: AtomicBool,
    /// Made when tracing is first begun, and never again.
    kept: OnceLock<Kept>,
    /// Held by whoever starts or reads.
    began: Mutex<Began>,
}

#[derive(Debug)]
struct Kept {
    clock: Clock,
    rings: Box<[Ring]>,
}

/// Where the present trace begins.
#[derive(Debug, Default)]
struct Began {
    raw: u64,
    /// By worker: the first span that belongs to it.
    from: Vec<u64>,
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
        let kept = self.kept.get()?;
        Some((&kept.clock, &kept.rings[worker]))
    }

    /// Begins a trace: what was traced before is forgotten. The rings' size is that
    /// of the first time.
    pub fn start(&self, workers: usize, spans_per_worker: usize) {
        let mut began = self.began();
        let kept = self.kept.get_or_init(|| Kept {
            clock: Clock::new(),
            rings: std::iter::repeat_with(|| Ring::new(spans_per_worker))
                .take(workers)
                .collect(),
        });
        *began = Began {
            raw: kept.clock.raw(),
            from: kept.rings.iter().map(Ring::written).collect(),
        };
        self.is_on.store(true, Ordering::Release);
    }

    pub fn stop(&self) {
        self.is_on.store(false, Ordering::Relaxed);
    }

    /// What has been traced up to now.
    pub fn read(&self) -> Trace {
        let began = self.began();
        let mut trace = Trace::default();
        let Some(kept) = self.kept.get() else {
            return trace;
        };
        trace.workers = kept.rings.len();
        for (worker, (ring, &from)) in kept.rings.iter().zip(&began.from).enumerate() {
            let read = ring.read(from);
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
        trace
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
