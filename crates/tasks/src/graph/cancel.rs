// SPDX-License-Identifier: MIT OR Apache-2.0
//! Cancellation of a graph by other threads.
//!
//! A graph is borrowed while it runs, so other threads hold a [`CancelHandle`], which shares a small
//! state with the graph. During a run the state contains the address of the flag that the workers
//! check before each task. A lock protects the state: the run sets the address at its begin and
//! removes it at its end, so the address is valid whenever a handle uses it. The flag is the one
//! that a panic sets, so cancellation costs a running graph nothing.
//!
//! A cancellation takes constant time and a lock that is held for constant time.

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::sync::{AtomicBool, Mutex, Ordering};

/// Cancels a graph from other threads and from tasks. [`Graph::cancel_handle`] returns a handle.
/// Clones refer to the same graph.
///
/// [`Graph::cancel_handle`]: crate::Graph::cancel_handle
#[derive(Clone)]
pub struct CancelHandle(Arc<RunControl>);

/// The graph is not running, so it cannot be cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the graph has finished, so it cannot be cancelled: no run is in progress")]
pub struct GraphFinished;

impl CancelHandle {
    /// Cancels the run that is in progress, or the first run of a graph that has never run. Tasks
    /// that have not begun do not run. Running tasks continue, and graphs that they run are not
    /// cancelled. The run returns [`RunError::Cancelled`] after the running tasks have ended. A run
    /// that is already cancelled stays cancelled, and the call succeeds. Later runs of the graph are
    /// not affected.
    ///
    /// # Errors
    /// If the graph has finished its last run, or was dropped. The call has no effect then.
    ///
    /// [`RunError::Cancelled`]: crate::RunError::Cancelled
    pub fn cancel(&self) -> Result<(), GraphFinished> {
        self.0.cancel()
    }
}

impl fmt::Debug for CancelHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CancelHandle").finish_non_exhaustive()
    }
}

/// The phase of a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The graph has never run. The field states whether its first run is cancelled.
    New(bool),
    /// The graph runs. The fields are the flag that the workers check, and whether the run is
    /// cancelled.
    Running(NonNull<AtomicBool>, bool),
    Finished,
}

// SAFETY: any thread may use the flag, and `Phase::Running` has a condition on its life.
unsafe impl Send for Phase {}

/// The state that a graph and its handles share.
pub(super) struct RunControl(Mutex<Phase>);

impl RunControl {
    fn new() -> Self {
        Self(Mutex::new(Phase::New(false)))
    }

    fn cancel(&self) -> Result<(), GraphFinished> {
        let mut phase = self.0.lock();
        match &mut *phase {
            Phase::New(is_cancelled) => *is_cancelled = true,
            Phase::Running(flag, is_cancelled) => {
                *is_cancelled = true;
                // SAFETY: the run is in progress, and it cannot end while this thread holds the
                // lock. The flag exists until then.
                unsafe { flag.as_ref() }.store(true, Ordering::Relaxed);
            }
            Phase::Finished => return Err(GraphFinished),
        }
        Ok(())
    }
}

/// The graph's reference to the shared state. Its drop ends a run, so no handle uses the flag of a
/// graph that was dropped.
pub(super) struct OwnControl(Arc<RunControl>);

impl OwnControl {
    pub fn new() -> Self {
        Self(Arc::new(RunControl::new()))
    }

    pub fn handle(&self) -> CancelHandle {
        CancelHandle(Arc::clone(&self.0))
    }

    /// Begins a run whose workers check `flag`, which is not set. Sets the flag if the run is
    /// cancelled already.
    ///
    /// # Safety
    /// The flag exists until [`Self::end`] is called or this value is dropped.
    pub unsafe fn begin(&self, flag: &AtomicBool) {
        let mut phase = self.0.0.lock();
        let is_cancelled = *phase == Phase::New(true);
        flag.store(is_cancelled, Ordering::Relaxed);
        *phase = Phase::Running(NonNull::from(flag), is_cancelled);
    }

    /// Ends a run, and returns whether it was cancelled.
    pub fn end(&self) -> bool {
        let mut phase = self.0.0.lock();
        let is_cancelled = matches!(*phase, Phase::Running(_, true));
        *phase = Phase::Finished;
        is_cancelled
    }
}

impl Drop for OwnControl {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(all(test, feature = "loom"))]
mod interleavings {
    use loom::thread;

    use super::*;

    /// A thread cancels while a run begins and ends. The cancellation succeeds if and only if the
    /// run is cancelled, and does not use the flag after the run.
    #[test]
    fn a_cancellation_succeeds_only_for_a_run_that_it_cancels() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let control = OwnControl::new();
            let handle = control.handle();
            let flag = Box::new(AtomicBool::new(false));
            let canceller = thread::spawn(move || handle.cancel().is_ok());
            // SAFETY: the flag exists until the run has ended.
            unsafe { control.begin(&flag) };
            let was_seen = flag.load(Ordering::Relaxed);
            let is_cancelled = control.end();
            // Loom fails the test if the other thread uses the flag after this.
            drop(flag);
            assert!(is_cancelled || !was_seen);
            assert_eq!(canceller.join().unwrap(), is_cancelled);
        });
    }
}
