// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes the profile store for the engine. Threads that register programs read the
//! store. A dedicated thread writes to the store, because SQLite waits for the disk, and the
//! control loop must not wait.
//!
//! While another process locks the store, a warning reports the lock, and up to 1,000 updates are
//! kept in memory. The writer thread tries again at each new update, and at the latest after 2 s.
//! When more than 1,000 updates are kept, or when the engine ends, all kept updates are dropped
//! with a warning. Updates that fail for another reason are dropped with a warning, too, which is
//! withdrawn at the next successful write.
//!
//! If the store cannot be opened, all profiles are kept in memory, and a warning reports the reason.
//! The writer thread tries to open the store at each update, and once when the engine ends, and then
//! writes the last 1,000 updates.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use usher_learn::{ProfileUpdate, StoredProfile, recall, variation_budget};
use usher_model::{ProgramKey, SourceErrors, StoredCopies, Topology, VariationBudget};
use usher_store::{Calibration, MachineKey, Store, StoreError};

use super::config::{EngineError, ProfileUse};
use crate::kernel::kernel_release;

/// Interval between attempts to write a store that another process has locked.
const RETRY: Duration = Duration::from_secs(2);
/// Maximum number of updates that are kept while the store cannot be written. Beyond this number,
/// all kept updates are dropped.
const UPDATES_MAX: usize = 1000;

/// A change of the store.
enum StoreUpdate {
    Measured(ProfileUpdate),
    /// The copies of a program; `None`: the copies of earlier runs are forgotten.
    Copies {
        key: ProgramKey,
        name: String,
        copies: Option<StoredCopies>,
    },
}

/// The store, shared between threads.
#[derive(Debug)]
pub(super) struct Profiles {
    handle: Arc<StoreHandle>,
    /// Why the store could not be opened, and the effect.
    opening_warning: Option<String>,
    recall: bool,
    correct: bool,
    vary: bool,
    /// The channel to the writer thread; `None` if this run adds no measurements. Dropping the
    /// sender ends the thread.
    updates: Option<Sender<StoreUpdate>>,
    writer: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct StoreHandle {
    store: Mutex<Store>,
    machine: MachineKey,
    events: Mutex<Vec<StoreEvent>>,
    /// Whether a failure was reported, and no write has succeeded since.
    has_failed: AtomicBool,
}

/// The state of the writer thread.
struct StoreWriter {
    handle: Arc<StoreHandle>,
    /// The file that could not be opened, and which a store in memory replaces.
    unopened: Option<PathBuf>,
    /// The last updates that only the store in memory contains.
    unstored: VecDeque<StoreUpdate>,
}

/// A change in the state of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum StoreEvent {
    /// A damaged file was replaced by a new store.
    Replaced(String),
    /// An error, and its effect on the profiles.
    Failed(String),
    /// An update was written after a failure.
    Written,
    /// Another process locks the store; the text includes what happens to new measurements.
    Locked(String),
    /// The store can be written again.
    Unlocked,
}

impl Profiles {
    /// Opens the store. On failure, profiles are kept in memory, and a warning reports the reason.
    pub fn open(profiles: &ProfileUse, topology: &Topology) -> Result<Self, EngineError> {
        let (store, warning) = match &profiles.store {
            Some(path) => Store::open_or_memory(path)?,
            None => (Store::in_memory()?, None),
        };
        let handle = Arc::new(StoreHandle {
            store: Mutex::new(store),
            machine: MachineKey::of(topology),
            events: Mutex::default(),
            has_failed: AtomicBool::default(),
        });
        let is_unopened = warning.as_ref().is_some_and(|warning| warning.in_memory);
        let opening_warning = warning.map(|warning| warning.to_string());
        if let Some(text) = opening_warning.clone() {
            match is_unopened {
                true => handle.report_failure(text),
                false => handle.report(StoreEvent::Replaced(text)),
            }
        }
        let (mut updates, mut writer) = (None, None);
        if profiles.learn {
            let (sender, receiver) = channel::<StoreUpdate>();
            let mut thread = StoreWriter {
                handle: handle.clone(),
                unopened: profiles.store.clone().filter(|_| is_unopened),
                unstored: VecDeque::new(),
            };
            let write = move || thread.write_all(&receiver);
            let thread = std::thread::Builder::new().name("profiles".to_owned());
            writer = Some(thread.spawn(write).map_err(EngineError::Start)?);
            updates = Some(sender);
        }
        Ok(Self {
            handle,
            opening_warning,
            recall: profiles.recall,
            correct: profiles.correct,
            vary: profiles.vary,
            updates,
            writer,
        })
    }

    /// Returns the stored profile of a program for this kind of machine. If the program has no curve
    /// of at least two points, returns the profile of other, similar arguments, if this profile has
    /// such a curve or the program has none.
    pub fn recall(&self, key: &ProgramKey) -> StoredProfile {
        if !self.recall {
            return StoredProfile::default();
        }
        let store = lock(&self.handle.store);
        let found = recall(&store, key, &self.handle.machine);
        drop(store);
        found.unwrap_or_else(|error| {
            self.handle.report_failure(error.to_string());
            StoredProfile::default()
        })
    }

    /// Returns the calibrated errors of the sources of progress on this machine; empty if the machine
    /// is not calibrated.
    pub fn source_errors(&self) -> SourceErrors {
        if !self.recall {
            return SourceErrors::default();
        }
        let store = lock(&self.handle.store);
        let found = store.calibration(&self.handle.machine);
        drop(store);
        let found = found.unwrap_or_else(|error| {
            self.handle.report_failure(error.to_string());
            None
        });
        let errors = |one: Calibration| one.errors_on(&kernel_release());
        found.map(errors).unwrap_or_default()
    }

    /// Returns why the store could not be opened, and the effect; `None` if it was opened.
    pub fn opening_warning(&self) -> Option<&str> {
        self.opening_warning.as_deref()
    }

    /// Returns whether runs beside other programs add measurements.
    pub fn corrects(&self) -> bool {
        self.correct
    }

    /// Returns the time that the next run of a program may lose to deliberate variation; `None` if
    /// its runs are not varied.
    pub fn variation(&self, key: &ProgramKey) -> Option<VariationBudget> {
        if !self.vary {
            return None;
        }
        let store = lock(&self.handle.store);
        let found = variation_budget(&store, key, &self.handle.machine);
        drop(store);
        found.unwrap_or_else(|error| {
            self.handle.report_failure(error.to_string());
            None
        })
    }

    /// Queues a profile update for the writer thread.
    pub fn queue(&self, update: ProfileUpdate) {
        self.send(StoreUpdate::Measured(update));
    }

    /// Queues the copies of a program for the writer thread; `None`: the copies of earlier runs are
    /// forgotten.
    pub fn queue_copies(&self, key: ProgramKey, name: String, copies: Option<StoredCopies>) {
        self.send(StoreUpdate::Copies { key, name, copies });
    }

    fn send(&self, update: StoreUpdate) {
        if let Some(updates) = &self.updates {
            // The send fails only if the writer thread has panicked, which has been reported.
            let _ = updates.send(update);
        }
    }

    /// Returns the events since the last call.
    pub fn take_events(&self) -> Vec<StoreEvent> {
        std::mem::take(&mut lock(&self.handle.events))
    }
}

impl Drop for Profiles {
    /// Waits until the writer thread has tried once to write all queued updates.
    fn drop(&mut self) {
        drop(self.updates.take());
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

impl StoreWriter {
    /// Writes updates until the channel is closed. While another process locks the store, updates
    /// are kept and written later. One warning reports the begin of the delay, another warning its
    /// end.
    fn write_all(&mut self, updates: &Receiver<StoreUpdate>) {
        let mut kept: VecDeque<StoreUpdate> = VecDeque::new();
        let mut is_busy = false;
        loop {
            let next = match kept.is_empty() {
                true => updates.recv().map_err(RecvTimeoutError::from),
                false => updates.recv_timeout(RETRY),
            };
            let ending = matches!(next, Err(RecvTimeoutError::Disconnected));
            kept.extend(next.ok());
            match self.write(&mut kept) {
                Ok(()) if std::mem::take(&mut is_busy) => self.handle.report(StoreEvent::Unlocked),
                Ok(()) => {}
                Err(error) if ending || kept.len() > UPDATES_MAX => {
                    let lost = format!("{error}; {} measurements are lost", kept.len());
                    self.handle.report_failure(lost);
                    kept.clear();
                }
                Err(error) if !is_busy => {
                    is_busy = true;
                    self.handle.report(StoreEvent::Locked(format!(
                        "{error}; Usher keeps new measurements in memory and writes them later"
                    )));
                }
                Err(_) => {}
            }
            if ending {
                return;
            }
        }
    }

    /// Writes updates in order until the store is locked.
    fn write(&mut self, kept: &mut VecDeque<StoreUpdate>) -> Result<(), StoreError> {
        self.open_again(kept);
        while let Some(update) = kept.pop_front() {
            match self.handle.write(&update) {
                Err(error @ StoreError::Busy { .. }) => {
                    kept.push_front(update);
                    return Err(error);
                }
                Err(error) => self.handle.report_failure(error.to_string()),
                Ok(()) if self.unopened.is_none() => self.handle.report_success(),
                Ok(()) => {}
            }
            if self.unopened.is_some() {
                self.unstored.push_back(update);
            }
            if self.unstored.len() > UPDATES_MAX {
                self.unstored.pop_front();
            }
        }
        Ok(())
    }

    /// Tries to open the store if it could not be opened before. On success, the updates that only
    /// the store in memory contains are written first.
    fn open_again(&mut self, kept: &mut VecDeque<StoreUpdate>) {
        let Some(path) = &self.unopened else {
            return;
        };
        if kept.is_empty() && self.unstored.is_empty() {
            return;
        }
        let Ok(store) = Store::open(path) else {
            return;
        };
        *lock(&self.handle.store) = store;
        self.unopened = None;
        std::mem::swap(kept, &mut self.unstored);
        kept.append(&mut self.unstored);
    }
}

impl StoreHandle {
    fn write(&self, update: &StoreUpdate) -> Result<(), StoreError> {
        match update {
            StoreUpdate::Measured(update) => self.merge(update),
            StoreUpdate::Copies { key, name, copies } => self.set_copies(key, name, *copies),
        }
    }

    fn report(&self, event: StoreEvent) {
        lock(&self.events).push(event);
    }

    fn report_failure(&self, text: String) {
        self.has_failed.store(true, Ordering::Relaxed);
        self.report(StoreEvent::Failed(text));
    }

    /// Reports the first successful write after a failure.
    fn report_success(&self) {
        if self.has_failed.swap(false, Ordering::Relaxed) {
            self.report(StoreEvent::Written);
        }
    }

    fn set_copies(
        &self,
        key: &ProgramKey,
        name: &str,
        copies: Option<StoredCopies>,
    ) -> Result<(), StoreError> {
        let mut store = lock(&self.store);
        match copies {
            Some(copies) => store.set_copies(key, &self.machine, name, now_s(), copies),
            None => store.forget_copies(key, &self.machine),
        }
    }

    fn merge(&self, update: &ProfileUpdate) -> Result<(), StoreError> {
        update.write(&mut lock(&self.store), &self.machine, now_s())
    }
}

/// Returns the seconds since 1970.
fn now_s() -> i64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.map_or(0, |age| age.as_secs() as i64)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
