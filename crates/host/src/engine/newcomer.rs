// SPDX-License-Identifier: MIT OR Apache-2.0
//! Finding out, in the asker's thread, what can be known of a program before
//! the loop hears of it: reading an executable's build id takes its time, and
//! the loop has none.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use usher_model::{CpuSet, ProcessId, Program, ProgramId, ProgramKey, ProgressSource};
use usher_probe::{Command, ProcessFacts, command_of, identify};

use super::config::{Adopt, EngineError};
use super::profiles::Profiles;
use crate::launch::LaunchSpec;

/// Words of a command line that are kept for people.
const COMMAND_BYTES_MAX: usize = 512;

/// A program that is about to be taken in.
#[derive(Debug)]
pub(super) struct Newcomer {
    pub root: ProcessId,
    pub uid: u32,
    pub command: String,
    pub heartbeat: Option<PathBuf>,
    pub key: Option<ProgramKey>,
    /// Its number is put in by the loop.
    pub program: Program,
    /// Sources of progress that earlier runs showed to misjudge it.
    pub misleading: Vec<ProgressSource>,
    /// It stands still before its `exec`.
    pub held: bool,
}

/// What `/proc` says of a process.
struct Facts {
    comm: String,
    root: ProcessId,
    uid: u32,
    allowed: Option<CpuSet>,
}

impl Newcomer {
    /// Looks at the process; `held`: it stands still before its `exec`.
    pub fn look(
        proc_root: &Path,
        pid: i32,
        adopt: Adopt,
        held: bool,
        profiles: &Profiles,
    ) -> Result<Self, EngineError> {
        let name = adopt.display_name();
        if !(adopt.weight.is_finite() && adopt.weight > 0.0) {
            let weight = adopt.weight;
            return Err(EngineError::Weight { name, weight });
        }
        let facts = Facts::read(proc_root, pid)?;
        let command = command(proc_root, pid, &adopt, held);
        let named = adopt.name.is_some() || !adopt.argv.is_empty();
        let name = if named { name } else { facts.comm };
        let key = adopt.key.or_else(|| identify(command.as_ref()?).ok());
        let known = key.as_ref().map(|key| profiles.recall(key));
        let known = known.unwrap_or_default();
        let bound_to = match (facts.allowed, adopt.bound_to) {
            (Some(a), Some(b)) => Some(a.and(&b)),
            (a, b) => a.or(b),
        };
        Ok(Self {
            root: facts.root,
            uid: facts.uid,
            command: words(&adopt.argv, command.as_ref()),
            heartbeat: adopt.heartbeat,
            key,
            program: Program {
                id: ProgramId(0),
                name,
                weight: adopt.weight,
                profile: known.curve,
                spinners: known.spinners,
                active_wait: known.active_wait,
                ran_before: !held,
                stops_unseen: false,
                llc_bytes: known.llc_bytes,
                bandwidth_gbps: known.bandwidth_gbps,
                background: adopt.background,
                bound_to,
            },
            misleading: known.misleading,
            held,
        })
    }

    /// Whether this user may have it managed.
    pub fn check_owner(&self, asking: u32) -> Result<(), EngineError> {
        match asking == 0 || asking == self.uid {
            true => Ok(()),
            false => Err(EngineError::NotYours {
                pid: self.root.pid,
                owner: self.uid,
                asking,
            }),
        }
    }
}

impl Facts {
    fn read(proc_root: &Path, pid: i32) -> Result<Self, EngineError> {
        let facts = match ProcessFacts::read(proc_root, pid) {
            Ok(facts) if pid > 0 && !facts.has_ended => facts,
            Err(error) if !error.is_gone() => return Err(error.into()),
            _ => return Err(EngineError::Gone { pid }),
        };
        if facts.is_kernel_thread {
            return Err(EngineError::KernelThread { pid });
        }
        Ok(Self {
            comm: facts.name,
            root: facts.id,
            uid: facts.uids[0],
            allowed: Some(facts.cpus_allowed),
        })
    }
}

/// The command that the process runs or is about to run; `None` where that
/// cannot be found out.
fn command(proc_root: &Path, pid: i32, adopt: &Adopt, held: bool) -> Option<Command> {
    let running = command_of(proc_root, pid);
    if !held {
        return running.ok();
    }
    let (directory, environment) = match running {
        Ok(running) => (running.directory, running.environment),
        Err(_) => (PathBuf::from("/"), BTreeMap::new()),
    };
    let directory = adopt.cwd.clone().unwrap_or(directory);
    let environment: BTreeMap<OsString, OsString> =
        environment.into_iter().chain(adopt.env.clone()).collect();
    let mut spec = LaunchSpec::new(&adopt.argv);
    spec.cwd = Some(directory.clone());
    let path = environment.get(&OsString::from("PATH")).cloned();
    spec.env = [("PATH".into(), path)].into();
    let found = spec.resolve().ok()?;
    Some(Command {
        executable: directory.join(found),
        arguments: adopt.argv.iter().skip(1).cloned().collect(),
        directory,
        environment,
    })
}

/// The command line for people.
fn words(argv: &[OsString], command: Option<&Command>) -> String {
    let given = argv.iter().map(|word| word.to_string_lossy());
    let mut text = given.collect::<Vec<_>>().join(" ");
    if let (true, Some(command)) = (argv.is_empty(), command) {
        let executable = command.executable.to_string_lossy();
        let arguments = command.arguments.iter().map(|word| word.to_string_lossy());
        text = std::iter::once(executable)
            .chain(arguments)
            .collect::<Vec<_>>()
            .join(" ");
    }
    if text.len() > COMMAND_BYTES_MAX {
        let cut = (0..=COMMAND_BYTES_MAX)
            .rev()
            .find(|&at| text.is_char_boundary(at));
        text.truncate(cut.unwrap_or(0));
        text.push('…');
    }
    text
}
