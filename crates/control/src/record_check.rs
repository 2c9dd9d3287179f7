// SPDX-License-Identifier: MIT OR Apache-2.0
//! Checks that the lines of a record are consistent with its topology and with one another.
//!
//! Without this check, a replay of a damaged or edited record would report a difference in the
//! policy. The cause would be an observation that no machine could produce. Each step must satisfy
//! three rules:
//!
//! - The time of a step is not earlier than the time of the previous step.
//! - A step refers only to programs that have arrived and have not departed; a sample may also
//!   refer to a program that departs in the same step.
//! - The usable CPUs of a step, and the seats that it gives, are CPUs of the recorded machine.
//!
//! The first contradiction is returned as a text. A step costs a copy of the set of programs, plus
//! the logarithm of the number of programs for each event, sample and action.

use std::collections::BTreeSet;

use usher_model::{Action, CpuSet, Event, ProgramId, Topology};

use crate::record::RecordStep;

/// The programs and the time after the lines that were checked.
#[derive(Debug)]
pub(crate) struct RecordCheck {
    all: CpuSet,
    present: BTreeSet<ProgramId>,
    at_ns: u64,
}

impl RecordCheck {
    /// Creates a check for a record that starts without programs.
    ///
    /// # Errors
    /// A description of the inconsistency in the topology.
    pub fn new(topology: &Topology) -> Result<Self, String> {
        topology.check().map_err(|error| error.to_string())?;
        Ok(Self {
            all: topology.all_cpus(),
            present: BTreeSet::new(),
            at_ns: 0,
        })
    }

    /// Checks a step against the previous steps.
    ///
    /// # Errors
    /// A description of the contradiction.
    pub fn step(&mut self, step: &RecordStep) -> Result<(), String> {
        let seen = &step.observation;
        self.check_cpus(&seen.usable)
            .map_err(|what| format!("the line has the usable {what}"))?;
        if seen.at_ns < self.at_ns {
            return Err(
                "the time of the line is earlier than that of the previous line".to_owned(),
            );
        }
        self.at_ns = seen.at_ns;
        for failed in &seen.failed {
            self.check_present(
                failed.action.program(),
                "the line reports a failed action on",
            )?;
        }
        let before = self.present.clone();
        for event in &seen.events {
            self.event(event)?;
        }
        for sample in &seen.programs {
            // A program that departs in this step may have been sampled before its departure.
            if !before.contains(&sample.id) {
                self.check_present(sample.id, "the line contains a sample of")?;
            }
        }
        for action in &step.decision.actions {
            self.check_present(action.program(), "the line contains an action on")?;
            if let Action::Seat { program, cpus } = action {
                self.check_cpus(cpus)
                    .map_err(|what| format!("program {program} got a seat on {what}"))?;
            }
        }
        Ok(())
    }

    fn event(&mut self, event: &Event) -> Result<(), String> {
        match event {
            Event::Arrived(program) if !self.present.insert(program.id) => {
                Err(format!("program {} arrives twice", program.id))
            }
            Event::Arrived(_) => Ok(()),
            Event::Departed(id) => {
                self.check_present(*id, "the line reports the end of")?;
                self.present.remove(id);
                Ok(())
            }
            Event::Seating { .. } => Ok(()),
            Event::Repeated { program, .. } => {
                self.check_present(*program, "the line reports a repetition of")
            }
            Event::Limited { program, .. } => {
                self.check_present(*program, "the line contains limits of")
            }
        }
    }

    fn check_present(&self, id: ProgramId, what: &str) -> Result<(), String> {
        match self.present.contains(&id) {
            true => Ok(()),
            false => Err(format!(
                "{what} program {id}, which has not arrived or has departed"
            )),
        }
    }

    fn check_cpus(&self, cpus: &CpuSet) -> Result<(), String> {
        let missing = cpus.minus(&self.all);
        match missing.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "CPUs {missing}, but the recorded machine has CPUs {}",
                self.all
            )),
        }
    }
}
