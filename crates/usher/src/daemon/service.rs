// SPDX-License-Identifier: GPL-2.0-only
//! The interface `org.usher.Usher1` for one peer: converts each call to a request to the engine,
//! and the result to a reply.
//!
//! 1. The connection determines the calling user, by the credentials from the kernel.
//! 2. This file checks sizes and arguments of a call. A pid of a caller in another PID namespace is
//!    rejected.
//! 3. The engine checks that the processes belong to the user, and carries out the call.
//! 4. If the reply to a registration or an attach cannot be delivered, the program is released
//!    again. A process that has joined a program stays in it.
//!
//! Bounds: pids from 1 to 4,194,304; at most 4,096 words and 128 KiB of command line; a name of 1
//! to 256 bytes; paths of at most 4,096 bytes. Each call waits for the control loop without a time
//! limit. `Ping` waits for nothing. `Explain` also runs the planner up to eight times in the
//! calling thread (`explain`).

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use usher_act::WorkClass;
use usher_host::engine::{
    AdoptOptions, AdoptedProgram, EngineError, EngineHandle, PreparedProgram, ProgramReview,
};
use usher_model::{CpuSet, ProcessId, ProgramId};
use usher_probe::ProcessFacts;
use varlink::VarlinkService;

use super::activity::Activity;
use super::attach::{AttachRequest, regulation, requesting_user};
use super::metrics::Timings;
use super::own_process;
use super::refusal::{Refusal, to_int};
use super::rules::GivenOptions;
use super::rules::reload::Reloader;
use super::scheduler::{self, Phase, SchedulerContext};
use super::server::Peer;
use super::workers::if_undelivered;
use super::{explain, hints, view};
use crate::api::{self, VarlinkInterface};
use crate::cli::numbers::PID_MAX;
use crate::cli::options::program_name;
use crate::failure;

/// Upper limit of words of a command line that are accepted from a caller.
const ARGV_WORDS_MAX: usize = 4096;
/// Upper limit of the total bytes of a command line.
const ARGV_BYTES_MAX: usize = 128 * 1024;
/// The longest path that the kernel accepts.
const PATH_BYTES_MAX: usize = libc::PATH_MAX as usize;

/// State shared by the services of all peers.
#[derive(Clone)]
pub struct ServiceContext {
    /// The engine.
    pub engine: EngineHandle,
    /// The scheduler.
    pub scheduler: SchedulerContext,
    /// Statistics of the time until a registered program has its seat.
    pub timings: Timings,
    /// The directory of the journal.
    pub instance_dir: PathBuf,
    /// The path of the profile store.
    pub store: PathBuf,
    /// Whether the daemon ends after its last program.
    pub exits_when_idle: bool,
    /// An eventfd that ends the daemon when it becomes readable.
    pub ending: Arc<OwnedFd>,
    /// Excludes the admission of programs by an ending daemon.
    pub activity: Activity,
    /// The rules of the configuration file.
    pub reloader: Reloader,
}

/// Returns the service for one peer.
pub fn for_peer(shared: &ServiceContext, peer: Peer) -> VarlinkService {
    let service = Service {
        shared: shared.clone(),
        peer,
        prepared: Mutex::new(None),
    };
    VarlinkService::new(
        "Usher",
        "usher",
        env!("CARGO_PKG_VERSION"),
        "varlink:org.usher.Usher1",
        vec![
            Box::new(api::new(Box::new(service))),
            scheduler::interface(&shared.scheduler, peer),
        ],
    )
}

struct Service {
    shared: ServiceContext,
    peer: Peer,
    /// The home of the program that the peer is about to launch. The end of the connection drops
    /// the service, and thereby removes the home.
    prepared: Mutex<Option<PreparedProgram>>,
}

/// How a process comes under management.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// Its launcher holds it before its `exec`.
    Held,
    /// Its launcher registers it again.
    Again,
    /// A user attaches it.
    Attached,
    /// A batch system attaches it before its `exec`.
    AttachedBeforeExec,
}

impl Service {
    fn take_in(
        &self,
        pid: i64,
        adopt: AdoptOptions,
        admission: Admission,
        asking: u32,
    ) -> Result<AdoptedProgram, Refusal> {
        let began = Instant::now();
        let number = i32::try_from(pid).ok();
        let number = number.filter(|pid| (1..=PID_MAX).contains(pid));
        let number = number.ok_or_else(|| {
            let rule = format!("a pid must be a whole number from 1 to {PID_MAX}, not {pid}");
            bad("pid", rule)
        })?;
        self.check_namespace(pid)?;
        Self::check(&adopt)?;
        // The first process of a launched program may itself be a launcher.
        if matches!(
            admission,
            Admission::Attached | Admission::AttachedBeforeExec
        ) {
            own_process::check(number)?;
        }
        let admitting = self.shared.activity.begin();
        let _admitting = admitting.ok_or(EngineError::Stopped)?;
        let engine = &self.shared.engine;
        let adopted = match admission {
            Admission::Held => match self.replace_prepared(None) {
                Some(home) => engine.adopt_prepared(number, adopt, asking, home)?,
                None => engine.adopt_held(number, adopt, asking)?,
            },
            Admission::Again | Admission::Attached => engine.attach(number, adopt, asking)?,
            Admission::AttachedBeforeExec => engine.attach_held(number, adopt, asking)?,
        };
        self.shared.timings.seated(began.elapsed());
        // The program that a process has joined belongs to earlier requests, too.
        if !adopted.joined {
            let (engine, id, asking) = (engine.clone(), adopted.id, self.peer.uid);
            if_undelivered(move || drop(engine.release(id, asking)));
        }
        Ok(adopted)
    }

    /// Stores another prepared home, and returns the former one.
    fn replace_prepared(&self, home: Option<PreparedProgram>) -> Option<PreparedProgram> {
        let prepared = self.prepared.lock();
        let mut prepared = prepared.unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut *prepared, home)
    }

    /// Prepares a home for a program that the peer is about to launch.
    fn prepare(&self, work: WorkClass) -> Result<api::Prepare_Reply, Refusal> {
        // The kernel would not let another user create a process in a cgroup of this daemon.
        self.check_daemon_owner()?;
        self.check_namespace(self.peer.pid.into())?;
        let admitting = self.shared.activity.begin();
        let _admitting = admitting.ok_or(EngineError::Stopped)?;
        let engine = &self.shared.engine;
        let home = engine.prepare_for(self.peer.pid, work, self.peer.uid)?;
        let path = |dir: &PathBuf| dir.to_str().map(ToOwned::to_owned);
        let dirs = home.dirs();
        let reply = api::Prepare_Reply {
            id: to_int(home.id().0),
            cgroup: dirs.v2.as_ref().and_then(path),
            cgroups_v1: dirs.v1.iter().filter_map(path).collect(),
        };
        drop(self.replace_prepared(Some(home)));
        Ok(reply)
    }

    /// Checks that a pid of the caller belongs to the same process in the daemon's PID namespace.
    fn check_namespace(&self, pid: i64) -> Result<(), Refusal> {
        if !self.peer.counts_otherwise(Path::new("/proc")) {
            return Ok(());
        }
        let reason = format!(
            "process {pid} belongs to another PID namespace, and the daemon can manage only \
             programs of its own: run the command in the daemon's namespace, or start a daemon \
             in that of the process"
        );
        Err(bad("pid", reason))
    }

    /// Checks the size of a request. The engine itself checks owner, weight and heartbeat page.
    fn check(adopt: &AdoptOptions) -> Result<(), Refusal> {
        let name = adopt
            .name
            .as_deref()
            .map_or(Ok(String::new()), program_name);
        name.map_err(|reason| bad("name", reason))?;
        let bytes: usize = adopt.argv.iter().map(|word| word.len()).sum();
        if adopt.argv.len() > ARGV_WORDS_MAX || bytes > ARGV_BYTES_MAX {
            let reason = format!(
                "the command line has {} words and {bytes} bytes; at most {ARGV_WORDS_MAX} words \
                 and {ARGV_BYTES_MAX} bytes are accepted: send only the first words",
                adopt.argv.len()
            );
            return Err(bad("argv", reason));
        }
        for (argument, path) in [("cwd", &adopt.cwd), ("heartbeat", &adopt.heartbeat)] {
            let length = path.as_ref().map_or(0, |path| path.as_os_str().len());
            if length > PATH_BYTES_MAX {
                let reason = format!(
                    "the path has {length} bytes; at most {PATH_BYTES_MAX} bytes are accepted"
                );
                return Err(bad(argument, reason));
            }
        }
        Ok(())
    }

    fn state(&self) -> Result<api::State, Refusal> {
        let engine = &self.shared.engine;
        let (status, topology) = (engine.status()?, engine.topology()?);
        Ok(self.completed(view::state(&status, &topology)))
    }

    fn explained(&self, program: Option<&str>) -> Result<api::Explain_Reply, Refusal> {
        let engine = &self.shared.engine;
        let status = engine.status()?;
        let topology = engine.topology()?;
        let explained = explain::explain(&status, &topology, program);
        let pid = program.and_then(|text| text.parse::<i32>().ok());
        match (explained, pid) {
            // The text may be the pid of one of the program's processes.
            (Err(Refusal::NoSuchProgram(text)), Some(pid)) => {
                let id = engine.program_of(pid)?.map(|id| id.to_string());
                let id = id.ok_or(Refusal::NoSuchProgram(text))?;
                explain::explain(&status, &topology, Some(&id))
            }
            (explained, _) => explained,
        }
    }

    /// Adds the profile store and the scheduler to the state: the running scheduler, or a warning
    /// about its end. Removes the command lines of other users, which `/proc` may hide from the
    /// caller (mount option `hidepid`).
    fn completed(&self, mut state: api::State) -> api::State {
        let peer = i64::from(self.peer.uid);
        for program in &mut state.programs {
            hide_command(program, peer);
        }
        let scheduler = self.shared.scheduler.scheduler.state();
        let now = scheduler::unix_seconds();
        let notice = scheduler
            .as_ref()
            .and_then(|scheduler| scheduler.notice(now));
        state.warnings.extend(notice);
        let running = scheduler.filter(|scheduler| scheduler.state == Phase::Running);
        api::State {
            scheduler: running.map(|scheduler| scheduler.does),
            store: Some(self.shared.store.display().to_string()),
            ..state
        }
    }

    /// Returns the review of a program by the rules; given options take precedence.
    fn review(&self, given: GivenOptions) -> ProgramReview {
        self.shared.reloader.rules().review(given)
    }

    /// Checks that the caller may make requests about the daemon itself.
    fn check_daemon_owner(&self) -> Result<(), Refusal> {
        let owner = rustix::process::geteuid().as_raw();
        match [0, owner].contains(&self.peer.uid) {
            true => Ok(()),
            false => Err(Refusal::NotPermitted(owner)),
        }
    }

    /// Returns the oldest process of a managed program; `None` if there is no such program.
    fn process_of(&self, id: i64) -> Option<ProcessId> {
        let status = self.shared.engine.status().ok()?;
        let found = status.programs.iter().find(|one| to_int(one.id.0) == id)?;
        let facts = ProcessFacts::read(Path::new("/proc"), found.pid).ok()?;
        Some(facts.id)
    }

    fn find(&self, pid: i64) -> Result<ProgramId, Refusal> {
        self.check_namespace(pid)?;
        let number = i32::try_from(pid).ok();
        let found = number.map(|pid| self.shared.engine.program_of(pid));
        let found = found.transpose()?.flatten();
        found.ok_or_else(|| Refusal::NoSuchProgram(pid.to_string()))
    }
}

/// Removes the command line unless root or the program's user requests it.
fn hide_command(program: &mut api::Program, peer: i64) {
    if peer != 0 && peer != program.uid {
        program.command.clear();
    }
}

pub(super) fn bad(argument: &'static str, reason: String) -> Refusal {
    Refusal::BadArgument { argument, reason }
}

/// Returns the number of cores of a fixed seat.
fn fixed_cores(cores: Option<i64>) -> Result<Option<u32>, Refusal> {
    let checked = |cores: i64| {
        let number = u32::try_from(cores).ok().filter(|&cores| cores > 0);
        number.ok_or_else(|| {
            bad(
                "cores",
                format!("{cores} is not a positive number of cores"),
            )
        })
    };
    cores.map(checked).transpose()
}

fn program_id(id: i64) -> Result<ProgramId, Refusal> {
    let known = u64::try_from(id).map(ProgramId);
    known.map_err(|_| Refusal::NoSuchProgram(id.to_string()))
}

fn list(cpus: Option<&CpuSet>) -> String {
    cpus.map(ToString::to_string).unwrap_or_default()
}

impl VarlinkInterface for Service {
    fn register(
        &self,
        call: &mut dyn api::Call_Register,
        pid: i64,
        name: Option<String>,
        argv: Vec<String>,
        cwd: Option<String>,
        weight: Option<f64>,
        heartbeat: Option<String>,
        running: Option<bool>,
        background: Option<String>,
        cores: Option<i64>,
        hints: Option<api::HintRequest>,
        given_hints: Option<api::ThreadHints>,
    ) -> varlink::Result<()> {
        let background = match regulation(background.as_deref()) {
            Ok(background) => background,
            Err(refusal) => return refusal.reply(call),
        };
        let cores = match fixed_cores(cores) {
            Ok(cores) => cores,
            Err(refusal) => return refusal.reply(call),
        };
        let hints = match hints::request(hints, given_hints) {
            Ok(hints) => hints,
            Err(refusal) => return refusal.reply(call),
        };
        let adopt = AdoptOptions {
            background,
            cores,
            hints,
            name,
            cwd: cwd.map(PathBuf::from),
            weight: weight.unwrap_or(1.0),
            heartbeat: heartbeat.map(PathBuf::from),
            review: Some(self.review(GivenOptions {
                weight: weight.is_some(),
                cores: cores.is_some(),
            })),
            ..AdoptOptions::new(argv)
        };
        let admission = match running {
            Some(true) => Admission::Again,
            _ => Admission::Held,
        };
        match self.take_in(pid, adopt, admission, self.peer.uid) {
            Ok(adopted) => {
                let instance = self.shared.instance_dir.display().to_string();
                let regulation = adopted.background.map(|policy| policy.name().to_owned());
                let cpus = list(adopted.seat.as_ref());
                let hints = adopted.hints.as_ref().map(hints::to_api);
                let id = to_int(adopted.id.0);
                let exits_when_idle = Some(self.shared.exits_when_idle);
                call.reply(id, cpus, instance, regulation, hints, exits_when_idle)
            }
            Err(refusal) => refusal.reply(call),
        }
    }

    fn prepare(
        &self,
        call: &mut dyn api::Call_Prepare,
        background: Option<String>,
    ) -> varlink::Result<()> {
        let work = regulation(background.as_deref()).map(|background| match background {
            Some(_) => WorkClass::Background,
            None => WorkClass::Foreground,
        });
        match work.and_then(|work| Service::prepare(self, work)) {
            Ok(home) => call.reply(home.id, home.cgroup, home.cgroups_v1),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn attach(
        &self,
        call: &mut dyn api::Call_Attach,
        pid: i64,
        name: Option<String>,
        weight: Option<f64>,
        background: Option<String>,
        bounds: Option<String>,
        group: Option<String>,
        job: Option<String>,
        uid: Option<i64>,
        command: Option<api::Command>,
    ) -> varlink::Result<()> {
        let request = AttachRequest {
            name,
            weight,
            background,
            bounds,
            group,
            job,
            command,
        };
        let attached = requesting_user(self.peer.uid, uid).and_then(|asking| {
            let is_held = request.command.is_some();
            let review = self.review(GivenOptions {
                weight: weight.is_some(),
                ..GivenOptions::default()
            });
            let mut adopt = request.options(review)?;
            adopt.is_of_user = uid.is_some();
            let admission = match is_held {
                true => Admission::AttachedBeforeExec,
                false => Admission::Attached,
            };
            self.take_in(pid, adopt, admission, asking)
        });
        match attached {
            Ok(adopted) => call.reply(to_int(adopted.id.0), list(adopted.seat.as_ref())),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn detach(
        &self,
        call: &mut dyn api::Call_Detach,
        id: i64,
        group: Option<String>,
        uid: Option<i64>,
    ) -> varlink::Result<()> {
        let engine = &self.shared.engine;
        let process = self.process_of(id);
        let released = requesting_user(self.peer.uid, uid).and_then(|asking| {
            let id = program_id(id)?;
            match group {
                Some(group) => engine.release_group(id, group, asking)?,
                None => engine.release(id, asking)?,
            }
            Ok(())
        });
        match released {
            Ok(()) => {
                if let Some(process) = process {
                    self.shared.reloader.rules().add_detached(process);
                }
                call.reply()
            }
            Err(refusal) => refusal.reply(call),
        }
    }

    fn find(&self, call: &mut dyn api::Call_Find, pid: i64) -> varlink::Result<()> {
        match Service::find(self, pid) {
            Ok(id) => call.reply(to_int(id.0)),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn repeated(
        &self,
        call: &mut dyn api::Call_Repeated,
        id: i64,
        seconds: f64,
    ) -> varlink::Result<()> {
        if !(seconds.is_finite() && seconds > 0.0) {
            return bad("seconds", format!("{seconds} is not a positive number")).reply(call);
        }
        let asking = self.peer.uid;
        let engine = &self.shared.engine;
        match program_id(id).and_then(|id| Ok(engine.repeated(id, seconds, asking)?)) {
            Ok(()) => call.reply(),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn status(&self, call: &mut dyn api::Call_Status) -> varlink::Result<()> {
        match self.state() {
            Ok(state) => call.reply(state),
            Err(refusal) => refusal.reply(call),
        }
    }

    fn explain(
        &self,
        call: &mut dyn api::Call_Explain,
        program: Option<String>,
    ) -> varlink::Result<()> {
        match self.explained(program.as_deref()) {
            Ok(mut reply) => {
                let peer = i64::from(self.peer.uid);
                let programs = reply.reasons.iter_mut().map(|reason| &mut reason.program);
                programs.for_each(|program| hide_command(program, peer));
                let state = self.completed(reply.state);
                call.reply(state, reply.alternatives, reply.reasons)
            }
            Err(refusal) => refusal.reply(call),
        }
    }

    fn stop(&self, call: &mut dyn api::Call_Stop) -> varlink::Result<()> {
        if let Err(refusal) = self.check_daemon_owner() {
            return refusal.reply(call);
        }
        // The write fails only if the counter of the eventfd is full, after 2^64 - 2 writes.
        let _ = rustix::io::write(&self.shared.ending, &1u64.to_ne_bytes());
        call.reply()
    }

    fn reload(&self, call: &mut dyn api::Call_Reload) -> varlink::Result<()> {
        if let Err(refusal) = self.check_daemon_owner() {
            return refusal.reply(call);
        }
        match self.shared.reloader.reload() {
            Ok(reloaded) => {
                let file = reloaded.file.map(|path| path.display().to_string());
                call.reply(file, to_int(reloaded.rules), reloaded.notes)
            }
            Err(error) => {
                let line = failure::line(&error);
                call.reply_failed(format!("{line}; the old rules stay in force"))
            }
        }
    }

    fn ping(&self, call: &mut dyn api::Call_Ping) -> varlink::Result<()> {
        call.reply(
            env!("CARGO_PKG_VERSION").to_owned(),
            std::process::id().into(),
        )
    }
}
