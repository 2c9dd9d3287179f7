// SPDX-License-Identifier: GPL-2.0-only
//! Requests to the scheduler's thread, and the state that this thread shares with others.
//!
//! 1. The caller sends a request through a channel, with a second channel for the answer, and wakes
//!    the scheduler's thread by an eventfd.
//! 2. The caller blocks until the answer arrives, without a time limit. If the thread ends first,
//!    the request fails.
//!
//! The queue of requests has no limit of its own; each caller waits for its answer, so that a
//! thread has at most one request in the queue. Only the scheduler's thread changes the state; all
//! threads may read it, under a mutex that is held only for a copy.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use rustix::event::{EventfdFlags, eventfd};
use usher_scx::Settings;

use super::state::{SchedulerState, SettingsChange};

/// A request to the thread, with the channel of the answer.
pub enum Request {
    /// Load the scheduler.
    Start(Settings, Sender<anyhow::Result<SchedulerState>>),
    /// Change the settings of the running scheduler.
    Set(SettingsChange, Sender<anyhow::Result<SchedulerState>>),
    /// Unload the scheduler for this reason.
    Stop(String, Sender<anyhow::Result<Option<SchedulerState>>>),
    /// Unload the scheduler and end the thread.
    End,
}

/// State that other threads read.
#[derive(Debug, Default)]
pub struct Shared {
    state: Mutex<Option<SchedulerState>>,
    /// Whether the last request has stopped the scheduler, or was a start that failed.
    released: AtomicBool,
    /// Whether a start was requested.
    requested: AtomicBool,
}

impl Shared {
    /// Returns the state of the last scheduler that this process loaded.
    pub fn state(&self) -> Option<SchedulerState> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.clone()
    }

    /// Replaces the state.
    pub fn set(&self, new: Option<SchedulerState>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = new;
    }

    /// Changes the state, if there is one.
    pub fn change(&self, change: impl FnOnce(&mut SchedulerState)) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = state.as_mut() {
            change(state);
        }
    }

    /// Records whether clients no longer need this process for the scheduler.
    pub fn set_released(&self, released: bool) {
        self.released.store(released, Ordering::Relaxed);
    }

    /// Records that a start was requested.
    pub fn set_requested(&self) {
        self.requested.store(true, Ordering::Relaxed);
    }
}

/// The handle by which other threads send requests to the scheduler's thread.
#[derive(Debug, Clone)]
pub struct SchedulerControl {
    shared: Arc<Shared>,
    requests: Sender<Request>,
    wake: Arc<OwnedFd>,
}

/// The receiving end of [`SchedulerControl`], in the scheduler's thread.
pub struct Requests {
    /// The requests, in order.
    pub queue: Receiver<Request>,
    /// Becomes readable when a request is queued.
    pub wake: Arc<OwnedFd>,
    /// The state that other threads read.
    pub shared: Arc<Shared>,
}

impl SchedulerControl {
    /// Creates both ends.
    ///
    /// # Errors
    /// An eventfd cannot be created.
    pub fn new() -> anyhow::Result<(Self, Requests)> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let wake = Arc::new(wake.context("making an eventfd")?);
        let (sender, queue) = channel();
        let shared = Arc::new(Shared::default());
        let control = Self {
            shared: shared.clone(),
            requests: sender,
            wake: wake.clone(),
        };
        let requests = Requests {
            queue,
            wake,
            shared,
        };
        Ok((control, requests))
    }

    /// Loads the scheduler, and returns its state when it runs the threads.
    ///
    /// # Errors
    /// A scheduler runs already, or the kernel refuses this one.
    pub fn start(&self, settings: Settings) -> anyhow::Result<SchedulerState> {
        self.request(|answer| Request::Start(settings, answer))
    }

    /// Changes the settings of the running scheduler.
    ///
    /// # Errors
    /// No scheduler runs, its order is fixed, or the kernel refuses.
    pub fn set(&self, change: SettingsChange) -> anyhow::Result<SchedulerState> {
        self.request(|answer| Request::Set(change, answer))
    }

    /// Unloads the scheduler, with this reason. Returns the state of the scheduler before; `None`
    /// if no scheduler was loaded.
    ///
    /// # Errors
    /// The daemon is ending.
    pub fn stop(&self, reason: &str) -> anyhow::Result<Option<SchedulerState>> {
        self.request(|answer| Request::Stop(reason.to_owned(), answer))
    }

    /// Records that the scheduler of the configuration file could not be started.
    pub fn record_failure(&self, failed: SchedulerState) {
        self.shared.set(Some(failed));
    }

    /// Returns the state of the last scheduler that this process loaded, or that its predecessor
    /// held when it was killed.
    pub fn state(&self) -> Option<SchedulerState> {
        self.shared.state()
    }

    /// Returns whether a start was requested from this process. The state may also be that of a
    /// scheduler of a process that has died.
    pub fn was_requested(&self) -> bool {
        self.shared.requested.load(Ordering::Relaxed)
    }

    /// Returns whether clients no longer need this process for the scheduler, because the scheduler
    /// was stopped on request or could not be started.
    pub fn is_released(&self) -> bool {
        self.shared.released.load(Ordering::Relaxed)
    }

    fn request<T>(
        &self,
        make: impl FnOnce(Sender<anyhow::Result<T>>) -> Request,
    ) -> anyhow::Result<T> {
        let (answer, reply) = channel();
        self.send(make(answer))?;
        reply
            .recv()
            .map_err(|_| anyhow!("the daemon is ending and accepts no more requests"))?
    }

    /// Requests the end of the scheduler's thread, which may already have ended.
    pub fn end(&self) {
        let _ = self.send(Request::End);
    }

    fn send(&self, request: Request) -> anyhow::Result<()> {
        let sent = self.requests.send(request);
        sent.map_err(|_| anyhow!("the daemon is ending and accepts no more requests"))?;
        rustix::io::write(&self.wake, &1u64.to_ne_bytes()).context("waking a thread")?;
        Ok(())
    }
}
