// SPDX-License-Identifier: GPL-2.0-only
//! The calls to a daemon.

use std::path::PathBuf;

use anyhow::Context;
use usher_act::{ActConfig, HomeDirs, PreparedHome};
use usher_model::{CpuSet, ProgramId, Regulation};

use super::daemon::Daemon;
use super::error::is_closed;
use crate::api::{self, ErrorKind, VarlinkClientInterface};

/// The options of a running process that is to be managed.
#[derive(Debug, Clone, Default)]
pub struct AttachOptions {
    /// The name of the program.
    pub name: Option<String>,
    /// The weight of the program.
    pub weight: Option<f64>,
    /// The regulation of background work.
    pub background: Option<Regulation>,
    /// The CPUs to which seats are restricted.
    pub bounds: Option<CpuSet>,
    /// The group of processes that are one program.
    pub group: Option<String>,
    /// The job of a batch system, with its step.
    pub job: Option<String>,
}

impl Daemon {
    /// Requests the cgroups of a program that this process is about to launch. The next
    /// registration on this connection uses them. `None`: the daemon creates no cgroups for this
    /// process, or this process cannot open them. The daemon then moves the program after its
    /// registration instead.
    ///
    /// # Errors
    /// The daemon does not answer in time, or ends.
    pub fn prepare(
        &mut self,
        config: &ActConfig,
        background: Option<Regulation>,
    ) -> anyhow::Result<Option<PreparedHome>> {
        // The kernel permits the creation of a process only in a cgroup of the same user.
        if !self.is_own() {
            return Ok(None);
        }
        let background = background.map(|policy| policy.name().to_owned());
        let result = self.client.prepare(background).call();
        let reply: api::Prepare_Reply = match self.outcome(result) {
            Ok(reply) => reply,
            Err(error) if error.is_late || error.is_ending => {
                return Err(error).context("preparing the program's cgroup");
            }
            // The program needs no prepared cgroup. If the daemon cannot manage the program for the
            // same reason, the registration reports the reason.
            Err(_) => return Ok(None),
        };
        let dirs = HomeDirs {
            v2: reply.cgroup.map(PathBuf::from),
            v1: reply.cgroups_v1.into_iter().map(PathBuf::from).collect(),
        };
        let id = ProgramId(reply.id.unsigned_abs());
        Ok(PreparedHome::open_dirs(config, id, &dirs).ok())
    }

    /// Registers a process that has not yet executed its program.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn register(&mut self, request: RegisterRequest) -> anyhow::Result<api::Register_Reply> {
        let pid = request.pid;
        let mut call = self.client.register(
            pid.into(),
            request.name,
            request.argv,
            request.cwd,
            request.weight,
            request.heartbeat,
            request.running.then_some(true),
            request.background.map(|policy| policy.name().to_owned()),
            request.cores.map(i64::from),
            request.hints,
            request.given_hints,
        );
        let result = call.call();
        let outcome = self.outcome(result);
        outcome.with_context(|| format!("registering process {pid}"))
    }

    /// Requests the management of a running process.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn attach(
        &mut self,
        pid: i32,
        options: AttachOptions,
    ) -> anyhow::Result<api::Attach_Reply> {
        let background = options.background.map(|policy| policy.name().to_owned());
        let mut call = self.client.attach(
            pid.into(),
            options.name,
            options.weight,
            background,
            options.bounds.map(|cpus| cpus.to_string()),
            options.group,
            options.job,
            None,
            None,
        );
        let result = call.call();
        let outcome = self.outcome(result);
        outcome.with_context(|| format!("attaching process {pid}"))
    }

    /// Returns the program that a process belongs to; `None` if it is not managed.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn find_program(&mut self, pid: i64) -> anyhow::Result<Option<i64>> {
        match self.client.find(pid).call() {
            Ok(reply) => Ok(Some(reply.id)),
            Err(error) if matches!(error.kind(), ErrorKind::NoSuchProgram(_)) => Ok(None),
            Err(error) => Err(self.convert_error(error)).context("querying the daemon"),
        }
    }

    /// Ends the management of a program.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn detach(&mut self, id: i64) -> anyhow::Result<()> {
        let reply = self.client.detach(id, None, None).call();
        reply
            .map_err(|error| self.convert_error(error))
            .with_context(|| format!("detaching program {id}"))?;
        Ok(())
    }

    /// Reports that a program has completed its work once.
    ///
    /// # Errors
    /// The daemon refuses, or is gone.
    pub fn repeated(&mut self, id: i64, seconds: f64) -> anyhow::Result<()> {
        let reply = self.client.repeated(id, seconds).call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("reporting the program's end to the daemon")?;
        Ok(())
    }

    /// Requests the end of the daemon. The daemon may close the connection before it has replied.
    ///
    /// # Errors
    /// The daemon refuses, or does not answer in time.
    pub fn stop(&mut self) -> anyhow::Result<()> {
        match self.client.stop().call() {
            Ok(_) => Ok(()),
            Err(error) if is_closed(error.source_varlink_kind()) => Ok(()),
            Err(error) => Err(self.convert_error(error)).context("ending the daemon"),
        }
    }

    /// Requests that the daemon reads its configuration file again.
    ///
    /// # Errors
    /// The file has an error, or the daemon refuses or is gone.
    pub fn reload(&mut self) -> anyhow::Result<api::Reload_Reply> {
        let reply = self.client.reload().call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("reading the configuration file again")
    }
    /// Returns the state of all managed programs.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn status(&mut self) -> anyhow::Result<api::State> {
        let reply = self.client.status().call();
        Ok(reply
            .map_err(|error| self.convert_error(error))
            .context("querying the daemon")?
            .state)
    }

    /// Returns the reasons for the present plan.
    ///
    /// # Errors
    /// No such program, or the daemon is gone.
    pub fn explain(&mut self, program: Option<String>) -> anyhow::Result<api::Explain_Reply> {
        let reply = self.client.explain(program).call();
        reply
            .map_err(|error| self.convert_error(error))
            .context("querying the daemon")
    }
}
/// A process to register.
#[derive(Debug, Clone, Default)]
pub struct RegisterRequest {
    /// Pid of the process.
    pub pid: i32,
    /// `--name`.
    pub name: Option<String>,
    /// The command that the process will execute.
    pub argv: Vec<String>,
    /// Working directory of the process.
    pub cwd: Option<String>,
    /// `--weight`.
    pub weight: Option<f64>,
    /// `--cores`.
    pub cores: Option<u32>,
    /// Path of the program's heartbeat page.
    pub heartbeat: Option<String>,
    /// Whether the process has already executed its program.
    pub running: bool,
    /// The policy of `usher bg`; `None`: foreground.
    pub background: Option<Regulation>,
    /// The request for the number of threads of a program that is being launched.
    pub hints: Option<api::HintRequest>,
    /// The variables with which the program was launched.
    pub given_hints: Option<api::ThreadHints>,
}
