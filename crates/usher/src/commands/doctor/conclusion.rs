// SPDX-License-Identifier: GPL-2.0-only
//! The conclusion of `usher doctor`: what the features of this machine permit, in one sentence,
//! and the actions that would permit more.
//!
//! [`conclude`] is a pure function of the facts. A program gains from a seat for one of four
//! reasons: it keeps a cache for itself (several LLC domains), it does not wait for threads that
//! do not run (busy-waiting programs), it runs fewer threads than compete for CPUs
//! (oversubscription), or the scheduler reclaims CPUs from background work.

use schemars::JsonSchema;
use serde::Serialize;

/// The facts on which the conclusion depends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MachineFacts {
    /// Number of last-level-cache domains with a usable CPU.
    pub llc_domains: usize,
    /// Number of usable CPUs.
    pub cpus: usize,
    /// Whether instructions can be counted.
    pub pmu: bool,
    /// Number of stored profiles; 0 without a readable store.
    pub profiles: usize,
    /// Whether the kernel supports sched_ext.
    pub sched_ext: bool,
    /// Whether BPF programs may be loaded.
    pub bpf: bool,
    /// Whether cgroups can be created.
    pub cgroups: bool,
}

/// The conclusion.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Conclusion {
    /// What to expect of Usher on this machine.
    pub expect: String,
    /// Actions that improve the result, the most useful first.
    pub remedies: Vec<String>,
}

/// Draws the conclusion.
pub fn conclude(facts: &MachineFacts) -> Conclusion {
    let domains = match facts.llc_domains {
        1 => "1 LLC domain".to_owned(),
        n => format!("{n} LLC domains"),
    };
    let progress = match (facts.pmu, facts.profiles) {
        (true, _) => "a PMU",
        (false, 0) => "no PMU",
        (false, _) => "no PMU, but profiles",
    };
    Conclusion {
        expect: format!("{domains}, {progress}: {}", gains(facts)),
        remedies: remedies(facts),
    }
}

fn gains(facts: &MachineFacts) -> &'static str {
    if facts.cpus < 2 {
        return "with a single CPU, expect no gain from seats; background work still yields";
    }
    let plans_most = facts.pmu || facts.profiles > 0;
    match (facts.llc_domains > 1, plans_most) {
        (true, true) => {
            "expect gains for programs that use the caches, busy-wait or are oversubscribed"
        }
        (true, false) => {
            "expect gains only for programs with a profile or heartbeats; other programs share \
             all CPUs"
        }
        (false, true) => {
            "expect gains only from spinning or oversubscribed programs, because all CPUs share \
             one cache"
        }
        (false, false) => "expect gains only from spinning or oversubscribed programs",
    }
}

fn remedies(facts: &MachineFacts) -> Vec<String> {
    let mut remedies = Vec::new();
    let mut add = |needed: bool, text: &str| {
        if needed {
            remedies.push(text.to_owned());
        }
    };
    let plans = facts.cpus > 1;
    add(
        plans && !facts.pmu && facts.profiles == 0,
        "run 'usher profile -- CMD' once for each program that ends by itself and often runs \
         beside others: without a PMU, an unknown program gets no seat until undisturbed runs \
         have shown that the bytes that it reads and writes measure its progress",
    );
    add(
        facts.sched_ext && !facts.bpf,
        "run 'usher sched start' as root: this kernel has sched_ext, and this user may not load a \
         scheduler",
    );
    add(
        !facts.bpf,
        "run the daemon as root (or with CAP_BPF and CAP_PERFMON): background work then yields \
         within milliseconds",
    );
    add(
        !facts.cgroups,
        "start programs in a cgroup of this user ('systemd-run --user --scope'): without a \
         cgroup, programs are stopped and accounted process by process",
    );
    remedies
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLOUD: MachineFacts = MachineFacts {
        llc_domains: 1,
        cpus: 2,
        pmu: false,
        profiles: 0,
        sched_ext: false,
        bpf: true,
        cgroups: true,
    };

    #[test]
    fn a_small_virtual_machine_gains_only_from_spinning_programs() {
        let found = conclude(&CLOUD);
        assert_eq!(
            found.expect,
            "1 LLC domain, no PMU: expect gains only from spinning or oversubscribed programs"
        );
        assert_eq!(found.remedies.len(), 1);
        assert!(found.remedies[0].contains("usher profile"));
    }

    #[test]
    fn profiles_replace_a_pmu() {
        let facts = MachineFacts {
            llc_domains: 8,
            profiles: 3,
            ..CLOUD
        };
        let found = conclude(&facts);
        assert_eq!(
            found.expect,
            "8 LLC domains, no PMU, but profiles: expect gains for programs that use the caches, \
             busy-wait or are oversubscribed"
        );
        assert_eq!(found.remedies, [""; 0]);
    }

    #[test]
    fn a_single_cpu_promises_no_gain() {
        let facts = MachineFacts { cpus: 1, ..CLOUD };
        let found = conclude(&facts);
        assert!(found.expect.contains("expect no gain"), "{}", found.expect);
        assert_eq!(found.remedies, [""; 0], "a profile would not help");
    }

    #[test]
    fn each_missing_feature_has_a_remedy() {
        let bare = MachineFacts {
            sched_ext: true,
            bpf: false,
            cgroups: false,
            ..CLOUD
        };
        assert_eq!(conclude(&bare).remedies.len(), 4);
        let complete = MachineFacts { pmu: true, ..CLOUD };
        assert!(conclude(&complete).remedies.is_empty());
    }

    #[test]
    fn every_machine_has_a_conclusion_that_names_its_domains() {
        for bits in 0..64_usize {
            let bit = |n: usize| bits >> n & 1 == 1;
            let facts = MachineFacts {
                llc_domains: 1 + usize::from(bit(0)),
                cpus: 2,
                pmu: bit(1),
                profiles: usize::from(bit(2)),
                sched_ext: bit(3),
                bpf: bit(4),
                cgroups: bit(5),
            };
            let found = conclude(&facts);
            let domains = if bit(0) {
                "2 LLC domains"
            } else {
                "1 LLC domain,"
            };
            assert!(found.expect.starts_with(domains), "{}", found.expect);
            assert!(found.expect.contains("expect"), "{}", found.expect);
        }
    }
}
