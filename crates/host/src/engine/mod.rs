// SPDX-License-Identifier: MIT OR Apache-2.0
//! Runs the control loop on the real machine, in a thread of its own.
//!
//! An [`Engine`] owns the actuator (with its journal and keeper), one probe per program, and the
//! profile store. The thread of the engine runs [`usher_control::ControlLoop`]. All other code,
//! such as the daemon's connections, `usher mix` and `usher profile`, sends requests through an
//! [`EngineHandle`]. A request wakes the loop at once.
//!
//! A request to manage a program is answered after the policy has decided about the program and the
//! actions of this decision are done. Therefore a launcher that holds its child until the answer
//! starts the child in its seat.
//!
//! Bounds: A request waits for its answer without a time limit, and fails when the engine has been
//! stopped. [`Engine::start`] first undoes the changes of dead instances, and waits up to 5 s for
//! the keeper. [`Engine::stop`] waits until the loop has undone all changes, which takes a few
//! seconds at most, plus 0.7 s for each program that cannot be released. A panic of the policy ends
//! the loop; all changes are undone then, too.

mod admission;
mod arrival;
mod background;
mod burst_scans;
mod clock;
mod config;
mod copies;
mod copy_tracker;
mod cpu_budget;
mod departure;
mod exec_notifications;
mod hotplug;
mod joining;
mod learn;
mod log;
mod member;
mod on_demand_meter;
mod pins;
mod prepared;
mod profiles;
mod progress_window;
mod realtime;
mod regulation;
mod reports;
mod request_channel;
mod requests;
mod rest;
mod seats;
mod sleep;
mod soft_seats;
mod status;
mod warning;
mod watch;
mod world;

use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use arrival::WEIGHTS;
pub use config::{
    AdoptOptions, AdoptedProgram, EngineConfig, EngineError, HintRequest, KeeperCommand,
    PolicyFactory, ProfileUse, ProgramReview, ReviewedProcess, ThreadHints,
};
pub use log::{LogChange, LogEntry, ProgramPlacement};
pub use prepared::PreparedProgram;
pub use realtime::set_realtime_class;
pub use soft_seats::SoftSeats;
pub use status::{BackgroundStatus, ProgramStatus, Status, TimedNote};

use usher_act::keeper::{KeeperHandle, KeeperTask};
use usher_act::{ActError, Actuator, PreparedHome, WorkClass};
use usher_control::{ControlLoop, RecordHead, Recorder};
use usher_model::{ProcessId, ProgramId, Topology};
use usher_policy::Policy;
use usher_probe::{CpuQuotas, ExecWatch, MachineProbe, Roots, process_id};

use self::arrival::ArrivingProgram;
use self::burst_scans::BurstBudget;
use self::exec_notifications::ExecNotifications;
use self::log::ChangeLog;
use self::profiles::Profiles;
use self::request_channel::{Request, RequestSender, request_channel};
use self::world::{LoopState, RealWorld};
use crate::launch::{HeldChild, LaunchError, LaunchSpec, Repeater, hold_in, repeat_in};

pub(crate) use clock::now_ns;

/// Time for which an admission waits until the process is released from another program. A release
/// takes longer than some milliseconds if a runnable thread of the program waits for a CPU.
const DEPARTURE_WAIT: Duration = Duration::from_secs(5);

/// Pause between two attempts of such an admission.
const DEPARTURE_PAUSE: Duration = Duration::from_millis(20);

/// A running control loop. Dropping the engine stops the loop and undoes all changes.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    instance_dir: PathBuf,
    panicked: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<ActError>>>,
}

/// Sends requests to a running engine; may be cloned and used in any thread.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    requests: RequestSender,
    profiles: Arc<Profiles>,
    roots: Roots,
}

impl Engine {
    /// Undoes the changes that dead instances left, and starts the loop with a policy.
    ///
    /// # Errors
    /// The actuator cannot be opened, the record cannot be started, or the keeper does not
    /// start.
    pub fn start(
        config: EngineConfig,
        policy: Box<dyn Policy + Send>,
    ) -> Result<Self, EngineError> {
        let recorder = config
            .record
            .as_deref()
            .map(|path| begin_record(path, policy.name(), &config.topology))
            .transpose()?;
        let (sender, receiver) = request_channel().map_err(EngineError::Start)?;
        let (profiles, actuator, keeper) = open_parts(&config)?;
        let instance_dir = actuator.instance_dir().to_owned();
        let mut world = RealWorld {
            machine: MachineProbe::new(&config.roots),
            quotas: CpuQuotas::new(&config.roots),
            policy: policy.name(),
            actuator,
            keeper,
            requests: receiver,
            profiles: profiles.clone(),
            soft: config.soft,
            recorder,
            ignore: config.ignore,
            programs_per_user: config.programs_per_user,
            other_cpus_max: config.other_cpus_max,
            places_copies: config.places_copies,
            exec_notifications: ExecNotifications::new(match config.places_copies {
                true => ExecWatch::open(&config.roots.proc),
                false => None,
            }),
            burst_budget: BurstBudget::default(),
            state: LoopState::new(
                now_ns(),
                config.topology.all_cpus(),
                ChangeLog::new(config.log_entries_max, config.changes),
            ),
            topology: config.topology,
            roots: config.roots.clone(),
        };
        world.warn_of_stale_journals();
        world.report_profile_store();
        let panicked = Arc::new(AtomicBool::new(false));
        let (flag, ended) = (panicked.clone(), config.ended);
        let policy_factory = config.policy_factory;
        let thread = std::thread::Builder::new()
            .name("loop".to_owned())
            .spawn(move || {
                let left = run_until_stopped(policy, world, policy_factory.as_ref(), &flag);
                // The write fails only if the counter of the eventfd is full, after 2^64 - 2
                // writes.
                let notify = |fd: Arc<OwnedFd>| rustix::io::write(fd, &1u64.to_ne_bytes());
                let _ = ended.map(notify);
                left
            })
            .map_err(EngineError::Start)?;
        Ok(Self {
            handle: EngineHandle {
                requests: sender,
                profiles,
                roots: config.roots,
            },
            instance_dir,
            panicked,
            thread: Some(thread),
        })
    }

    /// Returns a handle for use in other threads.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Returns the directory of the engine's journal.
    pub fn instance_dir(&self) -> &Path {
        &self.instance_dir
    }

    /// Returns whether the loop has ended by a panic, after which all changes were undone.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Stops the loop and undoes all changes. Returns the errors of changes that could not be
    /// undone.
    pub fn stop(mut self) -> Vec<ActError> {
        self.end()
    }

    fn end(&mut self) -> Vec<ActError> {
        self.handle.requests.send(Request::Stop);
        let thread = self.thread.take();
        thread.map_or_else(Vec::new, |thread| thread.join().unwrap_or_default())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.end();
    }
}

impl std::ops::Deref for Engine {
    type Target = EngineHandle;

    fn deref(&self) -> &EngineHandle {
        &self.handle
    }
}

impl EngineHandle {
    /// Returns why the profile store could not be opened at the start, and the effect; `None` if it
    /// was opened.
    pub fn store_warning(&self) -> Option<&str> {
        self.profiles.opening_warning()
    }

    /// Begins to manage a process that waits before its `exec` of `adopt.argv`. Returns when the
    /// process is seated.
    ///
    /// `asking` is the requesting user.
    ///
    /// # Errors
    /// The process does not exist, belongs to another user, or is managed already.
    pub fn adopt_held(
        &self,
        pid: i32,
        adopt: AdoptOptions,
        asking: u32,
    ) -> Result<AdoptedProgram, EngineError> {
        self.take_in(pid, adopt, true, asking)
    }

    /// Begins to manage a running program, which consists of this process and all its descendants.
    /// Returns when the program is seated.
    ///
    /// # Errors
    /// The errors of [`Self::adopt_held`], and an error for a kernel thread, for Usher itself and
    /// for an ancestor of Usher.
    pub fn attach(
        &self,
        pid: i32,
        adopt: AdoptOptions,
        asking: u32,
    ) -> Result<AdoptedProgram, EngineError> {
        self.take_in(pid, adopt, false, asking)
    }

    /// Does the same as [`Self::attach`] for a process that waits before its `exec` of `adopt.argv`.
    /// The process stays in its cgroup. If `adopt.group` names a managed program, the process
    /// becomes a part of this program.
    ///
    /// # Errors
    /// The errors of [`Self::attach`].
    pub fn attach_held(
        &self,
        pid: i32,
        mut adopt: AdoptOptions,
        asking: u32,
    ) -> Result<AdoptedProgram, EngineError> {
        adopt.in_place = true;
        self.take_in(pid, adopt, true, asking)
    }

    /// Launches a program as a child of this process, and holds the child before its `exec`. The
    /// child is created inside the program's cgroups, and is seated when this function returns.
    ///
    /// # Errors
    /// The program cannot be launched or managed. After an error, the child is gone.
    pub fn launch(
        &self,
        spec: &LaunchSpec,
        adopt: AdoptOptions,
    ) -> Result<(HeldChild, AdoptedProgram), EngineError> {
        self.spawn_in(adopt, |home| {
            let held = hold_in(spec, Some(home))?;
            Ok((held.pid(), held))
        })
    }

    /// Does the same as [`Self::launch`] for a command that is run repeatedly, always in the seats
    /// of the program.
    ///
    /// # Errors
    /// The errors of [`Self::launch`].
    pub fn launch_repeating(
        &self,
        spec: &LaunchSpec,
        adopt: AdoptOptions,
    ) -> Result<(Repeater, AdoptedProgram), EngineError> {
        self.spawn_in(adopt, |home| {
            let repeater = repeat_in(spec, Some(home))?;
            Ok((repeater.pid(), repeater))
        })
    }

    /// Reports that a program has completed a repetition of its work in this number of seconds. A
    /// caller may report the last repetition shortly after the program's end.
    ///
    /// # Errors
    /// The program is not managed, or belongs to another user.
    pub fn repeated(&self, id: ProgramId, seconds: f64, asking: u32) -> Result<(), EngineError> {
        self.requests.call(|reply| Request::Repeated {
            id,
            seconds,
            asking,
            reply,
        })
    }

    /// Releases a program: undoes all actions on it.
    ///
    /// # Errors
    /// The program is not managed, belongs to another user, or an action could not be undone.
    pub fn release(&self, id: ProgramId, asking: u32) -> Result<(), EngineError> {
        self.requests.call(|reply| Request::Release {
            id,
            group: None,
            asking,
            reply,
        })
    }

    /// Releases a program that was attached with this group. Engines reuse the numbers of the
    /// programs of earlier engines, so that the number alone may identify another program.
    ///
    /// # Errors
    /// The program is not managed, has no such group, belongs to another user, or an action could not
    /// be undone.
    pub fn release_group(
        &self,
        id: ProgramId,
        group: String,
        asking: u32,
    ) -> Result<(), EngineError> {
        self.requests.call(|reply| Request::Release {
            id,
            group: Some(group),
            asking,
            reply,
        })
    }

    /// Returns the program to which a process belongs. The process may be any process of the
    /// program's tree. Returns `None` if the process is not managed.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn program_of(&self, pid: i32) -> Result<Option<ProgramId>, EngineError> {
        self.requests
            .call(|reply| Request::ProgramOf { pid, reply })
    }

    /// Forbids seats for the given reason, or permits seats again (`None`). Returns when the loop
    /// has released all seats after a prohibition.
    pub fn set_seating(&self, forbidden: Option<String>) {
        self.requests.send(Request::Seating { forbidden });
        // Two requests are necessary: the loop may answer the first request before the iteration
        // that releases the seats, and answers the second request after it. An error is ignored,
        // because a loop that has stopped has released all seats.
        let _ = self.topology().and_then(|_| self.topology());
    }

    /// Returns the machine for which the policy plans.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn topology(&self) -> Result<Topology, EngineError> {
        self.requests.call(Request::Topology)
    }

    /// Returns the number of managed programs. The request costs less than [`Self::status`], because
    /// no sample of the programs is read.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn program_count(&self) -> Result<usize, EngineError> {
        self.requests.call(Request::ProgramCount)
    }

    /// Returns the managed programs with their placement and progress.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn status(&self) -> Result<Status, EngineError> {
        self.requests.call(Request::Status)
    }

    /// Returns the entries of the placement log from number `since` on, and the number from which
    /// the next call should continue.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn log(&self, since: usize) -> Result<(Vec<LogEntry>, usize), EngineError> {
        self.requests.call(|reply| Request::Log { since, reply })
    }

    /// Prepares a home, spawns a child in it, and manages the child. On failure, the child is
    /// dropped, and thereby killed, before its home is removed.
    fn spawn_in<T>(
        &self,
        adopt: AdoptOptions,
        spawn: impl FnOnce(&PreparedHome) -> Result<(i32, T), LaunchError>,
    ) -> Result<(T, AdoptedProgram), EngineError> {
        let launcher = own_process(&self.roots.proc)?;
        let own = rustix::process::geteuid().as_raw();
        let work = match adopt.background {
            Some(_) => WorkClass::Background,
            None => WorkClass::Foreground,
        };
        let (id, home) = self.requests.call(|reply| Request::Prepare {
            launcher,
            work,
            reply,
        })?;
        let spawned = spawn(&home).map_err(EngineError::from);
        let inspected =
            spawned.and_then(|(pid, child)| Ok((self.inspect(pid, adopt, true, own)?, child)));
        match inspected {
            Ok((arriving, child)) => Ok((child, self.submit(Some(id), arriving)?)),
            Err(error) => {
                self.requests.send(Request::Abandon(id));
                Err(error)
            }
        }
    }

    /// Manages a process. While the process is still being released from another program, retries
    /// for [`DEPARTURE_WAIT`]; the loop continues its work between the attempts.
    fn take_in(
        &self,
        pid: i32,
        adopt: AdoptOptions,
        held: bool,
        asking: u32,
    ) -> Result<AdoptedProgram, EngineError> {
        let began = Instant::now();
        loop {
            let arriving = self.inspect(pid, adopt.clone(), held, asking)?;
            match self.submit(None, arriving) {
                Err(EngineError::Act(ActError::Departing { .. }))
                    if began.elapsed() < DEPARTURE_WAIT =>
                {
                    std::thread::sleep(DEPARTURE_PAUSE);
                }
                taken => return taken,
            }
        }
    }

    fn inspect(
        &self,
        pid: i32,
        adopt: AdoptOptions,
        held: bool,
        asking: u32,
    ) -> Result<ArrivingProgram, EngineError> {
        ArrivingProgram::inspect(&self.roots, pid, adopt, held, &self.profiles, asking)
    }

    fn submit(
        &self,
        prepared: Option<ProgramId>,
        arriving: ArrivingProgram,
    ) -> Result<AdoptedProgram, EngineError> {
        let arriving = Box::new(arriving);
        self.requests.call(|reply| Request::Adopt {
            prepared,
            arriving,
            reply,
        })
    }
}

fn own_process(proc_root: &Path) -> Result<ProcessId, EngineError> {
    let pid = rustix::process::getpid().as_raw_nonzero().get();
    Ok(process_id(proc_root, pid)?)
}

fn begin_record(
    path: &Path,
    policy: &str,
    topology: &Topology,
) -> Result<Recorder<std::io::BufWriter<std::fs::File>>, EngineError> {
    let head = RecordHead {
        policy: policy.to_owned(),
        topology: topology.clone(),
    };
    let failed = |source| EngineError::Record {
        path: path.to_owned(),
        source,
    };
    // The existing record is renamed, not overwritten: it may be the record of a crashed instance
    // and show the cause.
    if path.is_file() {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".old");
        std::fs::rename(path, aside).map_err(|error| failed(error.into()))?;
    }
    let file = create_record(path).map_err(Into::into);
    let recorder = file.and_then(|file| Recorder::new(std::io::BufWriter::new(file), &head));
    recorder.map_err(failed)
}

/// Creates the file of a record. The control loop writes to the file, and must not wait for the
/// reader of a FIFO or a terminal.
fn create_record(path: &Path) -> std::io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    let options = options.write(true).create(true).truncate(true);
    let file = options.custom_flags(libc::O_NONBLOCK).open(path);
    let not_regular = || std::io::Error::other("a record must be a regular file");
    match file {
        Ok(file) if file.metadata()?.is_file() => Ok(file),
        Ok(_) => Err(not_regular()),
        // A FIFO without a reader.
        Err(error) if error.raw_os_error() == Some(libc::ENXIO) => Err(not_regular()),
        Err(error) => Err(error),
    }
}

/// Opens the profile store, and the actuator with its keeper, at the same time: a new store waits
/// for the disk, and a keeper for the start of a process.
fn open_parts(
    config: &EngineConfig,
) -> Result<(Arc<Profiles>, Actuator, Option<KeeperHandle>), EngineError> {
    std::thread::scope(|threads| {
        let open = || Profiles::open(&config.profiles, &config.topology);
        let opening = std::thread::Builder::new().name("store".to_owned());
        let opening = opening.spawn_scoped(threads, open);
        let opening = opening.map_err(EngineError::Start)?;
        let acting = open_actuator(config);
        let profiles = match opening.join() {
            Ok(profiles) => profiles,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match (profiles, acting) {
            (Ok(profiles), Ok((actuator, keeper))) => Ok((Arc::new(profiles), actuator, keeper)),
            (Err(error), acting) => {
                // Removes the journal.
                let _ = acting.map(|(mut actuator, _)| actuator.undo_all());
                Err(error)
            }
            (Ok(_), Err(error)) => Err(error),
        }
    })
}

fn open_actuator(config: &EngineConfig) -> Result<(Actuator, Option<KeeperHandle>), EngineError> {
    let mut actuator = Actuator::open(config.act.clone())?;
    let keeper = start_keeper(config, actuator.instance_dir()).inspect_err(|_| {
        // Removes the journal.
        actuator.undo_all();
    });
    keeper.map(|keeper| (actuator, keeper))
}

fn start_keeper(
    config: &EngineConfig,
    instance_dir: &Path,
) -> Result<Option<KeeperHandle>, EngineError> {
    let Some(command) = &config.keeper else {
        return Ok(None);
    };
    let task = KeeperTask {
        owner: own_process(&config.roots.proc)?,
        instance_dir: instance_dir.to_owned(),
        config: config.act.clone(),
        respawn: command.respawn.clone(),
    };
    Ok(Some(KeeperHandle::spawn(
        &command.exe,
        &command.subcommand,
        task,
    )?))
}

/// The main function of the loop's thread: runs iterations until the engine is stopped, and then
/// undoes all changes. A panic of the policy also ends the loop, and all changes are undone.
fn run_until_stopped(
    policy: Box<dyn Policy + Send>,
    world: RealWorld,
    policy_factory: Option<&PolicyFactory>,
    panicked: &AtomicBool,
) -> Vec<ActError> {
    let realtime = realtime::set_realtime_class();
    let mut control = ControlLoop::new(policy, world);
    let ended = catch_unwind(AssertUnwindSafe(|| {
        if let Err(errno) = realtime {
            control.world().warn_of_delays(errno);
        }
        control.world().read_usable();
        control.world().unseat_all();
        control.run();
        while control.world().needs_replan() {
            if let Some(policy) = control.world().replan(policy_factory) {
                control.replace_policy(policy);
            }
            control.run();
        }
    }));
    panicked.store(ended.is_err(), Ordering::SeqCst);
    let (_, mut world) = control.into_parts();
    world.unseat_all();
    world.actuator.undo_all()
}
