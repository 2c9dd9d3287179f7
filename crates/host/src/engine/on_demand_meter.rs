// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opens the meter for the first background program, and closes it after the last one.
//!
//! A thread with the ordinary scheduling class opens the meter, because the kernel verifies the
//! meter's BPF programs for 0.1 to 0.2 s, and much longer on a busy or emulated machine. In the
//! control loop, which runs with a real-time class, the opening would delay the seats of all
//! programs for this time. Another thread closes the meter, because the kernel waits for each CPU
//! when a BPF program is detached.
//!
//! Until the meter is open, background programs have their low priority but are not stopped. If the
//! last program ends before the meter is open, the opening continues. A program that starts before
//! the end of the opening uses this meter; otherwise the meter is closed.

use std::sync::mpsc::{Receiver, channel};

use usher_meter::{Meter, MeterConfig, MeterError};
use usher_model::{ProcessTree, ProgramId};

/// The meter of the background programs.
#[derive(Debug, Default)]
pub(super) enum OnDemandMeter {
    /// There is no background program.
    #[default]
    Closed,
    /// A thread opens the meter.
    Opening {
        opened: Receiver<Meter>,
        /// The programs that are added to the open meter.
        programs: Vec<ProcessTree>,
    },
    Open(Box<Meter>),
}

impl OnDemandMeter {
    /// Adds a program. For the first program, starts to open the meter; `notify` is called when the
    /// meter is open or the opening has failed. Returns warnings.
    pub fn add(
        &mut self,
        config: &MeterConfig,
        home: &ProcessTree,
        notify: impl FnOnce() + Send + 'static,
    ) -> Vec<String> {
        match self {
            Self::Closed => self.start_opening(config, home, notify),
            Self::Opening { programs, .. } => {
                programs.push(home.clone());
                Vec::new()
            }
            Self::Open(meter) => manage(meter, home).into_iter().collect(),
        }
    }

    fn start_opening(
        &mut self,
        config: &MeterConfig,
        home: &ProcessTree,
        notify: impl FnOnce() + Send + 'static,
    ) -> Vec<String> {
        let (sender, opened) = channel();
        let owned = config.clone();
        let thread = std::thread::Builder::new().name("meter".to_owned());
        // If the engine has ended meanwhile, the meter cannot be sent, and is closed here.
        let spawned = thread.spawn(move || {
            let _ = sender.send(Meter::open(&owned));
            notify();
        });
        let programs = vec![home.clone()];
        if spawned.is_ok() {
            *self = Self::Opening { opened, programs };
            return Vec::new();
        }
        // Without a thread, the control loop opens the meter.
        self.use_meter(Meter::open(config), &programs)
    }

    /// Adds the programs to an open meter, and uses it from now on. Returns warnings.
    fn use_meter(&mut self, mut meter: Meter, programs: &[ProcessTree]) -> Vec<String> {
        let mut warnings = meter.reasons();
        warnings.extend(programs.iter().filter_map(|home| manage(&mut meter, home)));
        *self = Self::Open(Box::new(meter));
        warnings
    }

    /// Adds the programs to a meter that a thread has opened. Returns warnings; `None` if no meter
    /// was opened since the last call.
    pub fn take_opened(&mut self) -> Option<Vec<String>> {
        let Self::Opening { opened, programs } = self else {
            return None;
        };
        let meter = opened.try_recv().ok()?;
        let programs = std::mem::take(programs);
        let warnings = self.use_meter(meter, &programs);
        if programs.is_empty() {
            self.close();
        }
        Some(warnings)
    }

    /// Removes a program.
    pub fn remove(&mut self, id: ProgramId) {
        match self {
            Self::Closed => {}
            Self::Opening { programs, .. } => programs.retain(|home| home.program != id),
            Self::Open(meter) => meter.forget(id),
        }
    }

    /// Closes the meter. A meter that a thread is opening is closed when it is open, unless a
    /// program is added before.
    pub fn close(&mut self) {
        match std::mem::take(self) {
            Self::Closed => {}
            Self::Opening { opened, .. } => {
                let programs = Vec::new();
                *self = Self::Opening { opened, programs };
            }
            Self::Open(meter) => {
                let thread = std::thread::Builder::new().name("meter".to_owned());
                // Without a thread, the meter is closed here.
                let _ = thread.spawn(move || drop(meter));
            }
        }
    }

    /// Returns the meter if it is open.
    pub fn get(&self) -> Option<&Meter> {
        match self {
            Self::Open(meter) => Some(meter),
            _ => None,
        }
    }

    /// Returns the meter if it is open.
    pub fn get_mut(&mut self) -> Option<&mut Meter> {
        match self {
            Self::Open(meter) => Some(meter),
            _ => None,
        }
    }
}

/// Adds a program to the meter. Returns the error as a warning, unless the program has ended.
fn manage(meter: &mut Meter, home: &ProcessTree) -> Option<String> {
    match meter.manage(home.program, home.cgroup.as_deref(), home.root) {
        Ok(()) | Err(MeterError::Gone { .. }) => None,
        Err(error) => Some(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Sender;

    use usher_model::ProcessId;
    use usher_probe::ProcessFacts;

    use super::*;

    fn config() -> MeterConfig {
        MeterConfig {
            bpf: false,
            ..MeterConfig::default()
        }
    }

    /// This process as a program.
    fn home(number: u64) -> ProcessTree {
        let pid = std::process::id() as i32;
        let root = ProcessFacts::read(std::path::Path::new("/proc"), pid).unwrap();
        ProcessTree {
            program: ProgramId(number),
            cgroup: None,
            root: root.id,
        }
    }

    fn notify(opened: &Sender<()>) -> impl FnOnce() + Send + 'static {
        let opened = opened.clone();
        move || opened.send(()).unwrap()
    }

    #[test]
    fn programs_that_arrive_during_the_opening_are_added() {
        let (sender, opened) = channel();
        let mut meter = OnDemandMeter::default();
        assert!(meter.take_opened().is_none());
        meter.add(&config(), &home(1), notify(&sender));
        meter.add(&config(), &home(2), notify(&sender));
        meter.add(&config(), &home(3), notify(&sender));
        meter.remove(ProgramId(2));
        opened.recv().unwrap();
        assert!(meter.take_opened().is_some());
        assert!(meter.take_opened().is_none());
        meter.add(&config(), &home(4), notify(&sender));
        let metering = meter.get_mut().unwrap().sample(1, true);
        let added: Vec<u64> = metering.background.keys().map(|id| id.0).collect();
        assert_eq!(added, [1, 3, 4]);
        meter.close();
        assert!(meter.get().is_none());
    }

    #[test]
    fn an_ended_program_causes_no_warning() {
        let (sender, opened) = channel();
        let mut meter = OnDemandMeter::default();
        let mut ended = home(1);
        ended.root = ProcessId {
            start_ticks: ended.root.start_ticks + 1,
            ..ended.root
        };
        meter.add(&config(), &ended, notify(&sender));
        opened.recv().unwrap();
        let warnings = meter.take_opened().unwrap();
        assert!(
            !warnings.iter().any(|text| text.contains("has ended")),
            "{warnings:?}"
        );
    }

    #[test]
    fn a_meter_that_opens_after_the_last_program_is_closed() {
        let (sender, opened) = channel();
        let mut meter = OnDemandMeter::default();
        meter.add(&config(), &home(1), notify(&sender));
        meter.close();
        opened.recv().unwrap();
        assert!(meter.take_opened().is_some());
        assert!(meter.get().is_none());
        assert!(meter.take_opened().is_none());
    }

    #[test]
    fn a_program_that_starts_after_the_last_program_uses_the_meter_being_opened() {
        let (sender, opened) = channel();
        let mut meter = OnDemandMeter::default();
        meter.add(&config(), &home(1), notify(&sender));
        meter.close();
        meter.add(&config(), &home(2), notify(&sender));
        opened.recv().unwrap();
        assert!(meter.take_opened().is_some());
        let metering = meter.get_mut().unwrap().sample(1, true);
        let added: Vec<u64> = metering.background.keys().map(|id| id.0).collect();
        assert_eq!(added, [2]);
        assert!(opened.try_recv().is_err(), "the meter was opened twice");
    }
}
