// SPDX-License-Identifier: MIT OR Apache-2.0
//! The state that the control loop keeps for background work: the meter, the states of the
//! background programs, and the foreground processes that a stopped background program blocks. The
//! meter is open only while there is background work.
//!
//! The costs are bounded by minimum intervals, which grow with the duration of a reading:
//!
//! - CPU times are read at most every 15 ms. The interval is 600 times the CPU time of a reading,
//!   but at most 1 s.
//! - The search for blocked processes uses at most 1/1000 of a CPU, but is made at least once a
//!   second. Two searches are at least 500 ms apart, or 100 ms while a process is blocked.
//! - Device names are read at most every 50 ms, and only if a name is missing.
//! - After a sample, notifications of the meter are ignored for 5 ms.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::os::fd::BorrowedFd;

use usher_meter::{DeviceNames, Meter, MeterConfig, NotifyOn, OwnerClass};
use usher_model::{
    BackgroundState, BlockedProcess, Decision, Metering, ProcessTree, ProgramId, Regulation,
    Resource, SampleScope,
};

use super::clock::thread_cpu_ns;
use super::on_demand_meter::OnDemandMeter;

/// Minimum interval between readings of CPU times, which visit every thread of the machine.
const CPU_NS_MIN: u64 = 15_000_000;
/// The interval is this multiple of the CPU time of a reading, between [`CPU_NS_MIN`] and
/// [`CPU_NS_MAX`]. Below the maximum interval, readings use at most a sixth of a percent of a CPU.
const CPU_INTERVAL_RATIO: u64 = 600;
/// Maximum interval between readings of CPU times. The measured CPU time of a reading contains time
/// that a hypervisor takes from a virtual machine, and may be long. Without new CPU times,
/// background work is not stopped.
const CPU_NS_MAX: u64 = 1_000_000_000;
/// Time by which the reading of CPU times must be overdue for a sample after a notification to
/// include it. Other samples after notifications skip the CPU times.
const CPU_OVERDUE_NS: u64 = 50_000_000;
/// Time after a sample for which notifications are ignored. Background work that the policy permits
/// to run at the same time as the foreground would otherwise cause notifications all the time.
const NOTIFY_HOLDOFF_NS: u64 = 5_000_000;
/// The interval between searches for blocked processes is at least this multiple of the duration of
/// a search. A search reads the state of every thread, and the descriptors of processes with
/// threads that wait for pipes or sockets.
const BLOCKED_INTERVAL_RATIO: u64 = 1000;
/// Maximum interval between searches for blocked processes, which limits the time for which a
/// process stays blocked.
const BLOCKED_NS_MAX: u64 = 1_000_000_000;
/// Minimum interval between readings of device names, which are read when a name is missing.
const NAMES_INTERVAL_NS: u64 = 50_000_000;
/// Minimum interval between searches for blocked processes while no process is blocked.
const BLOCKED_NS: u64 = 500_000_000;
/// Minimum interval between searches for blocked processes while a process is blocked.
const BLOCKED_SOON_NS: u64 = 100_000_000;

/// The state kept for background work.
#[derive(Debug, Default)]
pub(super) struct BackgroundMetering {
    meter: OnDemandMeter,
    /// The scope of the next sample, as decided by the policy.
    scope: SampleScope,
    /// Whether the next sample is due.
    pub due: bool,
    /// Whether the meter has sent a notification, for contention on a device, a run-queue imbalance
    /// or a vacant CPU, or was opened.
    pub notified: bool,
    pub states: BTreeMap<ProgramId, BackgroundState>,
    /// Earliest time of the next reading of CPU times.
    cpu_due_ns: u64,
    blocked: Vec<BlockedProcess>,
    /// Earliest time of the next search for blocked processes.
    blocked_due_ns: u64,
    /// Time of the last sample.
    sampled_ns: u64,
    names: DeviceNames,
    names_ns: u64,
}

impl BackgroundMetering {
    /// Adds a program to the meter; starts to open the meter for the first program (see
    /// [`OnDemandMeter::add`]). Returns warnings.
    pub fn add_program(
        &mut self,
        config: &MeterConfig,
        home: &ProcessTree,
        notify: impl FnOnce() + Send + 'static,
    ) -> Vec<String> {
        self.meter.add(config, home, notify)
    }

    /// Uses the meter from now on if it has been opened since the last call. Returns warnings.
    pub fn take_opened_meter(&mut self) -> Vec<String> {
        let opened = self.meter.take_opened();
        self.notified |= opened.is_some();
        opened.unwrap_or_default()
    }

    /// Removes a program; closes the meter after the last program.
    pub fn remove_program(&mut self, id: ProgramId, is_last: bool) {
        self.states.remove(&id);
        self.blocked.retain(|one| one.blocked_by != id);
        match is_last {
            true => self.meter.close(),
            false => self.meter.remove(id),
        }
    }

    /// Stores a decision of the policy, and configures the events for which the meter sends
    /// notifications.
    pub fn decided(&mut self, decision: &Decision) {
        self.scope = decision.scope;
        for state in decision.background_states.iter().flatten() {
            let reason_text = state
                .reason_text
                .as_ref()
                .map(|why| self.with_device_names(why));
            let state = BackgroundState {
                reason_text,
                ..state.clone()
            };
            self.states.insert(state.program, state);
        }
        let events = NotifyOn {
            imbalances: self.is_some_under_usher(|_| true),
            vacancies: self.waits_for_cpus(),
        };
        if let Some(meter) = self.meter.get_mut() {
            meter.notify_on(events);
        }
    }

    fn is_some_under_usher(&self, that: impl Fn(&BackgroundState) -> bool) -> bool {
        let mut states = self.states.values();
        states.any(|one| one.regulation == Regulation::Usher && that(one))
    }

    /// Returns whether a stopped program may continue when a CPU becomes idle.
    fn waits_for_cpus(&self) -> bool {
        self.is_some_under_usher(|one| {
            let reason = one.reason.as_ref();
            !one.running && reason.is_some_and(|reason| reason.resource == Resource::Cpu)
        })
    }

    /// Returns whether the next sample covers every program.
    pub fn wants_all(&self) -> bool {
        self.scope == SampleScope::All && (self.due || !self.notified)
    }

    /// Returns a descriptor that is readable while a notification is pending.
    pub fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        self.meter.get()?.notify_fd()
    }

    /// Returns the time before which notifications of the meter are ignored. Returns `None` if
    /// notifications are not needed, because no program under the policy `usher` runs or waits for
    /// a CPU.
    pub fn notify_from_ns(&self) -> Option<u64> {
        let needed = self.is_some_under_usher(|one| one.running) || self.waits_for_cpus();
        needed.then_some(self.sampled_ns + NOTIFY_HOLDOFF_NS)
    }

    /// Samples the meter. The sample includes CPU times if their next reading is due. After a
    /// notification, which requires a quick answer, CPU times are included only if they are overdue
    /// by 50 ms.
    pub fn sample(&mut self, at_ns: u64) -> Option<Metering> {
        let is_urgent = std::mem::take(&mut self.notified);
        let overdue_ns = if is_urgent { CPU_OVERDUE_NS } else { 0 };
        let thorough = self.cpu_due_ns + overdue_ns <= at_ns;
        self.sampled_ns = at_ns;
        let begun_ns = thread_cpu_ns();
        let metering = self.meter.get_mut()?.sample(at_ns, thorough);
        if thorough {
            let took_ns = thread_cpu_ns().saturating_sub(begun_ns);
            self.cpu_due_ns = at_ns + cpu_interval_ns(took_ns);
        }
        Some(metering)
    }

    /// Returns the foreground processes that a stopped program blocked at the last search.
    pub fn blocked(&self) -> Vec<BlockedProcess> {
        self.blocked.clone()
    }

    /// Returns whether a search for blocked processes is due.
    pub fn is_search_due(&self, at_ns: u64) -> bool {
        self.blocked_due_ns <= at_ns
    }

    /// Stores the result of a search for blocked processes, which took `took_ns` of CPU time.
    pub fn searched(&mut self, at_ns: u64, took_ns: u64, blocked: Vec<BlockedProcess>) {
        let pause_ns = match blocked.is_empty() {
            true => BLOCKED_NS,
            false => BLOCKED_SOON_NS,
        };
        self.blocked_due_ns =
            at_ns + (took_ns * BLOCKED_INTERVAL_RATIO).clamp(pause_ns, BLOCKED_NS_MAX);
        self.blocked = blocked;
    }

    /// Returns the foreground process that recently used a resource most.
    pub fn top_process(&mut self, resource: Resource) -> Option<String> {
        let processes = self.meter.get_mut()?.top_processes(resource);
        let mut foreground = processes
            .iter()
            .filter(|process| process.owner == OwnerClass::Foreground);
        let process = foreground.next()?;
        Some(format!("{} (process {})", process.comm, process.pid))
    }

    /// Returns the text of a resource, with the machine's name of the device.
    pub fn name_of(&mut self, resource: Resource) -> String {
        self.with_device_names(&resource.to_string())
    }

    /// Replaces device numbers in a sentence of the policy by the machine's names.
    pub fn with_device_names(&mut self, sentence: &str) -> String {
        let named = with_names(sentence, &self.names);
        if named.is_ok() || self.sampled_ns < self.names_ns + NAMES_INTERVAL_NS {
            return named.unwrap_or_else(|partly| partly);
        }
        self.names_ns = self.sampled_ns;
        self.names = self.meter.get().map(Meter::names).unwrap_or_default();
        with_names(sentence, &self.names).unwrap_or_else(|partly| partly)
    }
}

/// Returns the interval between a reading of CPU times, which took `took_ns` of CPU time, and the
/// next reading.
fn cpu_interval_ns(took_ns: u64) -> u64 {
    let interval_ns = took_ns.saturating_mul(CPU_INTERVAL_RATIO);
    interval_ns.clamp(CPU_NS_MIN, CPU_NS_MAX)
}

/// Replaces device numbers by names, after the words "disk" and "interface".
///
/// # Errors
/// If a name is unknown, the error is the sentence with only the known names replaced.
fn with_names(sentence: &str, names: &DeviceNames) -> Result<String, String> {
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

#[cfg(test)]
mod tests {
    use usher_model::{DiskId, LinkId};

    use super::*;

    #[test]
    fn a_long_reading_delays_the_next_one_by_a_second_at_most() {
        assert_eq!(cpu_interval_ns(10_000), 15_000_000);
        assert_eq!(cpu_interval_ns(1_000_000), 600_000_000);
        assert_eq!(cpu_interval_ns(245_000_000), 1_000_000_000);
        assert_eq!(cpu_interval_ns(u64::MAX), 1_000_000_000);
    }

    #[test]
    fn known_device_numbers_become_names() {
        let disk = DiskId {
            major: 254,
            minor: 0,
        };
        let names = DeviceNames {
            disks: BTreeMap::from([(disk, "vda".to_owned())]),
            links: BTreeMap::from([(LinkId(1), "eth0".to_owned())]),
        };
        for (sentence, named) in [
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
            assert_eq!(with_names(sentence, &names), named);
        }
    }
}
