// SPDX-License-Identifier: MIT OR Apache-2.0
//! Makes the key of a kind of machine, under which profiles are stored. The key is a readable text
//! that describes the structure of the machine. Machines of equal structure have the same key,
//! because the key contains neither CPU numbers nor the machine's name.
//!
//! Equal parts are counted and sorted by their text, so that their order does not matter. The cost
//! is proportional to the number of cores, times the logarithm of the number of different parts.
//! The length is proportional to the number of different parts.

use schemars::JsonSchema;
use std::collections::BTreeMap;
use std::fmt::Write;

use usher_model::{DomainId, Topology};

/// The structure of a machine, as a text such as `2 x [Intel Xeon; 8 x 6 cores/2 cpus, L3 32768
/// KiB]`. Profiles are valid on machines of equal structure. The text contains neither CPU numbers
/// nor the machine's name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, JsonSchema)]
pub struct MachineKey(String);

impl MachineKey {
    /// Returns the structure of a topology, including its restriction to some CPUs.
    pub fn of(topology: &Topology) -> Self {
        let packages = topology.packages.iter().map(|package| {
            let model = package.model.as_deref().unwrap_or("unknown").trim();
            let domains = package.domains.iter().map(|&d| domain(topology, d));
            format!("[{model}; {}]", counted(domains))
        });
        Self(counted(packages))
    }

    /// Returns the text that is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn from_stored(text: String) -> Self {
        Self(text)
    }
}

impl std::fmt::Display for MachineKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

fn domain(topology: &Topology, id: DomainId) -> String {
    let domain = &topology.domains[id];
    let cores = domain.cores.iter().map(|&core| {
        let core = &topology.cores[core];
        let mut text = format!("cores/{} cpus", core.cpus.len());
        if core.capacity < 1.0 {
            // Writing to a String cannot fail.
            let _ = write!(text, " of {:.2}", core.capacity);
        }
        text
    });
    match domain.llc {
        Some(llc) => format!(
            "{}, L{} {} KiB",
            counted(cores),
            llc.level,
            llc.bytes / 1024
        ),
        None => counted(cores),
    }
}

/// Formats `3 x this + 1 x that`, sorted by text.
fn counted(parts: impl Iterator<Item = String>) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for part in parts {
        *counts.entry(part).or_default() += 1;
    }
    let texts: Vec<String> = counts
        .iter()
        .map(|(part, count)| format!("{count} x {part}"))
        .collect();
    texts.join(" + ")
}

#[cfg(test)]
mod tests {
    use usher_model::{Cache, Core, Cpu, CpuSet, Domain, NumaNode, Package};

    use super::*;

    /// Returns a machine of one package. Each element of `domains` has the capacities of the cores
    /// of one LLC domain.
    fn machine(domains: &[&[f64]], name: &str) -> Topology {
        let mut cores = Vec::new();
        let mut built = Vec::new();
        for (d, capacities) in domains.iter().enumerate() {
            let first = cores.len();
            for &capacity in *capacities {
                let cpus = CpuSet::single(cores.len() as u32);
                cores.push(Core {
                    cpus,
                    domain: d,
                    capacity,
                });
            }
            built.push(Domain {
                cpus: CpuSet::range(first as u32, cores.len() as u32 - 1),
                cores: (first..cores.len()).collect(),
                package: 0,
                nodes: vec![0],
                llc: Some(Cache {
                    level: 3,
                    bytes: 1 << 20,
                }),
            });
        }
        let all = CpuSet::range(0, cores.len() as u32 - 1);
        Topology {
            name: name.to_owned(),
            cpus: (0..cores.len())
                .map(|core| Cpu {
                    os: core as u32,
                    core,
                })
                .collect(),
            packages: vec![Package {
                cpus: all.clone(),
                domains: (0..built.len()).collect(),
                model: Some("Some CPU".to_owned()),
                dies: vec![all.clone()],
            }],
            nodes: vec![NumaNode {
                os: 0,
                cpus: all,
                bytes: 0,
            }],
            cores,
            domains: built,
        }
    }

    #[test]
    fn machines_built_alike_share_a_key_whatever_their_names() {
        let one = MachineKey::of(&machine(&[&[1.0, 1.0], &[1.0, 1.0]], "a"));
        let other = MachineKey::of(&machine(&[&[1.0, 1.0], &[1.0, 1.0]], "b"));
        assert_eq!(one, other);
        assert_eq!(
            one.as_str(),
            "1 x [Some CPU; 2 x 2 x cores/1 cpus, L3 1024 KiB]"
        );
    }

    #[test]
    fn another_shape_is_another_key() {
        let shapes: [&[&[f64]]; 4] = [
            &[&[1.0, 1.0], &[1.0, 1.0]],
            &[&[1.0, 1.0, 1.0, 1.0]],
            &[&[1.0, 1.0], &[1.0, 0.5]],
            &[&[1.0, 1.0]],
        ];
        let keys: std::collections::BTreeSet<MachineKey> =
            shapes.map(|s| MachineKey::of(&machine(s, "m"))).into();
        assert_eq!(keys.len(), shapes.len());
    }
}
