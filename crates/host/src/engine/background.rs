// SPDX-License-Identifier: MIT OR Apache-2.0
//! Background work in the real world: the meter, which is open while there is
//! any, and who waits for what a stopped program holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use procfs::FromRead;
use procfs::process::Stat;
use usher_meter::{Meter, MeterConfig, Names, Party, Wanted, held_up};
use usher_model::{
    BackgroundState, BlockedProcess, Decision, Metering, ProcessTree, ProgramId, Regulation,
    Resource, SampleScope,
};

use super::status::BackgroundStatus;
use super::world::{RealWorld, thread_cpu_ns};

/// CPU times cost a look at every thread of the machine: not more often...
const CPU_NS_MIN: u64 = 15_000_000;
/// ... and apart by so many times what a look took, for a sixth of a percent of a CPU.
const CPU_PAUSES: u64 = 600;
/// ... but for this long after they were due no hurry counts.
const CPU_LATE_NS: u64 = 50_000_000;
/// The bell is not heard sooner after a look: whoever runs on although the
/// foreground is there would have it ring all the time.
const DEAF_NS: u64 = 5_000_000;
/// Looking who waits costs a look at every thread, and at every descriptor where
/// some wait in pipes or sockets: apart by so many times what it took...
const WAITERS_PAUSES: u64 = 1000;
/// ... but no further than this: somebody may be held up.
const WAITERS_NS_MAX: u64 = 1_000_000_000;
/// The machine's names for devices are read again, where one is missing, no more
/// often than this.
const NAMES_NS: u64 = 50_000_000;
/// A program that is stopped for less than this holds nobody up yet.
const HOLDING_NS: u64 = 200_000_000;
/// Whether somebody waits is looked at so often, and so while somebody does.
const WAITERS_NS: u64 = 500_000_000;
const WAITERS_SOON_NS: u64 = 100_000_000;

/// What is kept for background work.
#[derive(Debug, Default)]
pub(super) struct Background {
    meter: Option<Meter>,
    /// What the policy wants to see next.
    scope: SampleScope,
    /// Whether its time has come.
    pub due: bool,
    /// Foreground has touched what background work uses, or its CPUs are crowded, or
    /// idle.
    pub rang: bool,
    pub states: BTreeMap<ProgramId, BackgroundState>,
    /// When CPU times may be read again.
    cpu_due_ns: u64,
    waiters: Vec<BlockedProcess>,
    /// When it may be looked again who waits.
    waiters_due_ns: u64,
    /// When the meter was last looked at.
    looked_ns: u64,
    names: Names,
    names_ns: u64,
}

impl Background {
    /// Meters one more program; opens the meter for the first.
    pub fn arrive(&mut self, config: &MeterConfig, home: &ProcessTree) -> Vec<String> {
        let first = self.meter.is_none();
        let meter = self.meter.get_or_insert_with(|| Meter::open(config));
        let managed = meter.manage(home.program, home.cgroup.as_deref(), home.root);
        let reasons = meter.reasons().into_iter().filter(|_| first);
        reasons
            .chain(managed.err().map(|error| error.to_string()))
            .collect()
    }

    /// Forgets a program; closes the meter after the last.
    pub fn depart(&mut self, id: ProgramId, is_last: bool) {
        self.states.remove(&id);
        self.waiters.retain(|one| one.blocked_by != id);
        if is_last {
            self.meter = None;
        } else if let Some(meter) = &mut self.meter {
            meter.forget(id);
        }
    }

    /// Takes note of what the policy says.
    pub fn decided(&mut self, decision: &Decision) {
        self.scope = decision.scope;
        for state in decision.background_states.iter().flatten() {
            let reason_text = state.reason_text.as_ref().map(|why| self.in_names(why));
            let state = BackgroundState {
                reason_text,
                ..state.clone()
            };
            self.states.insert(state.program, state);
        }
        let wanted = Wanted {
            crowds: self.is_some_under_usher(|_| true),
            vacancies: self.waits_for_cpus(),
        };
        if let Some(meter) = &mut self.meter {
            meter.ring_for(wanted);
        }
    }

    fn is_some_under_usher(&self, that: impl Fn(&BackgroundState) -> bool) -> bool {
        let mut states = self.states.values();
        states.any(|one| one.regulation == Regulation::Usher && that(one))
    }

    /// Whether a program is stopped that may go on when a CPU has become idle.
    fn waits_for_cpus(&self) -> bool {
        self.is_some_under_usher(|one| {
            let reason = one.reason.as_ref();
            !one.running && reason.is_some_and(|reason| reason.resource == Resource::Cpu)
        })
    }

    /// Whether the next look is to cover every program.
    pub fn wants_all(&self) -> bool {
        self.scope == SampleScope::All && (self.due || !self.rang)
    }

    /// Readable when there is something to look at at once.
    pub fn bell(&self) -> Option<BorrowedFd<'_>> {
        self.meter.as_ref()?.bell()
    }

    /// From when on the bell is to be heard; `None`: nobody runs who would be
    /// stopped at once, and nobody waits for a CPU.
    pub fn hears_from_ns(&self) -> Option<u64> {
        let hears = self.is_some_under_usher(|one| one.running) || self.waits_for_cpus();
        hears.then_some(self.looked_ns + DEAF_NS)
    }

    /// Looks at the meter; at CPU times too where that is not too soon and
    /// nobody is in a hurry.
    pub fn sample(&mut self, at_ns: u64) -> Option<Metering> {
        let hurry = std::mem::take(&mut self.rang);
        let patience_ns = if hurry { CPU_LATE_NS } else { 0 };
        let thorough = self.cpu_due_ns + patience_ns <= at_ns;
        self.looked_ns = at_ns;
        let begun_ns = thread_cpu_ns();
        let metering = self.meter.as_mut()?.sample(at_ns, thorough);
        if thorough {
            let took_ns = thread_cpu_ns().saturating_sub(begun_ns);
            self.cpu_due_ns = at_ns + CPU_NS_MIN.max(took_ns * CPU_PAUSES);
        }
        Some(metering)
    }

    /// Who waits for what a stopped program holds, as last seen.
    pub fn waiters(&self) -> Vec<BlockedProcess> {
        self.waiters.clone()
    }

    /// Who in the foreground has used a resource most of late.
    fn user_of(&mut self, resource: Resource) -> Option<String> {
        let users = self.meter.as_mut()?.top_users(resource);
        let mut foreground = users.iter().filter(|user| user.party == Party::Foreground);
        let user = foreground.next()?;
        Some(format!("{} (process {})", user.comm, user.pid))
    }

    /// What the machine calls a resource.
    fn name_of(&mut self, resource: Resource) -> String {
        self.in_names(&resource.to_string())
    }

    /// A sentence of the policy's, which knows devices by their numbers, with
    /// the machine's names for them.
    pub fn in_names(&mut self, sentence: &str) -> String {
        let named = with_names(sentence, &self.names);
        if named.is_ok() || self.looked_ns < self.names_ns + NAMES_NS {
            return named.unwrap_or_else(|partly| partly);
        }
        self.names_ns = self.looked_ns;
        self.names = self.meter.as_ref().map(Meter::names).unwrap_or_default();
        with_names(sentence, &self.names).unwrap_or_else(|partly| partly)
    }
}

/// Puts names in for the numbers that follow what they are numbers of.
///
/// # Errors
/// The sentence with those that are known, where some are not.
fn with_names(sentence: &str, names: &Names) -> Result<String, String> {
    let (mut before, mut all_known) = ("", true);
    let words = sentence.split(' ').map(|word| {
        let number = word.trim_end_matches(|c: char| c.is_ascii_punctuation());
        let name = match std::mem::replace(&mut before, word) {
            "disk" => name_of(number, &names.disks),
            "interface" => name_of(number, &names.links),
            _ => return word.to_owned(),
        };
        all_known &= name.is_some();
        name.map_or_else(|| word.to_owned(), |name| word.replacen(number, name, 1))
    });
    let named = words.collect::<Vec<_>>().join(" ");
    if all_known { Ok(named) } else { Err(named) }
}

fn name_of<'a, T: Display>(number: &str, names: &'a BTreeMap<T, String>) -> Option<&'a str> {
    let mut each = names.iter();
    let found = each.find(|(id, _)| id.to_string() == number)?;
    Some(found.1)
}

/// The Usher that launched a program and waits for it. What it was given it keeps
/// open (the pipe in `usher bg -- tar c /data | upload`), as shells do not.
fn launcher_of(proc: &Path, root: i32) -> Option<i32> {
    let parent = Stat::from_file(proc.join(root.to_string()).join("stat"));
    let parent = parent.ok()?.ppid;
    let executable = |pid: &str| fs::metadata(proc.join(pid).join("exe")).ok();
    let (own, theirs) = (executable("self")?, executable(&parent.to_string())?);
    let is_usher = (own.dev(), own.ino()) == (theirs.dev(), theirs.ino());
    is_usher.then_some(parent)
}

impl RealWorld {
    /// Has the meter tell a background program from foreground.
    pub(super) fn meter_program(&mut self, home: &ProcessTree) {
        let mut config = MeterConfig {
            proc: self.roots.proc.clone(),
            sys: self.roots.sys.clone(),
            ..MeterConfig::default()
        };
        config.ignore.extend(self.ignore.iter().cloned());
        for text in self.state.background.arrive(&config, home) {
            self.warn(text);
        }
    }

    /// How a program is regulated, where it is background work.
    pub(super) fn background_status(
        &mut self,
        id: ProgramId,
        at_ns: u64,
    ) -> Option<BackgroundStatus> {
        let member = self.state.members.get(&id)?;
        let regulation = member.program.background?;
        let background = &mut self.state.background;
        let state = background.states.get(&id).cloned();
        let since_ns = state.as_ref().map_or(member.arrived_ns, |one| one.since_ns);
        let resource = state
            .as_ref()
            .and_then(|one| Some(one.reason.as_ref()?.resource));
        let is_stopped = member.frozen;
        Some(BackgroundStatus {
            regulation,
            since_seconds: at_ns.saturating_sub(since_ns) as f64 * 1e-9,
            resource: resource.map(|resource| background.name_of(resource)),
            user: resource
                .filter(|_| is_stopped)
                .and_then(|resource| background.user_of(resource)),
            lacking: self.actuator.why_not_demoted(id).to_vec(),
            state,
        })
    }

    /// Looks who waits for what a stopped program holds, where one has been
    /// stopped for a while.
    pub(super) fn look_for_waiters(&mut self, at_ns: u64) {
        let background = &self.state.background;
        if background.waiters_due_ns > at_ns {
            return;
        }
        let is_stopped = |since: Option<u64>| since.is_some_and(|ns| ns + HOLDING_NS <= at_ns);
        let held_before: BTreeSet<_> = background
            .waiters
            .iter()
            .map(|one| one.blocked_by)
            .collect();
        let members = self.state.members.values();
        let suspects = members.filter(|member| {
            member.program.background.is_some()
                && (is_stopped(member.frozen_ns) || held_before.contains(&member.id()))
        });
        let proc = &self.roots.proc;
        let holders: BTreeMap<i32, ProgramId> = suspects
            .flat_map(|member| {
                let processes = self.actuator.processes(member.id()).into_iter();
                let launcher = launcher_of(proc, member.home.root.pid);
                processes.chain(launcher).map(|pid| (pid, member.id()))
            })
            .collect();
        let begun_ns = thread_cpu_ns();
        let waiters = match holders.is_empty() {
            true => Vec::new(),
            false => held_up(proc, &|pid| holders.get(&pid).copied()),
        };
        let took_ns = thread_cpu_ns().saturating_sub(begun_ns);
        let pause_ns = match waiters.is_empty() {
            true => WAITERS_NS,
            false => WAITERS_SOON_NS,
        };
        self.state.background.waiters_due_ns =
            at_ns + (took_ns * WAITERS_PAUSES).clamp(pause_ns, WAITERS_NS_MAX);
        self.state.background.waiters = waiters;
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};

    use usher_model::{DiskId, LinkId};

    use super::*;

    #[test]
    fn who_waits_for_its_own_child_is_its_launcher() {
        let shell = "sleep 60 & echo $!; exec cat";
        let mut child = std::process::Command::new("sh")
            .args(["-c", shell])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let grandchild: i32 = line.trim().parse().unwrap();
        let proc = Path::new("/proc");
        let own = std::process::id() as i32;
        assert_eq!(launcher_of(proc, child.id() as i32), Some(own));
        assert_eq!(
            launcher_of(proc, grandchild),
            None,
            "a shell is no launcher"
        );
        // SAFETY: ends the process that the shell above has started.
        unsafe { libc::kill(grandchild, libc::SIGKILL) };
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(launcher_of(proc, child.id() as i32), None);
    }

    #[test]
    fn numbers_of_devices_become_names_where_they_are_known() {
        let disk = DiskId {
            major: 254,
            minor: 0,
        };
        let names = Names {
            disks: BTreeMap::from([(disk, "vda".to_owned())]),
            links: BTreeMap::from([(LinkId(1), "eth0".to_owned())]),
        };
        for (told, named) in [
            (
                "uses disk 254:0 (1 requests",
                Ok("uses disk vda (1 requests"),
            ),
            (
                "disk 254:0 free, interface 12, 1 of 1",
                Err("disk vda free, interface 12, 1 of 1"),
            ),
            ("interface 1: 254:0", Ok("interface eth0: 254:0")),
            ("disk 254:16", Err("disk 254:16")),
            ("the CPUs", Ok("the CPUs")),
        ] {
            let named = named.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(with_names(told, &names), named);
        }
    }
}
