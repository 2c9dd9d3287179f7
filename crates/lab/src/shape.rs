// SPDX-License-Identifier: MIT OR Apache-2.0
//! A described machine as the emulator can build it.
//!
//! QEMU builds regular machines only: so many packages, in each so many dies,
//! in each so many cores, in each so many hardware threads, numbered in that
//! order. Its one shared cache is an L3, and each die has one. So whatever a
//! description makes a domain (an L3, a NUMA node) becomes a die of the guest,
//! and a machine that would need another cut is refused.

use usher_model::{CpuSet, Topology};
use usher_topology::Source;

use crate::LabError;

/// The most CPUs of a guest: what an interrupt controller without x2APIC
/// addresses.
pub const CPUS_MAX: usize = 255;

/// A regular machine, large to small.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// Packages of the machine.
    pub packages: usize,
    /// Dies of a package; the cores of a die share an L3.
    pub dies: usize,
    /// Cores of a die.
    pub cores: usize,
    /// Hardware threads of a core.
    pub threads: usize,
    /// The CPUs of each NUMA node.
    pub nodes: Vec<CpuSet>,
}

impl Shape {
    /// The machine that one line describes: `package:4 die:2 core:6 pu:1`.
    ///
    /// # Errors
    /// One line that names the description and what is wrong with it.
    pub fn parse(description: &str) -> Result<Self, LabError> {
        // What is no description is said to be none, not taken for a file.
        let source = match Source::parse(description)? {
            Source::Synthetic(text) => Source::Synthetic(text),
            _ => {
                return Err(LabError::shape(
                    description,
                    "it is a file, not a description",
                ));
            }
        };
        let topology = usher_topology::load(source)?;
        Self::of(&topology).map_err(|reason| LabError::shape(description, reason))
    }

    /// The machine as QEMU would build it.
    fn of(machine: &Topology) -> Result<Self, String> {
        let cpus = machine.cpus.len();
        if cpus > CPUS_MAX {
            return Err(format!(
                "it has {cpus} CPUs, a guest has at most {CPUS_MAX}"
            ));
        }
        let dies = dies(machine)?;
        let sizes = |name, sets: Vec<&CpuSet>| in_order(name, cpus, &sets);
        let of_package = sizes(
            "packages",
            machine.packages.iter().map(|p| &p.cpus).collect(),
        )?;
        let of_domain = sizes("dies", machine.domains.iter().map(|d| &d.cpus).collect())?;
        let of_core = sizes("cores", machine.cores.iter().map(|c| &c.cpus).collect())?;
        let nodes: Vec<CpuSet> = machine.nodes.iter().map(|n| n.cpus.clone()).collect();
        in_order("NUMA nodes", cpus, &nodes.iter().collect::<Vec<_>>())?;
        debug_assert_eq!(of_package, of_domain * dies);
        Ok(Self {
            packages: machine.packages.len(),
            dies,
            cores: of_domain / of_core,
            threads: of_core,
            nodes,
        })
    }

    /// Logical CPUs of the whole machine.
    pub fn cpus(&self) -> usize {
        self.packages * self.dies * self.cores * self.threads
    }
}

/// Dies of a package: as many as it has domains.
fn dies(machine: &Topology) -> Result<usize, String> {
    let domains = machine.packages.iter().map(|p| p.domains.len());
    let dies = domains.clone().next().unwrap_or(1);
    if domains.clone().any(|others| others != dies) {
        return Err("its packages are not alike".to_owned());
    }
    for package in &machine.packages {
        let described = package.dies.len();
        if described > 1 && described != dies {
            return Err(format!(
                "a guest's dies have one L3 cache each: {described} dies with {dies} shared caches \
                 cannot be built; ask for die:{dies} alone"
            ));
        }
    }
    Ok(dies)
}

/// How many CPUs each of the parts has, which must be the same for all, and
/// the CPUs numbered from the first part to the last.
fn in_order(name: &str, cpus: usize, parts: &[&CpuSet]) -> Result<usize, String> {
    let size = parts.first().map_or(0, |first| first.len());
    if parts.iter().any(|part| part.len() != size) || size * parts.len() != cpus {
        return Err(format!("its {name} are not alike"));
    }
    let ordered = parts.iter().enumerate().all(|(at, part)| {
        let first = (at * size) as u32;
        **part == CpuSet::range(first, first + size as u32 - 1)
    });
    match ordered {
        true => Ok(size),
        false => Err(format!("the CPUs of its {name} are not numbered in order")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(text: &str) -> [usize; 5] {
        let shape = Shape::parse(text).unwrap();
        let Shape {
            packages,
            dies,
            cores,
            threads,
            nodes,
        } = shape;
        [packages, dies, cores, threads, nodes.len()]
    }

    #[test]
    fn what_shares_a_cache_becomes_a_die() {
        assert_eq!(shape("package:4 die:2 core:6 pu:1"), [4, 2, 6, 1, 1]);
        assert_eq!(shape("package:2 l3:2 core:2 pu:2"), [2, 2, 2, 2, 1]);
        assert_eq!(shape("package:1 numa:2 core:4"), [1, 2, 4, 1, 2]);
        assert_eq!(shape("package:2 die:2 l3:1 core:3 pu:1"), [2, 2, 3, 1, 1]);
        assert_eq!(shape("core:4"), [1, 1, 4, 1, 1]);
        assert_eq!(shape("package:4 [numa:1] die:2 core:6"), [4, 2, 6, 1, 4]);
        assert_eq!(shape("package:255"), [255, 1, 1, 1, 1]);
    }

    #[test]
    fn nodes_have_their_cpus() {
        let shape = Shape::parse("package:2 [numa:1] core:2 pu:2").unwrap();
        assert_eq!(shape.nodes, [CpuSet::range(0, 3), CpuSet::range(4, 7)]);
        assert_eq!(shape.cpus(), 8);
    }

    #[test]
    fn says_what_cannot_be_built() {
        for (text, reason) in [
            ("package:256", "256 CPUs, a guest has at most 255"),
            ("package:1 die:2 l3:2 core:2", "ask for die:4 alone"),
            (
                "package:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)",
                "not numbered in order",
            ),
            ("core:0", "the level 'core:0' asks for none"),
            ("/", "not a description"),
            ("/nowhere", "no such file"),
            ("", "names no level"),
        ] {
            let said = Shape::parse(text).unwrap_err().to_string();
            assert!(said.contains(reason), "{text}: {said}");
            assert!(!said.contains('\n'), "{said}");
        }
    }
}
