// SPDX-License-Identifier: MIT OR Apache-2.0
//! Parsers of the kernel's text files: cgroup files, `/proc/PID/status`, `/proc/stat`, pressure
//! files.
//!
//! Each parser returns `None` for malformed text; none panics or overflows. The time is linear in
//! the length of the text. Units: times in nanoseconds, ticks in clock ticks since boot, shares
//! from 0 to 1. Formats: `Documentation/filesystems/proc.rst`, `Documentation/accounting/psi.rst`,
//! `Documentation/admin-guide/cgroup-v2.rst`.

use std::collections::BTreeMap;

use usher_model::{CpuId, CpuSet};

/// The value of `key` in a flat keyed file (one "key value" per line).
pub(crate) fn keyed(text: &str, key: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| {
        let (k, v) = line.split_once(' ')?;
        (k == key).then_some(v)
    })?;
    value.trim().parse().ok()
}

/// Bytes read and written by a process through system calls, from its `io`.
pub(crate) fn io_bytes(text: &str) -> Option<u64> {
    keyed(text, "rchar:")?.checked_add(keyed(text, "wchar:")?)
}

/// CPU time of a cgroup in nanoseconds, from its `cpu.stat`.
pub(crate) fn cpu_stat_ns(text: &str) -> Option<u64> {
    keyed(text, "usage_usec")?.checked_mul(1000)
}

/// A pressure file: share of the last ten seconds (0..1), and totals.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Pressure {
    /// Share of the last ten seconds in which some task waited, 0..1.
    pub some_10s: f64,
    /// Nanoseconds in which some task waited.
    pub some_ns: u64,
    /// Nanoseconds in which all tasks waited; 0 if the kernel does not report this time.
    pub full_ns: u64,
}

/// Parses a pressure file.
pub(crate) fn pressure(text: &str) -> Option<Pressure> {
    let line = |kind: &str| text.lines().find_map(|l| l.strip_prefix(kind));
    let field = |line: &str, key: &str| {
        let mut words = line.split_whitespace();
        words.find_map(|w| Some(w.strip_prefix(key)?.to_owned()))
    };
    let some = line("some ")?;
    let total_ns = |line: &str| -> Option<u64> {
        let us: u64 = field(line, "total=")?.parse().ok()?;
        us.checked_mul(1000)
    };
    let percent: f64 = field(some, "avg10=")?.parse().ok()?;
    Some(Pressure {
        some_10s: percent.is_finite().then_some(percent / 100.0)?,
        some_ns: total_ns(some)?,
        full_ns: line("full ").and_then(total_ns).unwrap_or(0),
    })
}

/// Users, pids and permitted CPUs of a process, from `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub uids: [u32; 4],
    pub gid: u32,
    pub groups: Vec<u32>,
    pub numbers: Vec<i32>,
    pub cpus_allowed: CpuSet,
}

/// Parses the lines of `/proc/PID/status` about users, pids and permitted CPUs.
pub(crate) fn credentials(text: &str) -> Option<Credentials> {
    fn list<T: std::str::FromStr>(text: &str, key: &str) -> Option<Vec<T>> {
        let line = |l: &str| Some(l.strip_prefix(key)?.strip_prefix(':')?.to_owned());
        let words = text.lines().find_map(line)?;
        words.split_whitespace().map(|w| w.parse().ok()).collect()
    }
    let pid = list(text, "Pid");
    Some(Credentials {
        uids: list(text, "Uid")?.try_into().ok()?,
        gid: *list(text, "Gid")?.first()?,
        groups: list(text, "Groups").unwrap_or_default(),
        // The line is missing in kernels without pid namespaces.
        numbers: list(text, "NSpid").or(pid).unwrap_or_default(),
        cpus_allowed: list(text, "Cpus_allowed_list")?.pop()?,
    })
}

/// Thread group, permitted CPUs and context switches of a thread, from `/proc/PID/status`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Status {
    pub tgid: i32,
    pub cpus_allowed: CpuSet,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
}

/// Parses thread group, permitted CPUs and context switches in `/proc/PID/status`.
pub(crate) fn status(text: &str) -> Option<Status> {
    let value = |key: &str| {
        let mut lines = text.lines();
        lines.find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))
    };
    let number = |key: &str| value(key)?.trim().parse::<u64>().ok();
    Some(Status {
        tgid: value("Tgid")?.trim().parse().ok()?,
        cpus_allowed: value("Cpus_allowed_list")?.trim().parse().ok()?,
        voluntary_switches: number("voluntary_ctxt_switches")?,
        involuntary_switches: number("nonvoluntary_ctxt_switches")?,
    })
}

/// A task's `schedstat`: CPU time, time on a run queue, number of time slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SchedStat {
    pub cpu_ns: u64,
    pub queued_ns: u64,
    pub slices: u64,
}

/// Parses `/proc/PID/schedstat`.
pub(crate) fn sched_stat(text: &str) -> Option<SchedStat> {
    let mut numbers = text.split_whitespace().map(|w| w.parse::<u64>().ok());
    let mut next = || numbers.next().flatten();
    Some(SchedStat {
        cpu_ns: next()?,
        queued_ns: next()?,
        slices: next()?,
    })
}

/// CPU time by kind, in clock ticks since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuTicks {
    pub busy: u64,
    pub idle: u64,
    pub steal: u64,
}

/// Parses `/proc/stat`: the sum over all CPUs, and each online CPU.
pub(crate) fn machine_stat(text: &str) -> Option<(CpuTicks, BTreeMap<CpuId, CpuTicks>)> {
    let mut all = None;
    let mut each = BTreeMap::new();
    for line in text.lines() {
        let Some(rest) = line.strip_prefix("cpu") else {
            continue;
        };
        let (cpu, ticks) = rest.split_once(' ')?;
        let ticks = cpu_ticks(ticks)?;
        if cpu.is_empty() {
            all = Some(ticks);
        } else {
            each.insert(cpu.parse().ok()?, ticks);
        }
    }
    Some((all?, each))
}

/// Parses a CPU line, `user nice system idle iowait irq softirq steal`; guest time is included in
/// user.
fn cpu_ticks(text: &str) -> Option<CpuTicks> {
    let numbers: Vec<u64> = text
        .split_whitespace()
        .map_while(|w| w.parse().ok())
        .collect();
    let at = |i: usize| numbers.get(i).copied();
    let busy = [
        at(0)?,
        at(1)?,
        at(2)?,
        at(5).unwrap_or(0),
        at(6).unwrap_or(0),
    ];
    Some(CpuTicks {
        busy: busy.into_iter().try_fold(0u64, u64::checked_add)?,
        idle: at(3)?.checked_add(at(4).unwrap_or(0))?,
        steal: at(7).unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const STATUS: &str = "Name:\tx\nTgid:\t12\nCpus_allowed:\t3\nCpus_allowed_list:\t0-1\n\
                          voluntary_ctxt_switches:\t5\nnonvoluntary_ctxt_switches:\t7\n";

    #[test]
    fn reads_what_the_kernel_writes() {
        assert_eq!(cpu_stat_ns("usage_usec 12\nuser_usec 5\n"), Some(12_000));
        let text = "some avg10=17.50 avg60=4.66 avg300=1.43 total=13951559\n\
                    full avg10=0.00 avg60=0.00 avg300=0.00 total=3\n";
        let p = pressure(text).unwrap();
        assert_eq!(
            (p.some_10s, p.some_ns, p.full_ns),
            (0.175, 13_951_559_000, 3000)
        );
        let s = status(STATUS).unwrap();
        assert_eq!(
            (s.tgid, s.voluntary_switches, s.involuntary_switches),
            (12, 5, 7)
        );
        assert_eq!(s.cpus_allowed, CpuSet::range(0, 1));
        assert_eq!(sched_stat("5 6 7\n").unwrap().slices, 7);
    }

    #[test]
    fn sums_cpu_time_by_kind() {
        let text = "cpu  10 1 6 20 2 3 4 5 9 9\ncpu0 4 0 2 11 1 0 2 2 0 0\ncpu11 6 1 4 9 1 3 2 3 0 0\nintr 3\n";
        let (all, each) = machine_stat(text).unwrap();
        assert_eq!((all.busy, all.idle, all.steal), (24, 22, 5));
        assert_eq!(each.keys().copied().collect::<Vec<_>>(), [0, 11]);
    }

    /// Generates nearly valid texts, which consist of pieces of valid texts in random order.
    fn almost() -> impl Strategy<Value = String> {
        let piece = prop_oneof![
            Just("usage_usec ".to_owned()),
            Just("some avg10=".to_owned()),
            Just(" total=".to_owned()),
            Just("cpu".to_owned()),
            Just("1 (x) R ".to_owned()),
            Just(STATUS.to_owned()),
            Just("\n".to_owned()),
            any::<u64>().prop_map(|n| format!("{n} ")),
            any::<i64>().prop_map(|n| format!("{n} ")),
            "\\PC{0,6}",
            "[-+.eE0-9 ():,]{0,12}",
        ];
        prop::collection::vec(piece, 0..40).prop_map(|p| p.concat())
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in almost()) {
            let _ = cpu_stat_ns(&text);
            let _ = pressure(&text);
            let _ = credentials(&text);
            let _ = status(&text);
            let _ = sched_stat(&text);
            let _ = machine_stat(&text);
            let _ = keyed(&text, "populated");
        }

        #[test]
        fn a_cpu_stat_survives_a_round_trip(us in 0u64..u64::MAX / 1000, more: u64) {
            let text = format!("user_usec {more}\nusage_usec {us}\nsystem_usec {more}\n");
            prop_assert_eq!(cpu_stat_ns(&text), Some(us * 1000));
        }

        #[test]
        fn a_pressure_file_survives_a_round_trip(us in 0u64..u64::MAX / 1000, share in 0u32..=10_000) {
            let percent = f64::from(share) / 100.0;
            let text = format!("some avg10={percent:.2} avg60=0.00 avg300=0.00 total={us}\n");
            let p = pressure(&text).unwrap();
            prop_assert_eq!(p.some_ns, us * 1000);
            prop_assert!((p.some_10s - percent / 100.0).abs() < 1e-9);
        }

        #[test]
        fn a_status_survives_a_round_trip(name in "[^\n\r\\x0b\\x0c\u{85}\u{2028}\u{2029}]{0,15}", v: u64, n: u64) {
            let text = format!("Name:\t{name}\nTgid:\t7\nCpus_allowed_list:\t0,3-5\n\
                voluntary_ctxt_switches:\t{v}\nnonvoluntary_ctxt_switches:\t{n}\n");
            let s = status(&text).unwrap();
            prop_assert_eq!((s.voluntary_switches, s.involuntary_switches), (v, n));
        }
    }
}
