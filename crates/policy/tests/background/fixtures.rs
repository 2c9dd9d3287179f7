// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fixtures of the background tests: a machine, an arriving program and an empty meter reading with
//! default values.

use std::collections::BTreeMap;

use usher_model::*;

pub fn topology(cpus: u32) -> Topology {
    let all = CpuSet::range(0, cpus - 1);
    let cores: Vec<_> = (0..cpus as usize).collect();
    let core = |c: u32| Core {
        cpus: CpuSet::single(c),
        domain: 0,
        capacity: 1.0,
    };
    Topology {
        name: "little".to_owned(),
        cpus: (0..cpus)
            .map(|os| Cpu {
                os,
                core: os as usize,
            })
            .collect(),
        cores: (0..cpus).map(core).collect(),
        domains: vec![Domain {
            cpus: all.clone(),
            cores,
            package: 0,
            nodes: vec![0],
            llc: None,
        }],
        packages: vec![Package {
            cpus: all.clone(),
            domains: vec![0],
            model: None,
            dies: vec![all.clone()],
        }],
        nodes: vec![NumaNode {
            os: 0,
            cpus: all,
            bytes: 0,
        }],
    }
}

/// A program as it arrives.
pub fn program(id: u64, background: Option<Regulation>) -> Program {
    Program {
        id: ProgramId(id),
        name: format!("p{id}"),
        weight: 1.0,
        profile: None,
        profile_match: ProfileMatch::Exact,
        spinners: 0,
        active_wait: None,
        ran_before: false,
        stops_unseen: true,
        cpu_quota: None,
        cores: None,
        variation: None,
        llc_bytes: None,
        bandwidth_gbps: None,
        background,
        bound_to: None,
        pinned_to: None,
    }
}

pub fn no_metering(cpus: u32) -> Metering {
    Metering {
        source: MeterSource::Bpf,
        cpus,
        idle_ns: 0,
        cpu_read_ns: 0,
        rq_imbalances: 0,
        idle_cpus: None,
        foreground: Usage::default(),
        ignored: Usage::default(),
        background: BTreeMap::new(),
        blocked: vec![],
    }
}
