// SPDX-License-Identifier: MIT OR Apache-2.0
//! The profile store as the engine uses it: asked by the threads that bring
//! programs, taught by a thread of its own. SQLite waits for the disk; the
//! loop must not.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use usher_model::{Curve, ProgramKey, ProgressSource, Topology};
use usher_store::{MachineKey, MeasuredPoint, Measurement, Profile, Store, StoreError};

use super::config::{EngineError, ProfileUse};
use super::learn::Taught;

/// Between two attempts at a store that another process holds.
const RETRY: Duration = Duration::from_secs(2);
/// Lessons that are kept while the store cannot be written.
const LESSONS_MAX: usize = 1000;

/// What earlier runs taught of a program.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Known {
    pub curve: Option<Curve>,
    pub spinners: u32,
    pub active_wait: Option<bool>,
    pub llc_bytes: Option<u64>,
    pub bandwidth_gbps: Option<f64>,
    /// Sources of progress that misjudge it.
    pub misleading: Vec<ProgressSource>,
}

impl From<Profile> for Known {
    fn from(profile: Profile) -> Self {
        Self {
            curve: profile.curve().map(|(curve, _)| curve),
            spinners: profile.spinners,
            active_wait: profile.active_wait,
            llc_bytes: profile.llc_bytes,
            bandwidth_gbps: profile.bandwidth_gbps,
            misleading: profile.misleading_sources(),
        }
    }
}

/// What one repetition taught.
pub(super) struct Lesson {
    pub key: ProgramKey,
    pub name: String,
    pub taught: Taught,
    pub waits: Waits,
}

/// What was seen of how a program's threads wait.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Waits {
    /// Threads that busy-wait.
    pub spinners: u32,
    pub active_wait: Option<bool>,
}

/// The store, shared between threads.
#[derive(Debug)]
pub(super) struct Profiles {
    shelf: Arc<Shelf>,
    recall: bool,
    /// `None`: this run teaches nothing. Dropped, the teaching thread ends.
    lessons: Option<Sender<Lesson>>,
    teacher: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shelf {
    store: Mutex<Store>,
    machine: MachineKey,
    warnings: Mutex<Vec<String>>,
}

impl Profiles {
    /// Opens the store; where that fails, profiles live in memory, and a
    /// warning says so.
    pub fn open(profiles: &ProfileUse, topology: &Topology) -> Result<Self, EngineError> {
        let (store, warning) = match &profiles.store {
            Some(path) => Store::open_or_memory(path)?,
            None => (Store::in_memory()?, None),
        };
        let shelf = Arc::new(Shelf {
            store: Mutex::new(store),
            machine: MachineKey::of(topology),
            warnings: Mutex::new(warning.iter().map(ToString::to_string).collect()),
        });
        let (mut lessons, mut teacher) = (None, None);
        if profiles.learn {
            let (sender, receiver) = channel::<Lesson>();
            let shelf = shelf.clone();
            let teach = move || shelf.teach_all(&receiver);
            let thread = std::thread::Builder::new().name("profiles".to_owned());
            teacher = Some(thread.spawn(teach).map_err(EngineError::Start)?);
            lessons = Some(sender);
        }
        Ok(Self {
            shelf,
            recall: profiles.recall,
            lessons,
            teacher,
        })
    }

    /// What is known of a program on this kind of machine.
    pub fn recall(&self, key: &ProgramKey) -> Known {
        if !self.recall {
            return Known::default();
        }
        match lock(&self.shelf.store).lookup(key, &self.shelf.machine) {
            Ok(profile) => profile.map(Known::from).unwrap_or_default(),
            Err(error) => {
                lock(&self.shelf.warnings).push(error.to_string());
                Known::default()
            }
        }
    }

    /// Has it written down, soon.
    pub fn teach(&self, lesson: Lesson) {
        if let Some(lessons) = &self.lessons {
            // Refused only when the thread has panicked, which it reported.
            let _ = lessons.send(lesson);
        }
    }

    /// What went wrong since the last call.
    pub fn take_warnings(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shelf.warnings))
    }
}

impl Drop for Profiles {
    /// Everything taught is written before this returns.
    fn drop(&mut self) {
        drop(self.lessons.take());
        if let Some(teacher) = self.teacher.take() {
            let _ = teacher.join();
        }
    }
}

impl Shelf {
    /// Writes lessons until none can come any more. While another process
    /// holds the store they are kept and written later; a warning reports both.
    fn teach_all(&self, lessons: &Receiver<Lesson>) {
        let mut kept: VecDeque<Lesson> = VecDeque::new();
        let mut held_up = false;
        loop {
            let next = match kept.is_empty() {
                true => lessons.recv().map_err(RecvTimeoutError::from),
                false => lessons.recv_timeout(RETRY),
            };
            let ending = matches!(next, Err(RecvTimeoutError::Disconnected));
            kept.extend(next.ok());
            match self.write(&mut kept) {
                Ok(()) if std::mem::take(&mut held_up) => {
                    self.warn(
                        "the profile store can be written again; nothing was lost".to_owned(),
                    );
                }
                Ok(()) => {}
                Err(error) if ending || kept.len() > LESSONS_MAX => {
                    self.warn(format!("{error}; {} measurements are lost", kept.len()));
                    kept.clear();
                }
                Err(error) if !held_up => {
                    held_up = true;
                    self.warn(format!(
                        "{error}; what is learned is kept and written later"
                    ));
                }
                Err(_) => {}
            }
            if ending {
                return;
            }
        }
    }

    /// Writes lessons in order, as far as the store lets go.
    fn write(&self, kept: &mut VecDeque<Lesson>) -> Result<(), StoreError> {
        while let Some(lesson) = kept.front() {
            match self.teach(lesson) {
                Err(error @ StoreError::Busy { .. }) => return Err(error),
                Err(error) => self.warn(error.to_string()),
                Ok(()) => {}
            }
            kept.pop_front();
        }
        Ok(())
    }

    fn warn(&self, text: String) {
        lock(&self.warnings).push(text);
    }

    fn teach(&self, lesson: &Lesson) -> Result<(), StoreError> {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
        let measurement = Measurement {
            name: lesson.name.clone(),
            at_s: since_1970.map_or(0, |age| age.as_secs() as i64),
            points: measured(&lesson.taught),
            // None seen says nothing: they may have had no cause.
            spinners: Some(lesson.waits.spinners).filter(|&n| n > 0),
            active_wait: lesson.waits.active_wait,
            ..Measurement::default()
        };
        lock(&self.store).merge(&lesson.key, &self.machine, &measurement)
    }
}

fn measured(taught: &Taught) -> Vec<MeasuredPoint> {
    let repetition = (ProgressSource::Repetition, taught.repetition);
    let points = std::iter::once(repetition).chain(taught.by_source);
    points
        .map(|(source, point)| MeasuredPoint { point, source })
        .collect()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
