// SPDX-License-Identifier: GPL-2.0-only
//! The daemon: manages programs at the request of clients, until a signal or a failure ends it.
//!
//! 1. Read the configuration file (`rules`). Lock the runtime directory and listen on the socket
//!    (`listen`).
//! 2. Start the thread that loads and holds the sched_ext scheduler (`scheduler`).
//! 3. Start the engine: the control loop, which acts on programs on a thread of its own, and its
//!    keeper.
//! 4. Claim the machine (`claim`), which usually takes at most 3 s. While another daemon holds the
//!    claim, this daemon gives no seats.
//! 5. Start the threads of `--exit-when-idle` (`idle`) and `--metrics` (`metrics`).
//! 6. Serve the socket in one thread that never blocks on a peer (`server`); other threads answer
//!    the calls (`workers`).
//! 7. At SIGTERM, SIGINT, a request (`usher daemon stop`) or a failure, undo all changes, unload the
//!    scheduler and release the lock.
//!
//! An error in one of the steps 1 to 6 ends the daemon with exit status 125; the changes so far are
//! undone. Step 7 has no time limit of its own. A change that cannot be undone is printed.
//!
//! All messages go to the log (`logging`), and so do the events of the control loop (`events`).
//!
//! When the control loop ends, the daemon ends, too. If the daemon ends without having undone its
//! changes, its keeper undoes them and becomes the next daemon; under systemd, systemd starts the
//! next daemon.

mod abstention;
mod activity;
mod alternatives;
mod attach;
mod claim;
mod connection;
mod copies;
mod events;
mod explain;
mod fixed_seats;
mod hints;
mod idle;
mod listen;
mod logging;
pub mod metrics;
pub mod own_process;
mod quota;
mod refusal;
mod regulated;
pub mod rules;
pub mod scheduler;
mod server;
mod service;
mod signals;
mod view;
mod workers;

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, bail};
use log::LevelFilter;
use rustix::event::{EventfdFlags, eventfd};
use signal_hook::consts::{SIGINT, SIGTERM};
use usher_act::ActConfig;
use usher_host::engine::{Engine, EngineConfig, KeeperCommand, PolicyFactory, ProfileUse};
use usher_model::Topology;

use crate::autostart::STARTER_WARNING;
use crate::failure;
use crate::machine::usable_machine;
use crate::runtime;
use activity::Activity;
use listen::{DaemonSocket, SocketNames};
pub use logging::LOG_LEVELS;
use metrics::{Address, Timings};
use rules::DaemonSettings;
use rules::file::ConfigFile;
use rules::reload::Reloader;
use scheduler::{ConfiguredScheduler, SchedulerContext, SchedulerControl, SchedulerThread};
use service::ServiceContext;

/// Upper limit of the time for which a daemon waits for the end of another daemon.
const LOCK_WAIT: Duration = Duration::from_secs(5);

/// The default of the level of messages that are logged.
const LOG_LEVEL: LevelFilter = LevelFilter::Info;

/// The configuration of a daemon.
#[derive(Debug, Clone)]
pub struct Config {
    /// The directory of the socket, the lock and the journal.
    pub runtime_dir: PathBuf,
    /// The policy's name; `None`: that of the configuration file, or else the default.
    pub policy: Option<String>,
    /// The configuration file, if it is not at its default path.
    pub config_file: Option<PathBuf>,
    /// The address of the metrics, if they are served.
    pub metrics: Option<Address>,
    /// The file into which the control loop writes its record, if any.
    pub record: Option<PathBuf>,
    /// The profile store.
    pub store: PathBuf,
    /// Thresholds for background work, if they differ from the machine's own.
    pub thresholds: Option<PathBuf>,
    /// Further services that do not count as foreground.
    pub ignore: Vec<String>,
    /// The lowest level of messages that are logged; `None`: that of the configuration file, or else
    /// [`LOG_LEVEL`].
    pub log_level: Option<LevelFilter>,
    /// Whether the policy varies the seats of known programs in order to measure them; `None`: as
    /// the configuration file states, or else yes.
    pub variation: Option<bool>,
    /// Whether the daemon ends when it manages no program and no scheduler is needed any more.
    pub exit_when_idle: bool,
}

/// Serves until SIGTERM, SIGINT or a request ends the daemon, then undoes everything.
///
/// # Errors
/// Another daemon runs, or a requirement is missing.
pub fn run(config: &Config) -> anyhow::Result<()> {
    logging::start(config.log_level.unwrap_or(LOG_LEVEL))?;
    if config.exit_when_idle {
        logging::stamp_lines();
    }
    let served = serve(config);
    if let Err(error) = &served {
        // The caller does not print this error, because standard error is the same log.
        if config.exit_when_idle {
            log::error!("{}", failure::line(error));
        }
    }
    logging::flush();
    // From now on, messages are printed by the main thread.
    log::set_max_level(LevelFilter::Off);
    served
}

fn serve(config: &Config) -> anyhow::Result<()> {
    let given = &config.absolute();
    let file = rules::file::load(given.config_file.as_deref())?;
    let config = &given.with(&file.daemon);
    log::set_max_level(config.log_level.unwrap_or(LOG_LEVEL));
    if std::env::var_os(usher_act::keeper::SHORT_LIFE_COUNT).is_some() {
        events::log_restart();
    }
    let ending = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("making an eventfd")?);
    signals::catch(&ending, &[SIGTERM, SIGINT]).context("catching signals")?;
    raise_descriptor_limit()?;
    let listening =
        DaemonSocket::start(&config.runtime_dir, SocketNames::DAEMON, config.lock_wait())?;
    let topology = usable_machine()?;
    let cores = topology.cores.len();
    let scheduler = SchedulerThread::start(&config.runtime_dir, scheduler::kernel(), None)?;
    let keeper = keeper_command(given)?;
    let engine = start_engine(config, topology, scheduler.control(), keeper, &ending)?;
    claim_machine(&engine)?;
    let reloader = start_reloader(given, file, cores, &engine, scheduler.control())
        .context("starting a thread")?;
    reloader.reload_at_sighup().context("catching SIGHUP")?;
    let shared = ServiceContext {
        engine: engine.handle(),
        scheduler: scheduler_context(config, &engine, scheduler.control()),
        timings: Timings::default(),
        instance_dir: engine.instance_dir().to_owned(),
        store: config.store.clone(),
        exits_when_idle: config.exit_when_idle,
        ending: ending.clone(),
        activity: Activity::default(),
        reloader,
    };
    if config.exit_when_idle {
        let (engine, activity) = (engine.handle(), shared.activity.clone());
        idle::watch(
            engine,
            scheduler.control().clone(),
            activity,
            ending.clone(),
        )
        .context("starting a thread")?;
    }
    let address = config.metrics.as_ref();
    let served_metrics = address.map(|address| serve_metrics(address, &shared));
    // The socket file is removed at the end of the daemon.
    let _metrics_file = served_metrics.transpose()?;
    let make_service = Box::new(move |peer| service::for_peer(&shared, peer));
    let server = server::spawn(&listening, make_service, &ending)?;
    logging::stamp_lines();
    log::info!(
        "the daemon listens at {} and runs the policy {}",
        listening.path().display(),
        config.policy()
    );
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Ready]);
    if config.exit_when_idle {
        report_to_starter(&engine);
        close_output();
    }
    let served = server.join();
    let _ = sd_notify::notify(&[sd_notify::NotifyState::Stopping]);
    undo_all(engine, scheduler, listening)?;
    match served {
        Ok(result) => result.context("serving the socket"),
        Err(_) => bail!("the thread that serves the socket has panicked"),
    }
}

/// Puts the contents of the configuration file in force.
fn start_reloader(
    given: &Config,
    file: ConfigFile,
    cores: usize,
    engine: &Engine,
    scheduler: &SchedulerControl,
) -> io::Result<Reloader> {
    // A daemon that a command started ends with its last program.
    let is_service = rustix::process::geteuid().is_root() && !given.exit_when_idle;
    let configured = ConfiguredScheduler::new(scheduler.clone(), scheduler::kernel(), is_service)?;
    let config_file = given.config_file.clone();
    Reloader::start(config_file, file, cores, engine.handle(), configured)
}

/// Reports a profile store that cannot be used to the command that started this daemon.
fn report_to_starter(engine: &Engine) {
    if let Some(warning) = engine.store_warning() {
        let line = failure::line(&anyhow::anyhow!("{warning}"));
        // The command may have ended. The warning is also logged.
        let _ = writeln!(io::stdout(), "{STARTER_WARNING}{line}");
    }
}

/// Replaces standard output, the pipe to the command that started this daemon, by `/dev/null`.
fn close_output() {
    let null = std::fs::OpenOptions::new().write(true).open("/dev/null");
    // An error is ignored: the pipe then stays open, and has no reader when the command has ended.
    let _ = null.map(|null| rustix::stdio::dup2_stdout(&null));
}

/// Undoes all changes, unloads the scheduler, and then releases the lock, so that another daemon
/// can start.
fn undo_all(
    engine: Engine,
    scheduler: SchedulerThread,
    listening: DaemonSocket,
) -> anyhow::Result<()> {
    // After the removal of the socket, no program can register.
    listening.remove_socket();
    let panicked = engine.has_panicked();
    let left = engine.stop();
    // The engine has released all soft seats, so that the scheduler can end.
    drop(scheduler);
    drop(listening);
    for error in &left {
        log::error!("{}", failure::line(&anyhow::anyhow!("{error}")));
    }
    if left.is_empty() {
        events::log_undo();
    }
    anyhow::ensure!(
        !panicked,
        "the control loop panicked, and its changes are undone"
    );
    Ok(())
}

impl Config {
    /// Returns the configuration with absolute paths, because the keeper starts the next daemon in
    /// the directory `/`.
    fn absolute(&self) -> Self {
        let absolute = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone());
        Self {
            runtime_dir: absolute(&self.runtime_dir),
            policy: self.policy.clone(),
            config_file: self.config_file.as_ref().map(absolute),
            metrics: self.metrics.as_ref().map(|address| match address {
                Address::Unix(path) => Address::Unix(absolute(path)),
                Address::Loopback(_) => address.clone(),
            }),
            record: self.record.as_ref().map(absolute),
            store: absolute(&self.store),
            thresholds: self.thresholds.as_ref().map(absolute),
            ignore: self.ignore.clone(),
            log_level: self.log_level,
            variation: self.variation,
            exit_when_idle: self.exit_when_idle,
        }
    }

    /// Returns the time for which this daemon waits for the end of another daemon of the same
    /// directory. A daemon that a command starts may replace an idle daemon that is just ending.
    fn lock_wait(&self) -> Duration {
        match self.exit_when_idle {
            true => LOCK_WAIT,
            false => Duration::ZERO,
        }
    }

    /// Returns the configuration with the settings of the file, over which options of the command
    /// line take precedence. Services to ignore are added.
    fn with(&self, file: &DaemonSettings) -> Self {
        let mut config = self.clone();
        config.policy = config.policy.or_else(|| file.policy.clone());
        config.metrics = config.metrics.or_else(|| file.metrics.clone());
        config.thresholds = config.thresholds.or_else(|| file.thresholds.clone());
        config.log_level = config.log_level.or(file.log_level);
        config.variation = config.variation.or(file.variation);
        config.ignore.extend(file.ignore.iter().cloned());
        config
    }

    /// Returns the name of the policy.
    fn policy(&self) -> &str {
        self.policy.as_deref().unwrap_or("usher")
    }

    /// Returns the command line by which the keeper starts the next daemon with the same
    /// configuration.
    fn command_line(&self, exe: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![exe.into(), "daemon".into()];
        let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
        option("--runtime-dir", self.runtime_dir.clone().into());
        option("--store", self.store.clone().into());
        if let Some(policy) = &self.policy {
            option("--policy", policy.into());
        }
        if let Some(path) = &self.config_file {
            option("--config", path.clone().into());
        }
        if let Some(path) = &self.thresholds {
            option("--thresholds", path.clone().into());
        }
        for name in &self.ignore {
            option("--ignore", name.into());
        }
        if let Some(path) = &self.record {
            option("--record", path.clone().into());
        }
        if let Some(level) = self.log_level {
            option("--log-level", level.as_str().to_lowercase().into());
        }
        if self.exit_when_idle {
            words.push("--exit-when-idle".into());
        }
        let mut option = |name: &str, value: OsString| words.extend([name.into(), value]);
        match &self.metrics {
            Some(Address::Unix(path)) => {
                let mut text = OsString::from("unix:");
                text.push(path);
                option("--metrics", text);
            }
            Some(Address::Loopback(address)) => option("--metrics", address.to_string().into()),
            None => {}
        }
        words
    }
}

fn start_engine(
    config: &Config,
    topology: Topology,
    scheduler: &SchedulerControl,
    keeper: KeeperCommand,
    ending: &Arc<OwnedFd>,
) -> anyhow::Result<Engine> {
    let thresholds = runtime::thresholds(config.thresholds.as_deref(), &config.store)?;
    let name = config.policy().to_owned();
    let policy = usher_policy::by_name_with(&name, &topology, thresholds)
        .with_context(|| format!("this version of usher has no policy '{name}'"))?;
    let make_policy = move || {
        let topology = usable_machine().map_err(|error| failure::line(&error))?;
        let policy = usher_policy::by_name_with(&name, &topology, thresholds);
        let policy =
            policy.ok_or_else(|| format!("this version of usher has no policy '{name}'"))?;
        Ok((topology, policy))
    };
    let mut settings = EngineConfig::new(topology, ActConfig::new(&config.runtime_dir));
    settings.profiles = ProfileUse {
        store: Some(config.store.clone()),
        correct: true,
        vary: config.variation.unwrap_or(true),
        ..ProfileUse::default()
    };
    settings.record = config.record.clone();
    settings.policy_factory = Some(PolicyFactory::new(make_policy));
    settings.ignore = config.ignore.clone();
    settings.soft = Some(scheduler::seats(scheduler::kernel(), scheduler.clone()));
    // Without its control loop, the daemon must end.
    settings.ended = Some(ending.clone());
    // No client requests a timeline from a daemon.
    settings.log_entries_max = 0;
    settings.changes = Some(events::start().context("starting a thread")?);
    settings.keeper = Some(keeper);
    settings.places_copies = config.policy() != "linux";
    Engine::start(settings, policy).context("starting the daemon")
}

/// Returns how to start the keeper of a daemon with these options.
fn keeper_command(given: &Config) -> anyhow::Result<KeeperCommand> {
    let exe = runtime::own_executable()?;
    // Under systemd, the keeper starts no daemon: `Restart=` of the unit does.
    let respawn = match std::env::var_os("NOTIFY_SOCKET") {
        Some(_) => Vec::new(),
        None => given.command_line(&exe),
    };
    Ok(KeeperCommand {
        exe,
        subcommand: vec!["keeper".into()],
        respawn,
    })
}

/// Returns the context of the interface `org.usher.Scheduler1`.
fn scheduler_context(
    config: &Config,
    engine: &Engine,
    scheduler: &SchedulerControl,
) -> SchedulerContext {
    let (engine, exit_when_idle) = (engine.handle(), config.exit_when_idle);
    SchedulerContext {
        scheduler: scheduler.clone(),
        exits: Arc::new(move || exit_when_idle && idle::manages_no_program(&engine)),
    }
}

/// Forbids the engine to give seats while another daemon holds the machine claim.
fn claim_machine(engine: &Engine) -> anyhow::Result<()> {
    let name = std::env::var(claim::CLAIM_NAME).unwrap_or_default();
    let engine = engine.handle();
    let changed = move |forbidden: Option<String>| {
        if let Some(reason) = &forbidden {
            log::warn!("Usher assigns no CPUs to programs: {reason}");
        }
        engine.set_seating(forbidden);
    };
    claim::Claim::new(&name)
        .and_then(|claim| claim.follow(changed))
        .context("claiming this machine's CPUs")
}

fn serve_metrics(
    address: &Address,
    shared: &ServiceContext,
) -> anyhow::Result<Option<metrics::SocketFile>> {
    let shared = shared.clone();
    let page = move || metrics::page(&shared.engine.status().ok()?, &shared.timings).ok();
    metrics::serve(address, Box::new(page)).with_context(|| format!("serving metrics at {address}"))
}

/// The daemon needs more descriptors than this number even without programs.
const DESCRIPTORS_MIN: u64 = 64;

/// Raises the limit of descriptors to the maximum: a connection and a few files are needed per
/// program.
///
/// # Errors
/// The maximum is too low for a daemon, which could then accept no connections.
fn raise_descriptor_limit() -> anyhow::Result<()> {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // If this fails, the present limit applies.
    let _ = setrlimit(Resource::Nofile, limit);
    let limit = getrlimit(Resource::Nofile).current;
    anyhow::ensure!(
        limit.is_none_or(|limit| limit >= DESCRIPTORS_MIN),
        "the limit of open files is {}, and a daemon needs at least {DESCRIPTORS_MIN}: raise the \
         limit (ulimit -n)",
        limit.unwrap_or_default()
    );
    Ok(())
}
