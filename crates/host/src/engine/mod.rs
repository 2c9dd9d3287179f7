// SPDX-License-Identifier: MIT OR Apache-2.0
//! The control loop on the real machine.
//!
//! An [`Engine`] owns what acts (the actuator with its journal and keeper),
//! what looks (a probe a program) and what remembers (the profile store), and
//! turns [`usher_control::ControlLoop`] on a thread of its own. Everybody else has an
//! [`EngineHandle`] and asks: the daemon's connections, `usher mix`, `usher
//! profile`. A question wakes the loop at once; a program that is brought in
//! is answered for when the policy has decided about it and its actions are
//! done, so that a launcher that holds its child until then launches it into
//! its seat.

mod background;
mod config;
mod grown;
mod learn;
mod log;
mod mailbox;
mod member;
mod newcomer;
mod pins;
mod profiles;
mod prompt;
mod reports;
mod requests;
mod softly;
mod status;
mod watch;
mod world;

use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

pub use config::{Adopt, Adopted, EngineConfig, EngineError, KeeperCommand, ProfileUse, Remake};
pub use log::{Change, LogEntry, Place};
pub use newcomer::WEIGHTS;
pub use prompt::run_promptly;
pub use softly::SoftSeats;
pub use status::{BackgroundStatus, ProgramStatus, Status, TimedNote};

use usher_act::keeper::{KeeperHandle, KeeperTask};
use usher_act::{ActError, Actuator, PreparedHome, Work};
use usher_control::{ControlLoop, RecordHead, Recorder};
use usher_model::{ProcessId, ProgramId, Topology};
use usher_policy::Policy;
use usher_probe::{CpuQuotas, MachineProbe, Roots, process_id};

use self::log::Log;
use self::mailbox::{Postbox, Request, mailbox};
use self::newcomer::Newcomer;
use self::profiles::Profiles;
use self::world::{RealWorld, State};
use crate::launch::{Held, LaunchError, LaunchSpec, Repeater, hold_in, repeat_in};

pub(crate) use world::now_ns;

/// A running control loop. Dropped, it stops and undoes everything.
#[derive(Debug)]
pub struct Engine {
    handle: EngineHandle,
    instance_dir: PathBuf,
    panicked: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<ActError>>>,
}

/// What asks a running engine; as many as wanted, in any thread.
#[derive(Debug, Clone)]
pub struct EngineHandle {
    postbox: Postbox,
    profiles: Arc<Profiles>,
    roots: Roots,
}

impl Engine {
    /// Starts the loop with that policy. What dead instances left is undone
    /// first.
    ///
    /// # Errors
    /// There is nothing to act with, the record cannot be begun, the keeper
    /// does not start.
    pub fn start(
        config: EngineConfig,
        policy: Box<dyn Policy + Send>,
    ) -> Result<Self, EngineError> {
        let profiles = Arc::new(Profiles::open(&config.profiles, &config.topology)?);
        let recorder = config
            .record
            .as_deref()
            .map(|path| begin_record(path, policy.name(), &config.topology))
            .transpose()?;
        let actuator = Actuator::open(config.act.clone())?;
        let instance_dir = actuator.instance_dir().to_owned();
        let keeper = start_keeper(&config, &instance_dir)?;
        let (postbox, mailbox) = mailbox().map_err(EngineError::Start)?;
        let world = RealWorld {
            machine: MachineProbe::new(&config.roots),
            quotas: CpuQuotas::new(&config.roots),
            policy: policy.name(),
            actuator,
            keeper,
            mailbox,
            profiles: profiles.clone(),
            soft: config.soft,
            recorder,
            ignore: config.ignore,
            programs_per_user: config.programs_per_user,
            state: State::new(
                now_ns(),
                config.topology.all_cpus(),
                Log::new(config.log_entries_max),
            ),
            topology: config.topology,
            roots: config.roots.clone(),
        };
        let panicked = Arc::new(AtomicBool::new(false));
        let (tell, ended) = (panicked.clone(), config.ended);
        let remake = config.remake;
        let thread = std::thread::Builder::new()
            .name("loop".to_owned())
            .spawn(move || {
                let left = turn_until_stopped(policy, world, remake.as_ref(), &tell);
                // Full only when it has been written to 2^64 - 2 times.
                let bell = |fd: Arc<OwnedFd>| rustix::io::write(fd, &1u64.to_ne_bytes());
                let _ = ended.map(bell);
                left
            })
            .map_err(EngineError::Start)?;
        Ok(Self {
            handle: EngineHandle {
                postbox,
                profiles,
                roots: config.roots,
            },
            instance_dir,
            panicked,
            thread: Some(thread),
        })
    }

    /// To ask it from elsewhere.
    pub fn handle(&self) -> EngineHandle {
        self.handle.clone()
    }

    /// Where its journal lies.
    pub fn instance_dir(&self) -> &Path {
        &self.instance_dir
    }

    /// Whether the loop has ended in a panic, which undid everything.
    pub fn has_panicked(&self) -> bool {
        self.panicked.load(Ordering::SeqCst)
    }

    /// Stops the loop and undoes everything. Returns what could not be undone.
    pub fn stop(mut self) -> Vec<ActError> {
        self.end()
    }

    fn end(&mut self) -> Vec<ActError> {
        self.handle.postbox.post(Request::Stop);
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
    /// Takes in a process that stands still before its `exec` of
    /// `adopt.argv`. Returns when it is seated.
    ///
    /// `asking`: the user who asks.
    ///
    /// # Errors
    /// There is no such process, it is not this user's, or managed already.
    pub fn adopt_held(&self, pid: i32, adopt: Adopt, asking: u32) -> Result<Adopted, EngineError> {
        let newcomer = self.look(pid, adopt, true, asking)?;
        self.bring(None, newcomer)
    }

    /// Takes in a running program: this process and all below it. Returns
    /// when it is seated.
    ///
    /// # Errors
    /// As [`Self::adopt_held`]; a kernel thread, Usher itself or an ancestor
    /// of it.
    pub fn attach(&self, pid: i32, adopt: Adopt, asking: u32) -> Result<Adopted, EngineError> {
        let newcomer = self.look(pid, adopt, false, asking)?;
        self.bring(None, newcomer)
    }

    /// Launches a program as a child of this process, inside its cgroups from
    /// its first instruction on, and holds it short of its `exec`. It is
    /// seated when this returns.
    ///
    /// # Errors
    /// It cannot be launched or managed; nothing of it is left then.
    pub fn launch(&self, spec: &LaunchSpec, adopt: Adopt) -> Result<(Held, Adopted), EngineError> {
        self.bear(adopt, |home| {
            let held = hold_in(spec, Some(home))?;
            Ok((held.pid(), held))
        })
    }

    /// The same for a command that is run again and again in its seats.
    ///
    /// # Errors
    /// As [`Self::launch`].
    pub fn launch_repeating(
        &self,
        spec: &LaunchSpec,
        adopt: Adopt,
    ) -> Result<(Repeater, Adopted), EngineError> {
        self.bear(adopt, |home| {
            let repeater = repeat_in(spec, Some(home))?;
            Ok((repeater.pid(), repeater))
        })
    }

    /// A program has completed its work once, in so many seconds. May be said
    /// a little after its end.
    ///
    /// # Errors
    /// It is not managed, or not this user's.
    pub fn repeated(&self, id: ProgramId, seconds: f64, asking: u32) -> Result<(), EngineError> {
        self.postbox.ask(|reply| Request::Repeated {
            id,
            seconds,
            asking,
            reply,
        })
    }

    /// Lets a program go: what was done to it is undone.
    ///
    /// # Errors
    /// It is not managed, not this user's, or something could not be undone.
    pub fn let_go(&self, id: ProgramId, asking: u32) -> Result<(), EngineError> {
        self.postbox
            .ask(|reply| Request::LetGo { id, asking, reply })
    }

    /// The program that a process is part of, which may be any process of its
    /// tree; `None` where it is not managed.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn program_of(&self, pid: i32) -> Result<Option<ProgramId>, EngineError> {
        self.postbox.ask(|reply| Request::ProgramOf { pid, reply })
    }

    /// Forbids seats, with the reason, or allows them again (`None`). Returns when
    /// the loop has released the seats that it had given.
    pub fn set_seating(&self, forbidden: Option<String>) {
        self.postbox.post(Request::Seating { forbidden });
        // The first answer may precede the turn that releases, the second one
        // follows it. A loop that has stopped has released all seats.
        let _ = self.topology().and_then(|_| self.topology());
    }

    /// The machine as it is planned for.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn topology(&self) -> Result<Topology, EngineError> {
        self.postbox.ask(Request::Topology)
    }

    /// What is managed, where it sits and how it does.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn status(&self) -> Result<Status, EngineError> {
        self.postbox.ask(Request::Status)
    }

    /// Who sat where: entries from number `since` on, and the number to go on
    /// from.
    ///
    /// # Errors
    /// The engine has been stopped.
    pub fn log(&self, since: usize) -> Result<(Vec<LogEntry>, usize), EngineError> {
        self.postbox.ask(|reply| Request::Log { since, reply })
    }

    /// Makes a home, has a child born in it, and takes that in. Where that
    /// fails the child is dropped, and so killed, before its home.
    fn bear<T>(
        &self,
        adopt: Adopt,
        birth: impl FnOnce(&PreparedHome) -> Result<(i32, T), LaunchError>,
    ) -> Result<(T, Adopted), EngineError> {
        let launcher = own_process(&self.roots.proc)?;
        let own = rustix::process::geteuid().as_raw();
        let work = match adopt.background {
            Some(_) => Work::Background,
            None => Work::Foreground,
        };
        let (id, home) = self.postbox.ask(|reply| Request::Prepare {
            launcher,
            work,
            reply,
        })?;
        let born = birth(&home).map_err(EngineError::from);
        let looked = born.and_then(|(pid, child)| Ok((self.look(pid, adopt, true, own)?, child)));
        match looked {
            Ok((newcomer, child)) => Ok((child, self.bring(Some(id), newcomer)?)),
            Err(error) => {
                self.postbox.post(Request::Abandon(id));
                Err(error)
            }
        }
    }

    fn look(
        &self,
        pid: i32,
        adopt: Adopt,
        held: bool,
        asking: u32,
    ) -> Result<Newcomer, EngineError> {
        Newcomer::look(&self.roots.proc, pid, adopt, held, &self.profiles, asking)
    }

    fn bring(
        &self,
        prepared: Option<ProgramId>,
        newcomer: Newcomer,
    ) -> Result<Adopted, EngineError> {
        let newcomer = Box::new(newcomer);
        self.postbox.ask(|reply| Request::Adopt {
            prepared,
            newcomer,
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
    // One that a crash has left says why it came to that.
    if path.is_file() {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".old");
        std::fs::rename(path, aside).map_err(|error| failed(error.into()))?;
    }
    let file = std::fs::File::create(path).map_err(Into::into);
    let recorder = file.and_then(|file| Recorder::new(std::io::BufWriter::new(file), &head));
    recorder.map_err(failed)
}

fn start_keeper(
    config: &EngineConfig,
    instance_dir: &Path,
) -> Result<Option<KeeperHandle>, EngineError> {
    let Some(command) = &config.keeper else {
        return Ok(None);
    };
    let task = KeeperTask {
        master: own_process(&config.roots.proc)?,
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

/// The loop's thread, from its first turn to the last undo. A policy that
/// panics ends the loop, not the undoing.
fn turn_until_stopped(
    policy: Box<dyn Policy + Send>,
    world: RealWorld,
    remake: Option<&Remake>,
    panicked: &AtomicBool,
) -> Vec<ActError> {
    let promptly = prompt::run_promptly();
    let mut control = ControlLoop::new(policy, world);
    let turned = catch_unwind(AssertUnwindSafe(|| {
        if let Err(errno) = promptly {
            control.world().warn_of_delays(errno);
        }
        control.world().read_usable();
        control.world().unseat_all();
        control.run();
        while control.world().has_outgrown() {
            if let Some(policy) = control.world().grow(remake) {
                control.replace_policy(policy);
            }
            control.run();
        }
    }));
    panicked.store(turned.is_err(), Ordering::SeqCst);
    let (_, mut world) = control.into_parts();
    world.unseat_all();
    world.actuator.undo_all()
}
