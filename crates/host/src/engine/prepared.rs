// SPDX-License-Identifier: MIT OR Apache-2.0
//! Homes of programs that a client of the daemon launches.
//!
//! A move of a process into a cgroup waits for an RCU grace period (8 to 20 ms), while the creation
//! of a process in a cgroup takes 0.1 ms. Therefore the client requests the home first
//! ([`EngineHandle::prepare_for`]), creates the process in it, and then requests the admission
//! ([`EngineHandle::adopt_prepared`]).
//!
//! A home without a program counts in the quota of programs of its user, and is removed when the
//! [`PreparedProgram`] is dropped. The admission also succeeds if the process is not in the home:
//! the actuator then moves it.

use usher_act::{ActError, HomeDirs, WorkClass};
use usher_model::ProgramId;

use super::config::{AdoptOptions, AdoptedProgram, EngineError};
use super::request_channel::{Request, RequestSender};
use super::{EngineHandle, arrival};

/// The home of a program that another process is about to launch. If the value is dropped before
/// the program is adopted, the home is removed.
#[derive(Debug)]
pub struct PreparedProgram {
    id: ProgramId,
    dirs: HomeDirs,
    requests: RequestSender,
    is_submitted: bool,
}

impl PreparedProgram {
    /// Returns the number of the program.
    pub fn id(&self) -> ProgramId {
        self.id
    }

    /// Returns the directories in which the launcher creates the process.
    pub fn dirs(&self) -> &HomeDirs {
        &self.dirs
    }
}

impl Drop for PreparedProgram {
    fn drop(&mut self) {
        if !self.is_submitted {
            self.requests.send(Request::Abandon(self.id));
        }
    }
}

impl EngineHandle {
    /// Prepares a home for a program that the process `launcher` is about to launch as a child.
    /// `asking` is the requesting user, and must be the user of the launcher.
    ///
    /// # Errors
    /// The launcher has ended, belongs to another user, or is part of a managed program. The user
    /// has too many programs. The cgroups cannot be created.
    pub fn prepare_for(
        &self,
        launcher: i32,
        work: WorkClass,
        asking: u32,
    ) -> Result<PreparedProgram, EngineError> {
        let launcher = arrival::owned_process(&self.roots.proc, launcher, asking)?;
        let (id, dirs) = self.requests.call(|reply| Request::PrepareFor {
            launcher,
            work,
            asking,
            reply,
        })?;
        Ok(PreparedProgram {
            id,
            dirs,
            requests: self.requests.clone(),
            is_submitted: false,
        })
    }

    /// Does the same as [`Self::adopt_held`] for a process that its launcher has created in a
    /// prepared home.
    ///
    /// # Errors
    /// The errors of [`Self::adopt_held`].
    pub fn adopt_prepared(
        &self,
        pid: i32,
        adopt: AdoptOptions,
        asking: u32,
        mut prepared: PreparedProgram,
    ) -> Result<AdoptedProgram, EngineError> {
        let arriving = self.inspect(pid, adopt.clone(), true, asking)?;
        // From here on, the loop removes the home if it does not admit the process.
        prepared.is_submitted = true;
        match self.submit(Some(prepared.id), arriving) {
            Err(EngineError::Act(ActError::Departing { .. })) => {
                self.take_in(pid, adopt, true, asking)
            }
            taken => taken,
        }
    }
}
